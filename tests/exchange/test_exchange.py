"""Import and export of files: nothing lost, nothing doubled, bad records named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from exchange_shelf import Shelf, unsourced
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridagi_steps import StepMemory
from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange import check_file, export_file, import_file
from hybridagi_steps.exchange.formats import FORMATS
from hybridagi_steps.exchange.formats.jsonl import parse, step_line
from hybridagi_steps.exchange.reader import json_record
from hybridagi_steps.exchange.records import Parsed, Record, Skipped
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def step(purpose: str = "look", **fields: Any) -> AgentStep:
    return AgentStep(step_type=AgentStepType.Action, inputs={"purpose": purpose}, **fields)


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_real_steps_arrive_whole_and_only_once(shelf: Shelf) -> None:
    source = Path(str(files("hybridagi_steps.data") / "steps.jsonl"))
    lines = source.read_text(encoding="utf-8").splitlines()
    report = import_file(shelf, source)
    assert (report.read, report.added, report.skipped) == (len(lines), len(lines), [])
    stored = shelf.steps
    for line in lines:
        wanted = json.loads(line)
        got = unsourced(stored[wanted["id"]]).model_dump(mode="json")
        assert {key: got[key] for key in wanted} == wanted
    again = import_file(shelf, source)
    assert (again.added, again.already_there) == (0, len(lines))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("aé漢🙂_", max_size=5), inner)
    ),
    max_leaves=10,
)
objects = st.none() | st.dictionaries(st.text("abcäß ", max_size=6), json_values, max_size=4)
any_step = st.builds(
    AgentStep,
    id=st.uuids(version=4) | st.text("abc-:é", min_size=1, max_size=30),
    # An import cuts links in a circle: no parent is one of the steps.
    parent_id=st.none() | st.uuids(version=1) | st.text("xyz", min_size=1),
    hop=st.integers(0, 10_000),
    step_type=st.sampled_from(AgentStepType),
    inputs=objects,
    outputs=objects,
    metadata=objects,
    created_at=st.datetimes(timezones=st.just(UTC)),
    session_id=st.none() | st.text("ab漢", min_size=1),
    status=st.sampled_from(["ok", "error", "partial", "cancelled"]),
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    vector=st.none() | st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2).filter(any),
)


@given(any_step)
def test_a_step_written_and_read_is_the_same_step(given: AgentStep) -> None:
    records = list(parse([Record(1, json_record(step_line(given, vectors=True)))]))
    assert records == [Parsed(1, given)]


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(any_step, max_size=20, unique_by=lambda s: id_text(s.id)))
def test_export_then_import_changes_nothing(
    steps: list[AgentStep], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("round") / "out.jsonl"
    first, second = Shelf(), Shelf()
    first.add(steps)
    assert export_file(first, path, vectors=True) == len(steps)
    if steps:
        assert import_file(second, path).added == len(steps)
        assert import_file(first, path).added == 0
    assert unsourced(second) == unsourced(first)
    assert list(second.steps) == list(first.steps)


def test_vectors_are_written_on_request_only(shelf: Shelf, tmp_path: Path) -> None:
    shelf.add(step(vector=[0.5, 0.25]))
    export_file(shelf, tmp_path / "plain.jsonl")
    export_file(shelf, tmp_path / "full.jsonl", vectors=True)
    assert "vector" not in json.loads((tmp_path / "plain.jsonl").read_text())
    assert json.loads((tmp_path / "full.jsonl").read_text())["vector"] == [0.5, 0.25]


def test_bad_records_are_named_and_the_rest_goes_on(shelf: Shelf, tmp_path: Path) -> None:
    good, late = step("good"), step("late")
    path = write(
        tmp_path / "mixed.jsonl",
        good.model_dump_json(),
        "{not json",
        "",
        {"step_type": "Dance"},
        {"neither": 1},
        [1, 2],
        {"step_type": "Action", "inputs": {"purpose": "enormous"}},
        {"step_type": "Action", "hop": "many"},
        late.model_dump_json(),
        '{"step_type": "Action", "inp',
    )
    report = import_file(shelf, path)
    assert set(shelf.steps) == {str(good.id), str(late.id)}
    assert [line for line, _ in report.skipped] == [2, 4, 5, 6, 8, 10, 7]
    reasons = dict(report.skipped)
    assert "not JSON" in reasons[2]
    assert "step_type" in reasons[4]
    assert "hop" in reasons[8]
    assert "limit" in reasons[7]
    assert report.read == report.added + report.already_there + report.skipped_count == 9


def test_the_list_of_bad_records_is_bounded(shelf: Shelf, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", *['{"a": 1}'] * 3_000)
    report = import_file(shelf, path)
    assert (len(report.skipped), report.skipped_count) == (1_000, 3_000)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_with_a_byte_order_mark_are_read(
    shelf: Shelf, tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "steps.jsonl"
    text = "".join(step(f"日本 🙂 {n}").model_dump_json() + "\r\n" for n in range(1_000))
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    path.write_bytes((mark + text).encode(encoding))
    assert import_file(shelf, path).added == 1_000
    assert {s.purpose for s in shelf.steps.values()} == {f"日本 🙂 {n}" for n in range(1_000)}


def test_line_separators_inside_texts_do_not_end_a_line(shelf: Shelf, tmp_path: Path) -> None:
    given = step("a\u2028b\u2029c\x85d\x0be\x0c\x1cf")
    path = write(tmp_path / "steps.jsonl", given.model_dump_json())
    assert import_file(shelf, path).added == 1
    assert shelf.steps[str(given.id)].purpose == given.purpose


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n\n ", "empty"),
        (b"\xff\xfe", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"SQLite format 3\x00\x10\x00", "not text"),
        (b"\xff\xfe\x00", "UTF-16"),
        (b'[{"role": "user"', "not JSON"),
    ],
)
def test_files_that_cannot_be_read_are_refused(
    shelf: Shelf, tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(ExchangeError, match=said):
        import_file(shelf, path)
    assert not shelf.steps


@pytest.mark.parametrize("path", [None, 5, ["steps.jsonl"], b"steps.jsonl", "nul\0.jsonl"])
def test_what_is_no_path_is_refused_in_words(shelf: Shelf, path: Any) -> None:
    with pytest.raises(ExchangeError, match="path"):
        import_file(shelf, path)
    with pytest.raises(ExchangeError, match="path"):
        export_file(shelf, path)
    with pytest.raises(ExchangeError, match="path"):
        check_file(path)


def test_a_line_that_is_not_utf8_is_named(shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    fine = step().model_dump_json().encode()
    path.write_bytes(b'{"step_type": "Action", "inputs": {"purpose": "\xe9"}}\n' + fine)
    report = import_file(shelf, path)
    assert report.added == 1
    assert report.skipped == [(1, "not UTF-8 at byte 47")]


def test_missing_files_folders_and_formats_are_named(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match=r"there is no file .*nowhere"):
        import_file(shelf, tmp_path / "nowhere.jsonl")
    with pytest.raises(ExchangeError, match="cannot read"):
        import_file(shelf, tmp_path)
    with pytest.raises(ExchangeError, match="known formats: auto, jsonl, parquet, anthropic"):
        import_file(shelf, write(tmp_path / "a.jsonl", {}), format="xml")


def test_what_json_cannot_hold_is_repaired_with_a_note(shelf: Shelf, tmp_path: Path) -> None:
    big = "1" + "0" * 30
    line = (
        f'{{"id": "x", "step_type": "Action", "inputs": {{"n": {big}, "s": "\\ud800", "f": NaN}}}}'
    )
    import_file(shelf, write(tmp_path / "odd.jsonl", line))
    got = shelf.steps["x"]
    assert got.inputs == {"n": big, "s": "\ufffd", "f": None}
    assert len((got.metadata or {})["repairs"]) == 3


def test_deep_nesting_and_endless_numbers_are_skipped(shelf: Shelf, tmp_path: Path) -> None:
    deep = '{"step_type": "Action", "inputs": ' + '{"a":' * 5_000 + "1" + "}" * 5_001
    digits = '{"step_type": "Action", "inputs": {"n": ' + "9" * 5_000 + "}}"
    report = import_file(
        shelf, write(tmp_path / "deep.jsonl", deep, digits, step().model_dump_json())
    )
    assert (report.added, [line for line, _ in report.skipped]) == (1, [1, 2])


@pytest.mark.parametrize(
    "odd",
    [
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"created_at": 1e300},
        {"created_at": 20261101},  # a day, written as a number, is no second of 1970
        {"created_at": {}},
        {"id": ["x"]},
        {"id": None},
        {"inputs": [1]},
        {"metrics": {"duration_ms": "long"}},
        {"vector": ["a"]},
        {"status": "splendid"},
    ],
)
def test_odd_fields_are_named(shelf: Shelf, tmp_path: Path, odd: dict[str, Any]) -> None:
    path = write(tmp_path / "odd.jsonl", {"step_type": "Action", **odd}, step().model_dump_json())
    report = import_file(shelf, path)
    assert (report.added, report.skipped_count) == (1, 1)
    line, reason = report.skipped[0]
    assert line == 1
    assert next(iter(odd)) in reason or "time out of range" in reason


def test_session_and_user_are_given_to_steps_without_one(shelf: Shelf, tmp_path: Path) -> None:
    path = write(
        tmp_path / "steps.jsonl",
        step(id="own", session_id="mine").model_dump_json(),
        step(id="none").model_dump_json(),
    )
    import_file(shelf, path, session_id="given", user_id="ada")
    assert shelf.steps["own"].session_id == "mine"
    assert shelf.steps["none"].session_id == "given"
    assert {s.user_id for s in shelf.steps.values()} == {"ada"}


def test_an_id_and_its_text_are_the_same_step(shelf: Shelf, tmp_path: Path) -> None:
    name = uuid4()
    lines = [step(id=name).model_dump_json(), step(id=str(name)).model_dump_json()]
    assert import_file(shelf, write(tmp_path / "twice.jsonl", *lines)).already_there == 1
    assert shelf.steps[str(name)].id == UUID(str(name))


def test_progress_reaches_the_end(shelf: Shelf, tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", *[step().model_dump_json() for _ in range(1_200)])
    seen: list[tuple[int, int]] = []
    import_file(shelf, path, progress=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert len(seen) == 3


def test_a_failing_export_leaves_what_was_there(shelf: Shelf, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("before")

    class Breaking(Shelf):
        def iter_steps(self, where: Any = None) -> Iterator[AgentStep]:
            yield step()
            raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="gone"):
        export_file(Breaking(), target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_export_to_a_missing_folder_says_so(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match="cannot write"):
        export_file(shelf, tmp_path / "no" / "out.jsonl")


def test_session_messages_become_steps(shelf: Shelf, tmp_path: Path) -> None:
    def message(session: str, sequence: int, **fields: Any) -> dict[str, Any]:
        return {"session_id": session, "sequence": sequence, "id": f"{session}{sequence}", **fields}

    lines = [
        message("s", 1, role="user", content="Hello"),
        message("s", 2, role="assistant", content="Hi", created_at="2026-01-02T03:04:05Z"),
        message("t", 1, role="user", content="Bye"),
    ]
    report = import_file(shelf, write(tmp_path / "m.jsonl", *lines))
    assert report.added == 4
    assert [s.session_id for s in shelf.steps.values()] == ["s", "s", "s", "t"]
    kept = [m for s in shelf.steps.values() for m in (s.model_extra or {})["messages"]]
    assert kept == lines
    said = next(s for s in shelf.steps.values() if s.outputs == {"result": "Hi"})
    assert said.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert import_file(shelf, tmp_path / "m.jsonl").added == 0


def test_skipped_records_are_plain_values() -> None:
    assert list(parse([Record(7, [])])) == [Skipped(7, "a step is an object, this is a JSON list")]


@given(
    content=st.binary(max_size=300)
    | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.lists(json_values, max_size=4).map(lambda v: "\n".join(map(json.dumps, v)).encode())
    | st.tuples(any_step.map(step_line), st.integers(0, 400), st.binary(max_size=3)).map(
        lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
    ),
    format_name=st.sampled_from(FORMATS),
)
def test_no_file_whatsoever_breaks_an_import(
    content: bytes, format_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("odd") / "odd.json"
    path.write_bytes(content)
    try:
        report = import_file(Shelf(), path, format=format_name)
    except ExchangeError:
        return
    assert report.read == report.added + report.already_there + report.skipped_count


def sources(memory: StepMemory) -> list[Any]:
    return [(step.metadata or {}).get("source") for step in memory.iter_steps()]


def test_what_is_imported_says_so_whatever_it_says_itself(
    memory: StepMemory, tmp_path: Path
) -> None:
    chat = {
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "?"}]
    }
    (tmp_path / "chats.jsonl").write_text(json.dumps(chat))
    import_file(memory, tmp_path / "chats.jsonl")
    assert {(s["kind"], s["format"], s["name"]) for s in sources(memory)} == {
        ("import", "openai", "chats.jsonl")
    }
    assert all(datetime.fromisoformat(source["at"]).tzinfo for source in sources(memory))
    [session] = memory.repository().store.sessions(limit=9)
    said = memory.repository().store.messages(session.session_id)
    assert [(message.metadata or {})["source"]["name"] for message in said] == ["chats.jsonl"] * 2
    liar = step(id="liar", user_id="ann", metadata={"source": None})
    forger = step(id="forger", user_id="ann", metadata={"source": {"kind": "recorded"}})
    (tmp_path / "own.jsonl").write_bytes(step_line(liar) + step_line(forger))
    import_file(memory, tmp_path / "own.jsonl")
    one, two = memory.get_steps(["liar", "forger"])
    assert (one.metadata or {})["source"]["kind"] == "import"
    assert "before" not in (one.metadata or {})["source"]
    assert (two.metadata or {})["source"]["before"] == {"kind": "recorded"}
    assert memory.find({"trust": "team"}).steps == []
    assert len(memory.find({"sources": "own.jsonl", "user_id": "ann"}).steps) == 2


def test_a_source_keeps_the_former_ones_beneath(memory: StepMemory, tmp_path: Path) -> None:
    memory.add(step(id="a"))
    export_file(memory, path := tmp_path / "0.jsonl")
    assert sources(memory) == [None]
    assert import_file(memory, path).already_there == 1
    assert sources(memory) == [None], "what was recorded here is not imported by meeting it again"
    for number in range(1, 9):
        memory.clear()
        import_file(memory, path)
        export_file(memory, path := tmp_path / f"{number}.jsonl")
    [source] = sources(memory)
    names: list[str] = []
    while source is not None:
        names.append(source["name"])
        source = source.get("before")
    assert names == [f"{number}.jsonl" for number in (7, 6, 5, 4, 3, 2)], "a bounded history"


def test_seconds_of_others_are_times(shelf: Shelf, tmp_path: Path) -> None:
    made = {"step_type": "Action", "created_at": 1_793_523_600}
    import_file(shelf, write(tmp_path / "steps.jsonl", {**made, "id": "a"}))
    assert shelf.steps["a"].created_at == datetime(2026, 11, 1, 9, tzinfo=UTC)
