"""Two branches side by side: what they share, where they part, what each said and cost."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from hybridagi_steps.crossing import in_thread
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.sessions import SessionRepository

Line = str | tuple[str, int | None]
"""A session, or a session and one of its branches."""


@dataclass(frozen=True, slots=True)
class BranchSide:
    """One of two branches, from where they part."""

    session_id: str
    branch_id: int
    steps: list[Step]
    """Its messages after the last shared one."""
    metrics: RunMetrics
    """What they cost."""
    score: float | None
    """The mean score of its runs that have one."""

    @property
    def text(self) -> str:
        """What was said, a line for each message."""
        return "\n".join(f"{step.role.value}: {_text(step)}" for step in self.steps)

    @property
    def tokens(self) -> int | None:
        """Tokens of all its messages."""
        return self.metrics.total_tokens

    @property
    def cost(self) -> float | None:
        """US dollars, as the LM client reports them."""
        return self.metrics.cost


@dataclass(frozen=True, slots=True)
class BranchComparison:
    """Two branches side by side."""

    shared: int
    """The last sequence that both have."""
    left: BranchSide
    right: BranchSide

    @property
    def diff(self) -> str:
        """What differs, as a unified diff of the messages."""
        left, right = self.left.text.splitlines(), self.right.text.splitlines()
        return "\n".join(difflib.unified_diff(left, right, "left", "right", lineterm=""))


async def compare_branches(left: Line, right: Line, repo: SessionRepository) -> BranchComparison:
    """Compare two branches of one session, or two sessions of which one was forked.

    Args:
        left: A session id, or a session id and a branch id of `repo.attempts`.
        right: The other one.
        repo: The sessions.

    Raises:
        UnknownSessionError: No such session.
        SequenceConflictError: The branch is not one of the session.
    """
    return await in_thread(lambda: _compared(_named(left), _named(right), repo))


def _compared(
    left: tuple[str, int | None], right: tuple[str, int | None], repo: SessionRepository
) -> BranchComparison:
    lines = [_read(line, repo) for line in (left, right)]
    pairs = zip(lines[0][1], lines[1][1], strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, pairs))
    sides = [
        BranchSide(
            named[0],
            branch_id,
            steps[shared:],
            RunMetrics.of(*(s.metrics for s in steps[shared:] if s.metrics is not None)),
            _score(repo.memory, steps[shared:]),
        )
        for named, (branch_id, steps) in zip((left, right), lines, strict=True)
    ]
    return BranchComparison(shared, *sides)


def _read(line: tuple[str, int | None], repo: SessionRepository) -> tuple[int, list[Step]]:
    session_id, branch_id = line
    end = repo.store.session_end(session_id, branch_id=branch_id)
    return end.branch_id, repo.store.messages(session_id, branch_id=end.branch_id)


def _named(line: Line) -> tuple[str, int | None]:
    return (line, None) if isinstance(line, str) else line


def _score(memory: Any, steps: list[Step]) -> float | None:
    """Return the mean of what the runs behind these messages were scored."""
    if memory is None:
        return None
    runs = dict.fromkeys(step.run_id for step in steps if step.run_id)
    last_steps = [list(memory.run(run_id).steps)[-1:] for run_id in runs]
    scores = [found[0].score for found in last_steps if found and found[0].score is not None]
    return sum(scores) / len(scores) if scores else None


def _text(step: Step) -> str:
    calls = ", ".join(str(call.get("function", {}).get("name")) for call in step.tool_calls or [])
    said = step.content if isinstance(step.content, str) else ""
    return f"{said} [calls {calls}]".strip() if calls else said
