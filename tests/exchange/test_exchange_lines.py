"""A message only ever stands behind the one before it in its file: lines never mix."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exchange_talks import contents, model, said, user, written

import hybridagi_steps as hs
from hybridagi_steps.exchange import export_file, import_file


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[hs.StepMemory]:
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        yield memory


@pytest.fixture
def other(tmp_path: Path) -> Iterator[hs.StepMemory]:
    with hs.StepMemory(tmp_path / "other.db", embedder="hashing") as memory:
        yield memory


def lines_of(memory: hs.StepMemory) -> list[list[Any]]:
    return sorted(contents(memory).values())


def talk(memory: hs.StepMemory, session_id: str, *messages: dict[str, Any]) -> None:
    asyncio.run(memory.repository().append(session_id, list(messages)))


def test_two_conversations_of_one_id_share_what_they_have_in_common(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    one = {"id": "s", "messages": [user("q"), model("a")]}
    second = {"id": "s", "messages": [user("q"), model("b"), user("more")]}
    third = {"id": "s", "messages": [user("else"), model("c")]}
    path = written(tmp_path, one, second, third)
    for _ in range(2):
        assert import_file(memory, path).skipped == []
        assert lines_of(memory) == [["else", "c"], ["q", "a"], ["q", "b", "more"]]
    assert contents(memory)["s"] == ["q", "a"]
    results = {step.result for step in memory.iter_steps() if step.step_type == "Action"}
    assert results == {"a", "b", "c"}


@pytest.mark.parametrize("here", [["mine"], ["q", "local"], ["q", "a", "local"]])
def test_what_was_written_here_stays_as_it_is(
    memory: hs.StepMemory, tmp_path: Path, here: list[str]
) -> None:
    file = [user("q"), model("a"), user("q2"), model("a2")]
    shared = [file[n] for n, text in enumerate(here) if file[n]["content"] == text]
    if shared:
        import_file(memory, written(tmp_path, {"id": "s", "messages": shared}))
    talk(memory, "s", *map(user, here[len(shared) :]))
    path = written(tmp_path, {"id": "s", "messages": file})
    for _ in range(2):
        assert import_file(memory, path).skipped == []
        assert contents(memory)["s"] == here
        assert lines_of(memory) == sorted([here, ["q", "a", "q2", "a2"]])


def test_what_was_deleted_here_stays_deleted_and_nothing_is_glued_on(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    file = [user("q"), model("a"), user("q2"), model("a2")]
    path = written(tmp_path, {"id": "s", "messages": file})
    import_file(memory, path)
    memory.repository().store.hide_from("s", 3)
    grown = written(tmp_path, {"id": "s", "messages": [*file, user("q3")]}, name="more.jsonl")
    for given in (path, grown):
        report = import_file(memory, given)
        assert contents(memory) == {"s": ["q", "a"]}
        assert report.skipped_count == 1
        assert "lost messages" in report.skipped[0][1]


def test_an_export_meets_a_session_of_the_same_name(
    memory: hs.StepMemory, other: hs.StepMemory, tmp_path: Path
) -> None:
    talk(memory, "t", user("1"), model("2"), user("3"))
    memory.repository().store.fork("t", 1, "fork")
    export_file(memory, tmp_path / "all.jsonl")
    talk(other, "t", user("mine"))
    for _ in range(2):
        assert import_file(other, tmp_path / "all.jsonl").skipped == []
        found = contents(other)
        assert (found["t"], found["fork"]) == (["mine"], ["1"])
        assert lines_of(other) == [["1"], ["1", "2", "3"], ["mine"]]


@pytest.mark.parametrize("order", ["fg", "gf", "tf", "fga", "gta"])
def test_relatives_that_come_one_by_one_meet_again(
    memory: hs.StepMemory, other: hs.StepMemory, tmp_path: Path, order: str
) -> None:
    talk(memory, "t", user("1"), model("2"), user("3"))
    for name in "fg":
        memory.repository().store.fork("t", 2, name)
        talk(memory, name, user(name.upper()))
        talk(memory, name, model("yes"))
    whole = contents(memory)
    for name in order:
        where = None if name == "a" else {"session_id": name}
        export_file(memory, tmp_path / f"{name}.jsonl", where=where)
    for name in order:
        assert import_file(other, tmp_path / f"{name}.jsonl").skipped == []
    names = set("tfg") if "a" in order else set(order)
    assert contents(other) == {name: whole[name] for name in names}


def checkpoint(name: str, parent: str | None, *texts: str) -> dict[str, Any]:
    messages = [
        {"type": "ai" if n % 2 else "human", "data": {"content": text, "id": f"m{text}"}}
        for n, text in enumerate(texts)
    ]
    parents = {"configurable": {"thread_id": "T", "checkpoint_id": parent}}
    return {
        "config": {"configurable": {"thread_id": "T", "checkpoint_id": name}},
        "parent_config": parents if parent else None,
        "checkpoint": {"v": 1, "id": name, "channel_values": {"messages": messages}},
    }


def test_a_thread_that_was_forked_again_keeps_its_lines_apart(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    known = [
        checkpoint("c1", None, "q"),
        checkpoint("c2", "c1", "q", "a"),
        checkpoint("c3", "c1", "q", "b"),
    ]
    later = [
        checkpoint("c4", "c3", "q", "b", "q2"),
        checkpoint("c5", "c2", "q", "a", "other"),
    ]
    import_file(memory, written(tmp_path, *known))
    import_file(memory, written(tmp_path, *known, *later))
    found, whole = lines_of(memory), (["q", "a", "other"], ["q", "b", "q2"])
    assert all(line in found for line in whole)
    assert all(any(line == one[: len(line)] for one in whole) for line in found)


def test_a_branch_that_is_there_under_another_name_is_not_made_again(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    old = [checkpoint("c1", None, "q"), checkpoint("c2", "c1", "q", "a")]
    new = [checkpoint("c3", "c1", "q", "b"), checkpoint("c4", "c3", "q", "b", "q2")]
    import_file(memory, written(tmp_path, *old))
    assert import_file(memory, written(tmp_path, *old, *new)).skipped == []
    assert lines_of(memory) == [["q", "a"], ["q", "b", "q2"]]
    both = [checkpoint("c5", "c2", "q", "a", "more"), checkpoint("c6", "c4", "q", "b", "q2", "b2")]
    assert import_file(memory, written(tmp_path, *old, *new, *both)).skipped == []
    assert lines_of(memory) == [["q", "a", "more"], ["q", "b", "q2", "b2"]]
    assert {run.run_id for run in memory.runs()} == set(contents(memory))


def test_a_branch_is_not_written_to_what_was_forked_here(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    known = [checkpoint("c1", None, "q", "a", "x"), checkpoint("c2", None, "q", "a")]
    import_file(memory, written(tmp_path, known[1]))
    memory.repository().store.fork("T", 2, "mine")
    talk(memory, "T", user("here"))
    import_file(memory, written(tmp_path, known[0]))
    assert contents(memory)["mine"] == ["q", "a"]
    assert lines_of(memory) == [["q", "a"], ["q", "a", "here"], ["q", "a", "x"]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_fork_has_a_run_of_its_own_and_is_a_whole_example(
    memory: hs.StepMemory, tmp_path: Path, order: tuple[int, ...]
) -> None:
    ends = [["c", "d"], ["X", "Y"], ["c", "d", "e", "f"]]
    for number in order:
        texts = ["a", "b", *ends[number]]
        turns = [(user, model)[place % 2](text) for place, text in enumerate(texts)]
        path = written(tmp_path, {"id": "g", "messages": turns})
        assert import_file(memory, path).skipped == []
    runs = {run.run_id: [s.hop for s in memory.run(run.run_id).steps] for run in memory.runs()}
    assert runs.pop("g") == list(range(9))
    [(fork, hops)] = runs.items()
    assert hops == [3, 4, 5]
    assert {message.run_id for message in said(memory, fork)[2:]} == {fork}
    examples = [["a", "b", "X", "Y"], ["a", "b", "c", "d", "e", "f"]]
    assert export_file(memory, tmp_path / "all", format="openai") == 2
    assert sorted(texts_of(tmp_path / "all")) == examples
    export_file(memory, tmp_path / "one", format="openai", where={"run_id": fork})
    assert texts_of(tmp_path / "one") == examples[:1]
    export_file(memory, tmp_path / "ok", format="openai", where={"status": "ok"})
    assert sorted(texts_of(tmp_path / "ok")) == examples


def texts_of(path: Path) -> list[list[str]]:
    lines = map(json.loads, path.read_text().splitlines())
    return [[message["content"] for message in line["messages"]] for line in lines]


def test_a_bad_line_leaves_no_hole_and_the_next_import_repairs_it(
    memory: hs.StepMemory, other: hs.StepMemory, tmp_path: Path
) -> None:
    chat = [user("q0"), model("a0"), user("q1"), model("a1"), user("q2"), model("a2")]
    talk(memory, "trip", *chat)
    memory.repository().store.fork("trip", 4, "fork")
    talk(memory, "fork", user("fq"))
    export_file(memory, tmp_path / "good.jsonl")
    good = (tmp_path / "good.jsonl").read_text().splitlines(keepends=True)
    bad = [line.replace('"user"', '"usr"') if '"q1"' in line else line for line in good]
    (tmp_path / "bad.jsonl").write_text("".join(bad))
    report = import_file(other, tmp_path / "bad.jsonl")
    assert contents(other) == {"trip": ["q0", "a0"]}
    assert report.skipped_count == 3  # the line, what follows it, and the fork
    assert import_file(other, tmp_path / "good.jsonl").skipped == []
    assert contents(other) == contents(memory)


def test_a_line_that_stands_twice_counts_once(
    memory: hs.StepMemory, other: hs.StepMemory, tmp_path: Path
) -> None:
    talk(memory, "trip", user("q0"), model("a0"), user("q1"))
    export_file(memory, tmp_path / "good.jsonl")
    good = (tmp_path / "good.jsonl").read_text().splitlines(keepends=True)
    twice = [line for line in good for _ in range(2 if '"a0"' in line else 1)]
    (tmp_path / "twice.jsonl").write_text("".join(twice))
    assert import_file(other, tmp_path / "twice.jsonl").skipped == []
    assert contents(other) == contents(memory)


def test_two_messages_of_one_id_are_named(memory: hs.StepMemory, tmp_path: Path) -> None:
    header = {"record": "session", "session_id": "h"}
    lines = [
        {"record": "message", "session_id": "h", "id": "same", "sequence": n, **user(str(n))}
        for n in (1, 2)
    ]
    report = import_file(memory, written(tmp_path, header, *lines))
    [(line, reason)] = report.skipped
    assert line == 3
    assert "'same' stands elsewhere" in reason
    assert contents(memory) == {"h": ["1"]}


def test_long_ids_of_calls_still_meet(memory: hs.StepMemory, tmp_path: Path) -> None:
    name = "x" * 200
    call = {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": name, "content": "r"}
    chat = [user("q"), asking, answer, model("end")]
    assert import_file(memory, written(tmp_path, {"id": "s", "messages": chat})).skipped == []
    _, asked, answered, _ = said(memory, "s")
    assert [given["id"] for given in asked.tool_calls or []] == [answered.tool_call_id]
