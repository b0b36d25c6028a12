"""Every neighbour's format against a real sample: what can be found again, that nothing is lost.

The samples and what wrote them are listed in `samples/README.md`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import Shelf, unsourced

from hybridagi_steps.exchange import import_file
from hybridagi_steps.exchange.formats import FORMATS, format_of
from hybridagi_steps.exchange.formats import mlflow as mlflow_traces
from hybridagi_steps.exchange.records import Parsed, Record
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep

SAMPLES = Path(__file__).parents[1] / "samples"
FILES = {
    "anthropic_request.json": "anthropic",
    "anthropic_responses.json": "anthropic",
    "chatgpt_conversations.json": "chatgpt",
    "langchain_messages.json": "langchain",
    "langchain_constructors.json": "langchain",
    "langchain_flat.json": "langchain",
    "langgraph_checkpoints.jsonl": "langgraph",
    "langgraph_history.json": "langgraph",
    "mlflow_trace.json": "mlflow",
    "mlflow_traces.jsonl": "mlflow",
    "otlp_messages.jsonl": "otlp",
    "otlp_without_content.jsonl": "otlp",
    "otlp_early.jsonl": "otlp",
    "otel_console.json": "otlp",
    "openinference_dspy.jsonl": "otlp",
    "openinference_openai.jsonl": "otlp",
    "traceloop.jsonl": "otlp",
    "langfuse_otel.jsonl": "otlp",
    "dspy_history.json": "dspy",
    "dspy_trace.json": "dspy",
    "dspy_prediction.json": "dspy",
    "toolbench.json": "toolbench",
    "pydantic_ai_messages.json": "pydantic_ai",
}
OF_EXTRAS = {"openinference_dspy.pb"}
"""Samples that an extra reads; the tests of their readers read them."""


def steps_of(name: str, **options: Any) -> list[AgentStep]:
    shelf = Shelf()
    report = import_file(shelf, SAMPLES / name, **options)
    assert report.skipped == []
    return list(shelf.steps.values())


def kinds(steps: list[AgentStep]) -> list[str]:
    return [str(step.step_type) for step in steps]


def natives(steps: list[AgentStep]) -> list[Any]:
    return [native for step in steps for native in (step.model_extra or {}).get("messages", [])]


def test_every_sample_is_listed_and_small() -> None:
    assert {path.name for path in SAMPLES.iterdir()} == {*FILES, *OF_EXTRAS, "README.md"}
    assert all(path.stat().st_size < 60_000 for path in SAMPLES.iterdir())
    said = (SAMPLES / "README.md").read_text("utf-8")
    assert not [name for name in FILES if name not in said]


@pytest.mark.parametrize("name", FILES)
def test_a_sample_is_told_by_its_content_and_by_name_and_never_doubled(name: str) -> None:
    assert FILES[name] in FORMATS
    told, named = Shelf(), Shelf()
    report = import_file(told, SAMPLES / name)
    assert report.added > 2
    assert (report.skipped, report.read) == ([], report.added + report.already_there)
    again = import_file(told, SAMPLES / name)
    assert (again.added, again.already_there) == (0, report.read)
    import_file(named, SAMPLES / name, format=FILES[name])
    assert list(named.steps) == list(told.steps)


@pytest.mark.parametrize("name", FILES)
def test_links_of_a_sample_lead_to_steps_of_the_same_file(name: str) -> None:
    steps = steps_of(name)
    ids = {str(step.id) for step in steps}
    assert all(step.parent_id is None or str(step.parent_id) in ids for step in steps)
    assert all(step.program_id is None or step.program_id in ids for step in steps)
    calls = {str(s.id) for s in steps if s.step_type == "ProgramCall"}
    assert {step.program_id for step in steps} - {None} <= calls
    assert all((step.metadata or {})["format"] for step in steps)


def test_anthropic_calls_meet_their_results() -> None:
    call, found, missed, said, _, thanks, answer, end = steps_of("anthropic_responses.json")
    assert call.purpose == "Refund AB12 and XX"
    assert (found.tool, found.arguments, found.result) == (
        "find_booking",
        {"code": "AB12"},
        "booking AB12: 2 tickets",
    )
    assert missed.status == "error"
    assert missed.outputs == {"error": {"type": "ToolError", "message": "no booking XX"}}
    assert found.parent_id == missed.parent_id == call.id
    assert (said.metadata or {})["joins"] == [str(found.id)]
    assert (thanks.purpose, answer.result, str(end.step_type)) == (
        "Thanks",
        "You are welcome.",
        "ProgramEnd",
    )
    assert found.metrics is not None
    assert (found.metrics.input_tokens, found.metrics.cache_read_tokens) == (68, 5)
    assert found.metrics.model_name == "claude-test-1"


def test_anthropic_messages_and_their_prompt_are_kept() -> None:
    given = json.loads((SAMPLES / "anthropic_responses.json").read_text("utf-8"))
    steps = steps_of("anthropic_responses.json")
    placed = {
        place: native
        for step in steps
        for place, native in zip(
            (step.metadata or {})["message_indexes"],
            (step.model_extra or {})["messages"],
            strict=True,
        )
    }
    assert [placed[place] for place in sorted(placed)] == given["messages"]
    about = (steps[0].metadata or {})["conversation"]
    assert (about["system"], about["tools"]) == (given["system"], given["tools"])


def test_a_chat_of_chatgpt_tells_its_calls_thoughts_and_times() -> None:
    call, python, said, _, again, train, _, *others = steps_of("chatgpt_conversations.json")
    assert call.purpose == "[image_asset_pointer]\nHow far is it from Bergen to Oslo, in miles?"
    assert (python.tool, python.result) == ("python", "287.69")
    assert "463 * 0.621371" in str(python.arguments)
    assert said.result == "About 288 miles."
    assert (again.purpose, train.result) == ("And by train?", "308 miles, in under seven hours.")
    assert train.metrics is not None
    assert train.metrics.model_name == "gpt-5-1"
    assert (call.created_at - said.created_at).total_seconds() == -5
    assert [step.result for step in others if step.step_type == "Action"] == [
        "About 300 miles.",
        "Some 290 miles.",
        "Good morning!",
    ]


def test_nothing_of_a_chat_of_chatgpt_is_lost() -> None:
    given = json.loads((SAMPLES / "chatgpt_conversations.json").read_text("utf-8"))
    nodes = [node["message"] for chat in given for node in chat["mapping"].values()]
    kept = {native["id"]: native for native in natives(steps_of("chatgpt_conversations.json"))}
    assert kept == {message["id"]: message for message in nodes if message}


@pytest.mark.parametrize("form", ["messages", "constructors", "flat"])
def test_langchain_messages_in_each_of_their_forms(form: str) -> None:
    given = json.loads((SAMPLES / f"langchain_{form}.json").read_text("utf-8"))
    steps = steps_of(f"langchain_{form}.json")
    found, missed, refunded = steps[1:4]
    assert [s.tool for s in steps[1:4]] == ["find_booking", "find_booking", "refund"]
    assert refunded.arguments == {"code": "AB12", "amount": 118.5}
    assert (found.status, missed.status) == ("ok", "error")
    assert found.metrics is not None
    assert (found.metrics.input_tokens, found.metrics.cache_read_tokens) == (41, 8)
    assert sorted(map(json.dumps, natives(steps))) == sorted(map(json.dumps, given))


@pytest.mark.parametrize("name", ["langgraph_checkpoints.jsonl", "langgraph_history.json"])
def test_a_forked_thread_is_one_tree(name: str) -> None:
    steps = steps_of(name)
    assert {step.session_id for step in steps} == {"thread-42"}
    asked = [step for step in steps if step.step_type == "ProgramCall"]
    assert [step.purpose for step in asked] == ["Refund AB12 and XX", "That is all", "Thanks"]
    newest, other = asked[1:]
    assert newest.parent_id == other.parent_id
    assert newest.run_id == "thread-42"
    assert (other.run_id or "").startswith("thread-42@")
    times = [step.created_at for step in steps if step.run_id == "thread-42"]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_an_older_checkpoint_alone_is_a_conversation_so_far(tmp_path: Path) -> None:
    lines = (SAMPLES / "langgraph_checkpoints.jsonl").read_text("utf-8").splitlines()
    said = [json.loads(line)["checkpoint"]["channel_values"].get("messages") for line in lines]
    middle = lines[[len(messages or []) for messages in said].index(3)]
    (tmp_path / "one.json").write_text(middle)
    shelf = Shelf()
    import_file(shelf, tmp_path / "one.json")
    waiting = [step for step in shelf.steps.values() if step.tool == "find_booking"]
    assert [step.status for step in waiting] == ["partial", "partial"]


@pytest.mark.parametrize("name", ["mlflow_trace.json", "otlp_messages.jsonl"])
def test_a_trace_becomes_a_program_with_its_tools(name: str) -> None:
    steps = steps_of(name)
    first, *inner, last = steps
    assert (str(first.step_type), str(last.step_type)) == ("ProgramCall", "ProgramEnd")
    assert first.purpose == "Refund AB12 and XX"
    assert {step.program_id for step in inner} == {str(first.id)}
    booked = [step for step in inner if step.tool == "find_booking"]
    assert [step.arguments for step in booked] == [{"code": "AB12"}, {"code": "XX"}]
    assert booked[0].result == {"code": "AB12", "tickets": 2}
    assert [step.status for step in booked] == ["ok", "error"]
    assert "no booking XX" in (booked[1].outputs or {})["error"]["message"]
    assert all(step.metrics and step.metrics.duration_ms for step in inner)
    said = [step for step in inner if step.tool is None]
    assert said[-1].metrics is not None
    assert said[-1].metrics.total_tokens in (39, 66)
    assert "efunded" in json.dumps(said[-1].outputs)
    assert [step.created_at for step in steps] == sorted(step.created_at for step in steps)


def test_an_mlflow_trace_is_kept_whole() -> None:
    given = json.loads((SAMPLES / "mlflow_trace.json").read_text("utf-8"))
    steps = steps_of("mlflow_trace.json")
    assert natives(steps) == given["data"]["spans"]
    assert (steps[0].metadata or {})["trace"]["info"] == given["info"]
    assert {step.run_id for step in steps} == {given["info"]["trace_id"]}


def test_an_otlp_span_is_kept_whole_and_names_its_conversation() -> None:
    steps = steps_of("otlp_messages.jsonl")
    request = json.loads((SAMPLES / "otlp_messages.jsonl").read_text("utf-8"))
    given = [s for r in request["resourceSpans"] for p in r["scopeSpans"] for s in p["spans"]]
    assert sorted(s["spanId"] for s in natives(steps)) == sorted(s["spanId"] for s in given)
    assert all(native in given for native in natives(steps))
    assert {step.session_id for step in steps} == {"conv-9"}
    assert (steps[0].metadata or {})["trace"]["resource"]["service.name"] == "travel"


def test_earlier_genai_conventions_are_read() -> None:
    _, first, second, third, _ = steps_of("otlp_early.jsonl")
    assert [first.purpose, second.purpose, third.purpose] == [
        "Refund AB12",
        "Is AB12 refundable?",
        "Then refund it",
    ]
    assert [first.result, second.result, third.result] == ["I look it up.", "It is.", "Done."]
    assert first.metrics is not None
    assert (first.metrics.input_tokens, first.metrics.output_tokens) == (31, 17)


def test_spans_that_the_sdk_printed_are_read() -> None:
    call, missed, said, end = steps_of("otel_console.json")
    assert (call.program, missed.tool, missed.arguments) == (
        "travel",
        "find_booking",
        {"code": "XX"},
    )
    assert (missed.outputs or {})["error"] == {"type": "KeyError", "message": "'no booking XX'"}
    assert (said.purpose, said.result) == ("Refund XX", "There is no XX.")
    assert missed.program_id == said.program_id == str(call.id)
    assert call.created_at <= missed.created_at <= said.created_at <= end.created_at


def test_a_history_of_dspy_shows_the_fields_of_its_prompts() -> None:
    steps = steps_of("dspy_history.json")
    given = json.loads((SAMPLES / "dspy_history.json").read_text("utf-8"))
    assert (steps[0].purpose, steps[0].outputs) == (
        "2+2?",
        {"reasoning": "two plus two", "answer": "4"},
    )
    assert [s.metrics.total_tokens for s in steps if s.metrics] == [72, 139, 174, 153]
    assert steps[0].created_at.isoformat() == "2026-11-21T23:46:25.169964+00:00"
    assert natives(steps) == given
    assert [step.parent_id for step in steps[1:]] == [step.id for step in steps[:-1]]


def test_a_history_that_grew_adds_only_what_is_new(tmp_path: Path) -> None:
    given = json.loads((SAMPLES / "dspy_history.json").read_text("utf-8"))
    shelf = Shelf()
    (tmp_path / "h.json").write_text(json.dumps(given[:2]))
    import_file(shelf, tmp_path / "h.json")
    assert import_file(shelf, SAMPLES / "dspy_history.json").added == 2
    assert len({step.run_id for step in shelf.steps.values()}) == 1
    assert [step.hop for step in shelf.steps.values()] == [0, 1, 2, 3]


def test_traces_and_trajectories_of_dspy() -> None:
    assert steps_of("dspy_trace.json")[0].outputs == {"reasoning": "two plus two", "answer": "4"}
    looked, finished, end = steps_of("dspy_prediction.json")
    assert (looked.purpose, looked.tool, looked.arguments, looked.result) == (
        "I must look it up",
        "find_booking",
        {"code": "AB12"},
        "booking AB12: 2 tickets",
    )
    assert finished.tool == "finish"
    assert end.outputs == {"reasoning": "found", "answer": "2 tickets"}


def test_a_toolbench_tree_keeps_its_branches() -> None:
    steps = steps_of("toolbench.json")
    given = json.loads((SAMPLES / "toolbench.json").read_text("utf-8"))
    asked, *tried, end = steps
    assert asked.purpose.startswith("I'm interested in learning more about the latest products")
    children: dict[str, int] = {}
    for step in tried:
        children[str(step.parent_id)] = children.get(str(step.parent_id), 0) + 1
    assert sorted(children.values())[-3:] == [2, 2, 2]
    original = [json.loads(line) for line in _shipped("toolbench-G1-57")]
    assert [step.tool for step in tried] == [step["inputs"]["tool"] for step in original]
    place = {step["id"]: number for number, step in enumerate(original)}
    ids = [str(step.id) for step in tried]
    for step, known in zip(tried, original, strict=True):
        parent = ids[place[known["parent_id"]]] if known["parent_id"] else str(asked.id)
        assert str(step.parent_id) == parent
    finished = next(s for s in tried if s.arguments.get("return_type") == "give_answer")
    assert end.parent_id == finished.id
    assert end.result == finished.arguments["final_answer"]
    assert (asked.metadata or {})["answer"]["win"] == given["win"]
    assert _tree_size(given["tree"]["tree"]) == len(natives(steps))


def test_tries_of_toolbench_without_a_tree_become_branches(tmp_path: Path) -> None:
    def chain(*texts: str) -> list[dict[str, Any]]:
        kinds = ("Thought", "Action", "Action Input") * len(texts)
        pairs = zip(kinds, texts, strict=False)
        nodes = [{"node_type": kind, "description": text} for kind, text in pairs]
        return [{**n, "observation": "seen"} if "Input" in n["node_type"] else n for n in nodes]

    value = {
        "win": False,
        "trys": [
            {"chain": chain("I look", "find", '{"n": 1}'), "win": False},
            {"chain": chain("Again", "find", '{"n": 2}'), "win": False},
        ],
        "answer_generation": {"query": "Where is it?", "final_answer": ""},
    }
    (tmp_path / "t.json").write_text(json.dumps(value))
    shelf = Shelf()
    assert import_file(shelf, tmp_path / "t.json").skipped == []
    asked, first, second, end = shelf.steps.values()
    assert (asked.purpose, first.purpose, first.tool) == ("Where is it?", "I look", "find")
    assert first.parent_id == second.parent_id == asked.id
    assert (second.arguments, second.result) == ({"n": 2}, "seen")
    assert end.status == "partial"
    assert (asked.metadata or {})["answer"]["trys"] == [{"win": False}] * 2


def _shipped(run_id: str) -> list[str]:
    lines = (SAMPLES.parent.parent / "data" / "steps.jsonl").read_text("utf-8").splitlines()
    return [line for line in lines if json.loads(line)["run_id"] == run_id]


def _tree_size(node: dict[str, Any]) -> int:
    return 1 + sum(_tree_size(child) for child in node["children"])


def test_what_was_imported_is_found_again_in_a_memory(tmp_path: Path) -> None:
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        for name in FILES:
            assert import_file(memory, SAMPLES / name).skipped == []
        for query, tool in (("no booking XX", "find_booking"), ("refunded 118.5", "refund")):
            assert tool in [hit.step.tool for hit in memory.search(query, k=5)]
        assert memory.search("latest iPhone 14 product search", k=1)[0].step.run_id
        assert memory.verify() == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"step_type": "Action", "messages": [], "outputs": {}, "tree": {"tree": {}}}, "jsonl"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "openai"),
        ([{"role": "user", "content": "hi"}], "openai"),
        ({"system": "x", "messages": [{"role": "user", "content": "hi"}]}, "anthropic"),
        ([{"type": "human", "content": "hi"}], "langchain"),
        ([{"role": "human", "type": "human"}], "openai"),
        ({"role": "user", "content": "hi"}, "jsonl"),
        ({"traceId": "0" * 32, "spanId": "1" * 16}, "otlp"),
        ({"resourceSpans": []}, "otlp"),
        ({"spans": []}, None),
        ({}, None),
        ([], None),
        (None, None),
        (3, None),
    ],
)
def test_formats_are_told_apart(value: Any, told: str | None) -> None:
    assert format_of(value) == told


def test_what_dspy_tells_mlflow_keeps_the_names_of_tools() -> None:
    def span(number: int, called: str, kind: str, inputs: Any, **said: str) -> dict[str, Any]:
        told = {"mlflow.spanType": f'"{kind}"', "mlflow.spanInputs": json.dumps(inputs)}
        place = {"span_id": f"s{number}", "parent_span_id": "s0" if number else None}
        times = {"start_time_unix_nano": number + 1, "end_time_unix_nano": number + 2}
        return {**place, **times, "name": called, "attributes": {**told, **said}}

    spans = [
        span(0, "ReAct.forward", "AGENT", {"question": "weather?"}),
        span(1, "Predict.forward", "LLM", {"question": "weather?"}),
        span(2, "ChatAdapter.format", "PARSER", {"inputs": {}}),
        span(3, "Tool.weather", "TOOL", {"city": "Oslo"}, name='"weather"'),
    ]
    trace = {"info": {"trace_id": "t"}, "data": {"spans": spans}}
    found = mlflow_traces.parse([Record(1, trace)])
    steps = [read.step for read in found if isinstance(read, Parsed)]
    assert [step.tool for step in steps] == [None, None, None, "weather", None]
    assert steps[1].arguments == {"question": "weather?"}


@pytest.mark.parametrize("orient", ["records", "columns"])
def test_a_table_of_mlflow_traces_is_read_like_the_traces(tmp_path: Path, orient: str) -> None:
    trace = (SAMPLES / "mlflow_trace.json").read_text("utf-8")
    rows = [{"trace_id": "t", "trace": trace}] * 2
    table = {"trace_id": {"0": "t", "1": "t"}, "trace": {"0": trace, "1": trace}}
    (tmp_path / "t.json").write_text(json.dumps(rows if orient == "records" else table))
    told = Shelf()
    report = import_file(told, tmp_path / "t.json")
    assert report.skipped == []
    assert unsourced(list(told.steps.values())) == unsourced(steps_of("mlflow_trace.json"))
