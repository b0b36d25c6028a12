"""How a session stands in our own JSONL: a header, then its messages with steps between them.

`{"record": "session", "session_id": …}` begins one; `forks`, `shares` and `last` name the session
that it shares its beginning with, how many messages, and the id of the last of them. `{"record":
"message", …}` is one Step. The steps before a message, after the one before it, are pinned to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from pydantic import ValidationError

from hybridagi_steps.exchange.records import BadRecordError, ParsedMessages, Said, whole_number
from hybridagi_steps.records.message import Step

RECORD = "record"
"""Key by which a line says that it is a session's header or message."""
MESSAGES_AT_ONCE = 500
"""Messages without steps between them that are stored in one commit."""


def is_session_line(fields: dict[str, Any]) -> bool:
    """Whether a record is a session's header or message, as we write them."""
    return fields.get(RECORD) in ("session", "message")


def header_line(session_id: str, forks: str | None = None, last: Step | None = None) -> bytes:
    """Return the line that begins a session; `last` is the last message that it shares."""
    header: dict[str, Any] = {RECORD: "session", "session_id": session_id}
    if last is not None:
        header |= {"forks": forks, "shares": last.sequence, "last": last.id}
    return orjson.dumps(header) + b"\n"


def message_line(message: Step) -> bytes:
    """Return the line of a message."""
    said = message.model_dump(mode="json", exclude_none=True)
    return orjson.dumps({RECORD: "message", **said}) + b"\n"


class SessionReader:
    """Follows the session that the lines of a file are in."""

    def __init__(self) -> None:
        self._session_id: str | None = None
        self._line = 0
        self._messages: list[Step] = []

    @property
    def place(self) -> Said | None:
        """What a step on the next line has to do with messages; None outside of sessions."""
        return None if self._session_id is None else Said([], self._session_id)

    def read(self, line: int, fields: dict[str, Any]) -> Iterator[ParsedMessages]:
        """Take a header or message; yield what is complete by that.

        Raises:
            BadRecordError: It is none.
        """
        if fields[RECORD] == "session":
            header = _header(line, fields)
            yield from self.messages_read()
            self._session_id = header.session_id
            yield header
            return
        try:
            message = _message(fields)
        except BadRecordError:
            yield from self.messages_read()
            raise
        if message.session_id != self._session_id:
            yield from self.messages_read()
            yield ParsedMessages(line, message.session_id, [])  # its header is missing
        elif len(self._messages) >= MESSAGES_AT_ONCE or not self._follows(message):
            yield from self.messages_read()
        self._session_id, self._line = message.session_id, self._line or line
        self._messages.append(message)

    def _follows(self, message: Step) -> bool:
        """Whether nothing is missing before a message, which would hold up those before it."""
        return not self._messages or message.sequence == self._messages[-1].sequence + 1

    def messages_read(self) -> Iterator[ParsedMessages]:
        """Yield the messages that stand together, if there are any."""
        if self._messages and self._session_id is not None:
            yield ParsedMessages(self._line, self._session_id, self._messages)
        self._messages, self._line = [], 0


def _header(line: int, fields: dict[str, Any]) -> ParsedMessages:
    session_id = fields.get("session_id")
    if not isinstance(session_id, str) or not session_id:
        raise BadRecordError("a session without a session_id")
    if not fields.keys() & {"forks", "shares", "last"}:
        return ParsedMessages(line, session_id, [])
    shares, last = whole_number(fields.get("shares")), fields.get("last")
    if not shares or not isinstance(last, str):
        raise BadRecordError("a fork without the number of messages it shares, or the last's id")
    return ParsedMessages(line, session_id, [], shares, last)


def _message(fields: dict[str, Any]) -> Step:
    try:
        return Step.model_validate({name: fields[name] for name in fields if name != RECORD})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BadRecordError(f"a message whose {place}: {first['msg']}") from error
