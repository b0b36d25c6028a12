"""Steps as messages that OpenAI and Anthropic accept, pictures and documents included.

A sound message goes out as it is, byte for byte. Both forms get the repairs of `units`; here what
belongs to a message by itself is put right: blank content, arguments that are no JSON object, names
that no provider takes, content parts of the other provider's form. Anthropic's form also merges
neighbours of one role, begins with a user and has its results first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, cast, overload

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.messages.agent_steps import IS_ERROR, NO_RESULT, all_of
from hybridagi_steps.messages.parts import (
    CACHE_CONTROL,
    anthropic_part,
    cache_mark,
    function_call,
    json_text,
    not_sent,
    openai_part,
    tool_name,
)
from hybridagi_steps.messages.turns import THINKING_BLOCKS
from hybridagi_steps.messages.units import THINKING, flat, message_units
from hybridagi_steps.records.json_reading import JsonObject, as_arguments, as_list, as_object
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.message import MessageRole, Step

EMPTY = "(empty message)"
"""Stands for content that is blank, which providers refuse."""
OPENING = "Continue."
"""What the user says where a conversation must begin with one and does not."""

_EPHEMERAL = {"type": "ephemeral"}
_MOST_MARKS = 4


class AnthropicPrompt(NamedTuple):
    """A request in Anthropic's form: its system prompt stands beside the messages."""

    system: str | list[JsonObject] | None
    """A text; a list of one block where the mark of the prompt cache ends it."""
    messages: list[JsonObject]


@overload
def to_provider(
    messages: Iterable[Step], style: Literal["openai"] = "openai", *, system: str | None = None
) -> list[JsonObject]: ...
@overload
def to_provider(
    messages: Iterable[Step], style: Literal["anthropic"], *, system: str | None = None
) -> AnthropicPrompt: ...
def to_provider(
    messages: Iterable[Step],
    style: Literal["openai", "anthropic"] = "openai",
    *,
    system: str | None = None,
) -> list[JsonObject] | AnthropicPrompt:
    """Return messages as a provider takes them; the messages given stay as they are.

    Args:
        messages: A conversation, whole or not.
        style: Whose form.
        system: The system prompt; by default what leading system messages say.

    Returns:
        For OpenAI a list of messages; for Anthropic the system prompt and the messages.

    Raises:
        MessageError: The messages are no Steps.
        InvalidSettingError: There is no such style, or the system prompt is no text.
    """
    check_text("system", system)
    known, units = message_units(all_of(Step, messages, "Steps (messages)"))
    prompt = known if system is None else system
    if style == "openai":
        return openai_messages(prompt, flat(units))
    if style == "anthropic":
        return anthropic_prompt(prompt, flat(units))
    raise InvalidSettingError(f"style is openai or anthropic, not {style!r}.")


def check_text(name: str, value: object) -> None:
    """Check an option that is a text or None."""
    if value is not None and not isinstance(value, str):
        raise InvalidSettingError(f"{name} is a text or None, not {type(value).__name__}.")


def openai_messages(system: str | None, messages: Iterable[Step]) -> list[JsonObject]:
    """Return a system prompt and sound units' messages in OpenAI's form."""
    sound = json_value(system, [])
    head = [{"role": "system", "content": sound}] if sound and sound.strip() else []
    return [*head, *map(openai_message, messages)]


def openai_message(step: Step) -> JsonObject:
    """Return one message in OpenAI's form."""
    message = step.to_message_dict()
    if step.role is not MessageRole.TOOL:
        message.pop("tool_call_id", None)
    calls = step.tool_calls if step.role is MessageRole.ASSISTANT else None
    message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [_sound_call(call) for call in calls]
    if step.name:
        message["name"] = tool_name(step.name)
    content = message["content"]
    if isinstance(content, list):
        given = cast("list[JsonObject]", content)
        parts = [openai_part(part, step.role) for part in given]
        message["content"] = content = [part for part in parts if not is_blank(part)]
    if not content or (isinstance(content, str) and not content.strip()):
        message["content"] = None if calls else _placeholder(step)
    return message


def media_notes(step: Step) -> list[str]:
    """Return what of a message's media OpenAI's form cannot hold, and what stands there."""
    parts = step.content if isinstance(step.content, list) else []
    named = (not_sent(part, step.role) for part in parts)
    return [f"OpenAI's form has the text {text} for it" for text in named if text]


def anthropic_prompt(
    system: str | None, messages: Iterable[Step], cached: int | None = None
) -> AnthropicPrompt:
    """Return a system prompt and sound units' messages in Anthropic's form.

    The mark of the prompt cache shall follow so many messages, 0 for the system prompt alone; None
    sets none. Anthropic takes four marks: where they are there, none is added.
    """
    turns: list[tuple[str, list[JsonObject]]] = []
    stable: list[JsonObject] = []
    for number, step in enumerate(messages, start=1):
        role = "assistant" if step.role is MessageRole.ASSISTANT else "user"
        if not turns and role != "user":
            turns.append(("user", [_text_block(OPENING)]))
        if not turns or turns[-1][0] != role:
            turns.append((role, []))
        blocks = [dict(block) for block in _blocks(step)]
        turns[-1][1].extend(blocks)
        stable += blocks if cached is not None and number <= cached else []
    if not turns:
        turns.append(("user", [_text_block(OPENING)]))
    if turns[-1][0] == "assistant":
        _strip_end(turns[-1][1])
    prompt: Any = json_value(system, []) if system and system.strip() else None
    if cached is not None and sum(CACHE_CONTROL in b for _, bs in turns for b in bs) < _MOST_MARKS:
        ends = [block for block in stable if block.get("type") not in THINKING_BLOCKS]
        if prompt and not ends:
            prompt = ends = [_text_block(prompt)]
        for block in ends[-1:]:
            block.setdefault(CACHE_CONTROL, _EPHEMERAL.copy())
    return AnthropicPrompt(prompt, [{"role": r, "content": _shortest(b)} for r, b in turns])


def _blocks(step: Step) -> list[JsonObject]:
    *blocks, last = _unmarked_blocks(step)
    return [*blocks, {**last, **cache_mark(step.metadata or {})}]


def _unmarked_blocks(step: Step) -> list[JsonObject]:
    if step.role is MessageRole.TOOL:
        return [_result_block(step)]
    blocks = _content_blocks(step.content, step.role)
    if step.role is MessageRole.ASSISTANT:
        thinking = as_list((step.metadata or {}).get(THINKING))
        blocks = [*thinking, *blocks, *(_call_block(call) for call in step.tool_calls or [])]
    return blocks or [_text_block(_placeholder(step))]


def _result_block(step: Step) -> JsonObject:
    blocks = _content_blocks(step.content, step.role) or [_text_block(NO_RESULT)]
    block: JsonObject = {
        "type": "tool_result",
        "tool_use_id": step.tool_call_id,
        "content": _shortest(blocks),
    }
    if (step.metadata or {}).get(IS_ERROR):
        block["is_error"] = True
    return block


def _call_block(call: JsonObject) -> JsonObject:
    sound = _sound_call(call)
    function = sound["function"]
    arguments = as_arguments(function["arguments"])
    block = {"type": "tool_use", "id": sound["id"], "name": function["name"], "input": arguments}
    return {**block, **cache_mark(call)}


def _content_blocks(content: object, role: MessageRole) -> list[JsonObject]:
    if isinstance(content, str):
        return [_text_block(content)] if content.strip() else []
    parts = [anthropic_part(part, role) for part in cast("list[JsonObject]", content or [])]
    return [part for part in parts if not is_blank(part)]


def _sound_call(call: JsonObject) -> JsonObject:
    """Return a call whose name and arguments are well-formed; the same object if they were."""
    function = as_object(call.get("function"))
    name, arguments = tool_name(function.get("name")), _sound_arguments(function.get("arguments"))
    sound = function == {"name": name, "arguments": arguments} and call.get("type") == "function"
    if sound and CACHE_CONTROL not in call:
        return call
    return function_call(call["id"], name, arguments)


def _sound_arguments(arguments: object) -> str:
    """Return arguments as the text of a JSON object, as they were written if they are one."""
    if not isinstance(arguments, str):
        return json_text(as_arguments(arguments))
    try:
        if isinstance(json.loads(arguments, parse_constant=_refuse), dict):
            return arguments
    except (ValueError, RecursionError):
        pass  # models write broken JSON at times; the next line keeps it as it was written
    return json_text({"value": arguments} if arguments.strip() else {})


def _refuse(constant: str) -> Any:
    """Refuse NaN and Infinity, which Python reads and no provider does."""
    raise ValueError(constant)


def _placeholder(step: Step) -> str:
    return NO_RESULT if step.role is MessageRole.TOOL else EMPTY


def _text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def is_blank(part: JsonObject) -> bool:
    """Whether a content part is a text of white space, which providers refuse."""
    return part.get("type") == "text" and not str(part.get("text") or "").strip()


def _shortest(blocks: list[JsonObject]) -> str | list[JsonObject]:
    """Return a single plain text block as its text, and others as they are."""
    (first, *others) = blocks
    return first["text"] if not others and first.keys() == {"type", "text"} else blocks


def _strip_end(blocks: list[JsonObject]) -> None:
    """Take white space from the end of the last text: Anthropic refuses it there."""
    if blocks[-1].get("type") == "text":
        blocks[-1] = {**blocks[-1], "text": blocks[-1]["text"].rstrip()}
