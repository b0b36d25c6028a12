"""Every store beside a naive model that copies: whatever is done, they must read alike.

The model keeps every branch as a list of everything it shows, so fork and retry copy; it is too
slow and too big for use, and too simple to be wrong.
"""

# Hypothesis's bundles are of no type that their rules could name.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conformance.samples import (
    SessionStepStore,
    contents,
    ids,
    message,
    step,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from hybridagi_steps.errors import SequenceConflictError, UnknownSessionError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores import open_store


@dataclass
class Line:
    """A branch as a copying store would have it."""

    session: str
    texts: list[str]
    steps: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """AgentSteps with the sequence each works towards."""
    pointed: bool = False

    def copied(self, session: str, count: int) -> Line:
        """Return a line that begins with the first `count` messages of this one."""
        seen = [(at, name) for at, name in self.steps if at <= count]
        return Line(session, self.texts[:count], seen)


class Branches(RuleBasedStateMachine):
    """Runs one story on the in-memory store, on another, and on the model."""

    sessions = Bundle("sessions")
    attempts = Bundle("attempts")

    def address(self) -> str:
        """Return where the other store is to be."""
        return str(Path(self.folder.name) / "steps.db")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        other = open_store(self.address(), durability="normal")
        opened: list[Any] = [open_store(":memory:"), other]
        self.stores: list[SessionStepStore] = opened
        self.lines: dict[int, Line] = {}
        self.tips: dict[str, int] = {}
        self.recorded: list[str] = []
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                assert store.verify() == []
                store.close()
            self.folder.cleanup()

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def agree(self, ask: Any) -> Any:
        """Do the same on both stores; they must answer, or refuse, alike."""
        answers: list[Any] = []
        for store in self.stores:
            try:
                answers.append(ask(store))
            except (SequenceConflictError, UnknownSessionError) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        return answers[0]

    def write(self, session: str, branch: int | None, texts: list[str], steps: int) -> None:
        names = [self.name() for _ in range(steps)]
        messages = [message(text, id=f"{text}-{self.name()}") for text in texts]
        for store in self.stores:
            made = [step(id=name) for name in names]
            store.commit(session, messages, made, branch_id=branch)
        branch = self.stores[0].session_end(session, branch_id=branch).branch_id
        line = self.lines.setdefault(branch, Line(session, [], pointed=True))
        line.steps += [(len(line.texts) + 1, name) for name in names]
        line.texts += texts
        self.recorded += names
        self.tips.setdefault(session, branch)

    @rule(target=sessions, steps=st.integers(0, 1))
    def new_session(self, steps: int) -> str:
        session = self.name()
        self.write(session, None, [self.name()], steps)
        return session

    @rule(session=sessions, count=st.integers(0, 3), steps=st.integers(0, 2))
    def append(self, session: str, count: int, steps: int) -> None:
        if session in self.tips:
            self.write(session, None, [self.name() for _ in range(count)], steps)

    @rule(session=sessions)
    def record(self, session: str) -> None:
        if session in self.tips:
            name = self.name()
            for store in self.stores:
                store.append([step(id=name, session_id=session)])
            line = self.lines[self.tips[session]]
            line.steps.append((len(line.texts) + 1, name))
            self.recorded.append(name)

    @rule(target=sessions, session=sessions, at=st.floats(0, 1))
    def fork(self, session: str, at: float) -> Any:
        if session not in self.tips:
            return multiple()
        made, line = self.name(), self.lines[self.tips[session]]
        sequence = round(at * len(line.texts))
        assert self.agree(lambda store: store.fork(session, sequence, made)) == made
        tip = self.agree(lambda store: store.session_end(made).branch_id)
        self.lines[tip] = line.copied(made, sequence)
        self.lines[tip].pointed = True
        self.tips[made] = tip
        return made

    @rule(target=attempts, session=sessions, at=st.floats(0, 1))
    def retry(self, session: str, at: float) -> Any:
        if session not in self.tips:
            return multiple()
        line = self.lines[self.tips[session]]
        sequence = round(at * len(line.texts))
        branch = self.agree(lambda store: store.branch_at(session, sequence))
        self.lines[branch] = line.copied(session, sequence)
        return branch

    @rule(branch=attempts, steps=st.integers(0, 1))
    def write_attempt(self, branch: int, steps: int) -> None:
        if branch in self.lines and self.lines[branch].session in self.tips:
            self.write(self.lines[branch].session, branch, [self.name()], steps)

    @rule(branch=attempts)
    def adopt(self, branch: int) -> None:
        if branch in self.lines and (session := self.lines[branch].session) in self.tips:
            self.agree(lambda store: store.adopt(session, branch))
            self.tips[session] = branch
            self.lines[branch].pointed = True

    @rule(session=sessions, start=st.integers(-1, 9))
    def hide(self, session: str, start: int) -> None:
        if session not in self.tips:
            return
        line, kept = self.lines[self.tips[session]], max(start, 1) - 1
        hidden = self.agree(lambda store: store.hide_from(session, start))
        assert hidden == max(len(line.texts) - kept, 0)
        if hidden:
            tip = self.agree(lambda store: store.session_end(session).branch_id)
            self.lines[tip] = line.copied(session, kept)
            self.lines[tip].pointed = True
            self.tips[session] = tip

    @rule(session=consumes(sessions))
    def delete(self, session: str) -> None:
        if session in self.tips:
            self.agree(lambda store: store.delete_session(session))
            del self.tips[session]
            self.lines = {b: line for b, line in self.lines.items() if line.session != session}
            self.only_kept()  # what only the deleted session held of them may be gone
            self.forget()

    @rule()
    def vacuum(self) -> None:
        for store in self.stores:
            store.vacuum()
        self.only_kept()
        self.forget()

    def only_kept(self) -> None:
        """Leave out the lines that a session once pointed at and points at no more."""
        read = set(self.tips.values())
        self.lines = {b: x for b, x in self.lines.items() if b in read or not x.pointed}

    def forget(self) -> None:
        """Take note of which AgentSteps are gone by now; the stores must agree."""
        self.recorded = self.agree(lambda store: ids(store.get(self.recorded)))

    @invariant()
    def they_read_alike(self) -> None:
        if not hasattr(self, "stores"):
            return
        visible: set[str] = set()
        for session, tip in self.tips.items():
            line = self.lines[tip]
            visible |= {name for _, name in line.steps}
            where = StepFilter(session_id=session)
            for store in self.stores:
                assert contents(store, session) == line.texts
                assert sorted(ids(store.find(where, limit=999))) == sorted(n for _, n in line.steps)
        for store in self.stores:
            assert set(ids(store.find(StepFilter(), limit=999))) == visible
            abandoned = set(ids(store.find(StepFilter(scope="abandoned"), limit=999)))
            assert abandoned == set(self.recorded) - visible
            assert {found.session_id for found in store.sessions(limit=999)} == set(self.tips)
        self.agree(lambda store: store.stats()["messages"])
        for branch, line in self.lines.items():
            if line.session in self.tips:
                for store in self.stores:
                    assert contents(store, line.session, branch_id=branch) == line.texts


Branches.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestBranches = pytest.mark.slow(Branches.TestCase)


@pytest.mark.slow
def test_branches_on_postgres(new_postgres_database: Callable[[], str]) -> None:
    class PostgresBranches(Branches):
        def address(self) -> str:
            return new_postgres_database()

    fewer = settings(Branches.TestCase.settings, max_examples=8)  # each makes a database
    run_state_machine_as_test(PostgresBranches, settings=fewer)
