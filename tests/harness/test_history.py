"""Histories of many processes: a sound memory passes, a broken one is caught."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from history.__main__ import run
from history.checker import History, Operation, violations

from hybridagi_steps import StepMemory
from hybridagi_steps.sessions.repository import SessionRepository

SECONDS = 8.0
HISTORIES = 4
"""Which operations meet is the machine's choice, so one history may not show a fault."""


def stale_search() -> None:
    """Break a memory: a search looks only at what it knew when it was first asked."""
    whole: Callable[..., Any] = StepMemory.search
    answers: dict[str, Any] = {}

    def search(self: StepMemory, query: str, **options: Any) -> Any:
        return answers.setdefault(query, whole(self, query, **options) if len(answers) < 1 else [])

    setattr(StepMemory, "search", search)  # noqa: B010


def forgotten_keys() -> None:
    """Break a memory: a commit ignores its idempotency key."""
    whole: Callable[..., Any] = SessionRepository.commit_now

    def commit_now(self: Any, session: str, messages: Any, steps: Any = (), **options: Any) -> Any:
        renamed = [step.model_copy(update={"id": f"{step.id}+{time.time_ns()}"}) for step in steps]
        return whole(self, session, messages, renamed, **options | {"idempotency_key": None})

    setattr(SessionRepository, "commit_now", commit_now)  # noqa: B010


def split_commits() -> None:
    """Break a memory: messages and steps of a commit go in two transactions."""
    whole: Callable[..., Any] = SessionRepository.commit_now

    def commit_now(self: Any, session: str, messages: Any, steps: Any = (), **options: Any) -> Any:
        stored = whole(self, session, messages, (), **options)
        time.sleep(0.1)
        self.store.append([step for step in steps if not self.store.get([str(step.id)])])
        return stored

    setattr(SessionRepository, "commit_now", commit_now)  # noqa: B010


def ignored_removals() -> None:
    """Break a memory: `delete` says that it deleted, and does not."""

    def delete(_: StepMemory, ids: list[str]) -> int:
        return len(ids)

    setattr(StepMemory, "delete", delete)  # noqa: B010


def test_a_memory_gives_only_answers_that_are_right(tmp_path: Path) -> None:
    history = run(str(tmp_path / "steps.db"), tmp_path, SECONDS, seed=5)
    assert violations(history) == []
    kinds = {one.kind for one in history.operations if one.is_acknowledged}
    assert kinds == {"add", "commit", "fork", "remove", "find", "read", "search"}
    assert any(not one.is_acknowledged for one in history.operations)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (stale_search, "is not found"),
        (forgotten_keys, "stored more than once"),
        (split_commits, "has its messages and not its step"),
        (ignored_removals, "after it was removed"),
    ],
)
def test_a_broken_memory_is_caught(
    tmp_path: Path, fault: Callable[[], None], sentence: str
) -> None:
    for seed in range(HISTORIES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        history = run(str(folder / "steps.db"), folder, SECONDS, seed, prepare=fault)
        if any(sentence in line for line in violations(history)):
            return
    pytest.fail(f"{HISTORIES} histories show no sign of it")


def add(name: str, *ids: str, at: tuple[int, int]) -> Operation:
    return Operation(name, "add", {"ids": list(ids), "user": "user 0"}, *at)


def find(*ids: str, at: tuple[int, int]) -> Operation:
    return Operation("f", "find", {"user": "user 0"}, *at, result=list(ids))


def read(*line: tuple[int, str], at: tuple[int, int]) -> Operation:
    return Operation("r", "read", {"session": "desk"}, *at, result=[list(one) for one in line])


@pytest.mark.parametrize(
    ("operations", "sentence"),
    [
        ([add("1", "a", at=(0, 1)), find("a", at=(2, 3))], None),
        ([add("1", "a", at=(0, 5)), find(at=(2, 3))], None),
        ([add("1", "a", at=(0, 1)), find(at=(2, 3))], "acknowledged before and is not listed"),
        ([add("1", "a", at=(4, 5)), find("a", at=(2, 3))], "after it was removed"),
        ([find("a", at=(2, 3))], "not theirs"),
        ([add("1", "a", "b", at=(0, 9)), find("a", at=(2, 3))], "without b"),
        ([add("1", "a", at=(0, 1)), find("a", "a", at=(2, 3))], "twice"),
        ([read((1, "k asks"), (3, "k answers"), at=(2, 3))], "gap"),
        ([read((1, "k asks"), at=(2, 3))], "half of a commit"),
        ([read((1, "k asks"), (2, "l answers"), at=(2, 3))], "is followed by"),
        (
            [read((1, "k asks"), (2, "k answers"), at=(2, 3)), read((1, "l asks"), at=(4, 5))],
            "was changed",
        ),
    ],
)
def test_the_checker_names_what_is_wrong(operations: list[Operation], sentence: str | None) -> None:
    lines = violations(History(operations))
    assert (not lines) if sentence is None else any(sentence in line for line in lines)
