"""A provider that refuses what OpenAI and Anthropic refuse, and says why.

Written from their published request formats, not from our code: roles and their order, calls
answered right away and exactly once, ids and names of the form they take, content that is not
blank, arguments that are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, cast

_ID = re.compile(r"^[a-zA-Z0-9_-]{1,40}$")
_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_OPENAI_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name"}
_OPENAI_USER_PARTS = {"text", "image_url", "input_audio", "file"}
_ANTHROPIC_ASSISTANT = {"text", "tool_use", "thinking", "redacted_thinking"}
_ANTHROPIC_USER = {"text", "image", "document", "tool_result", "search_result"}


class RefusedError(AssertionError):
    """The provider would answer 400."""


def check_openai(messages: list[dict[str, Any]], *, user_first: bool = True) -> None:
    """Refuse what OpenAI refuses; with `user_first` also what stricter servers refuse."""
    _want(bool(messages), "no messages")
    json.dumps(messages, allow_nan=False)
    open_ids: list[str] = []
    used: set[str] = set()
    for place, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        _want(role in {"system", "user", "assistant", "tool"}, f"{place}: role {role!r}")
        _want(set(message) <= _OPENAI_KEYS, f"{place}: unknown keys {set(message) - _OPENAI_KEYS}")
        _want(role != "system" or place == 0, f"{place}: system amid the conversation")
        if "name" in message:
            _want(bool(_NAME.match(str(message["name"]))), f"{place}: name {message['name']!r}")
        if role == "tool":
            _want(bool(open_ids), f"{place}: a tool message without a call before it")
            found = message.get("tool_call_id")
            _want(found in open_ids, f"{place}: tool_call_id {found!r} is not one of {open_ids}")
            open_ids.remove(str(found))
        else:
            _want(not open_ids, f"{place}: calls without an answer: {open_ids}")
            _want("tool_call_id" not in message, f"{place}: tool_call_id of a {role}")
        if "tool_calls" in message:
            _want(role == "assistant", f"{place}: tool_calls of a {role}")
            open_ids = [_openai_call(place, call, used) for call in message["tool_calls"]]
            _want(bool(open_ids), f"{place}: an empty list of calls")
        _openai_content(place, str(role), content, optional="tool_calls" in message)
    _want(not open_ids, f"calls without an answer at the end: {open_ids}")
    spoken = [message["role"] for message in messages if message["role"] != "system"]
    _want(bool(spoken), "nobody but the system speaks")
    _want(not user_first or spoken[0] == "user", f"begins with {spoken[0]}")


def _openai_call(place: int, call: dict[str, Any], used: set[str]) -> str:
    call_id = call.get("id")
    function: dict[str, Any] = call.get("function") or {}
    _want(isinstance(call_id, str) and bool(_ID.match(call_id)), f"{place}: call id {call_id!r}")
    _want(call_id not in used, f"{place}: call id {call_id!r} was used before")
    used.add(str(call_id))
    _want(call.get("type") == "function", f"{place}: type of a call {call.get('type')!r}")
    _want(bool(_NAME.match(str(function.get("name")))), f"{place}: name {function.get('name')!r}")
    _arguments(place, function.get("arguments"))
    return str(call_id)


def _arguments(place: int, arguments: Any) -> None:
    _want(isinstance(arguments, str), f"{place}: arguments are no text")
    try:
        read = json.loads(arguments)
    except ValueError as error:
        raise RefusedError(f"{place}: arguments are no JSON: {arguments!r}") from error
    _want(isinstance(read, dict), f"{place}: arguments are no object")


def _openai_content(place: int, role: str, content: Any, *, optional: bool) -> None:
    if content is None:
        _want(optional, f"{place}: content is missing")
    elif isinstance(content, str):
        _want(bool(content.strip()), f"{place}: content is blank")
    else:
        _want(bool(content) and isinstance(content, list), f"{place}: content {content!r:.60}")
        allowed = _OPENAI_USER_PARTS if role == "user" else {"text", "refusal"}
        for part in cast("list[dict[str, Any]]", content):
            _want(part.get("type") in allowed, f"{place}: part {part.get('type')!r} of a {role}")
            _want(part["type"] != "text" or bool(part["text"].strip()), f"{place}: blank part")


def check_anthropic(
    system: str | list[dict[str, Any]] | None, messages: list[dict[str, Any]]
) -> None:
    """Refuse what Anthropic refuses."""
    if isinstance(system, list):
        _want(len(system) > 0, "no block in the system prompt")
        system = "".join(str(block["text"]) for block in system)
    _want(system is None or bool(system.strip()), "the system prompt is blank")
    _want(bool(messages), "no messages")
    json.dumps(messages, allow_nan=False)
    waiting: list[str] = []
    used: set[str] = set()
    for place, message in enumerate(messages):
        _want(set(message) == {"role", "content"}, f"{place}: keys {set(message)}")
        wanted = "assistant" if place % 2 else "user"
        _want(message["role"] == wanted, f"{place}: {message['role']} where {wanted} should speak")
        blocks = _blocks(place, message["content"])
        if wanted == "user":
            _anthropic_results(place, blocks, waiting)
            waiting = []
        else:
            waiting = _anthropic_calls(place, blocks, used)
    _want(not waiting, f"calls without an answer at the end: {waiting}")
    if messages[-1]["role"] == "assistant":
        last = _blocks(-1, messages[-1]["content"])[-1]
        text = last.get("text", "")
        _want(text == text.rstrip(), "the last assistant message ends with white space")


def _blocks(place: int, content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    _want(bool(content) and isinstance(content, list), f"{place}: no content")
    blocks = cast("list[dict[str, Any]]", content)
    for block in blocks:
        if block["type"] == "text":
            _want(bool(block["text"].strip()), f"{place}: a blank text")
    return blocks


def _anthropic_results(place: int, blocks: list[dict[str, Any]], waiting: list[str]) -> None:
    kinds = [block["type"] for block in blocks]
    _want(set(kinds) <= _ANTHROPIC_USER, f"{place}: blocks {kinds}")
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    _want(kinds[: len(results)] == ["tool_result"] * len(results), f"{place}: results not first")
    _want(sorted(results) == sorted(waiting), f"{place}: results {results} for calls {waiting}")
    for block in blocks[: len(results)]:
        _blocks(place, block["content"])


def _anthropic_calls(place: int, blocks: list[dict[str, Any]], used: set[str]) -> list[str]:
    kinds = [block["type"] for block in blocks]
    _want(set(kinds) <= _ANTHROPIC_ASSISTANT, f"{place}: blocks {kinds}")
    calls = [block for block in blocks if block["type"] == "tool_use"]
    for call in calls:
        _want(bool(_ID.match(call["id"])), f"{place}: id {call['id']!r}")
        _want(call["id"] not in used, f"{place}: id {call['id']!r} was used before")
        used.add(call["id"])
        _want(bool(_NAME.match(call["name"])), f"{place}: name {call['name']!r}")
        _want(isinstance(call["input"], dict), f"{place}: input is no object")
    return [call["id"] for call in calls]


def check_contexts(contexts: Iterable[Any]) -> int:
    """Check every context in both forms; return how many there were."""
    count = 0
    for context in contexts:
        check_openai(context.messages)
        check_anthropic(*context.for_provider("anthropic"))
        count += 1
    return count


def _want(holds: bool, why: str) -> None:
    if not holds:
        raise RefusedError(why)
