"""kill -9 at any moment: what was acknowledged is there, and nothing is half written."""

from __future__ import annotations

import os
import random
import signal
from contextlib import closing
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from child_processes import piped
from conformance.samples import step
from session_writers import SESSION, for_ever, start

from hybridagi_steps.protocols import Durability
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import TextRow, VectorRow
from hybridagi_steps.stores.sqlite import SqliteStepStore

KILLS, AT_ONCE = 60, 4


class Child(NamedTuple):
    """A process that writes to the store and acknowledges on a pipe."""

    process_id: int
    acknowledgements: int


def test_kill_nine_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    chance = random.Random(9)
    acknowledged: dict[str, int] = {}
    for first in range(0, KILLS, AT_ONCE):
        children = [_start(path, first + n) for n in range(AT_ONCE)]
        for child in children:
            acknowledged |= _killed_after(child, chance.randint(1, 250))
        _check(path, acknowledged)
    assert len(acknowledged) > KILLS


def _start(path: Path, number: int) -> Child:
    durability: Durability = "full" if number % 2 else "normal"
    return Child(*piped(lambda pipe: _write_for_ever(path, str(number), durability, pipe)))


def _write_for_ever(path: Path, name: str, durability: Durability, pipe: int) -> NoReturn:
    """Append, index and delete; tell of each run when its steps are stored: "run count"."""
    store = SqliteStepStore(path, durability=durability)
    for n in count():
        run, size = f"{name}.{n}", 1 if n % 3 else 4
        names = [f"{run}.{m}" for m in range(size + 1)]
        store.append(
            [
                step(
                    id=mine,
                    parent_id=next_one,
                    run_id=run,
                    hop=m,
                    outputs={"x": "y" * 50 * (n % 40)},
                )
                for m, (mine, next_one) in enumerate(pairwise(names))
            ]
        )
        os.write(pipe, f"{run} {size}\n".encode())
        if n % 5 == 0:
            pending = store.pending_texts(50)
            words = [TextRow(p.row, p.parent_row, "words", 1, 0, False) for p in pending]
            store.save_derived(words, [])
            blank = np.ones(8, np.float32)
            rows = [row for row, _ in store.pending_vectors(50)]
            store.save_derived([], [VectorRow(row, 1, blank, False) for row in rows])
        if n % 7 == 3:
            os.write(pipe, f"{name}.{n - 2} 0\n".encode())
            store.delete([f"{name}.{n - 2}.0"])
    raise AssertionError("for ever")


def _killed_after(child: Child, heard_bytes: int, form: str = "{}") -> dict[str, int]:
    """Kill a child while it works; return how many steps of each run it had acknowledged."""
    with os.fdopen(child.acknowledgements, "rb") as pipe:
        heard = pipe.read(heard_bytes)
        os.kill(child.process_id, signal.SIGKILL)
        heard += pipe.read()
    _, status = os.waitpid(child.process_id, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it must die of the kill alone"
    lines = [form.format(line) for line in heard.decode().splitlines()]
    return {run: int(size) for run, size in (line.split() for line in lines)}


def _check(path: Path, acknowledged: dict[str, int]) -> None:
    with closing(SqliteStepStore(path)) as store:
        assert store.verify() == []
        stored = {run.run_id: run.steps for run in store.runs(limit=1_000_000)}
        kept = {run_id: size for run_id, size in acknowledged.items() if size}
        assert {run_id: stored.get(run_id) for run_id in kept} == kept
        assert set(stored.values()) <= {1, 3, 4}, "a batch is stored whole or not at all"
        for run_id in list(kept)[-20:]:
            whole = store.find(StepFilter(run_id=run_id), limit=9)
            assert [found.hop for found in whole] == list(range(kept[run_id]))


def test_kill_nine_loses_no_message_and_leaves_no_half_unit(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    chance = random.Random(5)
    acknowledged: set[str] = set()
    for first in range(0, KILLS // 3, AT_ONCE):
        writers = [
            start(path, for_ever(str(first + n)), "full" if n % 2 else "normal")
            for n in range(AT_ONCE)
        ]
        for writer in writers:
            acknowledged |= _killed_after(Child(*writer), chance.randint(1, 250), "{} 1").keys()
        _check_session(path, acknowledged)
    assert len(acknowledged) > KILLS // 3


def _check_session(path: Path, acknowledged: set[str]) -> None:
    with closing(SqliteStepStore(path)) as store:
        assert store.verify() == []
        stored = store.messages(SESSION)
        assert [one.sequence for one in stored] == list(range(1, len(stored) + 1))
        calls, results = stored[::2], stored[1::2]
        names = [str(one.content) for one in calls]
        assert [one.tool_call_id for one in results] == names, "units are whole and apart"
        assert acknowledged <= set(names)
        assert len(set(names)) == len(names)
        steps = {str(found.id) for found in store.iter_steps(StepFilter(session_id=SESSION))}
        assert steps == set(names), "AgentSteps are there with their messages, and no others"
        for listed in store.sessions(limit=3):
            if listed.forked_at is not None:
                assert listed.messages == listed.forked_at
