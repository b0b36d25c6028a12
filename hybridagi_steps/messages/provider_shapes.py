"""The names that providers give roles, parts, reasoning and calls, in tables: one shape comes out.

Messages are brought into the shape of OpenAI's chat completions, their parts into that or into
Anthropic's blocks, which `turns` and `provider_in` read. What is in one of these shapes stays the
very object it was. A new name is a row of a table; a part without a row that says no words is told
by its type, so that whoever reads can say what nobody understood.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from hybridagi_steps.messages.parts import function_call, json_text
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    part_text,
    text_of,
    without,
)
from hybridagi_steps.records.message import ROLE_ALIASES

Message = JsonObject
Parts = list[JsonObject]

THINKING_BLOCKS = ("thinking", "redacted_thinking")
REASONING_KEYS = (
    *("reasoning_content", "reasoning", "reasoning_text", "reasoning_details"),
    *("thinking", "thought", "thoughts"),
)
"""What providers call the reasoning of a message, the plainest first."""
_CALL_ID_KEYS = ("tool_call_id", "tool_use_id", "toolCallId", "call_id")
_TOOL_NAME_KEYS = ("name", "tool_name", "toolName")
_PLAIN_PARTS = {
    *("text", "image", "image_url", "input_image", "input_text", "output_text", "summary_text"),
    *("input_audio", "audio", "output_audio", "file", "input_file", "document", "document_url"),
    *("video", "video_url", "input_video", "refusal", "search_result", "container_upload"),
    *("tool_use", "server_tool_use", "mcp_tool_use", *THINKING_BLOCKS),
}
"""Types of parts that are read as they are."""


class Turn(NamedTuple):
    """What one message says, in OpenAI's form; a message with two results is two turns."""

    view: Message
    """role, content, tool_calls, tool_call_id, name."""
    place: int
    """Place of the native message in the conversation."""
    native: Message | None
    """The native message; None when an earlier turn carries it."""
    metrics: JsonObject | None = None
    """Fields of StepMetrics."""
    failed: bool = False
    """Whether a tool's result is an error."""
    made: datetime | None = None
    """When it was said, where the message does not say so itself."""
    also: tuple[Turn, ...] = ()
    """Further native messages that are part of what it says."""
    unread: tuple[str, ...] = ()
    """What of it has no reader: a role, a content part or an item, by type."""


class Shaped(NamedTuple):
    """A message in OpenAI's or Anthropic's shape."""

    message: JsonObject
    unread: tuple[str, ...] = ()
    """What of it has no reader, by kind and type."""


def shaped(message: JsonObject) -> Shaped:
    """Return a message under the names that OpenAI and Anthropic use.

    Its role is one of theirs, or stays unknown.
    """
    changed: JsonObject = {}
    role = message.get("role")
    if isinstance(role, str) and (alias := ROLE_ALIASES.get(role.casefold(), role)) != role:
        changed["role"] = role = alias
    unread = [] if role in ROLE_ALIASES.values() else [f"message of role {role!r:.60}"]
    given: object = message.get("content", message.get("parts"))
    if isinstance(given, dict) and _reader_of(as_object(given)) is not None:
        given = [as_object(given)]
    parts = _read_parts(as_list(given), unread)
    thoughts = [part for part in parts if part.get("type") == "reasoning"]
    parts = [part for part in parts if part.get("type") != "reasoning"]
    if given is not message.get("content") or (parts != given and isinstance(given, list)):
        changed["content"] = parts
    if role == "assistant":
        changed |= _assistant(message, text_of(thoughts))
    elif role == "tool":
        changed |= _result(message)
    return Shaped({**message, **changed} if changed else message, tuple(unread))


def reasoning_of(message: JsonObject) -> str:
    """Return the reasoning of an assistant's message, whatever its provider calls it."""
    return next((text for key in REASONING_KEYS if (text := _thought(message.get(key)))), "")


def thinking_text(blocks: Parts) -> str:
    """Return what blocks of thinking say."""
    return "\n".join(text for block in blocks if (text := text_of(block.get("thinking"))))


def _thought(given: object) -> str:
    fields = as_object(given)
    if fields:  # an object of its own: {"content": …}, {"summary": …}
        texts = (text_of(fields.get(key)) for key in ("text", "content", "summary"))
        return next(filter(None, texts), "")
    if not isinstance(given, list):
        return as_text(given) or ""
    details = map(as_object, as_list(given))
    texts = (text_of(d.get("text") or d.get("summary") or d.get("thinking")) for d in details)
    return "\n".join(filter(None, texts))


def _assistant(message: JsonObject, thoughts: str) -> JsonObject:
    changed: JsonObject = {}
    thought = "\n".join(filter(None, (reasoning_of(message), thoughts)))
    if thought and thought != message.get("reasoning_content"):
        changed["reasoning_content"] = thought
    calls: object = message.get("tool_calls")
    if isinstance(calls, list):
        read = [_call(call) for call in as_list(calls)]
        changed |= {"tool_calls": read} if read != calls else {}
    spoken = as_object(message.get("audio")).get("transcript")
    if isinstance(spoken, str) and not message.get("content"):
        changed["content"] = spoken
    return changed


def _call(call: Any) -> Any:
    """Return a call in OpenAI's form; one that is in none stays as it is."""
    fields = as_object(call)
    if fields.keys() & {"function", "custom"} or not isinstance(fields.get("name"), str):
        return call
    keys = ("arguments", "args", "input", "parameters")
    arguments: Any = next((fields[key] for key in keys if key in fields), None) or {}
    own_id = fields.get("id") or next((fields[k] for k in _CALL_ID_KEYS if k in fields), None)
    return function_call(own_id, fields["name"], json_text(arguments))


def _result(message: JsonObject) -> JsonObject:
    """Return whose result a tool's message is, under OpenAI's names."""
    ours = {"tool_call_id": _CALL_ID_KEYS, "name": _TOOL_NAME_KEYS}
    found = {key: next(filter(None, map(message.get, names)), None) for key, names in ours.items()}
    return {key: value for key, value in found.items() if value and value != message.get(key)}


def _read_parts(given: list[Any], unread: list[str]) -> Parts:
    parts: Parts = []
    for item in given:
        fields = as_object(item)
        if not fields:
            parts.append({"type": "text", "text": json_text(item)} if item != {} else {})
        elif reader := _reader_of(fields):
            parts += reader(fields)
        else:
            parts.append(fields)
            if not _is_read(fields):
                kind: object = fields.get("type", next(iter(fields)))
                unread.append(f"content part of type {kind!r:.60}")
    return parts


def _is_read(part: JsonObject) -> bool:
    kind = str(part.get("type"))
    return kind in _PLAIN_PARTS or kind.endswith("tool_result") or bool(part_text(part))


PartReader = Callable[[JsonObject], Parts]


def _reader_of(part: JsonObject) -> PartReader | None:
    """Return what reads a part that is in neither shape."""
    kind = part.get("type")
    if isinstance(kind, str):
        if kind == "text" and isinstance(part.get("text"), str):
            return None
        if kind == "thinking" and not isinstance(part.get("thinking"), list):
            return None
        return _TYPED.get(kind) or (_ui_tool if kind.startswith("tool-") else None)
    return next((reader for key, reader in _UNTYPED.items() if key in part), None)


def _text(part: JsonObject) -> Parts:
    if part.get("thought") is True:
        return _reasoning(part)
    said = part_text(part)
    marks = {key: part[key] for key in ("citations", "cache_control") if key in part}
    return [{"type": "text", "text": said, **marks}]


def _reasoning(part: JsonObject) -> Parts:
    said = part_text(part) or thinking_text([part]) or text_of(part.get("summary"))
    return [{"type": "reasoning", "text": said}] if said else []


def _bedrock_reasoning(part: JsonObject) -> Parts:
    given = as_object(part["reasoningContent"])
    thought = as_object(given.get("reasoningText"))
    if not thought:
        return [{"type": "redacted_thinking", "data": given.get("redactedContent")}]
    if "signature" not in thought:
        return _reasoning(thought)
    signed = {"type": "thinking", "signature": thought["signature"]}
    return [{**signed, "thinking": thought.get("text")}]


def _use(call_id: object, name: object, given: object) -> JsonObject:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given or {}}


def _answer(call_id: object, name: object, given: object, *, failed: bool = False) -> JsonObject:
    content: object = given
    if isinstance(given, list):
        content = _read_parts(as_list(given), [])
    elif not isinstance(given, str):
        content = text_of(given)
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return {**block, **({"name": name} if name else {}), **({"is_error": True} if failed else {})}


def _bedrock_use(part: JsonObject) -> Parts:
    call = as_object(part["toolUse"])
    return [_use(call.get("toolUseId"), call.get("name"), call.get("input"))]


def _bedrock_result(part: JsonObject) -> Parts:
    result = as_object(part["toolResult"])
    failed = result.get("status") == "error"
    return [_answer(result.get("toolUseId"), None, result.get("content"), failed=failed)]


def _gemini_call(part: JsonObject) -> Parts:
    call = as_object(part.get("functionCall") or part.get("function_call"))
    return [_use(call.get("id"), call.get("name"), call.get("args"))]


def _gemini_result(part: JsonObject) -> Parts:
    result = as_object(part.get("functionResponse") or part.get("function_response"))
    given: Any = result.get("response")
    fields = as_object(given)
    failed = fields.keys() == {"error"}
    if len(fields) == 1 and fields.keys() <= {"output", "result", "error"}:
        (given,) = fields.values()
    said = json_text(given)
    return [_answer(result.get("id"), result.get("name"), said, failed=failed)]


_GEMINI_CODE = "code_execution"


def _gemini_code(part: JsonObject) -> Parts:
    given = as_object(part.get("executableCode") or part.get("executable_code"))
    return [_use(given.get("id"), _GEMINI_CODE, without(given, "id"))]


def _gemini_code_result(part: JsonObject) -> Parts:
    given = as_object(part.get("codeExecutionResult") or part.get("code_execution_result"))
    failed = given.get("outcome") not in (None, "OUTCOME_OK")
    said = given.get("output") or str(given.get("outcome") or "")
    return [_answer(given.get("id"), _GEMINI_CODE, said, failed=failed)]


def _medium(media_type: object, *, data: object = None, url: object = None, title: object) -> Parts:
    """Return a picture or a document as Anthropic's block; other media by their type."""
    kind = str(media_type or "")
    source: JsonObject = {"type": "url", "url": url}
    if data is not None:
        source = {"type": "base64", "media_type": kind, "data": data}
    named = {"title": title} if title else {}
    if kind.startswith(("audio", "video")):
        return [{"type": kind.partition("/")[0], "source": source, **named}]
    block = "image" if kind.startswith("image") else "document"
    return [{"type": block, "source": source, **named}]


def _gemini_data(part: JsonObject) -> Parts:
    given = as_object(part.get("inlineData") or part.get("inline_data"))
    kind = given.get("mimeType") or given.get("mime_type")
    return _medium(kind, data=given.get("data"), title=given.get("displayName"))


def _gemini_file(part: JsonObject) -> Parts:
    given = as_object(part.get("fileData") or part.get("file_data"))
    kind, url = given.get("mimeType") or given.get("mime_type"), given.get("fileUri")
    return _medium(kind, url=url or given.get("file_uri"), title=given.get("displayName"))


def _bedrock_medium(key: str, group: str) -> PartReader:
    def read(part: JsonObject) -> Parts:
        given = as_object(part[key])
        source, title = as_object(given.get("source")), given.get("name")
        words = source.get("text") or text_of(source.get("content"))
        if words:
            block = {"type": "text", "media_type": "text/plain", "data": words}
            return [{"type": "document", "source": block, "title": title}]
        url = as_object(source.get("s3Location")).get("uri")
        kind = f"{group}/{given.get('format')}"
        return _medium(kind, data=None if url else source.get("bytes"), url=url, title=title)

    return read


def _bedrock_found(part: JsonObject) -> Parts:
    found = as_object(part["searchResult"])
    content = _read_parts(as_list(found.get("content")), [])
    return [{**found, "type": "search_result", "content": content}]


def _bedrock_cited(part: JsonObject) -> Parts:
    cited = as_object(part["citationsContent"])
    said = text_of(cited.get("content"))
    return [{"type": "text", "text": said, "citations": cited.get("citations") or []}]


def _inside(key: str) -> PartReader:
    """Return a reader of a part whose words are inside one of its members."""
    return lambda part: [{"type": "text", "text": text_of([part[key]])}]


def _tool_call(part: JsonObject) -> Parts:
    """Read a call of Vercel's AI SDK or LangChain's standard blocks."""
    call_id, name = part.get("toolCallId", part.get("id")), part.get("toolName", part.get("name"))
    return [_use(call_id, name, part.get("input") or part.get("args"))]


def _tool_result(part: JsonObject) -> Parts:
    output: Any = part.get("output", part.get("result"))
    kind = str(as_object(output).get("type"))
    failed = part.get("isError") is True or kind.startswith("error")
    if "value" in as_object(output):
        output = output["value"]
    said: object = as_list(output) or json_text(output)
    return [_answer(part.get("toolCallId"), part.get("toolName"), said, failed=failed)]


def _ui_tool(part: JsonObject) -> Parts:
    """Read a call of Vercel's interface messages with what came back."""
    given = as_object(part.get("toolInvocation")) or part
    name = given.get("toolName") or str(part["type"]).removeprefix("tool-")
    call_id = given.get("toolCallId")
    found = [_use(call_id, name, given.get("input") or given.get("args"))]
    output, error = given.get("output", given.get("result")), given.get("errorText")
    if output is not None or error:
        said = error or json_text(output)
        found.append(_answer(call_id, name, said, failed=bool(error)))
    return found


_TYPED: dict[str, PartReader] = {
    "text": _text,
    "thinking": _reasoning,
    "reasoning": _reasoning,
    "reasoning_text": _reasoning,
    "thought": _reasoning,
    "tool_call": _tool_call,
    "tool-call": _tool_call,
    "tool-result": _tool_result,
    "tool-invocation": _ui_tool,
    "dynamic-tool": _ui_tool,
    "step-start": lambda _: [],
}
"""Readers of parts by their type."""
_UNTYPED: dict[str, PartReader] = {
    "toolUse": _bedrock_use,
    "toolResult": _bedrock_result,
    "reasoningContent": _bedrock_reasoning,
    "image": _bedrock_medium("image", "image"),
    "document": _bedrock_medium("document", "application"),
    "video": _bedrock_medium("video", "video"),
    "audio": _bedrock_medium("audio", "audio"),
    "searchResult": _bedrock_found,
    "citationsContent": _bedrock_cited,
    "guardContent": _inside("guardContent"),
    "cachePoint": lambda _: [],
    "json": lambda part: [{"type": "text", "text": json_text(part["json"])}],
    "functionCall": _gemini_call,
    "function_call": _gemini_call,
    "functionResponse": _gemini_result,
    "function_response": _gemini_result,
    "executableCode": _gemini_code,
    "executable_code": _gemini_code,
    "codeExecutionResult": _gemini_code_result,
    "code_execution_result": _gemini_code_result,
    "inlineData": _gemini_data,
    "inline_data": _gemini_data,
    "fileData": _gemini_file,
    "file_data": _gemini_file,
    "text": _text,
    "value": _text,
}
"""Readers of parts without a type, as Bedrock and Gemini have them, by the member they have."""
