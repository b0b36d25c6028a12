"""Things that are done to sessions, drawn at random: two stores are told the same and compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from conformance.samples import message, step

from hybridagi_steps.errors import StepsError

SESSIONS = ("s", "t", "f")
Operation = Callable[[Any], object]


def seen_in(name: str) -> Operation:
    """Return what reads a session: its messages, its steps, its owner."""
    return lambda store: (
        [(one.id, one.content, one.sequence) for one in store.messages(name)],
        [name for _, name in store.pinned_steps(name)],
        store.session_owner(name),
    )


def outcome(store: Any, operation: Operation) -> object:
    """Return what an operation gives, or how it fails."""
    try:
        return operation(store)
    except (StepsError, ValueError) as error:
        return type(error)


def operation_of(chance: random.Random, name: str) -> Operation:
    """Return something that is done to a session; most of all commits."""
    session, other = chance.choice(SESSIONS), chance.choice(SESSIONS)
    end, user = chance.randrange(9), chance.choice((None, None, None, "u", "v"))
    if chance.random() < 0.1:
        return seen_in(session)
    if chance.random() < 0.25:
        return chance.choice(
            (
                lambda store: store.hide_from(session, end),
                lambda store: store.fork(session, end, other) and None,
                lambda store: store.delete_session(session),
                lambda store: store.adopt(session, store.branch_at(session, end)),
                lambda store: store.rewrite_messages({f"m{end}.0": message("erased", id=name)}),
                lambda store: store.session_end(session).sequence,
            )
        )
    asked: dict[str, Any] = {
        "expect_last": chance.choice((None, None, None, end)),
        "idempotency_key": chance.choice((None, None, f"key {end}")),
        "user_id": user,
    }
    ids = [f"m{end}.0"] if chance.random() < 0.05 else [f"{name}.{n}" for n in range(end % 3)]
    steps = [step(id=f"{name} step", user_id=user)] * chance.choice((0, 0, 1))
    return lambda store: [
        (one.id, one.sequence)
        for one in store.commit(session, [message(each, id=each) for each in ids], steps, **asked)
    ]


def check_two_writers(one: Any, two: Any, oracle: Any, seed: int, operations: int) -> None:
    """Let two stores of one database take turns: what is told and left is as of an oracle alone.

    Both count, in `at_once`, commits where they knew an end: those that were refused, and all.
    """
    chance, writer = random.Random(seed), one
    for n in range(operations):
        operation = operation_of(chance, f"m{n}")
        writer = chance.choice((writer, writer, writer, one, two))
        told = [outcome(store, operation) for store in (writer, oracle)]
        assert told[0] == told[1], (n, operation)
    for name in SESSIONS:
        seen = [outcome(store, seen_in(name)) for store in (one, two, oracle)]
        assert seen[0] == seen[1] == seen[2]
    assert all(min(store.at_once) > 3 for store in (one, two))
    assert one.verify() == []
