"""Exports: what comes back unchanged, what others can read, and what they refuse to take."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import Shelf, unsourced
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exchange import any_step
from test_exchange_formats import FILES, SAMPLES

from hybridagi_steps.cli import main
from hybridagi_steps.errors import ExchangeError, MissingExtraError
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.exchange.exporter import EXPORT_FORMATS
from hybridagi_steps.exchange.formats.otlp import STEP
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.sqlite import SqliteStepStore

SHIPPED = Path(__file__).parents[2] / "data" / "steps.jsonl"


def filled(*names: str) -> Shelf:
    shelf = Shelf()
    for name in names or FILES:
        import_file(shelf, SAMPLES / name)
    return shelf


def ordered(shelf: Shelf) -> list[AgentStep]:
    return sorted(
        shelf.steps.values(), key=lambda step: (step.run_id or "", step.hop, str(step.id))
    )


def arrow() -> Any:
    pytest.importorskip("pyarrow.parquet")
    return pytest.importorskip("pyarrow")


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "otlp"])
def test_every_sample_comes_back_unchanged(form: str, tmp_path: Path) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    first, second = filled(), Shelf()
    stored = len(list(first.iter_steps({"scope": "*"})))  # titles of sessions among them
    assert export_file(first, tmp_path / "out", format=form) == stored
    report = import_file(second, tmp_path / "out")
    assert (report.added, report.skipped) == (stored, [])
    assert unsourced(ordered(second)) == unsourced(ordered(first))
    for name, shelf in (("again", second), ("out", first)):
        bare = Shelf()
        bare.add(unsourced(ordered(shelf)))
        export_file(bare, tmp_path / name, format=form)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "out").read_bytes()


@pytest.mark.parametrize("form", ["parquet", "otlp"])
@settings(max_examples=30, deadline=None)
@given(steps=st.lists(any_step, min_size=1, max_size=12, unique_by=lambda s: id_text(s.id)))
def test_any_steps_come_back_unchanged(
    form: str, steps: list[AgentStep], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("round") / f"out.{form}"
    first, second = Shelf(), Shelf()
    first.add(steps)
    export_file(first, path, format=form, vectors=True)
    assert import_file(second, path, format=form).skipped == []
    kept = {"vector": None} if form == "otlp" else {}
    got, expected = (
        {key: step.model_copy(update=kept) for key, step in shelf.steps.items()}
        for shelf in (second, first)
    )
    assert unsourced(got) == unsourced(expected)


def test_parquet_is_told_by_its_name_and_holds_columns_to_query(tmp_path: Path) -> None:
    pyarrow = arrow()
    shelf = filled("mlflow_trace.json")
    export_file(shelf, tmp_path / "steps.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "steps.parquet")
    assert table.column("tool").to_pylist()[1:4] == ["policy", "find_booking", "find_booking"]
    assert table.column("status").to_pylist().count("error") == 1
    assert str(table.schema.field("created_at").type) == "timestamp[us, tz=UTC]"


def test_vectors_go_to_parquet_on_request(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shelf, second = Shelf(), Shelf()
    shelf.add(AgentStep.model_validate({"id": "a", "step_type": "Action", "vector": [0.5, -2.5]}))
    export_file(shelf, tmp_path / "v.parquet", vectors=True)
    import_file(second, tmp_path / "v.parquet")
    assert second.steps["a"].vector == [0.5, -2.5]


def test_damaged_and_foreign_parquet_is_refused(tmp_path: Path) -> None:
    pyarrow = arrow()
    whole, path = tmp_path / "whole.parquet", tmp_path / "odd.parquet"
    export_file(filled(), whole)
    for damaged in (whole.read_bytes()[:-100], b"PAR1", b"PAR1" + b"\x00" * 500 + b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(ExchangeError, match="no sound Parquet"):
            import_file(Shelf(), path)
    pyarrow.parquet.write_table(pyarrow.table({"id": [1]}), path)
    with pytest.raises(ExchangeError, match="holds no steps"):
        import_file(Shelf(), path)
    with pytest.raises(ExchangeError, match="no Parquet file"):
        import_file(Shelf(), SHIPPED, format="parquet")


def test_a_bad_row_of_parquet_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    pyarrow = arrow()
    rows: dict[str, list[Any]] = {
        "id": ["a", "b", "c"],
        "step_type": ["Action", "Dance", "Action"],
        "created_at": [datetime(2026, 1, 2, tzinfo=UTC)] * 3,
        "inputs": ['{"purpose": "x"}', None, "{broken"],
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "p.parquet")
    shelf = Shelf()
    report = import_file(shelf, tmp_path / "p.parquet")
    assert list(shelf.steps) == ["a"]
    assert [row for row, _ in report.skipped] == [2, 3]
    assert "step_type" in report.skipped[0][1]
    assert "inputs" in report.skipped[1][1]


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    target = tmp_path / "s.parquet"
    target.write_bytes(b"PAR1 before")
    with pytest.raises(MissingExtraError, match=r"hybridagi-steps\[parquet\]"):
        export_file(Shelf(), target)
    with pytest.raises(MissingExtraError, match=r"hybridagi-steps\[parquet\]"):
        import_file(Shelf(), target)
    assert target.read_bytes() == b"PAR1 before"


def otlp_spans(path: Path) -> list[dict[str, Any]]:
    return [
        span
        for request in lines_of(path)
        for resource in request["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def test_spans_carry_the_names_that_others_read(tmp_path: Path) -> None:
    export_file(filled("mlflow_trace.json"), tmp_path / "o.jsonl", format="otlp")
    program, policy, booked, missed, said = otlp_spans(tmp_path / "o.jsonl")
    names = [span["name"] for span in (program, policy, booked, missed, said)]
    assert names == [
        "invoke_agent agent",
        "execute_tool policy",
        "execute_tool find_booking",
        "execute_tool find_booking",
        "chat scripted-1",
    ]
    assert {span["traceId"] for span in (program, policy, said)} == {
        "44201e71dcf151a36aff1d9c53e615ef"
    }
    assert "parentSpanId" not in program
    assert {s["parentSpanId"] for s in (policy, booked, missed, said)} == {program["spanId"]}
    attributes = {a["key"]: next(iter(a["value"].values())) for a in said["attributes"]}
    assert attributes["gen_ai.usage.input_tokens"] == "30"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert missed["status"] == {"code": 2, "message": "no booking XX"}
    assert int(program["startTimeUnixNano"]) < int(policy["startTimeUnixNano"])
    assert int(program["endTimeUnixNano"]) > int(said["endTimeUnixNano"])


def test_what_remains_when_another_system_drops_our_attribute(tmp_path: Path) -> None:
    first, second = filled("otlp_messages.jsonl"), Shelf()
    export_file(first, tmp_path / "o.jsonl", format="otlp")
    requests = lines_of(tmp_path / "o.jsonl")
    for request in requests:
        for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            span["attributes"] = [a for a in span["attributes"] if a["key"] != STEP]
            span.pop("events", None)
    (tmp_path / "bare.jsonl").write_text("\n".join(map(json.dumps, requests)))
    assert import_file(second, tmp_path / "bare.jsonl").skipped == []

    def carried(step: AgentStep) -> Any:
        metrics = step.metrics.model_dump() if step.metrics else {}
        return (
            step.hop,
            step.step_type,
            step.inputs,
            None if step.step_type == "ProgramCall" else (step.outputs or {}).get("result"),
            step.status,
            step.created_at,
            step.session_id,
            step.run_id,
            metrics.get("input_tokens"),
            metrics.get("model_name"),
        )

    assert [carried(s) for s in ordered(second)] == [carried(s) for s in ordered(first)]


def strict(example: dict[str, Any]) -> None:
    """Hold an example to the rules of fine-tuning."""
    assert set(example) <= {"messages", "tools"}
    messages = example["messages"]
    speakers = [m["role"] for m in messages if m["role"] != "system"]
    assert messages[0]["role"] in ("system", "user")
    assert speakers[0] == "user"
    assert messages[-1]["role"] == "assistant"
    assert not messages[-1].get("tool_calls")
    waiting: set[str] = set()
    for message in messages:
        assert set(message) <= {"role", "content", "tool_calls", "tool_call_id", "weight"}
        if message["role"] == "tool":
            assert isinstance(message["content"], str)
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        waiting = {call["id"] for call in message.get("tool_calls", [])}
        for call in message.get("tool_calls", []):
            assert set(call) == {"id", "type", "function"}
            assert isinstance(call["function"]["arguments"], str)
        assert message.get("content") or waiting or message["role"] != "assistant"
    assert not waiting


def test_every_example_keeps_the_rules_of_fine_tuning(tmp_path: Path) -> None:
    shelf = filled()
    import_file(shelf, SHIPPED)
    without: list[str] = []
    runs = {step.run_id for step in shelf.steps.values()}
    written = export_file(shelf, tmp_path / "t.jsonl", format="openai", left_out=without.append)
    examples = lines_of(tmp_path / "t.jsonl")
    assert written == len(examples) == len(runs) - len(without)
    assert len(without) < len(runs) // 10
    for example in examples:
        strict(example)


@pytest.mark.parametrize(
    "name", ["anthropic_responses.json", "langchain_messages.json", "langchain_constructors.json"]
)
def test_a_chat_becomes_the_example_it_was(name: str, tmp_path: Path) -> None:
    export_file(filled(name), tmp_path / "t.jsonl", format="openai")
    (example,) = lines_of(tmp_path / "t.jsonl")
    roles = [message["role"] for message in example["messages"]]
    assert roles[:5] == ["system", "user", "assistant", "tool", "tool"]
    assert roles[-3:] == ["assistant", "user", "assistant"]
    call = example["messages"][2]["tool_calls"][0]
    assert call["function"]["name"] == "find_booking"
    assert json.loads(call["function"]["arguments"]) == {"code": "AB12"}
    answers = {m["tool_call_id"]: m["content"] for m in example["messages"][3:5]}
    assert answers[call["id"]].startswith("booking AB12")


def test_an_openai_chat_is_written_as_it_was_read(tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "Refund"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        {"role": "assistant", "content": "Done."},
    ]
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    given = {"messages": messages, "tools": tools}
    (tmp_path / "in.jsonl").write_text(json.dumps(given) + "\n")
    shelf = Shelf()
    import_file(shelf, tmp_path / "in.jsonl")
    export_file(shelf, tmp_path / "out.jsonl", format="openai")
    assert lines_of(tmp_path / "out.jsonl") == [given]


def test_calls_without_results_and_results_without_calls_are_left_out(tmp_path: Path) -> None:
    def called(*ids: str) -> dict[str, Any]:
        function = {"name": "f", "arguments": "{}"}
        calls = [{"id": i, "type": "function", "function": function} for i in ids]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    messages = [
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "go"},
        called("a", "b"),
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "z", "content": "?"},
        called("c"),
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "and"},
    ]
    (tmp_path / "in.json").write_text(json.dumps(messages))
    shelf = Shelf()
    import_file(shelf, tmp_path / "in.json")
    export_file(shelf, tmp_path / "out.jsonl", format="openai")
    (example,) = lines_of(tmp_path / "out.jsonl")
    strict(example)
    said = [(m["role"], m["content"]) for m in example["messages"]]
    assert said[-4:] == [("user", "go"), ("assistant", None), ("tool", "2"), ("assistant", "so")]


def test_a_recorded_run_becomes_an_example(tmp_path: Path) -> None:
    shelf = Shelf()
    rows: list[dict[str, Any]] = [
        {"id": "c", "step_type": "ProgramCall", "inputs": {"program": "A", "purpose": "Refund?"}},
        {
            "id": "t",
            "step_type": "Action",
            "program_id": "c",
            "inputs": {"purpose": "look", "tool": "find it", "arguments": {"n": 1}},
            "outputs": {"result": {"ok": True}},
        },
        {
            "id": "e",
            "step_type": "ProgramEnd",
            "inputs": {"program": "A"},
            "outputs": {"answer": "Yes"},
        },
    ]
    shelf.add(
        [AgentStep.model_validate({"run_id": "r", "hop": n, **row}) for n, row in enumerate(rows)]
    )
    export_file(shelf, tmp_path / "out.jsonl", format="openai")
    (example,) = lines_of(tmp_path / "out.jsonl")
    strict(example)
    assert [m["content"] for m in example["messages"]] == [
        "Refund?",
        None,
        '{"ok": true}',
        '{"answer": "Yes"}',
    ]
    assert example["messages"][1]["tool_calls"][0]["function"]["name"] == "find_it"


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(any_step, min_size=1, max_size=8, unique_by=lambda s: id_text(s.id)))
def test_whatever_is_written_for_fine_tuning_keeps_the_rules(
    steps: list[AgentStep], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tuning") / "out.jsonl"
    shelf = Shelf()
    shelf.add([step.model_copy(update={"run_id": "one"}) for step in steps])
    export_file(shelf, path, format="openai")
    for example in lines_of(path):
        strict(example)


@pytest.mark.parametrize("form", sorted(EXPORT_FORMATS))
def test_a_failing_export_leaves_what_was_there(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")

    def breaking(_: SqliteStepStore, __: StepFilter) -> Iterator[AgentStep]:
        yield AgentStep.model_validate({"step_type": "Action"})
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(SqliteStepStore, "iter_steps", breaking)
    target = tmp_path / "out"
    target.write_text("before")
    with pytest.raises(RuntimeError, match="gone"):
        export_file(Shelf(), target, format=form)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match="known formats: auto, jsonl, openai, otlp, parquet"):
        export_file(Shelf(), tmp_path / "x", format="xml")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_moves_a_memory_from_format_to_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(SAMPLES / "otlp_messages.jsonl"), "--db", "a.db"]) == 0
    assert "6 steps added" in capsys.readouterr().out
    assert main(["export", "out.jsonl", "--format", "otlp", "--db", "a.db"]) == 0
    assert main(["import", "out.jsonl", "--format", "otlp", "--db", "b.db"]) == 0
    capsys.readouterr()
    whole: list[list[str]] = []
    for name in ("a.db", "b.db"):
        assert main(["export", "-", "--db", name]) == 0
        steps = map(json.loads, capsys.readouterr().out.splitlines())
        whole.append(sorted(json.dumps(unsourced(step)) for step in steps))
    assert whole[0] == whole[1]
    assert main(["import", str(SAMPLES / "mlflow_trace.json"), "--db", "a.db"]) == 0
    assert main(["export", "t.jsonl", "--format", "openai", "--db", "a.db"]) == 0
    assert "2 runs written to t.jsonl." in capsys.readouterr().err
    assert main(["export", "t.jsonl", "--format", "yaml", "--db", "a.db"]) == 2
    assert "known formats: auto, jsonl, openai, otlp, parquet" in capsys.readouterr().err


def test_an_export_refuses_an_unknown_ending(tmp_path: Path) -> None:
    memory = StepMemory(":memory:", embedder="hashing:2")
    memory.add(AgentStep.model_validate({"step_type": "Action"}))
    with pytest.raises(
        ExchangeError, match=r"ending names no format; end it in \.jsonl, .*\.parquet"
    ):
        memory.export(tmp_path / "x.csv")
    assert not (tmp_path / "x.csv").exists()
    assert memory.export(tmp_path / "x.csv", format="jsonl") == 1
