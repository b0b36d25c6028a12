"""Chats in OpenAI's form as steps: what a user can find again, and that no message is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import Shelf
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.exchange.formats import openai
from hybridagi_steps.exchange.records import Parsed, Record, Skipped
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType


def call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "Refund my two tickets"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("a", "find", {"n": 1}), call("b", "find", {"n": 2})],
    },
    {"role": "tool", "tool_call_id": "b", "content": "second"},
    {"role": "tool", "tool_call_id": "a", "content": "first"},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": [{"type": "text", "text": "Thanks"}, {"type": "image_url"}]},
]


def steps_of(value: Any) -> list[AgentStep]:
    return [
        read.step for read in openai.FORMAT.parse([Record(1, value)]) if isinstance(read, Parsed)
    ]


def messages_of(steps: list[AgentStep]) -> list[dict[str, Any]]:
    placed: dict[int, dict[str, Any]] = {}
    for step in steps:
        indexes = (step.metadata or {})["message_indexes"]
        placed |= dict(zip(indexes, (step.model_extra or {})["messages"], strict=True))
    return [placed[index] for index in sorted(placed)]


def test_a_chat_becomes_one_run_of_linked_steps() -> None:
    steps = asked, first, second, said, end, thanked = steps_of(CHAT)
    assert [asked.step_type, first.step_type, end.step_type, thanked.step_type] == [
        "ProgramCall",
        "Action",
        "ProgramEnd",
        "ProgramCall",
    ]
    assert asked.purpose == "Refund my two tickets"
    assert asked.arguments == {"message": "Refund my two tickets"}
    assert (first.tool, first.arguments, first.result) == ("find", {"n": 1}, "first")
    assert (second.tool, second.arguments, second.result) == ("find", {"n": 2}, "second")
    assert said.purpose == "Refund my two tickets"
    assert (said.tool, said.result) == (None, "Done.")
    assert thanked.purpose == "Thanks\n[image_url]"
    assert (end.outputs, end.program_id) == ({"result": "Done."}, str(asked.id))
    assert [s.hop for s in steps] == [0, 1, 2, 3, 4, 5]
    assert len({s.run_id for s in steps}) == 1


def test_calls_made_at_once_share_a_parent_and_join() -> None:
    asked, first, second, said, *_ = steps_of(CHAT)
    assert first.parent_id == second.parent_id == asked.id
    assert said.parent_id == second.id
    assert (said.metadata or {})["joins"] == [str(first.id)]
    assert {s.program_id for s in (first, second, said)} == {str(asked.id)}


def test_a_call_without_an_answer_is_partial() -> None:
    step = steps_of(CHAT[:4])[1]
    assert (step.status, step.outputs) == ("partial", None)
    assert (step.metadata or {})["note"] == "no result for this call"


def test_an_answer_without_a_call_is_kept() -> None:
    stray = {"role": "tool", "tool_call_id": "zzz", "content": "late"}
    step = steps_of([CHAT[1], stray])[1]
    assert (step.status, step.result) == ("partial", "late")
    assert (step.metadata or {})["note"] == "a result without a call"


def test_arguments_that_are_no_object_are_kept() -> None:
    broken = {"role": "assistant", "tool_calls": [call("a", "f", "{broken"), call("b", "f", "[1]")]}
    _, first, second = steps_of([CHAT[1], broken])
    assert first.arguments == {"value": "{broken"}
    assert second.arguments == {"value": [1]}


def test_the_older_function_call_is_understood() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    answer = {"role": "function", "name": "f", "content": "yes"}
    step = steps_of([CHAT[1], old, answer])[1]
    assert (step.tool, step.result, step.status) == ("f", "yes", "ok")


def test_an_id_gives_run_and_steps_their_names() -> None:
    record = {"id": "chat-7", "messages": CHAT, "created": 1_700_000_000, "model": "m"}
    first, *rest = steps_of(record)
    assert first.run_id == "chat-7"
    assert first.created_at.year == 2023
    assert (first.metadata or {})["conversation"]["model"] == "m"
    grown = {**record, "messages": [*CHAT, {"role": "assistant", "content": "You are welcome"}]}
    again = steps_of(grown)
    assert [s.id for s in again][: len(rest) + 1] == [first.id, *[s.id for s in rest]]


content = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
tool_calls = st.lists(st.builds(call, st.sampled_from("abc"), st.text("fg", min_size=1), content))
any_message = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": content}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": content}),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": tool_calls}),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "tool_call_id": st.sampled_from("abcd"), "content": content}
    ),
)


@given(st.lists(any_message, min_size=1, max_size=12))
def test_no_message_is_lost_and_ids_are_stable(messages: list[dict[str, Any]]) -> None:
    steps = steps_of(json.loads(json.dumps(messages)))
    kept = messages_of(steps)
    assert json.dumps(kept).replace("\\u0000", "\\ufffd") == json.dumps(messages).replace(
        "\\u0000", "\\ufffd"
    )
    ids = [step.id for step in steps]
    assert len(set(ids)) == len(ids)
    assert ids == [step.id for step in steps_of(messages)]
    assert {step.parent_id for step in steps} <= {None, *ids}
    assert steps[0].parent_id is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.json", json.dumps(CHAT)),
        ("pretty.json", json.dumps(CHAT, indent=2)),
        ("object.json", json.dumps({"messages": CHAT}, indent=2)),
        ("line.jsonl", json.dumps({"messages": CHAT})),
        ("many.json", json.dumps([{"messages": CHAT}, {"messages": CHAT[:2]}])),
        ("many.jsonl", json.dumps(CHAT) + "\n" + json.dumps({"messages": CHAT[:2]})),
        ("messages.jsonl", "\n".join(json.dumps(message) for message in CHAT)),
    ],
)
def test_every_shape_of_file_is_told_by_its_content(tmp_path: Path, name: str, text: str) -> None:
    shelf = Shelf()
    (tmp_path / name).write_text(text)
    report = import_file(shelf, tmp_path / name)
    assert report.added == (7 if "many" in name else 6)
    assert report.skipped == []
    purposes = [step.purpose for step in shelf.steps.values()]
    assert purposes[0] == "Refund my two tickets"
    assert import_file(shelf, tmp_path / name).added == 0


def test_long_first_lines_are_told_by_their_words(tmp_path: Path) -> None:
    long = [{"role": "user", "content": "x" * 600_000}]
    for text in (json.dumps({"messages": long}) + "\n", json.dumps(long)):
        (tmp_path / "long.json").write_text(text)
        assert import_file(Shelf(), tmp_path / "long.json").added == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [{"role": "wizard"}]}, "message 1 has the role 'wizard'"),
        ({"messages": [{"role": ["user"]}]}, "message 1 has the role"),
        ({"messages": ["hi"]}, "message 1 is not an object"),
        ({"messages": []}, "an empty list of messages"),
        ({"text": "hi"}, "no list of messages"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "tool_calls is not a list"),
        ({"messages": [{"role": "assistant", "tool_calls": ["x"]}]}, "not an object"),
    ],
)
def test_a_bad_conversation_is_named_and_the_next_one_is_read(record: Any, reason: str) -> None:
    bad, *good = list(openai.FORMAT.parse([Record(4, record), Record(5, CHAT)]))
    assert isinstance(bad, Skipped)
    assert bad.line == 4
    assert reason in bad.reason
    assert len(good) == 6


def test_a_document_that_is_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text(json.dumps(CHAT)[:-10])
    with pytest.raises(ExchangeError, match="not JSON"):
        import_file(Shelf(), tmp_path / "cut.json")


def test_a_recorded_program_was_asked_its_arguments(memory: StepMemory, tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"program": "ReAct", "purpose": "Given `question`, answer."}
    inputs["arguments"] = {"question": "Weather in Oslo?"}
    call = AgentStep(run_id="r", step_type=AgentStepType.ProgramCall, inputs=inputs)
    end = AgentStep(
        run_id="r", step_type=AgentStepType.ProgramEnd, outputs={"answer": "Rain."}, hop=1
    )
    memory.add([call, end])
    export_file(memory, tmp_path / "example", format="openai")
    [line] = (tmp_path / "example").read_text().splitlines()
    assert json.loads(line)["messages"][0] == {"role": "user", "content": "Weather in Oslo?"}
    export_file(memory, tmp_path / "spans", format="otlp")
    [request] = map(json.loads, (tmp_path / "spans").read_text().splitlines())
    span, *_ = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    told = {each["key"]: each["value"] for each in span["attributes"]}
    [message] = json.loads(told["gen_ai.input.messages"]["stringValue"])
    assert message["parts"] == [{"type": "text", "content": "Weather in Oslo?"}]


def test_a_traced_program_was_asked_what_its_model_was(memory: StepMemory, tmp_path: Path) -> None:
    question = json.dumps([{"role": "user", "content": "Weather in Oslo?"}])
    answer = json.dumps([{"role": "assistant", "content": "Rain."}])

    def span(number: int, operation: str, **told: str) -> dict[str, Any]:
        told = {"operation.name": operation, **{f"{k}.messages": v for k, v in told.items()}}
        attributes = [{"key": f"gen_ai.{k}", "value": {"stringValue": told[k]}} for k in told]
        parent = {"parentSpanId": f"{1:016x}"} if number > 1 else {}
        place = {"traceId": "a" * 32, "spanId": f"{number:016x}", **parent}
        times = {"startTimeUnixNano": number, "endTimeUnixNano": 9}
        return {**place, **times, "name": "trip", "attributes": attributes}

    spans = [
        span(1, "invoke_agent"),
        span(2, "chat", input=question, output=answer),
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, spans)))
    assert import_file(memory, tmp_path / "in.jsonl").skipped == []
    export_file(memory, tmp_path / "out.jsonl", format="openai")
    [line] = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"] == [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": "Rain."},
    ]


def test_a_late_result_stands_behind_its_call_in_an_example(
    memory: StepMemory, tmp_path: Path
) -> None:
    asking = {"role": "assistant", "content": None}
    asking["tool_calls"] = [call(i, "f", {}) for i in ("c1", "c2", "c3")]  # pyright: ignore[reportArgumentType] - JSON
    talk = [
        {"role": "user", "content": "q"},
        asking,
        {"role": "tool", "tool_call_id": "c3", "content": "R3"},
        {"role": "user", "content": "wait"},
        {"role": "tool", "tool_call_id": "c2", "content": "R2"},
        {"role": "tool", "tool_call_id": "c1", "content": "R1"},
        {"role": "assistant", "content": "done"},
    ]
    (tmp_path / "in.json").write_text(json.dumps({"id": "k", "messages": talk}))
    import_file(memory, tmp_path / "in.json")
    export_file(memory, tmp_path / "out.jsonl", format="openai")
    found = json.loads((tmp_path / "out.jsonl").read_text())["messages"]
    assert [message["content"] for message in found] == [
        "q",
        None,
        "R1",
        "R2",
        "R3",
        "wait",
        "done",
    ]
    assert [m["tool_call_id"] for m in found if m["role"] == "tool"] == ["c1", "c2", "c3"]


@pytest.mark.parametrize("asked", [[], [{"role": "user", "content": "Hi"}]])
def test_a_response_of_chat_completions_is_what_the_assistant_said(
    memory: StepMemory, tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello."}}
    response = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "model": "m"}
    record = {**response, "messages": asked} if asked else response
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    assert import_file(memory, tmp_path / "in.jsonl").skipped == []
    messages = memory.repository().store.messages("chatcmpl-1")
    assert [m.content for m in messages] == [*(m["content"] for m in asked), "Hello."]


@pytest.mark.parametrize("key", ["createdAt", "time", "date", "ts", "timestamp"])
def test_times_are_read_under_other_names_and_those_in_words_are_noted(
    key: str, tmp_path: Path
) -> None:
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for times, note in (
        (["2024-05-01T10:00:00Z", 1714557601], ()),
        (["yesterday", "2024-05-01T10:00:01Z"], ("1 time could not be read",)),
        (["yesterday", "now"], ("2 times could not be read",)),
    ):
        chat = [{**message, key: time} for message, time in zip(said, times, strict=True)]
        (tmp_path / "chat.json").write_text(json.dumps(chat))
        memory = StepMemory(":memory:", embedder="hashing:2")
        report = import_file(memory, tmp_path / "chat.json")
        assert report.notes == note
        assert report.understood == report.added
        years = [step.created_at.year for step in memory.iter_steps()]
        assert (2024 in years) == ("now" not in times)
