"""OpenAI's fine-tuning examples, out: one run as one strictly valid conversation.

The messages that a run was imported from are used where they were kept, else a conversation is
built from its steps. Then it is made to keep the rules: it begins with a system's or user's
message, every call is followed by its result and every result has its call, it ends with what the
assistant says, and nothing stands in it that the format does not know. A result that came late is
put behind its call. What cannot keep the rules is left out; a run in which no assistant speaks is
no example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hybridagi_steps.exchange.formats.otlp_export import answer_text, question_text
from hybridagi_steps.messages.conversation import NOT_READ
from hybridagi_steps.messages.parts import function_call, json_text
from hybridagi_steps.messages.turns import (
    Message,
    Turn,
    anthropic_turns,
    langchain_turns,
    openai_turns,
)
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

_TURNS = {
    "openai": openai_turns,
    "anthropic": anthropic_turns,
    "langchain": langchain_turns,
}
_USER_PARTS = {"text", "image_url", "input_audio", "file"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64


def example_line(steps: Sequence[AgentStep]) -> bytes | None:
    """Return a run as a line of JSON, newline included; None when it is no example."""
    messages = _valid(_plain(_kept(steps) or list(_built(steps))), steps)
    if messages is None:
        return None
    example: JsonObject = {"messages": messages}
    if tools := _tools(steps):
        example["tools"] = tools
    return json.dumps(example, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def links_up(step: AgentStep) -> list[str]:
    """Return the steps that a message's step stands behind; none for one that tells no message."""
    metadata = step.metadata or {}
    if step.parent_id is None or "message_indexes" not in metadata:
        return []
    return [id_text(step.parent_id), *map(str, js.as_list(metadata.get("joins")))]


def _kept(steps: Sequence[AgentStep]) -> list[Message]:
    """Return the messages that the run was imported from, in OpenAI's form; [] without any."""
    placed: list[tuple[int, Message]] = []
    forms: list[Any] = []
    for step in steps:
        metadata = step.metadata or {}
        natives = js.as_list((step.model_extra or {}).get("messages"))
        places = js.as_list(metadata.get("message_indexes"))
        if len(places) != len(natives) or not all(isinstance(p, int) for p in places):
            places = [len(placed) + number for number in range(len(natives))]
        placed += zip(places, map(js.as_object, natives), strict=True)
        if natives:
            forms.append(metadata.get("format", "openai"))
    if not placed or not js.is_one_of(forms[0], _TURNS) or forms.count(forms[0]) < len(forms):
        return []
    native = [message for _, message in sorted(placed, key=lambda pair: pair[0])]
    try:
        turns: list[Turn] = _TURNS[forms[0]](native)
    except BadRecordError:
        return []
    about = js.as_object((steps[0].metadata or {}).get("conversation"))
    prompt = js.text_of(about.get("system"))
    return [*([{"role": "system", "content": prompt}] if prompt else []), *(t.view for t in turns)]


def _built(steps: Sequence[AgentStep]) -> Iterator[Message]:
    """Yield a conversation that tells what the steps did; what inner programs say is theirs."""
    said = ""
    for number, step in enumerate(steps):
        outputs = step.outputs or {}
        if step.step_type is AgentStepType.ProgramCall:
            if step.program_id is None:
                yield {"role": "user", "content": question_text(step) or json.dumps(step.arguments)}
        elif step.step_type is AgentStepType.Action and step.tool is not None:
            call = function_call(f"call_{number}", step.tool, json.dumps(step.arguments))
            yield {"role": "assistant", "content": None, "tool_calls": [call]}
            if step.outputs is not None:
                found = outputs.get("error", step.result)
                content = found if isinstance(found, str) else json.dumps(found)
                yield {"role": "tool", "tool_call_id": call["id"], "content": content}
        elif not ({"tool_calls", "error"} & outputs.keys() or _is_of_unknown_role(step)):
            if step.program_id is None and step.arguments and not _ends(step):
                said = ""
                yield {"role": "user", "content": question_text(step)}
            inner = _ends(step) and step.program_id is not None
            text = answer_text(step)
            if text and text != said and not inner:
                said = text
                yield {"role": "assistant", "content": text}


def _is_of_unknown_role(step: AgentStep) -> bool:
    labels = js.as_list((step.metadata or {}).get(NOT_READ))
    return any(str(label).startswith("message of role") for label in labels)


def _ends(step: AgentStep) -> bool:
    return step.step_type is AgentStepType.ProgramEnd


def _plain(messages: list[Message]) -> list[Message]:
    """Return messages with nothing but what the format knows; those of its roles alone."""
    plain: list[Message] = []
    for place, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role == "user":
            plain.append({"role": "user", "content": _user_content(content)})
        elif role in ("system", "developer"):
            plain.append({"role": "system", "content": js.text_of(content)})
        elif role in ("tool", "function"):
            call_id = message.get("tool_call_id") or message.get("name")
            plain.append({"role": "tool", "tool_call_id": call_id, "content": js.text_of(content)})
        elif role == "assistant":
            plain.append(_assistant(message, place))
    return plain


def _user_content(content: object) -> Any:
    parts = js.as_list(content)
    if parts and all(js.is_one_of(js.as_object(part).get("type"), _USER_PARTS) for part in parts):
        return parts
    return js.text_of(content)


def _assistant(message: Message, place: int) -> Message:
    text = js.text_of(message.get("content")) or js.text_of(message.get("refusal"))
    found: Message = {"role": "assistant", "content": text or None}
    calls = [_call(call, place) for call in js.objects_in(message, "tool_calls")]
    if legacy := js.as_object(message.get("function_call")):
        calls.append(_call({"id": legacy.get("name"), "function": legacy}, place))
    if calls:
        found["tool_calls"] = calls
    if message.get("weight") in (0, 1):
        found["weight"] = message["weight"]
    return found


def _call(call: JsonObject, place: int) -> JsonObject:
    body = js.as_object(call.get("function") or call.get("custom"))
    given = body.get("arguments", body.get("input"))
    arguments = json_text(given or {})
    name = _NOT_IN_NAMES.sub("_", str(body.get("name") or "unknown"))[:_LONGEST_NAME]
    return function_call(str(call.get("id") or f"call_{place}"), name, arguments)


def _valid(messages: list[Message], steps: Sequence[AgentStep]) -> list[Message] | None:
    """Return messages that keep the rules; None when no assistant is left."""
    units = list(_units(messages))
    if closing := _closing(units, steps):
        units.append([closing])
    while units and units[-1][-1]["role"] != "assistant":
        units.pop()
    valid = [message for unit in units for message in unit]
    opening = next((p for p, m in enumerate(valid) if m["role"] != "system"), len(valid))
    if opening < len(valid) and valid[opening]["role"] != "user":
        question = next((step.purpose for step in steps if step.purpose), "")
        if question:
            valid.insert(opening, {"role": "user", "content": question})
        elif not opening:
            first = next((p for p, m in enumerate(valid) if m["role"] == "user"), len(valid))
            valid = valid[first:]
    return valid if any(message["role"] == "assistant" for message in valid) else None


def _units(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield messages, calls together with their results, however late; drop halves of pairs."""
    groups: list[tuple[Message, dict[str, Message]]] = []
    waiting: dict[str, dict[str, Message]] = {}
    for message in messages:
        if message["role"] == "tool":
            call_id = str(message["tool_call_id"])
            if (answers := waiting.pop(call_id, None)) is not None:
                answers[call_id] = {**message, "tool_call_id": call_id}
            continue
        groups.append((message, {}))
        waiting |= {call["id"]: groups[-1][1] for call in message.get("tool_calls", [])}
    for message, answers in groups:
        calls = [call for call in message.get("tool_calls", []) if call["id"] in answers]
        calls = list({call["id"]: call for call in reversed(calls)}.values())[::-1]
        if calls:
            yield [{**message, "tool_calls": calls}, *(answers[call["id"]] for call in calls)]
        elif message["role"] != "assistant" or message["content"]:
            yield [js.without(message, "tool_calls")]


def _closing(units: list[list[Message]], steps: Sequence[AgentStep]) -> Message | None:
    """Return the run's own last words, where the conversation stops at a tool's result."""
    if not units or units[-1][-1]["role"] != "tool":
        return None
    last = steps[-1]
    if last.step_type is not AgentStepType.ProgramEnd or "error" in (last.outputs or {}):
        return None
    text = js.text_of(last.arguments.get("final_answer")) or answer_text(last)
    return {"role": "assistant", "content": text} if text else None


def _tools(steps: Sequence[AgentStep]) -> list[Any]:
    """Return the run's tools, where its messages came with them."""
    about = js.as_object((steps[0].metadata or {}).get("conversation"))
    tools: list[Any] = []
    for tool in js.objects_in(about, "tools"):
        if "function" in tool:
            tools.append(tool)
        elif isinstance(tool.get("name"), str) and "input_schema" in tool:
            function = {k: tool[k] for k in ("name", "description") if tool.get(k)}
            function["parameters"] = tool["input_schema"]
            tools.append({"type": "function", "function": function})
    return tools
