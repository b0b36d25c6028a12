"""Session logs of Claude Code, in: the JSONL files under `~/.claude/projects`.

Lines of one session are one conversation; what a sub-agent said beside it (`isSidechain`) is a
session of its own, `session/agent`. Where somebody went back and asked something else, the line
that was left is a fork. Blocks that were written on lines of their own but belong to one answer are
put together again. Notes for the model only (`isMeta`) count as system messages; lines that no one
said (snapshots, queues, progress) are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.chats import Chat, ChatFormat, ChatMessage, branches
from hybridagi_steps.messages.turns import Message, anthropic_turns
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import JsonObject

_TITLES = {"summary": "summary", "custom-title": "customTitle", "ai-title": "aiTitle"}
"""Types of lines that name a session, with the key of the name; later ones go before."""
_SPOKEN = ("user", "assistant", "system")
_ABOUT = ("cwd", "gitBranch", "version", "agentId", "slug")


def _chats(value: Any) -> Iterator[Chat]:
    sessions: dict[str, dict[str, Message]] = {}
    title = None
    for number, line in enumerate(map(js.as_object, js.as_list(value))):
        kind = str(line.get("type"))
        if kind in _TITLES:
            title = js.text_in(line, _TITLES[kind]) or title
        elif "uuid" in line or kind in _SPOKEN:
            session = str(line.get("sessionId"))
            if line.get("isSidechain"):
                session = f"{session}/{line.get('agentId') or 'sidechain'}"
            lines = sessions.setdefault(session, {})
            lines.setdefault(js.text_in(line, "uuid") or str(number), line)
    for session, lines in sessions.items():
        branch = None
        for leaf, path in branches(_parents(lines), next(reversed(lines))):
            spoken = [lines[own] for own in path if lines[own].get("type") in _SPOKEN]
            messages = list(_messages(spoken))
            if all(m.view["role"] == "system" for m in messages):
                continue
            yield Chat(
                messages,
                id=session,
                title=None if "/" in session or branch else title,
                created_at=js.time_of(spoken[0]),
                extras={key: spoken[0][key] for key in _ABOUT if spoken[0].get(key)},
                turns=anthropic_turns,
                branch=f"{session}@{leaf}" if branch else None,
            )
            branch = leaf


def _parents(lines: dict[str, Message]) -> dict[str, str | None]:
    """Return the line that each line follows.

    As a rule it is the one before: results of calls at the same time and notes name another, too.
    A prompt goes back where it names an earlier one, behind which something was said.
    """
    parents: dict[str, str | None] = {}
    last: str | None = None
    for own, line in lines.items():
        parent: str | None = line.get("parentUuid", last) or js.text_in(line, "logicalParentUuid")
        passed: list[Message] = []
        node = last
        while node is not None and node != parent:
            passed.append(lines[node])
            node = parents[node]
        is_beside = node is None and parent in parents  # it goes on with a line that was left
        goes_back = _is_prompt(line) and any(map(_is_said, passed))
        goes_back = goes_back and (parent in parents or line.get("parentUuid", "") is None)
        parents[own] = parent if is_beside or goes_back else last
        last = own
    return parents


def _is_said(line: Message) -> bool:
    return line.get("type") == "assistant" or _is_prompt(line)


def _is_prompt(line: Message) -> bool:
    """Whether a line is what somebody typed."""
    if line.get("type") != "user" or line.get("isMeta") or line.get("isCompactSummary"):
        return False
    blocks = js.objects_in(line.get("message"), "content")
    return not any(block.get("type") == "tool_result" for block in blocks)


def _messages(lines: list[Message]) -> Iterator[ChatMessage]:
    """Yield messages, blocks of one answer together."""
    answer: list[Message] = []
    for line in lines:
        own = js.as_object(line.get("message")).get("id")
        if answer and not (own and own == answer[0]["message"].get("id")):
            yield _answer(answer)
            answer = []
        if line.get("type") == "assistant" and line.get("message"):
            answer.append(line)
        else:
            yield _question(line)
    if answer:
        yield _answer(answer)


def _question(line: Message) -> ChatMessage:
    role = "system" if line["type"] == "system" or line.get("isMeta") else "user"
    content: object = js.as_object(line.get("message")).get("content", line.get("content"))
    if role == "system" and isinstance(content, list):
        content = js.text_of(content)
    return ChatMessage({"role": role, "content": content or ""}, line, js.time_of(line))


def _answer(lines: list[Message]) -> ChatMessage:
    """Return an answer, whose blocks may have come on several lines, with what it cost."""
    blocks: list[JsonObject] = []
    for content in (line["message"].get("content") for line in lines):
        blocks += [{"type": "text", "text": content}] if isinstance(content, str) else []
        blocks += js.as_list(content)
    last = lines[-1]["message"]
    about = js.known_fields(model=last.get("model"), usage=last.get("usage"))
    view = {"role": "assistant", "content": blocks, **about}
    return ChatMessage(view, lines[0], js.time_of(lines[0]), also=tuple(lines[1:]))


FORMAT = ChatFormat(
    "claude_code",
    _chats,
    (
        {"type": {"summary"}, "leafUuid": ...},
        {"type": {"custom-title", "ai-title"}},
        {"type": {"file-history-snapshot"}, "snapshot": ...},
        {"type": {*_SPOKEN, "attachment"}, "sessionId": ..., "uuid": ...},
        {"type": {"queue-operation"}, "sessionId": ...},
    ),
    session=lambda _: "file",
)
