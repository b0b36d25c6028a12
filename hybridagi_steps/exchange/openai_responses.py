"""Items of OpenAI's Responses API, as turns in the form of its chats.

Reasoning, text and calls that a model gives at once are one assistant's turn; a call's output is a
turn of the tool. What has no counterpart in a chat (a search that the provider made itself) stays,
as every native item does, with the step of the answer it led to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridagi_steps.exchange.conversation import Message, Turn
from hybridagi_steps.exchange.records import BadRecordError, as_list, as_object
from hybridagi_steps.messages.parts import text_of

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_TEXTS = {"input_text", "output_text", "summary_text"}


def are_items(messages: Sequence[Message]) -> bool:
    """Whether a list holds items that are no messages."""
    return any("role" not in item and isinstance(item.get("type"), str) for item in messages)


def turns_of_items(items: Sequence[Message], roles: set[str]) -> list[Turn]:
    """Return items as turns.

    Args:
        items: Messages, calls, outputs, reasoning and others.
        roles: Who may speak.

    Raises:
        BadRecordError: An item has neither a known role nor a type; the text names it.
    """
    reader = _Items(roles)
    for place, item in enumerate(items):
        reader.take(item, place)
    return reader.end()


class _Items:
    """Gathers what a model gives at once."""

    def __init__(self, roles: set[str]) -> None:
        self._roles = roles
        self._turns: list[Turn] = []
        self._parts: list[Turn] = []
        self._view: Message = {}

    def take(self, item: Message, place: int) -> None:
        """Read the next item."""
        kind, role = item.get("type"), item.get("role")
        if isinstance(kind, str) and kind.endswith("call_output"):
            content = item.get("output")
            view = {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
            self._close()
            self._turns.append(Turn(view, place, item))
        elif role == "assistant":
            if "content" in self._view or "tool_calls" in self._view:
                self._close()
            self._add(item, place, content=_content(item.get("content")))
        elif isinstance(role, str) and role in self._roles:
            self._close()
            view = {"role": role, "content": _content(item.get("content"))}
            self._turns.append(Turn(view, place, item))
        elif role is not None or not isinstance(kind, str):
            raise BadRecordError(f"item {place + 1} has the role {role!r:.60}")
        elif kind in _CALLS:
            function = {"name": item.get("name"), "arguments": item.get(_CALLS[kind])}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            self._add(item, place, tool_calls=[*self._view.get("tool_calls", []), call])
        elif kind == "reasoning" and (thought := text_of(item.get("summary"))):
            self._add(item, place, reasoning_content=thought)
        else:
            self._add(item, place)

    def end(self) -> list[Turn]:
        """Return all turns."""
        self._close()
        return self._turns

    def _add(self, item: Message, place: int, **said: Any) -> None:
        self._parts.append(Turn({}, place, item))
        self._view |= said

    def _close(self) -> None:
        """End what the model gives at once."""
        parts, view = self._parts, self._view
        self._parts, self._view = [], {}
        if not parts:
            return
        first, *others = parts
        self._turns.append(first._replace(view={"role": "assistant", **view}, also=tuple(others)))


def _content(content: Any) -> Any:
    """Return a message's parts under the names that they have in a chat."""
    if not isinstance(content, list):
        return content
    parts = [as_object(part) or {"type": "text", "text": str(part)} for part in as_list(content)]
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in _TEXTS:
        return {"type": "text", "text": str(part.get("text", ""))}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part
