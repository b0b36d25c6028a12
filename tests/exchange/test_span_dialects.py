"""Spans of every dialect become the same steps, and what is not understood is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file

SAMPLES = Path(__file__).parents[1] / "samples"
QUESTION, ANSWER = "Weather in Oslo?", "Sunny there."
MESSAGE = json.dumps([{"role": "user", "content": QUESTION}])
REPLY = json.dumps([{"role": "assistant", "content": ANSWER}])
USER_PARTS = {"role": "user", "parts": [{"type": "text", "content": QUESTION}]}
TOOL_PARTS = {"role": "user", "parts": [{"type": "tool_call_response", "id": "c", "result": "sun"}]}
Attributes = dict[str, Any]
DIALECTS: dict[str, tuple[Attributes, Attributes, Attributes]] = {
    "OpenTelemetry GenAI": (
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "agent",
         "gen_ai.input.messages": MESSAGE, "gen_ai.output.messages": REPLY,
         "gen_ai.conversation.id": "s1", "user.id": "ann"},
        {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1",
         "gen_ai.input.messages": json.dumps([USER_PARTS, TOOL_PARTS]),
         "gen_ai.output.messages": REPLY,
         "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2},
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather",
         "gen_ai.tool.call.arguments": '{"city": "Oslo"}', "gen_ai.tool.call.result": '"sun"'},
    ),
    "OpenInference": (
        {"openinference.span.kind": "AGENT", "input.value": QUESTION, "output.value": ANSWER,
         "session.id": "s1", "user.id": "ann"},
        {"openinference.span.kind": "LLM", "llm.model_name": "m-1",
         "llm.input_messages.0.message.role": "user",
         "llm.input_messages.0.message.contents.0.message_content.type": "text",
         "llm.input_messages.0.message.contents.0.message_content.text": QUESTION,
         "llm.output_messages.0.message.role": "assistant",
         "llm.output_messages.0.message.content": ANSWER,
         "llm.token_count.prompt": 3, "llm.token_count.completion": 2},
        {"openinference.span.kind": "TOOL", "tool.name": "weather",
         "input.value": '{"city": "Oslo"}', "output.value": "sun"},
    ),
    "OpenLLMetry": (
        {"traceloop.span.kind": "workflow", "traceloop.entity.name": "agent",
         "traceloop.entity.input": json.dumps({"args": [QUESTION], "kwargs": {}}),
         "traceloop.entity.output": json.dumps(ANSWER),
         "traceloop.association.properties.session_id": "s1",
         "traceloop.association.properties.user_id": "ann"},
        {"gen_ai.request.model": "m-1", "gen_ai.prompt.0.role": "user",
         "gen_ai.prompt.0.content": QUESTION, "gen_ai.completion.0.role": "assistant",
         "gen_ai.completion.0.content": ANSWER, "gen_ai.usage.prompt_tokens": 3,
         "gen_ai.usage.completion_tokens": 2},
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "weather",
         "traceloop.entity.input": json.dumps({"args": [], "kwargs": {"city": "Oslo"}}),
         "traceloop.entity.output": '"sun"'},
    ),
    "MLflow": (
        {"mlflow.spanType": '"AGENT"', "mlflow.spanInputs": json.dumps({"question": QUESTION}),
         "mlflow.spanOutputs": json.dumps(ANSWER), "mlflow.trace.session": "s1",
         "mlflow.trace.user": "ann"},
        {"mlflow.spanType": '"CHAT_MODEL"', "mlflow.llm.model": '"m-1"',
         "mlflow.spanInputs": json.dumps({"messages": json.loads(MESSAGE)}),
         "mlflow.spanOutputs": json.dumps({"choices": [{"message": json.loads(REPLY)[0]}]}),
         "mlflow.chat.tokenUsage": json.dumps({"input_tokens": 3, "output_tokens": 2})},
        {"mlflow.spanType": '"TOOL"', "mlflow.spanInputs": '{"city": "Oslo"}',
         "mlflow.spanOutputs": '"sun"'},
    ),
    "Langfuse": (
        {"langfuse.observation.type": "agent", "langfuse.observation.input": QUESTION,
         "langfuse.observation.output": ANSWER, "langfuse.session.id": "s1",
         "langfuse.user.id": "ann"},
        {"langfuse.observation.type": "generation", "langfuse.observation.input": MESSAGE,
         "langfuse.observation.output": json.dumps(json.loads(REPLY)[0]),
         "langfuse.observation.model.name": "m-1",
         "langfuse.observation.usage_details": json.dumps({"input": 3, "output": 2})},
        {"langfuse.observation.type": "tool", "langfuse.observation.input": '{"city": "Oslo"}',
         "langfuse.observation.output": "sun"},
    ),
    "AI SDK": (
        {"ai.operationId": "ai.generateText", "ai.prompt": json.dumps({"prompt": QUESTION}),
         "ai.response.text": ANSWER, "ai.telemetry.metadata.sessionId": "s1",
         "ai.telemetry.metadata.userId": "ann"},
        {"ai.operationId": "ai.generateText.doGenerate", "ai.prompt.messages": MESSAGE,
         "ai.response.text": ANSWER, "ai.model.id": "m-1", "ai.usage.promptTokens": 3,
         "ai.usage.completionTokens": 2},
        {"ai.operationId": "ai.toolCall", "ai.toolCall.name": "weather",
         "ai.toolCall.args": '{"city": "Oslo"}', "ai.toolCall.result": '"sun"'},
    ),
    "pydantic-ai": (
        {"agent_name": "agent", "gen_ai.operation.name": "invoke_agent", "final_result": ANSWER,
         "pydantic_ai.all_messages": json.dumps([USER_PARTS]), "session.id": "s1",
         "user.id": "ann"},
        {"gen_ai.operation.name": "chat", "gen_ai.response.model": "m-1",
         "events": json.dumps([
             {"event.name": "gen_ai.user.message", "content": QUESTION, "role": "user"},
             {"event.name": "gen_ai.choice", "message": json.loads(REPLY)[0]}]),
         "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2},
        {"gen_ai.tool.name": "weather", "tool_arguments": '{"city": "Oslo"}',
         "tool_response": "sun"},
    ),
    "Google ADK": (
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "agent",
         "gcp.vertex.agent.session_id": "s1", "user.id": "ann"},
        {"gen_ai.system": "gcp.vertex.agent", "gen_ai.request.model": "m-1",
         "gcp.vertex.agent.llm_request": json.dumps(
             {"contents": [{"role": "user", "parts": [{"text": QUESTION}]},
                           {"role": "user", "parts": [{"function_response": {"name": "w"}}]}]}),
         "gcp.vertex.agent.llm_response": json.dumps(
             {"content": {"role": "model", "parts": [{"text": ANSWER}]}}),
         "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2},
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather",
         "gcp.vertex.agent.tool_call_args": '{"city": "Oslo"}',
         "gcp.vertex.agent.tool_response": '"sun"'},
    ),
}  # fmt: skip


def request(*attributes: Attributes, names: tuple[str, ...] = ("agent", "call", "weather")) -> Any:
    """Return an OTLP request: the first span holds the others."""
    spans: list[Any] = [
        {
            "traceId": "0af7651916cd43dd8448eb211c80319c",
            "spanId": f"{number:016x}",
            **({"parentSpanId": f"{1:016x}"} if number > 1 else {}),
            "name": names[number - 1],
            "startTimeUnixNano": str(10**18 + number * 10**9),
            "endTimeUnixNano": str(10**18 + number * 10**9 + 10**8),
            "attributes": [
                {"key": key, "value": {"intValue": str(value)}}
                if isinstance(value, int)
                else {"key": key, "value": {"stringValue": value}}
                for key, value in pairs.items()
            ],
        }
        for number, pairs in enumerate(attributes, start=1)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


@pytest.fixture
def memory() -> Any:
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


def imported(memory: hs.StepMemory, folder: Path, value: Any) -> Any:
    path = folder / "spans.json"
    path.write_text(json.dumps(value), "utf-8")
    return import_file(memory, path)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_is_read(memory: hs.StepMemory, tmp_path: Path, dialect: str) -> None:
    report = imported(memory, tmp_path, request(*DIALECTS[dialect]))
    assert not [note for note in report.notes if "no reader" in note]
    call, model, tool, end = list(memory.iter_steps())
    assert call.step_type is hs.AgentStepType.ProgramCall
    assert (call.inputs or {})["program"] == "agent"
    assert (call.inputs or {})["purpose"] == QUESTION
    assert (call.session_id, call.user_id) == ("s1", "ann")
    assert end.outputs is None if dialect == "Google ADK" else ANSWER in str(end.outputs)
    assert model.tool is None
    assert (model.inputs or {})["purpose"] == QUESTION
    assert ANSWER in str(model.outputs)
    assert model.metrics is not None
    assert (model.metrics.total_tokens, model.metrics.model_name) == (5, "m-1")
    assert tool.tool == "weather"
    assert tool.arguments == {"city": "Oslo"}
    assert tool.outputs == {"result": "sun"}
    assert imported(memory, tmp_path, request(*DIALECTS[dialect])).already_there == 4


def test_a_react_run_of_dspy_holds_its_words(memory: hs.StepMemory) -> None:
    report = import_file(memory, SAMPLES / "openinference_dspy.jsonl")
    assert (report.added, report.understood, report.notes) == (27, 27, ())
    steps = list(memory.iter_steps())
    programs = [s for s in steps if s.step_type is hs.AgentStepType.ProgramCall]
    assert {s.program for s in programs} >= {"ReAct", "Predict", "ChatAdapter", "ChainOfThought"}
    assert {s.purpose for s in programs} == {QUESTION}
    assert {s.tool for s in steps} == {None, "weather", "finish"}  # a model's call is no tool
    models = [s for s in steps if s.metrics is not None and s.metrics.model_name]
    assert len(models) == 3
    assert all(QUESTION in s.purpose and s.outputs for s in models)
    assert ANSWER in str(models[-1].outputs)
    [weather] = [s for s in steps if s.tool == "weather"]
    assert (weather.arguments, weather.outputs) == ({"city": "Oslo"}, {"result": "sun, 21 degrees"})
    ends = [s for s in steps if s.step_type is hs.AgentStepType.ProgramEnd]
    assert all(s.outputs for s in ends)
    assert {(s.session_id, s.user_id) for s in steps} == {("s1", "ann")}
    again = import_file(memory, SAMPLES / "openinference_dspy.jsonl")
    assert (again.added, again.already_there) == (0, 27)


@pytest.mark.parametrize(
    ("name", "tool", "arguments"),
    [
        ("openinference_openai", "tool", {"city": "Oslo"}),
        ("traceloop", "weather", {"args": ["Oslo"]}),
        ("langfuse_otel", "weather", {"city": "Oslo"}),
    ],
)
def test_what_instrumentors_write_is_read(
    memory: hs.StepMemory, name: str, tool: str, arguments: Any
) -> None:
    report = import_file(memory, SAMPLES / f"{name}.jsonl")
    assert (report.understood, report.notes) == (report.added, ())
    first, *inner, last = memory.iter_steps()
    assert (first.purpose, last.outputs) == (QUESTION, {"result": ANSWER})
    [call] = [step for step in inner if step.tool]
    assert (call.tool, call.arguments, call.outputs) == (tool, arguments, {"result": "sun"})
    answer = [step for step in inner if not step.tool][-1]
    assert (answer.purpose, answer.outputs) == (QUESTION, {"result": ANSWER})
    assert answer.metrics is not None
    assert (answer.metrics.total_tokens, answer.metrics.model_name) == (5, "m-1")


def test_documents_of_a_retriever_are_its_result(memory: hs.StepMemory, tmp_path: Path) -> None:
    span = {
        "openinference.span.kind": "RETRIEVER",
        "input.value": QUESTION,
        "retrieval.documents.0.document.content": "Oslo is sunny",
        "retrieval.documents.1.document.content": "Bergen is wet",
    }
    imported(memory, tmp_path, request(span, names=("search",)))
    [step] = memory.iter_steps()
    assert step.tool == "search"
    assert [one["content"] for one in (step.outputs or {})["result"]] == [
        "Oslo is sunny",
        "Bergen is wet",
    ]


def test_a_row_of_phoenix_is_a_span(memory: hs.StepMemory, tmp_path: Path) -> None:
    row = {
        "context.trace_id": "0af7651916cd43dd8448eb211c80319c",
        "context.span_id": f"{1:016x}",
        "parent_id": None,
        "name": "weather",
        "span_kind": "TOOL",
        "status_code": "OK",
        "start_time": "2026-01-01T10:00:00+00:00",
        "end_time": "2026-01-01T10:00:01+00:00",
        "attributes.tool.name": "weather",
        "attributes.input.value": '{"city": "Oslo"}',
        "attributes.output.value": "sun",
    }
    imported(memory, tmp_path, [row])
    [step] = memory.iter_steps()
    assert (step.tool, step.arguments, step.outputs) == (
        "weather",
        {"city": "Oslo"},
        {"result": "sun"},
    )


def test_langfuse_observations_keep_their_trace(memory: hs.StepMemory, tmp_path: Path) -> None:
    trace = {
        "id": "t1",
        "name": "agent",
        "timestamp": "2026-01-01T10:00:00Z",
        "sessionId": "s1",
        "userId": "ann",
        "input": QUESTION,
        "output": ANSWER,
        "observations": [
            {
                "id": "o1",
                "traceId": "t1",
                "type": "GENERATION",
                "name": "m",
                "model": "m-1",
                "startTime": "2026-01-01T10:00:01Z",
                "usage": {"input": 3, "output": 2},
                "input": json.loads(MESSAGE),
                "output": {"role": "assistant", "content": ANSWER},
            },
            {
                "id": "o2",
                "traceId": "t1",
                "type": "TOOL",
                "name": "weather",
                "startTime": "2026-01-01T10:00:03Z",
                "level": "ERROR",
                "statusMessage": "boom",
                "input": {"city": "Oslo"},
                "output": None,
            },
        ],
    }
    report = imported(memory, tmp_path, trace)
    assert report.notes == ()
    call, model, tool, end = list(memory.iter_steps())
    assert (call.inputs or {})["purpose"] == QUESTION
    assert {step.session_id for step in (call, model, tool, end)} == {"s1"}
    assert model.metrics is not None
    assert model.metrics.total_tokens == 5
    assert tool.outputs == {"error": {"type": "Error", "message": "boom"}}
    assert end.outputs == {"result": ANSWER}


def test_exported_tables_of_langfuse_are_read(memory: hs.StepMemory, tmp_path: Path) -> None:
    times = {"start_time": "2026-01-01 10:00:01.000", "end_time": "2026-01-01 10:00:02.000"}
    rows: list[Any] = [
        {"id": "o1", "trace_id": "t1", "parent_observation_id": "", "type": "GENERATION",
         "name": "m", "provided_model_name": "m-1", "usage_details": {"input": 3, "output": 2},
         "input": MESSAGE, "output": json.dumps({"role": "assistant", "content": ANSWER}), **times},
        {"id": "o2", "trace_id": "t1", "parent_observation_id": "", "type": "TOOL",
         "name": "weather", "level": "ERROR", "status_message": "boom",
         "input": '{"city": "Oslo"}', "output": None, **times},
    ]  # fmt: skip
    assert imported(memory, tmp_path, rows).notes == ()
    steps = {step.tool: step for step in memory.iter_steps()}
    assert (steps[None].purpose, steps[None].outputs) == (QUESTION, {"result": ANSWER})
    metrics = steps[None].metrics
    assert metrics is not None
    assert (metrics.total_tokens, metrics.model_name) == (5, "m-1")
    assert steps["weather"].arguments == {"city": "Oslo"}
    assert steps["weather"].outputs == {"error": {"type": "Error", "message": "boom"}}


def test_a_list_of_langfuse_traces_names_but_ids(memory: hs.StepMemory, tmp_path: Path) -> None:
    about = {"id": "t1", "timestamp": "2026-01-01T10:00:00Z", "name": "agent", "sessionId": "s1",
             "input": QUESTION, "output": ANSWER}  # fmt: skip
    bare = {**about, "id": "t2", "sessionId": None}
    assert imported(memory, tmp_path, [{**about, "observations": ["o1"]}, bare]).notes == ()
    steps = list(memory.iter_steps())
    assert [step.purpose for step in steps if step.purpose] == [QUESTION] * 2
    assert [step.session_id for step in steps] == ["s1", "s1", None, None]


def test_spans_that_nothing_reads_are_counted(memory: hs.StepMemory, tmp_path: Path) -> None:
    spans = [{"acme.in": QUESTION}, {"openinference.span.kind": "RERANKER"}, {"acme.in": "x"}]
    report = imported(memory, tmp_path, request(*spans))
    assert "2 spans without a known attribute were not understood" in report.notes
    assert "1 span of openinference.span.kind=RERANKER was not understood" in report.notes
