"""StepMemory as people hold it: what goes in, what comes out, what is refused."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from hybridagi_steps import AgentStep, AgentStepList, AgentStepType, StepMemory
from hybridagi_steps.embedders import HashingEmbedder
from hybridagi_steps.errors import (
    DimensionMismatchError,
    DiskFullError,
    DuplicateStepError,
    EmbedderError,
    EmbedderMismatchError,
    InvalidFilterError,
    InvalidQueryError,
    InvalidStepError,
    InvalidVectorError,
    MemoryClosedError,
    MemoryNotPicklableError,
    StepTooDeepError,
    StepTooLargeError,
    StorageBusyError,
    UnknownRunError,
)
from hybridagi_steps.search.step_index import StepIndex
from hybridagi_steps.stores.sqlite import SqliteStepStore


@pytest.fixture(params=["memory", "postgres"])
def memory(request: pytest.FixtureRequest) -> Iterator[StepMemory]:
    """An empty memory of each kind that is no file."""
    server = request.param == "postgres"
    address = request.getfixturevalue("postgres_database") if server else ":memory:"
    with StepMemory(address, embedder="hashing", namespace=uuid4().hex) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def file_memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    """An empty memory of each kind that outlives its process."""
    server = request.param == "postgres"
    address = request.getfixturevalue("postgres_database") if server else str(tmp_path / "steps.db")
    with StepMemory(address, embedder="hashing", namespace=uuid4().hex) as opened:
        yield opened


def step(purpose: str = "look something up", **fields: Any) -> AgentStep:
    """Return an Action."""
    fields.setdefault("outputs", {"result": "found"})
    return AgentStep(
        step_type=AgentStepType.Action, inputs={"purpose": purpose, "tool": "search"}, **fields
    )


def nested(levels: int) -> dict[str, Any]:
    """Return a dict nested that deep."""
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def test_what_was_added_is_there_after_reopening(tmp_path: Path) -> None:
    steps = [step(f"thing {n}", run_id="r", hop=n, metadata={"n": n}) for n in range(5)]
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        memory.add(steps)
    with StepMemory(tmp_path / "s.db") as memory:
        assert memory.get([s.id for s in steps]).steps == steps
        assert memory.search("thing 3", k=1)[0].step == steps[3]
        assert memory.embedder.model_id == HashingEmbedder().model_id
        assert memory.verify() == []


def test_get_keeps_the_order_asked_and_skips_unknown_ids(memory: StepMemory) -> None:
    steps = [step() for _ in range(3)]
    memory.add(steps)
    asked = [str(steps[2].id), uuid4(), steps[0].id]
    assert [s.id for s in memory.get(asked).steps] == [steps[2].id, steps[0].id]
    assert isinstance(memory.get(steps[1].id), AgentStepList)
    assert memory.exist(steps[0].id)
    assert memory.exist(str(steps[0].id))
    assert not memory.exist("nobody")


@pytest.mark.parametrize("wrong", [None, 3, [None], [3], [[step()]]])
def test_what_is_no_id_is_neither_got_nor_deleted(memory: StepMemory, wrong: Any) -> None:
    memory.add(step())
    for take in (memory.get, memory.get_steps, memory.delete):
        with pytest.raises(InvalidQueryError, match="ids are UUIDs or texts; got"):
            take(wrong)
    assert (memory.get([]).steps, memory.delete(iter([]))) == ([], 0)
    assert memory.stats()["steps"] == 1


def test_add_takes_one_step_many_or_a_step_list_all_or_nothing(memory: StepMemory) -> None:
    one, two, three = step(), step(), step()
    memory.add(one)
    memory.add(AgentStepList(steps=[two]))
    with pytest.raises(DuplicateStepError, match=str(one.id)):
        memory.add([three, one])
    with pytest.raises(DuplicateStepError):
        memory.add([three, three])
    assert not memory.exist(three.id)
    memory.add(iter([three]))
    memory.add([])
    assert memory.stats()["steps"] == 3


def test_update_replaces_in_store_and_in_search(memory: StepMemory) -> None:
    old = step("buy a zebra")
    memory.add(old)
    assert memory.search("zebra", mode="lexical")
    new = old.model_copy(update={"inputs": {"purpose": "sell a giraffe"}})
    memory.update([new, step("other")])
    assert memory.get(old.id).steps == [new]
    assert not memory.search("zebra", mode="lexical")
    assert memory.search("giraffe", mode="lexical")[0].step == new


@pytest.mark.parametrize("value", [nested(65), nested(2_000)])
def test_what_is_nested_too_deep_is_refused(memory: StepMemory, value: dict[str, Any]) -> None:
    with pytest.raises(StepTooDeepError, match="deeper than 64"):
        memory.add(step(outputs=value))
    memory.add(step(outputs=nested(60)))
    assert memory.stats()["steps"] == 1


def test_a_value_that_holds_itself_is_refused(memory: StepMemory) -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    mutated = step()
    mutated.outputs = circle
    for bad in (step(outputs=circle), mutated):
        with pytest.raises(StepTooDeepError):
            memory.add(bad)


def test_what_is_too_large_is_refused_and_just_below_is_kept(memory: StepMemory) -> None:
    with pytest.raises(StepTooLargeError, match="8,388,608"):
        memory.add(step(outputs={"result": "x" * 9_000_000}))
    memory.add(step("large", outputs={"result": "x" * 8_000_000}))
    assert len(memory.search("large", k=1)[0].step.result) == 8_000_000


@pytest.mark.parametrize("name", ["id", "run_id", "session_id", "user_id", "parent_id"])
@pytest.mark.parametrize("value", ["x" * 129, "", "a\x00b", "a\ud800b"])
def test_ids_that_no_store_can_hold_are_refused(memory: StepMemory, name: str, value: str) -> None:
    with pytest.raises(InvalidStepError, match=name):
        memory.add(step(**{name: value}))
    assert memory.stats()["steps"] == 0


def test_what_is_no_step_is_refused(memory: StepMemory) -> None:
    for bad in ("text", {"step_type": "Action"}, [1], None, [step(), "x"]):
        with pytest.raises(InvalidStepError, match="expected"):
            memory.add(bad)  # pyright: ignore[reportArgumentType]
    assert memory.stats()["steps"] == 0


def test_what_json_cannot_hold_is_repaired_with_a_note(memory: StepMemory) -> None:
    odd = step(outputs={"a": math.nan, "b": 2**70, 3: "x", "c": "\ud800\x00"})
    mutated = step()
    mutated.outputs = {"late": math.inf}
    memory.add([odd, mutated])
    stored = memory.get(odd.id).steps[0]
    assert stored == odd
    assert stored.outputs == {"a": None, "b": str(2**70), "3": "x", "c": "\ufffd\ufffd"}
    assert stored.metadata is not None
    assert len(stored.metadata["repairs"]) == 4
    late = memory.get(mutated.id).steps[0]
    assert late.outputs == {"late": None}
    assert late.metadata == {"repairs": ["outputs.late: inf stored as null"]}
    assert mutated.outputs == {"late": math.inf}


def test_an_unknown_parent_is_kept_and_counted_as_dangling(memory: StepMemory) -> None:
    parent = step("the parent")
    child = step("the child", parent_id=parent.id)
    memory.add(child)
    assert memory.stats()["dangling_parents"] == 1
    assert memory.parents(child.id).steps == []
    memory.add(parent)
    assert memory.stats()["dangling_parents"] == 0
    assert memory.parents(child.id).steps == [parent]
    assert memory.children(parent.id).steps == [child]


def test_links_in_a_circle_end(memory: StepMemory) -> None:
    memory.add(
        [step(id="a", parent_id="b"), step(id="b", parent_id="a"), step(id="c", parent_id="c")]
    )
    assert [s.id for s in memory.parents("a").steps] == ["b"]
    assert memory.parents("c").steps == []
    for expand in ("parents", "following", "program"):
        memory.search("look", expand=expand)


def test_a_step_with_a_vector_keeps_it(memory: StepMemory) -> None:
    dimension = memory.embedder.dimension
    target = np.zeros(dimension)
    target[3] = 1
    given = step("nothing in common", vector=target.tolist())
    memory.add(given)
    memory.flush()
    assert memory.get(given.id, vectors=True).steps[0].vector == target.tolist()
    assert memory.get(given.id).steps[0].vector is None
    for vector, error in [
        ([1.0] * (dimension + 1), DimensionMismatchError),
        ([math.nan] * dimension, InvalidVectorError),
        ([math.inf] * dimension, InvalidVectorError),
        ([0.0] * dimension, InvalidVectorError),
        ([], DimensionMismatchError),
    ]:
        with pytest.raises(error):
            memory.add([step(), step(vector=vector)])
    assert memory.stats()["steps"] == 1


class Flawed(HashingEmbedder):
    """Gives NaN for one text, zero for another, and fails on demand."""

    fail = False

    @property
    def model_id(self) -> str:
        return "flawed"

    def embed_documents(self, texts: Any) -> Any:
        if self.fail:
            raise ConnectionError("no route to host")
        vectors = super().embed_documents(texts).copy()
        for number, text in enumerate(texts):
            if "poison" in text:
                vectors[number] = np.nan
            if "empty" in text:
                vectors[number] = 0
        return vectors


def test_an_embedders_bad_output_keeps_the_step_as_text_only() -> None:
    memory = StepMemory(":memory:", embedder=Flawed())
    memory.add([step("poison pill"), step("empty shell"), step("fine thing")])
    assert {hit.step.purpose for hit in memory.search("poison empty fine", k=5)} == {
        "poison pill",
        "empty shell",
        "fine thing",
    }
    stats = memory.stats()
    assert (stats["steps"], stats["embedded"], stats["text_only"]) == (3, 1, 2)


def test_an_embedder_that_fails_loses_nothing_and_is_tried_again() -> None:
    embedder = Flawed()
    memory = StepMemory(":memory:", embedder=embedder)
    embedder.fail = True
    memory.add(step("fine thing"))
    with pytest.raises(EmbedderError, match="no route to host"):
        memory.search("fine")
    assert memory.search("fine", mode="lexical")
    embedder.fail = False
    assert memory.search("fine", mode="dense")
    assert memory.stats()["embedded"] == 1


def test_an_embedder_of_the_same_name_with_longer_vectors_stores_none(tmp_path: Path) -> None:
    class Sized(HashingEmbedder):
        @property
        def model_id(self) -> str:
            return "mine"

    with StepMemory(tmp_path / "s.db", embedder=Sized(64)) as memory:
        memory.add([step(f"thing {n}") for n in range(5)])
        memory.flush()
    with StepMemory(tmp_path / "s.db", embedder=Sized(128)) as memory:
        memory.add(step("thing of zebras"))
        for call in (memory.flush, lambda: memory.search("thing")):
            with pytest.raises(EmbedderMismatchError, match=r"64 dimensions.*128 dimensions"):
                call()
    with StepMemory(tmp_path / "s.db", embedder=Sized(64)) as memory:
        assert memory.search("zebras", k=1)[0].step.purpose == "thing of zebras"
        memory.reembed(Sized(128))
        assert memory.search("zebras", k=1)[0].step.purpose == "thing of zebras"
        assert memory.stats()["embedded"] == 6


def test_a_memory_remembers_its_embedder(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step("one"))
        memory.flush()
    with pytest.raises(EmbedderMismatchError, match="reembed"):
        StepMemory(path, embedder="wordllama")
    with StepMemory(path) as memory:
        done: list[tuple[int, int]] = []
        memory.reembed("wordllama", lambda ready, total: done.append((ready, total)))
        assert done
        assert memory.stats()["dimension"] == 256
        assert memory.search("one", mode="dense")
    with StepMemory(path, embedder="wordllama") as memory:
        assert memory.search("one", mode="dense")[0].score > 0.3


def test_a_memory_that_was_not_told_its_embedder_follows_a_change(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as made:
        made.add(step("one"))
        made.search("one")
    with StepMemory(path) as following, StepMemory(path) as changing:
        assert following.search("one")
        changing.reembed("hashing:64")
        assert following.search("one", mode="dense")
        assert following.embedder.dimension == 64


def test_a_file_built_with_an_unknown_embedder_is_still_found_by_words(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder=Flawed()) as memory:
        memory.add(step("fine thing"))
        memory.flush()
    with StepMemory(path) as memory:
        assert memory.search("fine", mode="lexical")
        with pytest.raises(EmbedderMismatchError, match="flawed"):
            memory.search("fine")


def test_a_score_given_to_a_run_is_inherited(memory: StepMemory) -> None:
    memory.add([step("a", run_id="r"), step("b", run_id="r", score=0.1), step("c", run_id="s")])
    memory.score("r", 0.9, "well done")
    assert [s.score for s in memory.run("r").steps] == [0.9, 0.1]
    found = memory.find({"min_score": 0.5}).steps
    assert [s.purpose for s in found] == ["a"]
    assert {run.run_id: (run.score, run.feedback) for run in memory.runs()} == {
        "r": (0.9, "well done"),
        "s": (None, None),
    }
    with pytest.raises(UnknownRunError, match="nobody"):
        memory.score("nobody", 1.0)


def test_find_orders_a_run_by_hop_and_pages(memory: StepMemory) -> None:
    memory.add([step(f"s{hop}", run_id="r", hop=hop) for hop in (2, 0, 3, 1)])
    assert [s.hop for s in memory.run("r").steps] == [0, 1, 2, 3]
    assert [s.hop for s in memory.find({"run_id": "r"}, limit=2, offset=1).steps] == [1, 2]
    assert [s.hop for s in memory.find(limit=1, newest_first=True).steps] == [1]
    with pytest.raises(InvalidFilterError):
        memory.find({"run": "r"})


def test_delete_and_purge_leave_no_trace_in_any_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([step(f"ordinary thing {n}", user_id="bob") for n in range(2_500)])
        secret = step("the zanzibarcanary", user_id="eve", outputs={"result": "zanzibarcanary"})
        trial = step("zanzibarcanary", user_id="eve", scope="compile:x")
        memory.add([secret, trial])
        memory.flush()
        assert any(b"zanzibarcanari" in file.read_bytes() for file in tmp_path.iterdir())
        assert memory.purge({"user_id": "eve"}) == 2
        assert not memory.search("zanzibarcanary", mode="lexical")
        assert memory.verify() == []
        for file in tmp_path.iterdir():
            assert b"zanzibarcanar" not in file.read_bytes(), file
        memory.flush()
    for file in tmp_path.iterdir():
        assert b"zanzibarcanar" not in file.read_bytes(), file
    with StepMemory(path) as memory:
        assert memory.stats()["steps"] == 2_500
        with pytest.raises(InvalidFilterError, match="clear"):
            memory.purge({})


def test_clear_empties_one_namespace_only(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with (
        StepMemory(path, embedder="hashing", namespace="a") as one,
        StepMemory(path, embedder="hashing", namespace="b") as two,
    ):
        shared = step("shared id")
        one.add(shared)
        two.add(shared)
        one.search("shared")
        two.search("shared")
        one.clear()
        assert not one.search("shared")
        assert not one.exist(shared.id)
        assert two.search("shared")[0].step == shared


def test_redaction_reaches_every_string_before_anything_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    def hide(text: str) -> str:
        return text.replace("hunter2", "[password]")

    with StepMemory(path, embedder="hashing", redact=hide) as memory:
        told = step(
            "login with hunter2",
            outputs={"result": ["hunter2", {"deep": "hunter2", "hunter2": 1}], "hunter2": 2},
            metadata={"note": "hunter2", "hunter2": {"hunter2": 3}},
            extra_field="hunter2",
            run_id="r",
        )
        memory.add(told)
        memory.score("r", 1.0, "used hunter2")
        assert memory.search("login with hunter2", k=1)[0].why.startswith("same text")
        assert memory.search(told, k=1)[0].step.id == told.id
        memory.flush()
        assert told.purpose == "login with hunter2"
        assert memory.get(told.id).steps[0].purpose == "login with [password]"
    for file in tmp_path.iterdir():
        assert b"hunter2" not in file.read_bytes(), file


def test_a_redaction_that_fails_stores_nothing_and_quotes_nothing(tmp_path: Path) -> None:
    def broken(text: str) -> str:
        raise ValueError(f"cannot handle {text}")

    with StepMemory(tmp_path / "s.db", embedder="hashing", redact=broken) as memory:
        with pytest.raises(InvalidStepError, match="redact failed") as caught:
            memory.add(step("hunter2"))
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert memory.stats()["steps"] == 0


class Listening(HashingEmbedder):
    """Keeps the queries it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def embed_queries(self, texts: Any) -> Any:
        self.heard.extend(texts)
        return super().embed_queries(texts)


def test_redaction_reaches_queries_before_the_embedder_does() -> None:
    embedder = Listening()
    memory = StepMemory(":memory:", embedder=embedder, redact=lambda text: text.replace("key", "?"))
    memory.add(step("use the key"))
    assert memory.search("where is the key")
    assert embedder.heard == ["where is the ?"]


@pytest.mark.parametrize("redact", ["x", 7, ["key"]])
def test_a_redaction_is_a_function(tmp_path: Path, redact: Any) -> None:
    with pytest.raises(InvalidStepError, match="redact is a function that takes a text"):
        StepMemory(tmp_path / "s.db", redact=redact)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [None, 7, b"x"])
def test_a_redaction_that_returns_no_text_is_refused(answer: Any) -> None:
    memory = StepMemory(":memory:", embedder="hashing", redact=lambda _: answer)
    with pytest.raises(InvalidStepError, match="must return a string"):
        memory.add(step())
    odd = StepMemory(":memory:", embedder="hashing", redact=lambda text: text + "\ud800")
    odd.add(step("x", id="a"))
    assert odd.get("a").steps[0].purpose == "x\ufffd"


@pytest.mark.parametrize("value", [math.nan, math.inf, True, None, "0.5"])
def test_a_score_is_a_number(memory: StepMemory, value: Any) -> None:
    memory.add(step(run_id="r"))
    with pytest.raises(InvalidStepError, match="finite number"):
        memory.score("r", value)
    assert memory.run("r").steps[0].score is None


def test_a_steps_score_that_is_no_number_is_named(memory: StepMemory) -> None:
    memory.add(step(id="a", score=math.nan, metadata={"repairs": "my own"}))
    kept = memory.get("a").steps[0]
    assert kept.score is None
    assert kept.metadata == {"repairs": ["my own", "score: nan stored as null"]}


@pytest.mark.parametrize("page", [{"limit": -1}, {"offset": -1}, {"limit": None}, {"limit": "5"}])
def test_a_page_is_a_number_of_steps(memory: StepMemory, page: dict[str, Any]) -> None:
    with pytest.raises(InvalidQueryError, match="a whole number"):
        memory.find(**page)
    with pytest.raises(InvalidQueryError, match="a whole number"):
        memory.runs(**page)


def test_iter_steps_yields_all_of_them_trials_too(memory: StepMemory) -> None:
    memory.add([step(id="own"), step(id="trial", scope="compile:x")])
    assert [s.id for s in memory.iter_steps()] == ["own", "trial"]
    assert [s.id for s in memory.iter_steps({"scope": "compile:x"})] == ["trial"]
    assert [s.id for s in memory.find().steps] == ["own"]


def test_vectors_asked_for_are_there(memory: StepMemory) -> None:
    memory.add(step(id="a"))
    vector = memory.get("a", vectors=True).steps[0].vector
    assert vector is not None
    assert len(vector) == memory.embedder.dimension


def test_what_cannot_be_saved_is_still_found(
    file_memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_memory.add([step("a saved thing"), step("another saved thing")])
    file_memory.flush()
    file_memory.add(step("a late thing"))

    def full(*_: Any, **__: Any) -> None:
        raise DiskFullError("no space left")

    store = file_memory._store  # pyright: ignore[reportPrivateUsage] - to make the disk fail
    with monkeypatch.context() as patch:
        patch.setattr(store, "save_derived", full)
        for mode in ("hybrid", "dense", "lexical"):
            assert (
                file_memory.search("a late thing", k=1, mode=mode)[0].step.purpose == "a late thing"
            )
        assert file_memory.stats()["pending_texts"] == 1
    assert file_memory.search("a late thing", k=1)[0].step.purpose == "a late thing"
    assert file_memory.stats()["pending_texts"] == 0


def test_copies_share_and_pickles_reopen(file_memory: StepMemory) -> None:
    assert copy.copy(file_memory) is file_memory
    assert copy.deepcopy({"m": file_memory})["m"] is file_memory
    other = pickle.loads(pickle.dumps(file_memory))
    other.add(step("written by the other"))
    assert file_memory.search("written by the other", k=1)
    other.close()
    with StepMemory(":memory:") as memory:
        assert copy.deepcopy(memory) is memory
        with pytest.raises(MemoryNotPicklableError, match="give it a file"):
            pickle.dumps(memory)


def test_a_closed_memory_says_so(file_memory: StepMemory) -> None:
    file_memory.close()
    file_memory.close()
    calls: list[Callable[[], Any]] = [
        lambda: file_memory.add(step()),
        lambda: file_memory.search("x"),
        lambda: file_memory.get("x"),
        lambda: list(file_memory.iter_steps()),
        file_memory.flush,
        file_memory.stats,
    ]
    for call in calls:
        with pytest.raises(MemoryClosedError, match="closed"):
            call()


def test_threads_add_and_search_at_once(file_memory: StepMemory) -> None:
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for n in range(20):
                mine = step(f"task{name} item{n}")
                file_memory.add(mine)
                found = file_memory.search(f"task{name} item{n}", k=1)
                assert found[0].step.id == mine.id
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert file_memory.stats()["steps"] == 160


def test_a_search_sees_what_another_process_committed(file_memory: StepMemory) -> None:
    file_memory.add(step("written here"))
    assert file_memory.search("written", k=5)
    code = (
        "import sys, hybridagi_steps as hs\n"
        f"m = hs.StepMemory({file_memory.whole_address!r}, namespace={file_memory.namespace!r})\n"
        "found = m.search('written here', k=5)\n"
        "m.add(hs.AgentStep(step_type='Action', inputs={'purpose': 'written there'}))\n"
        "m.delete(found[0].step.id)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert [hit.step.purpose for hit in file_memory.search("written", k=5)] == ["written there"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_adds_and_searches(tmp_path: Path) -> None:
    code = f"""
import os, hybridagi_steps as hs
memory = hs.StepMemory({str(tmp_path / "s.db")!r}, embedder="hashing")
def step(purpose):
    return hs.AgentStep(step_type="Action", inputs={{"purpose": purpose}})
memory.add([step(f"thing {{n}}") for n in range(5000)])
memory.search("thing 7")
child = os.fork()
if not child:
    assert memory.search("thing 8", k=1)[0].step.purpose == "thing 8"
    memory.add(step("from the child"))
    assert memory.search("from the child", k=1)[0].step.purpose == "from the child"
    memory.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert memory.search("from the child", k=1)[0].step.purpose == "from the child"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_of_a_forked_child_share_what_searches_there(tmp_path: Path) -> None:
    code = f"""
import os, threading, hybridagi_steps as hs
from hybridagi_steps import memory as module
memory = hs.StepMemory({str(tmp_path / "s.db")!r}, embedder="hashing")
parents, made, seen = memory.searcher, module.Searcher, []
def make(*given):
    beside = threading.Thread(target=lambda: seen.append(memory.searcher))
    if not threads:
        threads.append(beside)
        beside.start()
        beside.join(0.3)  # as long as it takes where nothing keeps it waiting
    return made(*given)
threads = []
child = os.fork()
if not child:
    module.Searcher = make
    own = memory.searcher
    threads[0].join()
    os._exit(0 if seen == [own] and own is not parents else 3)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_cache_is_used_and_never_trusted(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([step(f"thing number {n}") for n in range(2_500)])
        memory.flush()
        expected = [(hit.step.id, hit.score) for hit in memory.search("number 77", k=5)]
    cache = next(tmp_path.glob("s.db.????????.index"))
    whole = cache.read_bytes()
    damaged = [whole[:100], b"", whole[:-1], b"\x00" * len(whole), whole.replace(b"a", b"b", 1)]
    for place in np.linspace(len(whole) // 9, len(whole) - 9_999, 7).astype(int).tolist():
        flipped = bytes(byte ^ 64 for byte in whole[place : place + 9_000])
        damaged.append(whole[:place] + flipped + whole[place + 9_000 :])
    for content in [whole, *damaged]:
        cache.write_bytes(content)
        with StepMemory(path) as memory:
            found = [(hit.step.id, hit.score) for hit in memory.search("number 77", k=5)]
        assert [i for i, _ in found] == [i for i, _ in expected]
        np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], rtol=1e-5)


def test_deleting_without_searching_builds_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([step(f"thing number {n}", id=f"s{n}") for n in range(2_100)])
        memory.flush()
    for cache in tmp_path.glob("*.index"):
        cache.unlink()
    followed: list[StepIndex] = []

    def follow(index: StepIndex, *_: object) -> None:
        followed.append(index)

    monkeypatch.setattr(StepIndex, "follow", follow)
    with StepMemory(path) as memory:
        assert memory.delete("s5") == 1
    assert not followed
    assert not list(tmp_path.glob("*.index"))


@pytest.mark.parametrize("remove", ["delete", "purge", "retain"])
def test_what_a_removal_leaves_of_an_index_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: str
) -> None:
    path, old = tmp_path / "s.db", datetime(2020, 1, 1, tzinfo=UTC)
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([step(f"thing number {n}", id=f"s{n}") for n in range(2_100)])
        memory.add(step("thing of zebras", id="gone", run_id="old", created_at=old))
        memory.flush()
    with StepMemory(path) as memory:
        if remove == "delete":
            memory.delete("gone")
        elif remove == "purge":
            memory.purge({"run_id": "old"})
        else:
            memory.retain(days=30)
        assert not list(tmp_path.glob("*.index")), "at once"
    (cache,) = tmp_path.glob("*.db.????????.index")
    assert b"zebra" not in cache.read_bytes()
    taken: list[int] = []
    changes = SqliteStepStore.changes

    def counted(store: SqliteStepStore, *args: Any, **options: Any) -> Any:
        found = changes(store, *args, **options)
        taken.append(len(found.texts) + len(found.vectors))
        return found

    monkeypatch.setattr(SqliteStepStore, "changes", counted)
    with StepMemory(path) as memory:
        assert memory.search("thing number 77", k=1)[0].step.id == "s77"
        assert not memory.exist("gone")
    assert sum(taken) == 0


def test_a_cache_of_another_memory_is_not_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with StepMemory(tmp_path / f"{name}.db", embedder="hashing") as memory:
            memory.add([step(f"{name} number {n}") for n in range(2_100)])
            memory.flush()
    foreign = next(tmp_path.glob("a.db.*.index"))
    own = next(tmp_path.glob("b.db.*.index"))
    own.write_bytes(foreign.read_bytes())
    with StepMemory(tmp_path / "b.db") as memory:
        assert memory.search("b number 5", k=1)[0].step.purpose == "b number 5"


def test_stats_can_be_written_as_json(file_memory: StepMemory) -> None:
    file_memory.add(step())
    file_memory.flush()
    stats = json.loads(json.dumps(file_memory.stats()))
    assert stats["steps"] == 1
    assert stats["pending_texts"] == stats["pending_vectors"] == 0
    assert stats["embedder"] == HashingEmbedder().model_id


def test_runs_take_a_filter_first_as_find_does(tmp_path: Path) -> None:
    with StepMemory(tmp_path / "steps.db") as memory:
        steps = [("a", "ok"), ("b", "error")]
        memory.add(
            [
                AgentStep.model_validate({"step_type": "Action", "run_id": run, "status": status})
                for run, status in steps
            ]
        )
        assert [run.run_id for run in memory.runs({"status": "ok"})] == ["a"]
        assert memory.runs(where={"status": "error"}) == memory.runs({"status": "error"})


def test_a_memory_that_cannot_keep_its_index_closes_its_file(
    file_memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_memory.add(step("written"))
    file_memory.search("written")

    def busy() -> None:
        raise StorageBusyError("another thread searches")

    monkeypatch.setattr(file_memory.searcher, "close", busy)
    store = file_memory.repository().store
    with pytest.raises(StorageBusyError):
        file_memory.close()
    with pytest.raises(MemoryClosedError):
        store.identity()
