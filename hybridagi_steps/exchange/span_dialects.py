"""What the attributes of a span mean, in every dialect, from one table of names.

OpenTelemetry's GenAI conventions (old and new), OpenInference (Phoenix and its instrumentors),
OpenLLMetry, MLflow, Langfuse, the AI SDK of Vercel, Google's ADK and Logfire with pydantic-ai say
the same things under other names. A reader of spans hands over plain attributes and gets a
`Reading`; a new dialect is a row in these tables. What no row reads is named by its kind, so that
an import can report it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

Kind = Literal["program", "model", "tool", "other", "unknown"]
"""What a span stands for: `other` is work of neither, `unknown` may be a tool."""
Messages = list[JsonObject]

OPERATION = "gen_ai.operation.name"
CHAT, EXECUTE_TOOL, INVOKE_AGENT = "chat", "execute_tool", "invoke_agent"
"""What the conventions call a call of a model, a tool and an agent."""
KIND = (
    *("openinference.span.kind", "traceloop.span.kind", "mlflow.spanType"),
    *("langfuse.observation.type", OPERATION, "ai.operationId"),
)
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("agent", "chain", "workflow", "task", "graph"), "program"),
    **dict.fromkeys(("invoke_agent", "create_agent", "invoke_workflow", "plan"), "program"),
    **dict.fromkeys(("llm", "chat_model", "chat", "generation", "completion"), "model"),
    **dict.fromkeys(("text_completion", "generate_content"), "model"),
    **dict.fromkeys(("embedding", "embeddings"), "model"),
    **dict.fromkeys(("tool", "execute_tool", "retriever", "retrieval", "reranker"), "tool"),
    **dict.fromkeys(("guardrail", "evaluator", "ai.toolcall"), "tool"),
    **dict.fromkeys(("ai.generatetext", "ai.streamtext", "ai.generateobject"), "program"),
    **dict.fromkeys(("ai.streamobject", "ai.embed", "ai.embedmany"), "program"),
    **dict.fromkeys(("parser", "prompt"), "other"),
}
_MODEL_CALL = re.compile(r"ai\.\w+\.do(Generate|Stream|Embed)")

INPUT_MESSAGES = (
    *("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "ai.prompt.messages"),
    *("pydantic_ai.all_messages", "gcp.vertex.agent.llm_request"),
)
OUTPUT_MESSAGES = (
    *("gen_ai.output.messages", "gen_ai.completion", "llm.output_messages"),
    "gcp.vertex.agent.llm_response",
)
ARGUMENTS = (
    *("gen_ai.tool.call.arguments", "gen_ai.tool.arguments", "gcp.vertex.agent.tool_call_args"),
    *("ai.toolCall.args", "tool_arguments"),
)
INPUT = (
    *("input.value", "traceloop.entity.input", "mlflow.spanInputs", "langfuse.observation.input"),
    *("langfuse.trace.input", "ai.prompt", "gcp.vertex.agent.data", "reranker.query"),
    "tool.parameters",  # last: some write the schema of the parameters there
)
RESULT = (
    *("gen_ai.tool.call.result", "gen_ai.tool.output", "gen_ai.tool.message"),
    *("gcp.vertex.agent.tool_response", "ai.toolCall.result", "tool_response"),
    *("retrieval.documents", "reranker.output_documents", "ai.response.text", "ai.response.object"),
    *("ai.response.toolCalls", "final_result", "output.value", "traceloop.entity.output"),
    *("mlflow.spanOutputs", "langfuse.observation.output", "langfuse.trace.output"),
)
TOOL_NAMES = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name")
NAMES = (
    *("gen_ai.agent.name", "gen_ai.workflow.name", "agent_name", "agent.name"),
    "traceloop.entity.name",
)
SESSIONS = (
    *("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id"),
    *("langfuse.session.id", "gcp.vertex.agent.session_id", "mlflow.trace.session"),
    *("ai.telemetry.metadata.sessionId", "conversation_id"),
)
USERS = (
    *("user.id", "enduser.id", "traceloop.association.properties.user_id", "langfuse.user.id"),
    *("mlflow.trace.user", "ai.telemetry.metadata.userId"),
)
MODELS = (
    *("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "embedding.model_name"),
    *("ai.model.id", "langfuse.observation.model.name", "mlflow.llm.model"),
)
PROVIDERS = (
    *("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "ai.model.provider"),
    "mlflow.llm.provider",
)
COUNTS = {
    "input_tokens": (
        *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
        *("ai.usage.inputTokens", "ai.usage.promptTokens"),
    ),
    "output_tokens": (
        *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        *("llm.token_count.completion", "ai.usage.outputTokens", "ai.usage.completionTokens"),
    ),
    "cache_read_tokens": (
        *("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read"),
        "ai.usage.cachedInputTokens",
    ),
    "cache_write_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    "total_tokens": ("llm.usage.total_tokens", "llm.token_count.total", "ai.usage.totalTokens"),
}
"""Fields of StepMetrics, and the attributes that hold them."""
USAGES = ("mlflow.chat.tokenUsage", "langfuse.observation.usage_details")
"""Attributes that hold all counts as one object."""
COSTS = ("llm.cost.total", "gen_ai.usage.cost", "operation.cost")
COST_OBJECTS = ("mlflow.llm.cost", "langfuse.observation.cost_details")

INPUT_EVENTS = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
PROMPT_EVENT, COMPLETION_EVENT = "gen_ai.content.prompt", "gen_ai.content.completion"
CHOICE_EVENT = "gen_ai.choice"
ERROR_TYPE = "error.type"
_INTEGER = re.compile(r"-?[0-9]{1,19}")

QUESTIONS = ("question", "query", "input", "prompt", "message", "text", "request", "task")
"""Arguments that hold a program's question, the likeliest first."""
_METHOD = re.compile(r"\.(forward|aforward|__call__|acall)$")
_ENTITY = re.compile(r"\.(workflow|task|agent|tool)$")
_WRAPPERS = {"input_args", "kwargs", "args", "inputs"}
_BESIDE_INPUTS = {"signature", "lm", "lm_kwargs", "demos"}
"""What an adapter of DSPy is called with beside its inputs; the span keeps it."""


@dataclass(slots=True)
class Reading:
    """What one span says."""

    kind: Kind
    label: str
    """The kind as the span names it, such as `openinference.span.kind=LLM`; "" without one."""
    name: str | None = None
    """Of the agent or program, where an attribute names it."""
    tool: str | None = None
    purpose: str = ""
    arguments: JsonObject = field(default_factory=dict[str, Any])
    outputs: JsonObject | None = None
    metrics: JsonObject = field(default_factory=dict[str, Any])
    session_id: str | None = None
    user_id: str | None = None


def read_attributes(
    attributes: JsonObject, name: str, events: tuple[Messages, Messages] = ([], [])
) -> Reading:
    """Read the attributes of one span.

    Args:
        attributes: Plain values by name; text that holds JSON is read.
        name: The span's own name.
        events: Messages in and out that the span's events tell.
    """
    inputs = _messages(attributes, INPUT_MESSAGES, "user", "gen_ai.prompt.") or events[0]
    answers = _messages(attributes, OUTPUT_MESSAGES, "assistant", "gen_ai.completion.")
    answers = answers or events[1]
    kind, label = _kind(attributes, has_messages=bool(inputs))
    raw_input = js.json_or_text(first_of(attributes, INPUT))
    holds_messages = bool(inputs) or isinstance(
        js.as_object(raw_input).get("messages", raw_input), list | str
    )
    if kind == "model" and not inputs:
        inputs = messages_in(raw_input, "user")
    arguments = first_of(attributes, ARGUMENTS)
    result = js.json_or_text(nested(attributes, RESULT))
    outputs = answer(answers) if answers else _outputs(result, is_model=kind == "model")
    if kind != "model" or not holds_messages:
        arguments = unwrapped(js.json_or_text(raw_input if arguments is None else arguments))
    return Reading(
        kind,
        label,
        name=first_text(attributes, NAMES) if kind == "program" else None,
        tool=(
            first_text(attributes, TOOL_NAMES)
            or first_text(attributes, NAMES[-1:])
            or short_name(name)
        )
        if kind in ("tool", "unknown")
        else None,
        purpose=js.last_user_text(inputs) or (question_in(raw_input) if kind != "tool" else ""),
        arguments=js.as_object(arguments) if kind != "model" or not holds_messages else {},
        outputs=outputs,
        metrics=_metrics(attributes),
        session_id=first_text(attributes, SESSIONS),
        user_id=first_text(attributes, USERS),
    )


def short_name(name: str) -> str:
    """Return the name of a span without the method or the kind that instrumentors append."""
    return _ENTITY.sub("", _METHOD.sub("", name)) or name


def _kind(attributes: JsonObject, *, has_messages: bool) -> tuple[Kind, str]:
    for key in KIND:
        value = js.json_or_text(attributes.get(key))
        if not isinstance(value, str) or not value:
            continue
        label = f"{key}={value:.80}"
        if _MODEL_CALL.fullmatch(value):
            return "model", label
        kind = KINDS.get(value.lower(), "unknown")
        if kind != "unknown":
            return kind, label
        return ("model" if has_messages else "unknown"), label
    if first_text(attributes, TOOL_NAMES) or "tool_arguments" in attributes:
        return "tool", ""
    if has_messages or "gcp.vertex.agent.llm_request" in attributes:
        return "model", ""
    return ("program" if first_text(attributes, NAMES) else "unknown"), ""


def first_text(attributes: JsonObject, names: Iterable[str]) -> str | None:
    """Return the first text that stands under one of these names."""
    values = (attributes.get(name) for name in names)
    texts = (value for value in values if isinstance(value, str) and value)
    return next((str(js.json_or_text(text)) if text[0] == '"' else text for text in texts), None)


def first_of(attributes: JsonObject, names: Sequence[str]) -> Any:
    """Return the value of the first of these names that has one."""
    values = (attributes.get(name) for name in names)
    return next((value for value in values if value not in (None, "")), None)


def nested(attributes: JsonObject, names: Sequence[str]) -> Any:
    """Return the value of the first of these names, also one that stands in many attributes.

    `retrieval.documents.0.document.content` is such a one: an attribute for each leaf of a list.
    """
    for name in names:
        if (value := attributes.get(name)) not in (None, ""):
            return value
        if items := _unflattened(attributes, f"{name}."):
            return [_bare(item) for item in items]
    return None


def _unflattened(attributes: JsonObject, prefix: str) -> list[Any]:
    """Return the list that attributes with numbers in their names spell."""
    root: JsonObject = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        place, path = root, key.removeprefix(prefix).split(".")
        if not path[0].isdecimal() or len(path[0]) > 5:
            continue
        for part in path[:-1]:
            below = place.setdefault(part, {})
            if not isinstance(below, dict):
                break
            place = js.as_object(below)
        else:
            place.setdefault(path[-1], value)
    return js.as_list(_lists(root)) if root else []


def _lists(value: Any) -> Any:
    """Return nested objects whose keys are all numbers as lists."""
    fields = js.as_object(value)
    if not fields:
        return value
    read = {key: _lists(item) for key, item in fields.items()}
    if all(key.isdecimal() for key in read):
        return [read[key] for key in sorted(read, key=int)]
    return read


_ENVELOPES = ("message", "document", "tool_call", "message_content")


def _bare(item: object) -> Any:
    """Return an item of OpenInference without the name of its kind around or before its fields."""
    fields = js.as_object(item)
    for envelope in _ENVELOPES:
        if isinstance(fields.get(envelope), dict):
            fields = {**js.as_object(fields[envelope])}
        fields = {key.removeprefix(f"{envelope}."): value for key, value in fields.items()}
    if not fields:
        return item
    if "contents" in fields:
        fields["content"] = [_bare(part) for part in js.as_list(fields.pop("contents"))]
    if "tool_calls" in fields:
        fields["tool_calls"] = [
            _bare(call) for call in js.as_list(js.json_or_text(fields["tool_calls"]))
        ]
    return fields


def _messages(attributes: JsonObject, names: Sequence[str], role: str, flat: str) -> Messages:
    for name in names:
        if value := attributes.get(name):
            return messages_in(js.json_or_text(value), role)
        if items := _unflattened(attributes, f"{name}."):
            return [js.as_object(_bare(item)) for item in items]
    return [js.as_object(_bare(item)) for item in _unflattened(attributes, flat)]


def messages_in(value: object, role: str) -> Messages:
    """Return what a text, an object or a list says as messages."""
    fields = js.as_object(value)
    for key in ("messages", "contents", "all_messages"):
        if isinstance(fields.get(key), list):
            value, fields = fields[key], {}
            break
    if fields:
        whole = js.as_object(fields.get("content"))
        return [whole] if "parts" in whole else [fields]
    if not isinstance(value, list):
        return [{"role": role, "content": str(value)}] if value else []
    return [
        js.as_object(_bare(item)) or {"role": role, "content": str(item)}
        for item in js.as_list(value)
    ]


def answer(messages: Sequence[Any]) -> JsonObject:
    """Return what the last of some messages says, with the calls in it."""
    message = js.as_object(messages[-1])
    parts = message.get("parts") or message.get("content")
    text = (
        js.text_of([p for p in js.as_list(parts) if _is_text(p)])
        if isinstance(parts, list)
        else parts
    )
    calls = message.get("tool_calls") or [
        {"name": part.get("name"), "arguments": part.get("arguments")}
        for part in map(js.as_object, js.as_list(parts))
        if part.get("type") == "tool_call"
    ]
    result: JsonObject = {"result": text or ""}
    return {**result, "tool_calls": calls} if calls else result


def _is_text(part: object) -> bool:
    return js.as_object(part).get("type", "text") == "text" and "function_call" not in js.as_object(
        part
    )


def _outputs(result: object, *, is_model: bool) -> JsonObject | None:
    if result is None:
        return None
    return {"result": model_text(result) if is_model else result}


def model_text(outputs: object) -> Any:
    """Return the text of a model's answer in the forms of its client."""
    if texts := [text for text in js.as_list(outputs) if isinstance(text, str)]:
        return texts[0] if len(texts) == 1 else texts
    fields = js.as_object(outputs)
    choices = js.as_list(fields.get("choices"))
    message = js.as_object(js.as_object(choices[0]).get("message")) if choices else fields
    if text := js.text_of(message.get("content")):
        return text
    return message.get("tool_calls") or outputs


def unwrapped(value: object) -> Any:
    """Return a call's arguments without what an instrumentor wraps around them."""
    fields = js.as_object(value)
    if fields.keys() & _WRAPPERS and not fields.keys() - _WRAPPERS - _BESIDE_INPUTS:
        inner = {**js.as_object(fields.get("input_args")), **js.as_object(fields.get("kwargs"))}
        if args := js.as_list(fields.get("args")):
            inner["args"] = args
        inner |= js.as_object(fields.get("inputs"))
        return inner
    if fields or value in (None, "", []):
        return fields
    return {"value": value}


def question_in(value: object) -> str:
    """Return what was asked: the last user's words, or the argument that holds the question."""
    if isinstance(value, str):
        return value
    fields = js.as_object(value)
    if text := js.last_user_text(fields.get("messages") or value):
        return text
    fields = js.as_object(unwrapped(fields))
    texts = {key: text for key, text in fields.items() if isinstance(text, str)}
    named = next((texts[key] for key in QUESTIONS if key in texts), None)
    first = (text for text in js.as_list(fields.get("args")) if isinstance(text, str))
    return named or next(iter(texts.values()), "") or next(first, "")


def _metrics(attributes: JsonObject) -> JsonObject:
    usage = js.usage_metrics(js.json_or_text(first_of(attributes, USAGES))) or {}
    counts = {name: js.first_number(attributes, *names) for name, names in COUNTS.items()}
    metrics = {**js.without(usage, "llm_calls"), **js.known_fields(**counts)}
    if metrics.keys() >= {"input_tokens", "output_tokens"}:
        metrics.setdefault("total_tokens", metrics["input_tokens"] + metrics["output_tokens"])
    costs = js.as_object(js.json_or_text(first_of(attributes, COST_OBJECTS)))
    cost = first_of(attributes, COSTS) or costs.get("total_cost") or costs.get("total")
    return js.known_fields(
        **metrics,
        model_name=first_text(attributes, MODELS),
        provider=first_text(attributes, PROVIDERS),
        cost=cost if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
    )


def event_messages(native: JsonObject, attributes: JsonObject) -> tuple[Messages, Messages]:
    """Return the messages in and out that a span's events tell, or an attribute of events."""
    inputs: Messages = []
    answers: Messages = []
    within = js.as_list(js.json_or_text(attributes.get("events")))
    for event in map(js.as_object, [*js.as_list(native.get("events")), *within]):
        fields = plain_attributes(event) or event
        name = str(event.get("name") or event.get("event.name"))
        if name == PROMPT_EVENT:
            inputs += messages_in(js.json_or_text(fields.get("gen_ai.prompt")), "user")
        elif name == COMPLETION_EVENT:
            answers += messages_in(js.json_or_text(fields.get("gen_ai.completion")), "assistant")
        elif name in INPUT_EVENTS:
            inputs.append({"role": INPUT_EVENTS[name], "content": fields.get("content")})
        elif name == CHOICE_EVENT:
            message = js.as_object(js.json_or_text(fields.get("message")))
            answers.append(message or {"role": "assistant", "content": fields.get("content")})
        elif name == "gen_ai.client.inference.operation.details":
            for key, messages in (("input", inputs), ("output", answers)):
                value = fields.get(f"gen_ai.{key}.messages")
                messages += messages_in(js.json_or_text(value), "user") if value else []
    return inputs, answers


def plain_attributes(native: JsonObject) -> JsonObject:
    """Return the attributes of a span, event or resource as plain values."""
    return js.as_object(native.get("attributes")) or _pairs(native.get("attributes"))


def _pairs(pairs: object) -> JsonObject:
    return {str(pair.get("key")): _plain(pair.get("value")) for pair in js.objects_in(pairs)}


def _plain(value: Any) -> Any:
    match value:
        case {"intValue": str(text)} if _INTEGER.fullmatch(text):
            return int(text)
        case {"arrayValue": inner}:
            return [_plain(item) for item in js.as_list(js.as_object(inner).get("values"))]
        case {"kvlistValue": inner}:
            return _pairs(js.as_object(inner).get("values"))
        case {"intValue": plain} | {"stringValue": plain} | {"boolValue": plain}:
            return plain
        case {"doubleValue": plain} | {"bytesValue": plain}:
            return plain
        case dict():
            return None
        case _:
            return value
