"""Conversations of clients that send the whole history each time, and the sessions they are.

Such a client names no session. What it was given last time tells which one it goes on with, as long
as nobody else has written there since. Only keyed digests are kept, in this process alone: they
tell nothing of what was said, and a conversation that is not known begins a session of its own.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridagi_steps.records.message import utc_now
from hybridagi_steps.records.store_values import BranchPosition

Transcript = Sequence[tuple[str, Any]]
"""Role and content of each message, as the client has them."""


class End(NamedTuple):
    """Where a conversation ended."""

    session_id: str
    position: BranchPosition


class Conversations:
    """The ends of conversations, by what was said in them.

    Args:
        most: How many are kept; the one that was written first goes first.
    """

    def __init__(self, most: int = 10_000) -> None:
        self.began_at = utc_now()
        self._most, self._key = most, secrets.token_bytes(32)
        self._ends: OrderedDict[bytes, End] = OrderedDict()

    def keep(self, user_id: str | None, said: Transcript, end: End) -> None:
        """Note where a user's conversation ended."""
        self._ends[self._digest(user_id, said)] = end
        while len(self._ends) > self._most:
            self._ends.popitem(last=False)

    def take(self, user_id: str | None, said: Transcript) -> End | None:
        """Return where a user's conversation ended, once: two that go on are two sessions."""
        return self._ends.pop(self._digest(user_id, said), None)

    def _digest(self, user_id: str | None, said: Transcript) -> bytes:
        text = json.dumps([user_id, *said]).encode()
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()
