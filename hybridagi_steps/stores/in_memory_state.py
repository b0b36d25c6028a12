"""What an in-memory store holds: steps by row, what is derived from them, and who follows whom.

Plain dictionaries and no lock; `in_memory.py` gives them a contract and a lock. Rows and sequence
numbers only grow, so dictionaries stay in row order. Runs and children are indexed, so that finding
a parent or a child never walks over all steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hybridagi_steps.protocols import FloatVector, Position, TextRow, VectorRow
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.revocation import Revocation
from hybridagi_steps.records.step_text import own_text, text_hash
from hybridagi_steps.session_protocols import BranchPosition
from hybridagi_steps.stores.body import decode_body
from hybridagi_steps.stores.in_memory_branches import OPEN_END, Branch, Branches


class Stored(NamedTuple):
    """A step as it is kept: for filters as a step, for readers as the body they get a copy of."""

    row: int
    id: str
    body: str
    step: AgentStep
    pin: BranchPosition | None = None
    """The message it works towards, when its session has messages."""

    @property
    def parent_id(self) -> str | None:
        """The parent's id as text."""
        return None if self.step.parent_id is None else id_text(self.step.parent_id)

    @property
    def owner(self) -> tuple[str | None, str | None]:
        """Whose step it is: the user and the scope."""
        return self.step.user_id, self.step.scope

    @property
    def place(self) -> tuple[int, int]:
        """Where the step stands in its run."""
        return self.step.hop, self.row


class RunScore(NamedTuple):
    """What was said about a run."""

    score: float
    feedback: str | None


class SavedText(NamedTuple):
    """Words with the sequence number that followers go by."""

    seq: int
    text: TextRow


class SavedVector(NamedTuple):
    """An embedding with the sequence number that followers go by."""

    seq: int
    vector: VectorRow


@dataclass
class State:
    """Everything a store holds; the numbers outlive `clear`."""

    epoch: int = 1
    last_row: int = 0
    last_text: int = 0
    last_vector: int = 0
    steps: dict[int, Stored] = field(default_factory=dict[int, Stored])
    rows: dict[str, int] = field(default_factory=dict[str, int])
    runs: dict[str, list[Stored]] = field(default_factory=dict[str, list[Stored]])
    children: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    run_scores: dict[str, RunScore] = field(default_factory=dict[str, RunScore])
    texts: dict[int, SavedText] = field(default_factory=dict[int, SavedText])
    vectors: dict[int, SavedVector] = field(default_factory=dict[int, SavedVector])
    stale: set[int] = field(default_factory=set[int])
    tombstones: list[int] = field(default_factory=list[int])
    sessions: Branches = field(default_factory=Branches)
    revocations: dict[str, Revocation] = field(default_factory=dict[str, Revocation])
    marks: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Ids of the steps that each revocation in force hides."""
    revoked_through: int = 0
    """What descends from a marked step and has a higher row is not marked yet."""
    revoked_moved: int = 0
    """How often steps were revoked or reinstated."""

    def cleared(self) -> State:
        """Return an empty state of the next epoch."""
        sessions = Branches(self.sessions.last_branch)
        kept = (self.epoch + 1, self.last_row, self.last_text, self.last_vector)
        return State(*kept, sessions=sessions)

    def position(self) -> Position:
        """Return how far a follower can follow."""
        moved = self.sessions.moved + self.revoked_moved
        return Position(self.epoch, self.last_text, self.last_vector, len(self.tombstones), moved)

    def add_step(
        self, step_id: str, body: str, step: AgentStep, *, pin: BranchPosition | None = None
    ) -> int:
        """Keep a step and the vector it brings; return its row.

        Without a `pin` it is pinned to the end of its session, if that has messages.
        """
        if pin is None and (session := self.sessions.sessions.get(step.session_id or "")):
            pin = session.branch.end._replace(sequence=session.branch.end.sequence + 1)
        row = self._add(step_id, body, pin).row
        if step.vector is not None:
            vector = np.asarray(step.vector, dtype=np.float32)
            self.save_vector(row, text_hash(own_text(step)), vector)
        return row

    def _add(self, step_id: str, body: str, pin: BranchPosition | None) -> Stored:
        self.last_row += 1
        stored = Stored(self.last_row, step_id, body, decode_body(body), pin)
        self.steps[stored.row] = stored
        self.rows[step_id] = stored.row
        if stored.step.run_id is not None:
            insort(self.runs.setdefault(stored.step.run_id, []), stored, key=_place)
        if stored.parent_id is not None:
            self.children.setdefault(stored.parent_id, []).append(stored.row)
        return stored

    def remove(self, rows: Iterable[int]) -> None:
        """Forget rows and what was derived from them, leaving tombstones."""
        gone = set(rows)
        shown = self._showing(gone)
        for row in sorted(gone):
            stored = self.steps.pop(row)
            del self.rows[stored.id]
            self.texts.pop(row, None)
            self.vectors.pop(row, None)
            self.stale.discard(row)
            self.tombstones.append(row)
            if (run_id := stored.step.run_id) is not None:
                run = self.runs[run_id]
                del run[bisect_left(run, stored.place, key=_place)]
            if stored.parent_id is not None:
                self.children[stored.parent_id].remove(row)
        for row in shown - gone:
            self.save_text(self.texts[row].text._replace(parent_row=None, tokens=""))
            self.stale.add(row)

    def _showing(self, gone: set[int]) -> set[int]:
        """Return the rows whose words show one of these: their children, others of their runs."""
        near = {child for row in gone for child in self.children.get(self.steps[row].id, [])}
        for run_id in {self.steps[row].step.run_id for row in gone} - {None}:
            near.update(other.row for other in self.runs[run_id or ""])
        texts = ((row, self.texts.get(row)) for row in near)
        return {row for row, saved in texts if saved and saved.text.parent_row in gone}

    def sweep(self, only: list[Branch] | None = None) -> tuple[int, int]:
        """Delete what no session reads of some branches, or of all; return messages and steps."""
        messages, kept = self.sessions.sweep(only)
        pinned = ((row, stored.pin) for row, stored in self.steps.items() if stored.pin)
        rows = [row for row, pin in pinned if pin.sequence > kept.get(pin.branch_id, OPEN_END)]
        self.remove(rows)
        self.remove_empty_runs()
        self.remove_marks()
        return messages, len(rows)

    def remove_marks(self) -> None:
        """Forget the marks of steps that are gone, and revocations that hide none any more."""
        for name, marks in list(self.marks.items()):
            marks &= self.rows.keys()
            if not marks:
                del self.marks[name], self.revocations[name]

    def remove_empty_runs(self) -> None:
        """Forget runs without steps and what was said about them."""
        for run_id in [run_id for run_id, run in self.runs.items() if not run]:
            del self.runs[run_id]
            self.run_scores.pop(run_id, None)

    def save_text(self, text: TextRow) -> bool:
        """Keep words, replacing older ones; return whether all they show is still there."""
        stored = self.steps.get(int(text.row))
        parent = text.parent_row
        if stored is None or (parent is not None and int(parent) not in self.steps):
            return False
        self.last_text += 1
        fresh = text._replace(row=stored.row, scoped=stored.step.scope is not None)
        self.texts[stored.row] = SavedText(self.last_text, fresh)
        self.stale.discard(stored.row)
        return True

    def save_vector(self, row: int, words: int, vector: FloatVector | None) -> None:
        """Keep an embedding, unless the step is gone or has one."""
        if row not in self.steps or row in self.vectors:
            return
        self.last_vector += 1
        kept = None if vector is None else np.array(vector, dtype=np.float32)
        saved = VectorRow(row, words, kept, self.steps[row].step.scope is not None)
        self.vectors[row] = SavedVector(self.last_vector, saved)

    def score(self, stored: Stored) -> float | None:
        """Return a step's own score, else its run's."""
        run = self.run_scores.get(stored.step.run_id or "")
        return run.score if run is not None and stored.step.score is None else stored.step.score

    def parent(self, row: int) -> int | None:
        """Return the row of the step named by parent_id, else of the one before in the run.

        A step of another user or scope is nobody's parent: its words are not for this one's window.
        """
        stored = self.steps[row]
        parent = self.rows.get(stored.parent_id or "")
        if parent is None or parent == row:
            run = self.runs.get(stored.step.run_id or "", [])
            before = bisect_left(run, stored.place, key=_place)
            parent = run[before - 1].row if before else None
        if parent is None or self.steps[parent].owner != stored.owner:
            return None
        return parent

    def mark_stale(self, saved: Sequence[int]) -> int:
        """Note whose words show another parent than they have by now; return how many did.

        Only a parent stored after its child can do that: earlier ones were there when the child's
        words were made. Looked at are the saved rows, their children and their followers.
        """
        before = len(self.stale)
        followers = (follower for row in saved for follower in self._followers(row))
        for row in {*saved, *followers}:
            parent = self.parent(row)
            late = parent is not None and parent > row
            if late and row in self.texts and self.texts[row].text.parent_row != parent:
                self.stale.add(row)
        return len(self.stale) - before

    def _followers(self, row: int) -> Iterator[int]:
        stored = self.steps[row]
        yield from self.children.get(stored.id, [])
        run = self.runs.get(stored.step.run_id or "", [])
        after = bisect_right(run, stored.place, key=_place)
        yield from (other.row for other in run[after : after + 1])


def _place(stored: Stored) -> tuple[int, int]:
    return stored.place
