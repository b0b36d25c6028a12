"""What was sent last of each session, so that a receipt can say what a prompt cache would serve.

Providers keep the beginning of a prompt and charge less for it when the next one begins alike. Here
is known of each session's last context how its messages began; not what they say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from hybridagi_steps.records.json_reading import JsonObject, as_json
from hybridagi_steps.token_counters import MessageCounter

_REMEMBERED_SESSIONS = 256
_DIGEST_BYTES = 16


class SentPrompts:
    """The messages of each session's last prompt, as digests.

    Threads may share it: what it knows of a session is replaced, not changed.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, list[bytes]] = OrderedDict()

    def shared(
        self, session_id: str, messages: Sequence[JsonObject], counter: MessageCounter
    ) -> int:
        """Return the tokens with which a prompt begins as the session's last one did; keep it."""
        digests = [
            blake2b(as_json(message).encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).digest()
            for message in messages
        ]
        before = self._known.pop(session_id, [])
        self._known[session_id] = digests
        while len(self._known) > _REMEMBERED_SESSIONS:
            self._known.popitem(last=False)
        tokens = 0
        for message, now, then in zip(messages, digests, before, strict=False):
            if now != then:
                break
            tokens += counter.message(message)
        return tokens
