"""Two branches of a session side by side: what each said after they parted, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import fmean
from typing import NamedTuple, TypeVar

from hybridagi_steps.protocols import StoreBackend
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import Step, StepMetrics

N = TypeVar("N", int, float)


class BranchSide(NamedTuple):
    """What one branch has after the point where two part. None: nobody measured it."""

    branch_id: int
    steps: list[Step]
    """Its own messages."""
    text: str
    """What its assistant said, one message per paragraph."""
    input_tokens: int | None
    """Prompt tokens, all messages together."""
    output_tokens: int | None
    """Generated tokens, all messages together."""
    cost: float | None
    """US dollars, all messages together."""
    score: float | None
    """Mean score of the runs that made its messages; bigger is better."""


class BranchComparison(NamedTuple):
    """Two branches that begin alike."""

    shared: int
    """Messages they have in common, from the first on."""
    left: BranchSide
    right: BranchSide

    def __repr__(self) -> str:
        """Both as a table, cut to what fits."""
        sides = (self.left, self.right)
        named = ("input_tokens", "output_tokens", "cost", "score", "text")
        rows: list[list[object]] = [
            [f"after {self.shared} in common", *(f"branch {side.branch_id}" for side in sides)],
            ["messages", *(len(side.steps) for side in sides)],
            *([name.replace("_", " "), *(getattr(s, name) for s in sides)] for name in named),
        ]
        from hybridagi_steps.display.terminal import as_text, rows_table

        return as_text(rows_table(rows, whole=""))

    def _repr_html_(self) -> str:
        """Show them side by side in a notebook."""
        return f"<pre>{escape(repr(self))}</pre>"


def compare(store: StoreBackend, session_id: str, left: int, right: int) -> BranchComparison:
    """Compare two branches of a session."""
    lines = [store.messages(session_id, branch_id=branch) for branch in (left, right)]
    pairs = zip(*lines, strict=False)
    shared = next((n for n, (a, b) in enumerate(pairs) if a.id != b.id), min(map(len, lines)))
    sides = [
        _side(store, branch, line[shared:])
        for branch, line in zip((left, right), lines, strict=True)
    ]
    return BranchComparison(shared, *sides)


def _side(store: StoreBackend, branch_id: int, steps: list[Step]) -> BranchSide:
    metrics = [step.metrics for step in steps if step.metrics is not None]
    spoken = [step.content for step in steps if step.is_assistant_step()]
    return BranchSide(
        branch_id=branch_id,
        steps=steps,
        text="\n\n".join(text for text in spoken if isinstance(text, str)),
        input_tokens=_total(metrics, lambda one: one.input_tokens),
        output_tokens=_total(metrics, lambda one: one.output_tokens),
        cost=_total(metrics, lambda one: one.cost),
        score=_score(store, steps),
    )


def _total(metrics: Sequence[StepMetrics], figure: Callable[[StepMetrics], N | None]) -> N | None:
    known = [value for one in metrics if (value := figure(one)) is not None]
    return sum(known[1:], known[0]) if known else None


def _score(store: StoreBackend, steps: Iterable[Step]) -> float | None:
    """Return the mean over runs of the mean score of each run's AgentSteps."""
    means: list[float] = []
    for run_id in dict.fromkeys(step.run_id for step in steps if step.run_id):
        found = store.iter_steps(StepFilter(run_id=run_id, scope=EVERY_SCOPE))
        scores = [step.score for step in found if step.score is not None]
        if scores:
            means.append(fmean(scores))
    return fmean(means) if means else None
