"""How a session stands in our own JSONL: a header, then its messages with steps between them.

`{"record": "session", "session_id": …}` begins one; `forks` and `shares` name the session, and the
last sequence, that it shares its beginning with. `{"record": "message", …}` is one Step. The steps
before a message, after the one before it, are pinned to it.
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


def header_line(session_id: str, forks: str | None = None, shares: int = 0) -> bytes:
    """Return the line that begins a session."""
    header: dict[str, Any] = {RECORD: "session", "session_id": session_id}
    if forks is not None:
        header |= {"forks": forks, "shares": shares}
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
        message = _message(fields)
        if message.session_id != self._session_id or len(self._messages) >= MESSAGES_AT_ONCE:
            yield from self.messages_read()
        self._session_id, self._line = message.session_id, self._line or line
        self._messages.append(message)

    def messages_read(self) -> Iterator[ParsedMessages]:
        """Yield the messages that stand together, if there are any."""
        if self._messages and self._session_id is not None:
            yield ParsedMessages(self._line, self._session_id, self._messages)
        self._messages, self._line = [], 0


def _header(line: int, fields: dict[str, Any]) -> ParsedMessages:
    session_id, forks = fields.get("session_id"), fields.get("forks")
    if not isinstance(session_id, str) or not session_id:
        raise BadRecordError("a session without a session_id")
    if forks is not None and not isinstance(forks, str):
        raise BadRecordError("forks is not the id of a session")
    return ParsedMessages(line, session_id, [], forks, whole_number(fields.get("shares")) or 0)


def _message(fields: dict[str, Any]) -> Step:
    try:
        return Step.model_validate({name: fields[name] for name in fields if name != RECORD})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BadRecordError(f"a message whose {place}: {first['msg']}") from error
