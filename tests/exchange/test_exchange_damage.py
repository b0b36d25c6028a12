"""Imports of damaged, hostile and enormous files: named, repaired with a note, or refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
from exchange_shelf import Shelf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exchange import json_values
from test_exchange_formats import FILES, SAMPLES

from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.exchange import reader as json_stream
from hybridagi_steps.exchange import reader as reading_module
from hybridagi_steps.exchange.exporter import EXPORT_FORMATS
from hybridagi_steps.exchange.formats import FORMATS, READERS
from hybridagi_steps.exchange.formats.otlp import MAX_HELD_SPANS
from hybridagi_steps.exchange.records import Parsed, ParsedTrace, Record, Skipped
from hybridagi_steps.exchange.spans import MAX_SPAN_DEPTH, step_id
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.validation import Steps

JSON_FORMATS = sorted({*FORMATS} - {"parquet"})


def samples() -> dict[str, list[Any]]:
    """Return each sample as the records it holds."""
    found: dict[str, list[Any]] = {}
    for name in FILES:
        with reading_module.opened(SAMPLES / name) as source:
            found[name] = [row.value for row in source.records() if isinstance(row, Record)]
    return found


RECORDS = samples()
HOSTILE: list[Any] = [
    {},
    [],
    ["x"],
    {"type": []},
    "",
    "{",
    "[]",
    "9" * 5_000,
    "\ud800",
    "\x00",
    -1,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    True,
    None,
]
odd: st.SearchStrategy[Any] = st.one_of(json_values, st.sampled_from(HOSTILE))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a value."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


class Records(list[Any]):
    """Records that show themselves briefly when a test fails."""

    def __repr__(self) -> str:
        return super().__repr__()[:3_000]


@st.composite
def damaged(draw: st.DrawFn) -> Records:
    """Records of a sample with a few values replaced, removed or doubled."""
    records = deepcopy(RECORDS[draw(st.sampled_from(sorted(RECORDS)))])
    for _ in range(draw(st.integers(1, 4))):
        paths = list(places(records))
        if not paths:
            break
        *path, last = paths[draw(st.integers(0, len(paths) - 1))]
        holder: Any = records
        for key in path:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "remove", "double"])):
            case "replace":
                holder[last] = deepcopy(draw(odd))
            case "remove":
                del holder[last]
            case _ if isinstance(holder, list):
                cast("list[Any]", holder).append(holder[last])
            case _:
                holder[draw(st.text(max_size=4))] = holder[last]
    return Records(records)


def parsed(form: str, rows: list[Record]) -> list[Any]:
    """Return what a format makes of records, in a memory that holds nothing."""
    found = READERS[form].parse(rows)
    told = [item.placed(()) if isinstance(item, ParsedTrace) else [item] for item in found]
    return [item for items in told for item in items]


def check(steps: Iterable[AgentStep]) -> None:
    """Hold steps to what every import promises: unique ids, and links that end."""
    by_id = {str(step.id): step for step in steps}
    for link in ("parent_id", "program_id"):
        ends: set[str] = set()
        for start in by_id:
            path: list[str] = []
            here: str | None = start
            while here in by_id and here not in ends:
                assert here not in path, f"{link} goes in a circle"
                path.append(here)
                found = getattr(by_id[here], link)
                here = None if found is None else str(found)
            ends.update(path)


@settings(max_examples=250, deadline=None)
@given(records=damaged(), form=st.sampled_from(JSON_FORMATS))
def test_no_damaged_record_breaks_a_parser(records: list[Any], form: str) -> None:
    rows = [Record(line, value) for line, value in enumerate(records, start=1)]
    names = sorted(READERS) if form == "auto" else [form]
    for name in names:
        found = parsed(name, rows)
        assert all(isinstance(item, Parsed | Skipped) for item in found)
        kept: dict[str, AgentStep] = {}  # as in a memory, the first of an id stays
        for item in found:
            if isinstance(item, Parsed):
                kept.setdefault(str(item.step.id), item.step)
        check(kept.values())


@settings(max_examples=120, deadline=None)
@given(
    records=damaged(),
    indent=st.none() | st.just(1),
    kept=st.just(1.0) | st.floats(0, 1),
    tail=st.binary(max_size=3),
)
def test_no_damaged_file_breaks_an_import(
    records: list[Any],
    indent: int | None,
    kept: float,
    tail: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "d.json"
    text = "\n".join(json.dumps(record, indent=indent) for record in records)
    path.write_bytes(text[: int(len(text) * kept)].encode() + tail)
    shelf = Shelf()
    try:
        report = import_file(shelf, path)
    except ExchangeError:
        return
    assert report.read == report.added + report.already_there + report.skipped_count
    assert import_file(shelf, path).added == 0
    check(shelf.steps.values())
    for form in set(EXPORT_FORMATS) - {"auto", "parquet"}:
        export_file(shelf, path.parent / form, format=form)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_sample_cut_anywhere_is_named_or_refused(name: str, tmp_path: Path) -> None:
    whole = (SAMPLES / name).read_bytes()
    for part in range(1, 30):
        path = tmp_path / name
        path.write_bytes(whole[: len(whole) * part // 30])
        try:
            report = import_file(Shelf(), path)
        except ExchangeError as error:
            said = str(error)
        else:
            said = report.skipped[0][1]
        assert "not JSON" in said


def span(number: int, parent: int | None, start: int = 0, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": "a" * 32,
        "spanId": f"{number:016x}",
        "name": f"s{number}",
        "startTimeUnixNano": str(1_000_000_000 + start * 1_000),
        "endTimeUnixNano": str(1_000_000_000 + start * 1_000 + 500),
        **fields,
    }
    return found if parent is None else {**found, "parentSpanId": f"{parent:016x}"}


def read_spans(*spans: dict[str, Any]) -> tuple[list[AgentStep], list[Skipped]]:
    request = {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}
    found = parsed("otlp", [Record(1, request)])
    steps = [item.step for item in found if isinstance(item, Parsed)]
    check(steps)
    return steps, [item for item in found if isinstance(item, Skipped)]


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 11), st.integers(0, 5))))
def test_every_span_of_any_graph_is_shown_once(rows: list[tuple[int, int | None, int]]) -> None:
    steps, skipped = read_spans(*[span(*row) for row in rows])
    natives = [n for step in steps for n in (step.model_extra or {}).get("messages", [])]
    assert sorted(n["spanId"] for n in natives) == sorted({f"{n:016x}" for n, *_ in rows})
    distinct = {json.dumps(span(*row)) for row in rows}
    assert len(natives) <= len(distinct)
    assert bool(skipped) == (len(distinct) > len(natives))
    assert [step.hop for step in steps] == list(range(len(steps)))


def test_spans_in_a_circle_and_without_their_parent_are_shown_with_a_note() -> None:
    steps, _ = read_spans(span(1, 2, 1), span(2, 3, 2), span(3, 1, 3), span(4, 99, 9))
    notes = [(step.metadata or {}).get("note", "") for step in steps]
    assert "stands below it" in notes[0]
    assert f"its parent span {99:016x} stands elsewhere" in notes[-1]
    assert steps[-1].program_id == step_id("a" * 32, f"{99:016x}")


def test_two_spans_with_one_id_are_named() -> None:
    steps, skipped = read_spans(span(1, None), span(1, None), span(1, None, 7))
    assert len(steps) == 1
    assert ["is taken by another span" in item.reason for item in skipped] == [True]


def test_spans_that_overlap_share_a_parent_and_join() -> None:
    longest = {**span(1, None), "endTimeUnixNano": "1000009000"}
    steps, _ = read_spans(longest, span(2, 1, 1), span(3, 1, 1), span(4, 1, 5))
    call, left, right, after, _ = steps
    assert left.parent_id == right.parent_id == call.id
    assert after.parent_id == right.id
    assert (after.metadata or {})["joins"] == [str(left.id)]


def test_a_deep_chain_of_spans_is_shown_to_a_depth() -> None:
    steps, skipped = read_spans(*[span(n, n - 1 if n else None, n) for n in range(20_000)])
    assert skipped == []
    assert len({n["spanId"] for s in steps for n in (s.model_extra or {}).get("messages", [])}) == (
        20_000
    )
    assert f"shown at level {MAX_SPAN_DEPTH}" in json.dumps([s.metadata for s in steps])


def test_spans_of_one_trace_may_stand_in_several_requests(tmp_path: Path) -> None:
    lines = [json.dumps(span(2, 1, 2)), json.dumps(span(1, None, 1)), json.dumps(span(3, 2, 3))]
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    shelf = Shelf()
    assert import_file(shelf, tmp_path / "s.jsonl").skipped == []
    purposes = [step.program or step.tool for step in shelf.steps.values()]
    assert purposes == ["s1", "s2", "s3", "s2", "s1"]


def test_more_spans_than_are_held_are_all_imported() -> None:
    def spans(trace: int) -> list[dict[str, Any]]:
        return [{**span(n, None, n), "traceId": f"{trace:032x}"} for n in range(50)]

    rows = [Record(n, s) for n, s in enumerate(s for t in range(300) for s in spans(t + 1))]
    assert len(rows) > 2 * MAX_HELD_SPANS
    found = parsed("otlp", rows)
    assert len({str(p.step.id) for p in found if isinstance(p, Parsed)}) == len(rows)


def test_results_without_calls_beside_a_text_are_steps_of_their_own() -> None:
    stray = {"type": "tool_result", "tool_use_id": "gone", "content": "late"}
    message = {"role": "user", "content": [stray, stray, {"type": "text", "text": "and now?"}]}
    found = list(READERS["anthropic"].parse([Record(1, {"messages": [message]})]))
    steps = [item.step for item in found if isinstance(item, Parsed)]
    check(steps)
    assert len({step.id for step in steps}) == len(steps) == 3
    assert [step.status for step in steps] == ["partial", "partial", "ok"]
    assert steps[2].purpose == "and now?"


def test_versions_that_are_not_known_are_read_with_a_note(tmp_path: Path) -> None:
    trace = deepcopy(RECORDS["mlflow_trace.json"][0])
    trace["info"]["trace_metadata"]["mlflow.trace_schema.version"] = "9"
    checkpoint = deepcopy(RECORDS["langgraph_checkpoints.jsonl"][0])
    checkpoint["checkpoint"]["v"] = 77
    for name, record in (("m.json", trace), ("c.json", checkpoint)):
        (tmp_path / name).write_text(json.dumps(record))
        shelf = Shelf()
        import_file(shelf, tmp_path / name)
        first = next(iter(shelf.steps.values()))
        assert "which is not known" in json.dumps(first.metadata)


def test_an_import_that_is_interrupted_resumes(tmp_path: Path) -> None:
    class Breaking(Shelf):
        batches = 2

        def add(self, steps: Steps) -> None:
            self.batches -= 1
            if self.batches < 0:
                raise KeyboardInterrupt
            super().add(steps)

    lines = [json.dumps({"step_type": "Action", "id": f"s{n}"}) for n in range(1_700)]
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    shelf = Breaking()
    with pytest.raises(KeyboardInterrupt):
        import_file(shelf, tmp_path / "s.jsonl")
    assert len(shelf.steps) == 1_000
    shelf.batches = 9
    report = import_file(shelf, tmp_path / "s.jsonl")
    assert (report.added, report.already_there) == (700, 1_000)


@pytest.mark.parametrize("form", ["lines", "list", "objects"])
def test_a_large_file_is_read_in_little_memory(form: str, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    row = json.dumps({"messages": [{"role": "user", "content": "x" * 20_000}]})
    separator = ",\n" if form == "list" else "\n"
    if form == "objects":
        row = json.dumps(json.loads(row), indent=1)
    with path.open("w") as file:
        file.write("[\n" if form == "list" else "")
        file.write(separator.join([row] * 800))
        file.write("\n]" if form == "list" else "")
    with reading_module.opened(path) as source:
        tracemalloc.start()
        count = sum(isinstance(record, Record) for record in source.records())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert count == 800
    assert peak < 4_000_000 < path.stat().st_size


def test_lines_and_values_that_are_too_long_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "MAX_LINE_BYTES", 600_000)
    monkeypatch.setattr(json_stream, "MAX_VALUE_CHARACTERS", 600_000)
    fine = json.dumps({"step_type": "Action", "id": "fine"})
    long = json.dumps({"step_type": "Action", "id": "long", "inputs": {"x": "y" * 1_500_000}})
    last = json.dumps({"step_type": "Action", "id": "last"})
    (tmp_path / "l.jsonl").write_text("\n".join([fine, long, last, long]))
    shelf = Shelf()
    report = import_file(shelf, tmp_path / "l.jsonl")
    assert set(shelf.steps) == {"fine", "last"}
    assert report.skipped == [(2, "longer than 600,000 bytes"), (4, "longer than 600,000 bytes")]
    (tmp_path / "l.json").write_text(f"[\n{fine},\n{long},\n{last}\n]")
    shelf = Shelf()
    report = import_file(shelf, tmp_path / "l.json")
    assert set(shelf.steps) == {"fine"}
    assert "the value at line 3 is longer" in report.skipped[0][1]
    (tmp_path / "one.json").write_text(json.dumps(json.loads(long), indent=1))
    with pytest.raises(ExchangeError, match="write one record per line"):
        import_file(Shelf(), tmp_path / "one.json")


def test_a_broken_item_of_a_list_is_named_with_its_line(tmp_path: Path) -> None:
    fine = json.dumps({"step_type": "Action", "id": "fine"})
    (tmp_path / "l.json").write_text(f'[\n{fine},\n{{"id":\n nonsense}}\n]')
    shelf = Shelf()
    report = import_file(shelf, tmp_path / "l.json")
    assert set(shelf.steps) == {"fine"}
    assert "line 4" in report.skipped[0][1]
    assert "after item 1" in report.skipped[0][1]


@pytest.mark.parametrize("name", ["otlp_messages.jsonl", "mlflow_traces.jsonl"])
def test_a_line_in_another_encoding_is_named(name: str, tmp_path: Path) -> None:
    whole = (SAMPLES / name).read_bytes()
    path = tmp_path / name
    path.write_bytes('{"info": "façade"}\n'.encode("latin-1") + whole)
    shelf = Shelf()
    report = import_file(shelf, path)
    assert (len(report.skipped), "not UTF-8" in report.skipped[0][1]) == (1, True)
    assert len(shelf.steps) > 5
