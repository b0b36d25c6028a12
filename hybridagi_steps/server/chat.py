"""A message said with an idempotency key: stored once and answered once, whatever is sent again.

The store keeps the key beside the message, so a client that asks again after a crash of the server
gets the answer that was given, or has it given now. While the run lives the client joins it.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakValueDictionary

from hybridagi_steps.errors import SequenceConflictError
from hybridagi_steps.records.message import Step
from hybridagi_steps.server.live_run import LiveRun
from hybridagi_steps.server.services import Services

_speaking: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()


async def said_once(shared: Services, session: Any, message: Any, key: str) -> LiveRun | None:
    """Say something unless it was said with this key before; return the run that answers it.

    Raises:
        SequenceConflictError: The key came with another message before, or the session has a run
            that answers something else.
    """
    # One at a time for each session: of two equal requests the second has to find the first's run.
    lock = _speaking.setdefault((id(shared.hub), session.session_id), asyncio.Lock())
    async with lock:
        busy = shared.hub.run_of_session(session.session_id)
        if busy is not None and busy.key != key:
            raise SequenceConflictError(
                f"session {session.session_id!r} has a run in flight, {busy.run_id}; wait for its "
                "end or cancel it."
            )
        shared.hub.check()
        said = await shared.repository.append(
            session.session_id,
            [{"role": "user", "content": message}],
            idempotency_key=key,
        )
        if busy is not None:
            return busy
        if (run_id := await _answered(shared, said[0])) is not None:
            return shared.hub.find(run_id) or await shared.hub.stored(run_id, 0)
        runner = shared.hub.runner
        run = await shared.hub.start(runner.resume_from_user_step(session, said[0]))
        if run is not None:
            run.key = key
        return run


async def _answered(shared: Services, said: Step) -> str | None:
    """Return the run that has answered a message; None when none has."""
    after = said.sequence + 1
    found = await shared.repository.get_steps(said.session_id, after, after)
    return found[0].run_id if found else None
