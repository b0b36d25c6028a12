"""Readers beside writers: they end, find what was stored before, and wait for none."""

# pyright: reportPrivateUsage=false
# A store is hooked, and a lock held, to stand where another process would.

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridagi_steps.cli import main
from hybridagi_steps.embedders import HashingEmbedder
from hybridagi_steps.errors import InvalidSettingError, StorageBusyError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.store_values import FloatMatrix, Hidden
from hybridagi_steps.search.searcher import Searcher
from hybridagi_steps.stores.sqlite.file_lock import FileLock

MOST_CALLS = 300
"""After which a hooked call says that whoever calls it comes to no end."""
SHORT_SECONDS = 0.5
HOLDER = """
import sys, time
from hybridagi_steps import StepMemory
memory = StepMemory(sys.argv[1])
with memory._store._db.writing():
    print("held", flush=True)
    time.sleep(600)
"""


def step(name: str, **values: Any) -> AgentStep:
    """Return a step that is found by its name."""
    inputs = {"purpose": f"refund {name}", "tool": "refund"}
    return AgentStep(id=name, step_type=AgentStepType.Action, inputs=inputs, **values)


def found(memory: StepMemory, query: str, **asked: Any) -> set[str]:
    """Return the ids of what a search finds."""
    return {str(hit.step.id) for hit in memory.search(query, k=500, **asked)}


def settle(memory: StepMemory) -> None:
    """Search until what others kept it from saving is saved; the test's timeout ends it."""
    while memory.search("refund") and memory.stats()["pending_vectors"]:
        time.sleep(0.01)


class Counting(HashingEmbedder):
    """Notes the steps that it embeds; queries have no bar in them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        self.texts += [text for text in texts if "|" in text]
        return super().embed_documents(texts)


@pytest.fixture(params=["file", "memory", "postgresql"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    address: Any = ":memory:" if request.param == "memory" else tmp_path / "steps.db"
    if request.param == "postgresql":
        address = request.getfixturevalue("postgres_address")
    with StepMemory(address, embedder="hashing", durability="normal") as opened:
        opened.add([step(f"old-{n}") for n in range(5)])
        opened.search("refund")
        yield opened


def busy_writer(memory: StepMemory, *calls: str) -> Callable[[pytest.MonkeyPatch], list[str]]:
    """Return what makes another writer add, and index, a step at each of these calls."""

    def begin(patch: pytest.MonkeyPatch) -> list[str]:
        store, made = memory._store, list[str]()
        inside = threading.local()

        def hooked(call: Callable[..., Any]) -> Callable[..., Any]:
            def answer(*args: Any, **named: Any) -> Any:
                if getattr(inside, "busy", False):
                    return call(*args, **named)
                inside.busy = True
                try:
                    assert len(made) < MOST_CALLS, "it comes to no end while others write"
                    made.append(f"new-{len(made)}")
                    store.append([step(made[-1], vector=[1.0] + [0.0] * 255)])
                finally:
                    inside.busy = False
                return call(*args, **named)

            return answer

        for name in calls:
            patch.setattr(store, name, hooked(getattr(store, name)))
        return made

    return begin


READS = ["pending_texts", "pending_vectors", "changes", "frontier", "identity"]


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_a_search_ends_and_finds_what_was_stored_before_it(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    memory.add([step(f"before-{n}") for n in range(3)])
    with monkeypatch.context() as patch:
        made = busy_writer(memory, *READS)(patch)
        ids = found(memory, "refund", mode=mode)
        assert made
    assert {f"before-{n}" for n in range(3)} | {f"old-{n}" for n in range(5)} <= ids
    assert {*made} <= found(memory, "refund")
    assert memory.verify() == []


def test_a_search_finds_what_another_thread_derived_and_saved_as_it_began(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.add(step("mine"))
    store, deriver = memory._store, memory.searcher.deriver
    frontier = store.frontier

    def others_after() -> Any:
        seen = frontier()
        with monkeypatch.context() as patch:
            patch.setattr(store, "frontier", frontier)
            deriver.catch_up(vectors=True)
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(store, "frontier", others_after)
        assert "mine" in found(memory, "refund mine")


def test_flush_ends_and_indexes_what_was_stored_before_it(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.add([step(f"before-{n}") for n in range(3)])
    counts: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        made = busy_writer(memory, *READS)(patch)
        memory.flush(lambda done, total: counts.append((done, total)))
    pending = {str(item.step.id) for item in memory._store.pending_texts(999) if item.step}
    assert pending <= {*made}
    assert counts
    assert all(done <= total for done, total in counts)


def test_what_is_done_in_the_background_ends(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.add([step(f"before-{n}") for n in range(3)])
    with monkeypatch.context() as patch:
        busy_writer(memory, *READS)(patch)
        memory.searcher.work_off()
        thread = memory.searcher._background._thread
        assert thread is not None
        thread.join(60)
        assert not thread.is_alive()
    left = {str(item.step.id) for item in memory._store.pending_texts(999) if item.step}
    assert not left & {f"before-{n}" for n in range(3)}


def test_a_parent_that_came_late_is_in_the_next_search(memory: StepMemory) -> None:
    memory.add(step("child", parent_id="parent"))
    assert "child" not in found(memory, "zebra", mode="lexical")
    memory.add(step("parent", outputs={"result": "zebra"}))
    assert found(memory, "zebra", mode="lexical") == {"parent", "child"}
    memory.delete("parent")
    assert found(memory, "zebra", mode="lexical") == set()


class TestHeldFile:
    """Another writer has the file, for seconds or for ever."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "steps.db"
        with StepMemory(path, embedder="hashing", durability="normal") as memory:
            memory.add([step("old"), step("child", parent_id="late")])
            memory.flush()
            memory.add(step("pending", parent_id="old"))
        return path

    @contextmanager
    def held(self, path: Path) -> Generator[FileLock]:
        with closing(FileLock(path)) as lock:
            lock.acquire(10)
            yield lock

    def test_everything_that_reads_goes_on(
        self, path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with self.held(path), StepMemory(path, timeout_seconds=0) as memory:
            assert found(memory, "refund") == {"old", "child", "pending"}
            assert found(memory, "refund", mode="dense", where={"tools": ["refund"]}) == {
                "old",
                "child",
                "pending",
            }
            (got,) = memory.get("pending", vectors=True).steps
            assert len(got.vector or []) == 256
            assert memory.stats()["pending_texts"] == 1
            assert len(memory.find().steps) == 3
            assert memory.verify() == []
            with pytest.raises(StorageBusyError, match="another writer"):
                memory.add(step("no"))
            with pytest.raises(StorageBusyError):
                memory.flush()
            assert main(["search", "refund", "--db", str(path)]) == 0
            assert "refund pending" in capsys.readouterr().out
        with StepMemory(path) as memory:
            assert found(memory, "refund") == {"old", "child", "pending"}
            assert memory.stats()["pending_texts"] == memory.stats()["pending_vectors"] == 0

    def test_what_is_held_is_made_once_and_saved_when_the_file_is_free(self, path: Path) -> None:
        embedder = Counting()
        with StepMemory(path, embedder=embedder) as memory:
            with self.held(path):
                for _ in range(5):
                    assert "pending" in found(memory, "refund")
                    assert "pending" in found(memory, "refund", mode="lexical")
                assert len(embedder.texts) == 1
                assert memory.stats()["pending_vectors"] == 1
            settle(memory)
            assert memory.stats()["pending_texts"] == 0
            assert "pending" in found(memory, "refund")
            assert len(embedder.texts) == 1
            assert memory.verify() == []

    def test_held_words_go_with_their_step(self, path: Path) -> None:
        with StepMemory(path) as memory, StepMemory(path) as other:
            memory.add(step("secret", outputs={"result": "zebra"}))
            memory.add(step("follower", parent_id="secret"))
            with self.held(path):
                assert found(memory, "zebra", mode="lexical") == {"secret", "follower"}
            other.delete("secret")
            with self.held(path):
                assert found(memory, "zebra", mode="lexical") == set()
                assert "follower" in found(memory, "refund")

    def test_what_goes_while_it_is_made_is_not_taken_in(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with StepMemory(path) as memory, StepMemory(path) as other:
            memory.search("refund")
            memory.add(step("gone", outputs={"result": "zebra"}))
            follow = memory.searcher._follow
            began: list[int] = []

            def delete_first() -> None:
                if not began:
                    began.append(1)
                    other.delete("gone")
                follow()

            with monkeypatch.context() as patch:
                patch.setattr(memory.searcher, "_follow", delete_first)
                patch.setattr(memory._store, "save_derived", self._busy)
                assert found(memory, "zebra", mode="lexical") == set()
            assert len(memory.searcher._index.columns) == 3

    def _busy(self, *_: Any, **__: Any) -> int:
        raise StorageBusyError("somebody else writes")

    def test_a_file_that_knows_no_embedder_yet_is_searched(self, tmp_path: Path) -> None:
        path = tmp_path / "fresh.db"
        with StepMemory(path) as memory:
            memory.add(step("first"))
        with StepMemory(path, embedder="hashing") as memory:
            with self.held(path):
                assert found(memory, "refund") == found(memory, "refund", mode="dense") == {"first"}
                assert memory.stats()["embedder"] is None
            settle(memory)
            assert found(memory, "refund") == {"first"}
            assert memory.stats()["embedder"] == HashingEmbedder().model_id

    def test_a_stopped_writer_holds_up_no_reader(self, path: Path) -> None:
        command = [sys.executable, "-c", HOLDER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"held\n"
                writer.send_signal(signal.SIGSTOP)
                with StepMemory(path, timeout_seconds=SHORT_SECONDS) as memory:
                    assert "pending" in found(memory, "refund")
                    assert "pending" in found(memory, "refund", where={"tools": ["refund"]})
                    with pytest.raises(StorageBusyError):
                        memory.add(step("no"))
            finally:
                writer.kill()

    def test_threads_do_not_wait_in_series(self, path: Path) -> None:
        threads = 8
        waits: list[float] = []
        with self.held(path), StepMemory(path, timeout_seconds=SHORT_SECONDS) as memory:
            began = threading.Barrier(threads)

            def write(number: int) -> None:
                began.wait()
                begun = time.monotonic()
                with pytest.raises(StorageBusyError):
                    memory.add(step(f"no-{number}"))
                waits.append(time.monotonic() - begun)

            workers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        assert len(waits) == threads
        assert max(waits) < threads / 2 * min(waits)  # in series the last would wait for all

    def test_a_search_does_not_begin_to_wait_anew(self, path: Path) -> None:
        with StepMemory(path, timeout_seconds=2.0) as memory:
            found(memory, "refund")
            memory.add(step("news"))
            searcher = memory.searcher
            turn, index = searcher.deriver._turn, searcher._lock
            with turn, index:  # others derive, others search
                given_back = threading.Timer(0.5, turn.release)
                given_back.start()
                with pytest.raises(StorageBusyError, match="the index of") as error:
                    found(memory, "refund")
                given_back.join()
                assert float(str(error.value).split(" for ")[1].split(" s;")[0]) < 2.0
                turn.acquire()
            assert "news" in found(memory, "refund")

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_closing_and_forking_wait_no_longer_than_a_writer_of_their_own(
        self, path: Path
    ) -> None:
        with self.held(path):
            memory = StepMemory(path, timeout_seconds=SHORT_SECONDS)
            errors: list[BaseException] = []

            def write() -> None:
                try:
                    memory.add(step("no"))
                except StorageBusyError as error:
                    errors.append(error)

            for end in (self._fork, memory.close):
                worker = threading.Thread(target=write)
                worker.start()
                end()
                worker.join()
            assert len(errors) >= 1

    def _fork(self) -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "30", None, True, 86_401])
def test_a_timeout_is_a_number_of_seconds(tmp_path: Path, seconds: Any) -> None:
    with pytest.raises(InvalidSettingError, match="timeout_seconds"):
        StepMemory(tmp_path / "s.db", timeout_seconds=seconds)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_in_another_process_waits_as_long(tmp_path: Path) -> None:
    with StepMemory(tmp_path / "s.db", embedder="hashing", timeout_seconds=7) as memory:
        copied = pickle.loads(pickle.dumps(memory))
        assert copied.timeout_seconds == 7
        assert copied._store._db.patience.seconds == 7
        copied.close()


def test_what_is_hidden_from_one_search_is_not_taken_from_another(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = memory.searcher
    own, others = Hidden(*[np.array([1])] * 2), Hidden(*[np.array([2])] * 2)
    kept = searcher._hidden_ids = own, searcher._ids_of(own)
    seen = iter([kept])  # another thread asks for other rows as soon as this one has looked
    elsewhere = others, searcher._ids_of(others)

    def keep(_: Searcher, new: object) -> None:
        """The other thread keeps its own."""

    looked = property(lambda _: next(seen, elsewhere), keep)
    monkeypatch.setattr(Searcher, "_hidden_ids", looked, raising=False)
    assert searcher._ids_of(own) == kept[1] != elsewhere[1]
