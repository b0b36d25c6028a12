"""What is pending is worked off while nobody waits, and nothing is lost when it is cut short."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.embedders import HashingEmbedder
from hybridagi_steps.errors import EmbedderError, EmbedderMismatchError
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.records.store_values import FloatMatrix
from hybridagi_steps.search.indexing import BATCH, SLICE, START_AT, BackgroundWork
from hybridagi_steps.stores.sql.derived import DerivedTables


def steps(count: int, start: int = 0) -> list[AgentStep]:
    """Return so many Actions."""
    numbers = range(start, start + count)
    inputs = [{"purpose": f"task number {n}", "tool": "search"} for n in numbers]
    return [AgentStep(step_type=AgentStepType.Action, inputs=said) for said in inputs]


def indexing() -> list[threading.Thread]:
    """Return the threads that index in the background."""
    return [thread for thread in threading.enumerate() if thread.name == "hybridagi-steps"]


def wait_until(done: Any, seconds: float = 30) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def committed(memory: StepMemory, added: list[AgentStep]) -> None:
    """Store steps with a message, as a session does."""
    said = {"role": "user", "content": "do it"}
    asyncio.run(memory.repository().commit("session", said, added))


@pytest.mark.parametrize("store", [StepMemory.add, StepMemory.update, committed])
def test_many_steps_are_indexed_without_a_search(file_memory: StepMemory, store: Any) -> None:
    messages = int(store is committed)  # of each call; they are searched, too
    store(file_memory, steps(START_AT - 1))
    assert not indexing()
    assert file_memory.stats()["pending_texts"] == START_AT - 1 + messages
    store(file_memory, steps(1, START_AT))
    wait_until(lambda: file_memory.stats()["pending_vectors"] == 0)
    assert file_memory.stats()["embedded"] == START_AT + 2 * messages
    assert file_memory.search("task number 77", k=1)[0].step.purpose == "task number 77"


def test_indexing_in_the_background_leaves_room_for_others(
    file_memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests, sizes = list[float](), list[int]()
    wait, save = threading.Event.wait, DerivedTables.save_derived

    def waited(self: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread() in indexing() and timeout is not None:
            rests.append(timeout)
        return wait(self, timeout)

    def saved(self: DerivedTables, texts: Any, vectors: Any, **more: Any) -> int:
        if threading.current_thread() in indexing():
            sizes.append(max(len(texts), len(vectors)))
        return save(self, texts, vectors, **more)

    monkeypatch.setattr(threading.Event, "wait", waited)
    monkeypatch.setattr(DerivedTables, "save_derived", saved)
    file_memory.add(steps(START_AT))
    wait_until(lambda: not indexing())
    assert sizes == [SLICE] * (START_AT // SLICE)
    assert len(rests) == len(sizes)
    assert all(rest > 0 for rest in rests)


def test_who_stores_little_by_little_starts_no_thread_each_time(file_memory: StepMemory) -> None:
    committed(file_memory, steps(START_AT))
    wait_until(lambda: not indexing())
    assert file_memory.stats()["pending_vectors"] == 0
    committed(file_memory, steps(START_AT - 1, START_AT))
    assert not indexing()
    assert file_memory.stats()["pending_vectors"] == START_AT  # its message is one


def test_what_was_flushed_does_not_count_as_waiting(file_memory: StepMemory) -> None:
    for start in range(3):
        file_memory.add(steps(START_AT // 2, start * START_AT))
        file_memory.flush()
    file_memory.add(steps(1, 3 * START_AT))
    assert not indexing()
    assert file_memory.stats()["pending_texts"] == 1


def test_adding_searching_and_indexing_go_on_together(file_memory: StepMemory) -> None:
    for start in range(0, 3 * START_AT, 500):
        file_memory.add(steps(500, start))
        newest = f"task number {start + 499}"
        assert file_memory.search(newest, k=1)[0].step.purpose == newest
    assert file_memory.verify() == []


def test_closing_waits_for_one_batch_only(tmp_path: Path) -> None:
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        memory.add(steps(4 * START_AT))
    assert not indexing()
    with StepMemory(tmp_path / "s.db") as memory:
        memory.flush()
        assert memory.stats()["embedded"] == 4 * START_AT
        assert memory.verify() == []


class Other(HashingEmbedder):
    """The same vectors under another name."""

    @property
    def model_id(self) -> str:
        return "other"


class Mirrored(HashingEmbedder):
    """Vectors that point the other way."""

    @property
    def model_id(self) -> str:
        return "mirrored"

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        return -super().embed_documents(texts)


def test_another_embedders_vectors_are_never_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as slow, StepMemory(path) as changing:
        slow.add(steps(10))
        slow.search("task")
        changing.reembed(Other())
        slow.add(steps(1, 10))
        with pytest.raises(EmbedderMismatchError, match="other"):
            slow.search("task")
        assert changing.stats()["embedder"] == "other"
        assert len(changing.search("task number", k=11, mode="dense")) == 11


def test_who_embeds_is_asked_again_only_after_it_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "s.db", list[str]()
    with StepMemory(path, embedder="hashing") as changing, StepMemory(path) as following:
        changing.add(steps(10))
        changing.flush()
        store: Any = following._open_store  # pyright: ignore[reportPrivateUsage]
        identity = store.identity
        monkeypatch.setattr(store, "identity", lambda: (asked.append("who"), identity())[1])
        for _ in range(3):
            following.search("task")
        often = len(asked)
        following.search("task")
        assert len(asked) == often
        changing.reembed(Other(128))
        with pytest.raises(EmbedderError, match="other"):  # known under no name
            following.search("task")
        changing.reembed(HashingEmbedder(128))
        assert following.search("task number 3", mode="dense")[0].dense_score
        assert following.embedder.dimension == 128


def test_an_error_in_the_background_is_logged_and_the_next_search_raises_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> bool:
        raise EmbedderMismatchError("one", "two")

    work = BackgroundWork(fail)
    work.start()
    wait_until(lambda: "indexing in the background stopped" in caplog.text)
    work.stop()


def test_threads_that_begin_it_at_once_begin_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    new_thread, made, errors = threading.Thread, list[threading.Thread](), list[BaseException]()
    halt = threading.Event()
    work = BackgroundWork(lambda: not halt.wait(0.01))

    def begin() -> None:
        try:
            work.start()
        except RuntimeError as error:
            errors.append(error)

    beside = new_thread(target=begin)

    def new(**given: Any) -> threading.Thread:
        made.append(new_thread(**given))
        if len(made) == 1:
            beside.start()
            beside.join(0.3)  # as long as it takes where nothing keeps it waiting
        return made[-1]

    monkeypatch.setattr("hybridagi_steps.search.indexing.threading.Thread", new)
    begin()
    beside.join()
    halt.set()
    work.stop()
    assert (errors, len(made)) == ([], 1)


def test_who_begins_it_as_it_ends_is_not_forgotten() -> None:
    calls, looked = list[int](), threading.Event()

    def nothing_left() -> bool:
        calls.append(len(calls))
        if len(calls) == 1:
            work.start()  # what another thread does once this one has seen that nothing is left
        else:
            looked.set()
        return False

    work = BackgroundWork(nothing_left)
    work.start()
    assert looked.wait(30)
    work.stop()
    assert len(calls) == 2


def test_who_begins_it_as_another_ends_it_begins_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, halt = list[threading.Thread](), threading.Event()
    work = BackgroundWork(lambda: not halt.wait(0.01))

    class Thread(threading.Thread):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            made.append(self)

        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            if self is made[0]:
                work.start()

    monkeypatch.setattr("hybridagi_steps.search.indexing.threading.Thread", Thread)
    work.start()
    work.stop()
    work.start()
    halt.set()
    work.stop()
    assert len(made) == 2


def test_the_end_of_the_program_waits_for_the_batch_at_hand_and_no_more() -> None:
    # A daemon thread would be killed in the middle of foreign code, and the process with it.
    code = """
import threading, time
from hybridagi_steps.search.indexing import BackgroundWork
began = threading.Event()
def batch():
    print("began", flush=True)
    began.set()
    time.sleep(0.3)
    print("ended", flush=True)
    return True
BackgroundWork(batch).start()
began.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["began", "ended"]


def test_what_follows_a_first_add_and_a_first_delete_loads_no_masked_arrays(
    tmp_path: Path,
) -> None:
    # np.unique loads all of numpy.ma when it is first called: longer than a search takes.
    code = """
import sys
from hybridagi_steps import AgentStep, StepMemory
memory = StepMemory(sys.argv[1])
def said(number):
    return AgentStep(step_type="Action", run_id="a", inputs={"purpose": f"look for train {number}"})
memory.add([said(number) for number in range(9)])
memory.search("train")
memory.add(said(9))
memory.search("train")
memory.delete(str(next(memory.iter_steps()).id))
memory.search("train 3", where={"run_id": "a"})
print("numpy.ma" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "steps.db")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_the_batch_at_hand() -> None:
    began, busy = threading.Event(), threading.Event()

    def slow() -> bool:
        busy.set()
        began.set()
        time.sleep(0.3)
        busy.clear()
        return False

    work = BackgroundWork(slow)
    work.start()
    assert began.wait(10)
    child = os.fork()
    if not child:
        os._exit(1 if busy.is_set() else 0)
    assert os.waitpid(child, 0)[1] == 0
    work.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_the_middle_leaves_both_sides_working(tmp_path: Path) -> None:
    code = f"""
import faulthandler, os, sys
faulthandler.dump_traceback_later(100, exit=True)
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_background import steps, StepMemory
memory = StepMemory({str(tmp_path / "s.db")!r}, embedder="hashing")
for start in (0, 2_100):
    memory.add(steps(2_100, start))
    child = os.fork()
    if not child:
        assert memory.search("task number 5", k=1)[0].step.purpose == "task number 5"
        memory.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
memory.flush()
assert memory.stats()["embedded"] == 4_200 and memory.verify() == []
memory.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_flush_beside_the_background_makes_each_batch_once(tmp_path: Path) -> None:
    """And waits for it no longer than for the batch at hand."""
    embedded: list[str] = []

    class Noting(HashingEmbedder):
        def embed_documents(self, texts: Any) -> Any:
            embedded.extend(texts)
            time.sleep(0.02)  # so that both would have a batch at hand
            return super().embed_documents(texts)

    with StepMemory(
        tmp_path / "m.db", embedder=Noting(), durability="normal", timeout_seconds=5
    ) as memory:
        memory.add(steps(3 * START_AT))
        assert indexing()
        memory.flush()
        assert memory.stats()["pending_vectors"] == 0
    assert len(embedded) == len({*embedded}) == 3 * START_AT


def test_a_step_is_read_once_for_its_words_and_its_meaning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Counter[int]()
    sound = DerivedTables._sound  # pyright: ignore[reportPrivateUsage]

    def counted(tables: DerivedTables, row: int, *stored: Any) -> AgentStep:
        read[row] += 1
        return sound(tables, row, *stored)

    monkeypatch.setattr(DerivedTables, "_sound", counted)
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add(steps(2 * BATCH))
        memory.flush()
    assert len(read) == 2 * BATCH
    assert {*read.values()} == {1}


def test_no_thread_saves_vectors_of_the_embedder_that_another_thread_has_changed(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.add(steps(3))
    memory.search("task")
    memory.add(steps(1, 3))
    deriver, first = memory.searcher.deriver, HashingEmbedder()
    save = deriver._saved  # pyright: ignore[reportPrivateUsage]

    made, go_on = threading.Event(), threading.Event()
    beside = threading.Thread(target=memory.reembed, args=(Mirrored(),))

    def saved_when_another_has_made_others(*given: Any, **named: Any) -> int:
        if threading.current_thread() is beside:
            made.set()
            go_on.wait(30)
        elif not made.is_set():
            beside.start()
            assert made.wait(30)
        return save(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(deriver, "_saved", saved_when_another_has_made_others)
        with suppress(EmbedderMismatchError):
            memory.search("task number 3")
        go_on.set()
        beside.join()
    memory.flush()
    for step in memory.get_steps([str(s.id) for s in memory.iter_steps()], vectors=True):
        made = first.embed_documents([own_text(step)])[0]
        assert step.vector is not None
        assert float(np.dot(step.vector, made)) < 0, step.purpose


@pytest.mark.parametrize("call", ["identity", "frontier", "pending_vectors", "embed_queries"])
@pytest.mark.parametrize("dimension", [64, 256])
def test_a_search_goes_on_while_another_thread_changes_the_embedder(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch, call: str, dimension: int
) -> None:
    memory.add(steps(5))
    memory.search("task")
    memory.add(steps(1, 5))
    hooked: Any = memory.embedder if call == "embed_queries" else memory.repository().store
    before = getattr(hooked, call)

    def changed_then(*given: Any, **named: Any) -> Any:
        answer = before(*given, **named)
        with monkeypatch.context() as patch:
            patch.setattr(hooked, call, before)
            beside.start()
            beside.join(0.5)  # it waits for the indexing of new steps, if that is under way
        patch_again.undo()
        return answer

    beside = threading.Thread(target=memory.reembed, args=(Mirrored(dimension),))

    with monkeypatch.context() as patch_again:
        patch_again.setattr(hooked, call, changed_then)
        [hit] = memory.search("task number 5", k=1)
    beside.join()
    assert memory.embedder.dimension == dimension
    assert hit.step.purpose == "task number 5"
    [again] = memory.search("task number 5", k=1)
    assert (hit.score, hit.dense_score) == (again.score, again.dense_score)
    assert (hit.dense_score or 0) > 0
