"""Session logs of Claude Code, in: the JSONL files under `~/.claude/projects`.

Lines of one session are one conversation; what a sub-agent said beside it (`isSidechain`) is a
session of its own, `session/agent`. Blocks that were written on lines of their own but belong to
one answer are put together again. Notes for the model only (`isMeta`) count as system messages;
lines that no one said (snapshots, queues, progress) are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, gathered, parse_chats
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.messages.turns import Message, anthropic_turns
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    known_fields,
    time_of,
)

_TITLES = {"summary": "summary", "custom-title": "customTitle", "ai-title": "aiTitle"}
"""Types of lines that name a session, with the key of the name; later ones go before."""
_ABOUT = ("cwd", "gitBranch", "version", "agentId", "slug")


def recognises(value: JsonValue) -> bool:
    """Whether a record is a line of such a log."""
    match value:
        case {"type": "summary", "leafUuid": _} | {"type": "custom-title" | "ai-title"}:
            return True
        case {"type": "file-history-snapshot", "snapshot": _}:
            return True
        case {"sessionId": _, "type": "user" | "assistant" | "system" | "attachment", "uuid": _}:
            return True
        case {"type": "queue-operation", "sessionId": _}:
            return True
        case _:
            return False


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of the sessions in a file."""
    named = gathered(records, lambda _: "file")
    return parse_chats(named, "claude_code", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    sessions: dict[str, list[Message]] = {}
    title = None
    for line in map(as_object, as_list(value)):
        kind = str(line.get("type"))
        if kind in _TITLES:
            title = as_text(line.get(_TITLES[kind])) or title
        elif kind in ("user", "assistant", "system"):
            session = str(line.get("sessionId"))
            if line.get("isSidechain"):
                session = f"{session}/{line.get('agentId') or 'sidechain'}"
            sessions.setdefault(session, []).append(line)
    for session, lines in sessions.items():
        messages = list(_messages(lines))
        if any(said.view["role"] != "system" for said in messages):
            yield Chat(
                messages,
                id=session,
                title=None if "/" in session else title,
                created_at=time_of(lines[0]),
                extras={key: lines[0][key] for key in _ABOUT if lines[0].get(key)},
                turns=anthropic_turns,
            )


def _messages(lines: list[Message]) -> Iterator[ChatMessage]:
    """Yield the messages of a session, blocks of one answer together; none twice."""
    seen: set[object] = set()
    answer: list[Message] = []
    for line in lines:
        if (uuid := line.get("uuid")) in seen:
            continue
        seen.add(uuid)
        own = as_object(line.get("message")).get("id")
        if answer and not (own and own == as_object(answer[0]["message"]).get("id")):
            yield _answer(answer)
            answer = []
        if line.get("type") == "assistant" and line.get("message"):
            answer.append(line)
        else:
            yield _said(line)
    if answer:
        yield _answer(answer)


def _said(line: Message) -> ChatMessage:
    told = as_object(line.get("message"))
    role = "system" if line["type"] == "system" or line.get("isMeta") else "user"
    content: object = told.get("content", line.get("content"))
    if role == "system" and isinstance(content, list):
        content = "\n".join(str(as_object(block).get("text", "")) for block in as_list(content))
    return ChatMessage({"role": role, "content": content or ""}, line, time_of(line))


def _answer(lines: list[Message]) -> ChatMessage:
    """Return an answer whose blocks came on several lines, with what it cost."""
    told = [as_object(line["message"]) for line in lines]
    blocks: list[JsonObject] = []
    for part in told:
        content = part.get("content")
        blocks += [{"type": "text", "text": content}] if isinstance(content, str) else []
        blocks += as_list(content)
    native = lines[0] if len(lines) == 1 else {**lines[0], "lines": lines[1:]}
    view = {"role": "assistant", "content": blocks}
    view |= known_fields(model=told[-1].get("model"), usage=told[-1].get("usage"))
    return ChatMessage(view, native, time_of(lines[0]))
