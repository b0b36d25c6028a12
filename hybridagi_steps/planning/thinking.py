"""What a plan costs to think of: texts that a planner makes once, with the calls they took.

A text that was made before a crash is not made again, and its cost still counts. What is asked, and
what becomes of the answer, is no concern of this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson

from hybridagi_steps.planning.dispatching import Dispatcher
from hybridagi_steps.planning.usage import PLANNING, Ledger, LMCall, Purpose, spending_on
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.running.cancelling import own_cancellation


async def thought_of(
    key: str, make: Callable[[], Awaitable[str]], dispatcher: Dispatcher, ledger: Ledger
) -> str:
    """Return the text of a plan, made now or before a crash, with what it cost counted.

    Args:
        key: Names the text within all runs.
        make: Asks the planner.
        dispatcher: Keeps what was made.
        ledger: Counts.
    """
    before = len(ledger.calls)

    async def make_and_count() -> str:
        with spending_on(Purpose(PLANNING)), own_cancellation("the planner"):
            text = await make()
        calls = [call.model_dump(mode="json") for call in ledger.calls[before:]]
        return orjson.dumps({"plan": text, "calls": json_value(calls, [])}).decode()

    kept = orjson.loads(await dispatcher.remember(key, make_and_count))
    if len(ledger.calls) == before:
        ledger.add(LMCall.model_validate(call) for call in kept["calls"])
    return kept["plan"]
