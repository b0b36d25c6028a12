"""Items of OpenAI's Responses API as turns: what a model gives at once makes up one.

A tool that the provider runs itself is one item with its call and its result, or two that name
each other. One table says which tool an item is of, where its arguments stand and where what came
back; an item whose type ends with `_call` and that is not in it is read by the rule for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridagi_steps.messages.parts import function_call, json_text
from hybridagi_steps.messages.provider_shapes import Message, Turn, shaped
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    text_of,
)
from hybridagi_steps.records.message import ROLE_ALIASES

ITEM_TEXTS = {"input_text", "output_text", "summary_text"}


class _CallItem(NamedTuple):
    """How an item with a call reads."""

    tool: str = ""
    """The tool; that which the item names where it is empty."""
    arguments: tuple[str, ...] = ("arguments", "input", "action", "operation")
    """Members with arguments; an object that stands alone is the arguments."""
    results: tuple[str, ...] = ("output", "outputs", "result", "results")


_NO_RESULT: tuple[str, ...] = ()
_CALLS = {
    "function_call": _CallItem("", ("arguments",), _NO_RESULT),
    "custom_tool_call": _CallItem("", ("input",), _NO_RESULT),
    "mcp_call": _CallItem("", ("arguments",), ("output",)),
    "mcp_approval_request": _CallItem(
        "mcp_approval", ("name", "server_label", "arguments"), _NO_RESULT
    ),
    "mcp_list_tools": _CallItem("mcp_list_tools", ("server_label",), ("tools",)),
    "web_search_call": _CallItem("web_search", ("action", "query"), ("results", "sources")),
    "file_search_call": _CallItem("file_search", ("queries",), ("results",)),
    "code_interpreter_call": _CallItem("code_interpreter", ("code",), ("outputs",)),
    "image_generation_call": _CallItem(
        "image_generation", ("revised_prompt", "size", "quality"), ("result",)
    ),
    "computer_call": _CallItem("computer", ("action", "actions"), _NO_RESULT),
}
_ANSWERED_APART = ("shell", "apply_patch", "computer", "local_shell", "tool_search")
_ANSWERS = {"mcp_approval_response": "approval_request_id"}
"""Items with a result whose type does not end with `_output`, and where the call's id stands."""
_OPAQUE = {"reasoning", "compaction", "item_reference", "message"}
"""Items that hold nothing to read, or nothing that everybody may read."""
_FAILED = ("failed", "incomplete")


def is_item(value: object) -> bool:
    """Whether a value is an item that is no message."""
    fields = as_object(value)
    kind = fields.get("type")
    if "role" in fields or "step_type" in fields or not isinstance(kind, str):
        return False
    known = kind in _CALLS or kind in _ANSWERS or kind.endswith(("_call", "_call_output"))
    return known or (kind == "reasoning" and "summary" in fields)


class ItemReader:
    """Reads items in order; gathers what a model gives at once."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._parts: list[Turn] = []
        self._view: Message = {}
        self._results: list[Turn] = []
        """What came back of the calls that are gathered."""
        self._call_ids: dict[object, object] = {}
        """Ids of calls, by the ids of their items."""

    def read(self, item: Message, place: int) -> None:
        """Take the next item."""
        kind, role = item.get("type"), item.get("role")
        if role is not None:
            self._message(item, place)
        elif not isinstance(kind, str):
            raise BadRecordError(f"item {place + 1} has the role {role!r:.60}")
        elif kind in _ANSWERS or kind.endswith("_output"):
            self._answer(item, kind, place)
        elif kind in _CALLS or kind.endswith("_call"):
            self._call(item, kind, place)
        else:
            self._other(item, kind, place)

    def end(self) -> list[Turn]:
        """End what the model gives at once; return all turns."""
        if self._parts:
            first, *others = self._parts
            view = {"role": "assistant", **self._view}
            unread = tuple(kind for part in self._parts for kind in part.unread)
            self._turns.append(first._replace(view=view, also=tuple(others), unread=unread))
            self._turns += self._results
            self._parts, self._view, self._results = [], {}, []
        return self._turns

    def _message(self, item: Message, place: int) -> None:
        role, says = item["role"], "content" in item
        if not isinstance(role, str) or (not says and role.casefold() not in ROLE_ALIASES):
            raise BadRecordError(f"item {place + 1} has the role {item['role']!r:.60}")
        view, unread = shaped({**item, "content": _content(item.get("content"))})
        if view["role"] != "assistant":
            native_free = {
                key: view[key] for key in ("role", "content", "tool_call_id", "name") if key in view
            }
            self.end().append(Turn(native_free, place, item, unread=unread))
            return
        if self._view.keys() & {"content", "tool_calls"}:
            self.end()
        said = {k: view[k] for k in ("content", "tool_calls", "reasoning_content") if k in view}
        self._gather(item, place, unread, **said)

    def _answer(self, item: Message, kind: str, place: int) -> None:
        own = item.get(_ANSWERS.get(kind, "call_id")) or item.get("id")
        said: object = item.get("output", item.get("tools"))
        if kind == "mcp_approval_response":
            words = ("approved" if item.get("approve") is True else "denied", item.get("reason"))
            said = ": ".join(str(word) for word in words if word)
        elif said is None:
            said = item.get("status")
        view = {"role": "tool", "tool_call_id": self._call_ids.get(own, own)}
        view["content"] = said if kind == "function_call_output" else _result(said)
        self.end().append(Turn(view, place, item, failed=item.get("status") in _FAILED))

    def _call(self, item: Message, kind: str, place: int) -> None:
        form = _CALLS.get(kind, _CallItem())
        apart = form.results == _NO_RESULT or kind.removesuffix("_call") in _ANSWERED_APART
        call_id = item.get("call_id") or item.get("id")
        self._call_ids |= {item[key]: call_id for key in ("id", "call_id") if item.get(key)}
        given = {name: item[name] for name in form.arguments if item.get(name) is not None}
        results = [item[name] for name in form.results if item.get(name) is not None]
        if not (given or results or item.get("error") or apart):
            self._gather(item, place)  # it says nothing but that it was called
            return
        arguments = _arguments(given, kind)
        tool = form.tool or item.get("name") or kind.removesuffix("_call")
        if self._results:  # what came back stands before what is called next
            self.end()
        call = function_call(call_id, tool, arguments)
        calls = [*self._view.get("tool_calls", []), call]
        self._gather(item, place, tool_calls=calls)
        error = item.get("error")
        status = item.get("status")
        failed = bool(error) or status in _FAILED
        if apart and not results and not error:
            return
        sources = as_object(item.get("action")).get("sources")
        found: Any = error or (results[0] if results else sources)
        if found is None and status is None:
            return
        said = _picture(item) if kind == "image_generation_call" else _result(found)
        view = {"role": "tool", "tool_call_id": call_id, "content": said or status}
        self._results.append(Turn(view, place, None, failed=failed))

    def _other(self, item: Message, kind: str, place: int) -> None:
        thought = text_of(item.get("summary")) or text_of(item.get("content"))
        unread = () if kind in _OPAQUE else (f"item of type {kind!r:.60}",)
        if self._results:
            self.end()
        if kind == "reasoning" and thought:
            before = self._view.get("reasoning_content")
            thought = f"{before}\n{thought}" if before else thought
            self._gather(item, place, reasoning_content=thought)
        else:
            self._gather(item, place, unread)

    def _gather(
        self, item: Message, place: int, unread: tuple[str, ...] = (), **said: object
    ) -> None:
        self._parts.append(Turn({}, place, item, unread=unread))
        self._view |= said


def _arguments(given: JsonObject, kind: str) -> object:
    """Return the arguments of a call: those of a function as they are written."""
    if len(given) == 1:
        only: Any
        (only,) = given.values()
        if as_object(only) or kind in ("function_call", "custom_tool_call", "mcp_call"):
            return only
        if given.keys() == {"arguments"}:
            return only
    return given


def _result(given: object) -> object:
    """Return what a tool gave back as text; bytes of pictures stay in the item."""
    if given is None or isinstance(given, str):
        return given
    found: list[Any] = [given] if as_object(given) else as_list(given)
    if not found:
        return json_text(given)
    return "\n".join(_result_part(part) for part in found)


def _result_part(part: object) -> str:
    fields = as_object(part)
    if not fields:
        return json_text(part)
    if isinstance(url := fields.get("image_url") or fields.get("url"), str) and "type" in fields:
        text = text_of([fields])
        named = (
            f"[{fields['type']}: {url}]" if not url.startswith("data:") else f"[{fields['type']}]"
        )
        return named if text.startswith("[") else text
    head = fields.get("filename") or fields.get("title")
    said = text_of([fields]) if _has_words(fields) else json_text(fields)
    return "\n".join(filter(None, (str(head or ""), said))) if _has_words(fields) else said


def _has_words(fields: JsonObject) -> bool:
    return "type" in fields or fields.keys() & {"text", "stdout", "stderr", "content"} != set()


def _picture(item: JsonObject) -> str | None:
    data = item.get("result")
    if not isinstance(data, str):
        return None
    return f"[image: image/{item.get('output_format') or 'png'}, {len(data) * 3 // 4:,} bytes]"


def _content(content: object) -> object:
    """Return a message's parts under the names that they have in a chat."""
    if not isinstance(content, list):
        return content
    return [
        _item_part(as_object(part) or {"type": "text", "text": str(part)})
        for part in as_list(content)
    ]


def _item_part(part: JsonObject) -> JsonObject:
    if part.get("type") in ITEM_TEXTS:
        return {"type": "text", "text": str(part.get("text", ""))}
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part
