"""Processes that write to one session, for tests of what they leave behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from child_processes import piped
from conformance.samples import message, step

from hybridagi_steps.protocols import Durability
from hybridagi_steps.stores.sqlite import SqliteStepStore

SESSION = "s"


class Writer(NamedTuple):
    """A process that writes, and acknowledges on a pipe what is stored."""

    process_id: int
    acknowledgements: int


def unit(store: SqliteStepStore, name: str) -> None:
    """Commit one unit: a call, its result, and the AgentStep behind both."""
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [
        message(name, "assistant", tool_calls=calls),
        message(name + "x" * 300, "tool", tool_call_id=name),
    ]
    store.commit(SESSION, messages, [step(id=name, run_id=name)], idempotency_key=name)


def start(
    path: Path, work: Callable[[SqliteStepStore, int], None], durability: Durability
) -> Writer:
    """Let a child process `work` on a store; it gets the pipe to acknowledge on."""
    return Writer(*piped(lambda pipe: work(SqliteStepStore(path, durability=durability), pipe)))


def for_ever(name: str) -> Callable[[SqliteStepStore, int], NoReturn]:
    """Return work that commits, retries and forks without end."""

    def work(store: SqliteStepStore, pipe: int) -> NoReturn:
        number = 0
        while True:
            number += 1
            unit(store, f"{name}.{number}")
            os.write(pipe, f"{name}.{number}\n".encode())
            if number % 7 == 3:
                end = store.session_end(SESSION).sequence
                store.fork(SESSION, end, f"fork {name}.{number}")
                attempt = store.branch_at(SESSION, end - 1)
                store.commit(SESSION, [message("attempt")], branch_id=attempt)

    return work
