"""A clock that jumps back years and ahead a century at each look."""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime, tzinfo
from typing import Any

_CENTURY = 100 * 365 * 86_400.0


def jump(chance: random.Random) -> None:
    """Let every clock of this process but the monotonic one jump at each look."""
    whole, now = time.time, datetime

    def jumped() -> float:
        return whole() + chance.choice((0, -10, 3_600, -40 * 365 * 86_400, _CENTURY))

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, now)

    class Jumping(now, metaclass=Kind):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return now.fromtimestamp(jumped(), tz or UTC)

        @classmethod
        def fromisoformat(cls, date_string: str, /) -> Any:
            return now.fromisoformat(date_string)  # no object of this class: nothing keeps such

    time.time = jumped
    for name, module in list(sys.modules.items()):
        if name.startswith("hybridagi_steps") and getattr(module, "datetime", None) is now:
            module.datetime = Jumping  # pyright: ignore[reportAttributeAccessIssue] - for this process only
