"""Peers: the other servers on a PostgreSQL memory, whose runs this one follows, stops and answers.

The table is the truth, looked at four times a second: nothing is lost with a notification. What is
told of a run elsewhere is what is durable, its messages and its end, under the numbers that its own
server told them with; so a reader goes on at any server from the last id that it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import StorageError, UnknownRunError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.running.active_run import register_of
from hybridagi_steps.running.streaming import FINAL_EVENTS
from hybridagi_steps.server.sse import LiveRun

if TYPE_CHECKING:
    from hybridagi_steps.running.runner import StepRunner
    from hybridagi_steps.stores.postgres import live_runs

log = logging.getLogger("hybridagi_steps.server")

_LOOK_SECONDS = 0.25
_RENEW_LOOKS, _SWEEP_LOOKS = 4, 240
"""After how many looks this server shows that it lives, and forgets what is over."""
_MOST_PIECES = 1_000_000
"""More events than lie between two messages."""
_ANSWER_LOOKS = 12
"""How many looks a request waits for its answer."""


class Peers:
    """The servers on one memory, this one among them.

    Args:
        memory: Where the steps are.
        runs: What servers know of each other's runs.
        most_bytes: About how much is kept of a run that is followed.
    """

    def __init__(self, memory: StepMemory, runs: live_runs.LiveRuns, most_bytes: int) -> None:
        self.runs = runs
        self._memory, self._most_bytes = memory, most_bytes
        self._followed: dict[str, LiveRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._untold: deque[Callable[[], None]] = deque()
        self._telling = asyncio.Lock()

    def begin(self, runner: StepRunner | None) -> None:
        """Show that this server lives, and answer what others ask, until it is closed."""
        self._keep(self._serve(runner))

    async def close(self) -> None:
        """Be no server any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(StorageError):  # what is left of it lapses
            await in_thread(self.runs.close)

    async def note(self, run: LiveRun, event: StepEvent) -> None:
        """Note an event that can be told again, before anybody is told it."""
        is_end = event.type in FINAL_EVENTS
        if event.number == 1:
            begin = partial(self.runs.begin, run.run_id, run.session_id, run.user_id)
            self._untold.append(begin)
        if is_end or event.snapshot is not None:
            step_id = None if is_end else event.step_id
            self._untold.append(partial(self.runs.tell, run.run_id, event.number or 0, step_id))
        try:
            await self._tell()
        except StorageError as error:  # the run goes on, and others are told of it later
            log.warning("other servers cannot be told of run %s for now: %s", run.run_id, error)

    async def follow(self, run_id: str) -> LiveRun | None:
        """Return a run of another server, in flight or over for a while, as far as it was told."""
        if (known := self._followed.get(run_id)) is not None:
            return known
        found = await in_thread(partial(self.runs.find, run_id))
        if found is None:
            return None
        run = LiveRun(run_id, found.session_id, self._most_bytes)
        run.user_id = found.user_id
        if not found.in_flight:
            await self._catch_up(run, found)
            run.end()
            return run
        self._followed[run_id] = run
        self._keep(self._follow(run))
        return run

    async def ask(self, run_id: str, **asked: Any) -> bool:
        """Ask the server that has a run, or one inside it, for something; return what came of it.

        Args:
            run_id: The run.
            asked: `cancel=True`, or a `call_id` and whether it is `allowed`.
        """
        if not await in_thread(partial(self.runs.elsewhere, StepFilter())):
            return False
        request_id = await in_thread(partial(self.runs.ask, run_id, **asked))
        try:
            for _ in range(_ANSWER_LOOKS):
                await asyncio.sleep(_LOOK_SECONDS)
                answer = await in_thread(partial(self.runs.answer, request_id))
                if answer is not None:
                    return bool(answer)
            return False
        finally:
            await in_thread(partial(self.runs.withdraw, request_id))

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        """Tell others what they are not told yet, in order; it may be told twice."""
        async with self._telling:
            while self._untold:
                await in_thread(self._untold[0])
                self._untold.popleft()

    async def _follow(self, run: LiveRun) -> None:
        """Tell the readers of a run elsewhere what is new, until it is over or purged."""
        try:
            while found := await in_thread(partial(self.runs.find, run.run_id)):
                await self._catch_up(run, found)
                if not found.in_flight:
                    break
                await asyncio.sleep(_LOOK_SECONDS)
        except StorageError as error:
            log.warning("run %s cannot be followed any more: %s", run.run_id, error)
        finally:
            del self._followed[run.run_id]
            run.end()

    async def _catch_up(self, run: LiveRun, found: live_runs.LiveRun) -> None:
        last = run.last_number
        for event in await in_thread(partial(told_events, self._memory, found)):
            if (event.number or 0) > last:
                run.publish(event)

    async def _serve(self, runner: StepRunner | None) -> None:
        look, works = 0, True
        while True:
            try:
                if look % _RENEW_LOOKS == 0:
                    await in_thread(self.runs.renew)
                await self._tell()
                if look % _SWEEP_LOOKS == 0:
                    await in_thread(self.runs.sweep)
                for request_id, run_id, asked in await in_thread(self.runs.requests):
                    answer = await _answered(runner, run_id, asked)
                    if answer is not None:
                        await in_thread(partial(self.runs.reply, request_id, answer))
                works = True
            except StorageError as error:
                if works:
                    log.warning("other servers cannot be reached for now: %s", error)
                works = False
            look += 1
            await asyncio.sleep(_LOOK_SECONDS)


def open_peers(memory: StepMemory, most_bytes: int) -> Peers | None:
    """Return the servers on a PostgreSQL memory; None for a file, which one server serves."""
    if not memory.address.startswith("postgres"):
        return None
    from hybridagi_steps.stores.postgres.live_runs import LiveRuns

    try:
        runs = LiveRuns(memory.whole_address, memory.namespace)
    except StorageError as error:
        log.warning("this server knows nothing of others on the same memory: %s", error)
        return None
    return Peers(memory, runs, most_bytes)


async def _answered(runner: StepRunner | None, run_id: str, asked: dict[str, Any]) -> bool | None:
    """Answer what another server asks of a run; None when it is not here."""
    if runner is None or register_of(runner.memory).find(run_id) is None:
        return None
    if "cancel" in asked:
        return await runner.cancel(run_id)
    return await runner.answer_consent(run_id, asked["call_id"], asked["allowed"])


def told_events(memory: StepMemory, found: live_runs.LiveRun) -> list[StepEvent]:
    """Return the events of a run that can be told again, in order; may block.

    What its server did not come to tell has numbers beyond all that a reader can have seen, the
    same at whichever server it is read.
    """
    from hybridagi_steps.running.stored_events import stored_events

    try:
        first, *events = stored_events(memory, found.run_id, session_id=found.session_id)
    except UnknownRunError:
        return []
    first.number, told = 1, [first]
    late = max(found.numbers.values(), default=1) + _MOST_PIECES
    for event in events:
        number = found.numbers.get(None if event.type in FINAL_EVENTS else event.step_id)
        if number is None and found.in_flight:
            continue
        late += number is None
        event.number = late if number is None else number
        told.append(event)
    return told
