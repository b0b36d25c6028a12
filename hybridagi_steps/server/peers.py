"""Peers: the other servers on a PostgreSQL memory, whose runs this one follows, stops and answers.

The table is the truth; LISTEN/NOTIFY, on one connection for a server, only says when to look, and a
look without it comes all the same, so nothing is lost with a notification. What is told of a run
elsewhere is what is durable, its messages and its end, under the numbers that its own server told
them with; so a reader goes on at any server from the last id that it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import ReadOnlyStorageError, StorageError, UnknownRunError
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

_LOOK_SECONDS, _LISTENING_SECONDS = 0.25, 2.0
"""How often runs are looked at that nothing was heard of, without and with notifications."""
_RENEW_SECONDS = 0.5
"""How often this server shows that it lives; others give it twice that long."""
_SWEEP_LOOKS = 120
"""After how many of these it forgets what is over."""
_MOST_FAILURES = 20
"""How often something is told in vain, by a look that has just shown that this server lives."""
_START_TRIES, _START_SECONDS = 10, 0.5
_ANSWER_SECONDS = 3.0
"""How long a request waits for its answer."""
_MOST_PIECES = 1_000_000
"""More events than lie between two messages."""
_READ_AT_ONCE = 4
"""Runs whose messages are read at the same time."""


class Peers:
    """The servers on one memory, this one among them.

    `runs` is what they know of each other's; about `most_bytes` are kept of one that is followed.
    """

    def __init__(self, memory: StepMemory, runs: live_runs.LiveRuns, most_bytes: int) -> None:
        self.runs = runs
        self._memory, self._most_bytes = memory, most_bytes
        self._followed: dict[str, LiveRun] = {}
        self._known: dict[str, live_runs.LiveRun] = {}
        """What the last look found of them."""
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)
        self._news, self._requests = asyncio.Event(), asyncio.Event()
        self._heard = {runs.REQUESTS: self._requests}
        """What is set when something is notified."""
        self._listening = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._untold: deque[tuple[str, Callable[[], None]]] = deque()
        self._failures = 0
        """How often the first of them could not be told though the database can be reached."""
        self._telling = asyncio.Lock()

    def begin(self, runner: StepRunner | None) -> None:
        """Show that this server lives, and answer what others ask, until it is closed."""
        for work in (self._serve(runner), self._follow(), self._listen()):
            task = asyncio.create_task(work)
            self._tasks.add(task)

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
            self._untold.append((run.run_id, begin))
        if is_end or event.snapshot is not None:
            step_id = None if is_end else event.step_id
            tell = partial(self.runs.tell, run.run_id, event.number or 0, step_id)
            self._untold.append((run.run_id, tell))
        try:
            await self._tell()
        except StorageError as error:  # the run goes on, and others are told of it later
            log.warning("other servers cannot be told of run %s for now: %s", run.run_id, error)

    async def follow(self, run_id: str) -> LiveRun | None:
        """Return a run of another server, in flight or over for a while, as far as it was told."""
        if (run := self._followed.get(run_id)) is None:
            found = await in_thread(partial(self.runs.find, run_id))
            if found is None:
                return None
            run = LiveRun(run_id, found.session_id, self._most_bytes)
            run.user_id = found.user_id
            run = self._followed.setdefault(run_id, run)
            self._known.setdefault(run_id, found)
            self._heard[self.runs.mark_of(run_id)] = self._news
            self._news.set()
        return run

    async def cancel(self, run_id: str) -> bool:
        """Ask the server that has a run, or one inside it, to stop it; return whether it did."""
        if not await in_thread(partial(self.runs.elsewhere, StepFilter())):
            return False
        request_id = await in_thread(partial(self.runs.ask, run_id, cancel=True))
        answered = self._heard[str(request_id)] = asyncio.Event()
        try:
            late = asyncio.get_running_loop().time() + _ANSWER_SECONDS
            while asyncio.get_running_loop().time() < late:
                await _set_within(answered, _LOOK_SECONDS)
                answer = await in_thread(partial(self.runs.answer, request_id))
                if answer is not None:
                    return bool(answer)
            return False
        finally:
            del self._heard[str(request_id)]
            await in_thread(partial(self.runs.withdraw, request_id))

    async def _tell(self, *, reachable: bool = False) -> None:
        """Tell others what they are not told yet, in order; it may be told twice.

        What a `reachable` database, which has just answered, goes on to refuse all the same is left
        out, since all that comes after it would wait for ever.
        """
        async with self._telling:
            while self._untold:
                run_id, tell = self._untold[0]
                try:
                    await in_thread(tell)
                except Exception as error:
                    self._failures += reachable
                    if isinstance(error, StorageError) and self._failures < _MOST_FAILURES:
                        raise
                    log.exception("other servers are not told something of run %s", run_id)
                self._failures = 0
                self._untold.popleft()

    async def _listen(self) -> None:
        """Hear when it is time to look; without notifications it is time again and again."""
        while True:
            try:
                async for heard in self.runs.listen():
                    self._listening = True
                    if not heard:  # what was notified before is looked for
                        self._news.set()
                    if (signal := self._heard.get(heard)) is not None:
                        signal.set()
                log.warning(
                    "no notifications come through %s, as behind a pooler of transactions: "
                    "other servers are looked at every %g s.",
                    self._memory.address,
                    _LOOK_SECONDS,
                )
                return  # it ends by an error where they came before
            except StorageError as error:
                log.info("no notifications come for now: %s", error)
            self._listening = False
            self._requests.set()  # with a connection the other may have gone, too: show life now
            await asyncio.sleep(_RENEW_SECONDS)

    async def _follow(self) -> None:
        """Tell the readers of runs elsewhere what is new, until each is over or purged."""
        works = True
        while True:
            if self._followed:
                await _set_within(
                    self._news, _LISTENING_SECONDS if self._listening else _LOOK_SECONDS
                )
            else:
                await self._news.wait()
            self._news.clear()
            try:
                runs = dict(self._followed)  # others may come while these are looked at
                found = await in_thread(partial(self.runs.find_all, tuple(runs)))
                await asyncio.gather(*(self._catch_up(r, found.get(n)) for n, r in runs.items()))
                works = True
            except StorageError as error:
                if works:
                    log.warning("runs of other servers cannot be followed for now: %s", error)
                works = False

    async def _catch_up(self, run: LiveRun, found: live_runs.LiveRun | None) -> None:
        last = run.last_number
        if found is None:  # a purge, of whatever, forgets all that is over
            found = self._known[run.run_id]._replace(in_flight=False)
        self._known[run.run_id] = found
        over = not found.in_flight
        if over or max(found.numbers.values(), default=0) > last:
            try:
                async with self._reading:
                    told = await in_thread(partial(told_events, self._memory, found))
                for event in told:
                    if (event.number or 0) > last:
                        run.publish(event)
            except StorageError:
                raise
            except Exception:  # of this run alone: the others are followed on
                log.exception("run %s cannot be followed any more", run.run_id)
                over = True
        if over:
            self._followed.pop(run.run_id, None)
            self._known.pop(run.run_id, None)
            self._heard.pop(self.runs.mark_of(run.run_id), None)
            run.end()

    async def _serve(self, runner: StepRunner | None) -> None:
        look, works, living = 0, True, frozenset[str]()
        while True:
            try:
                before, living = living, await in_thread(self.runs.renew)
                if before - living:  # its runs were cut off
                    self._news.set()
                await self._tell(reachable=True)
                if look % _SWEEP_LOOKS == 0:
                    await in_thread(self.runs.sweep)
                for request_id, run_id, _ in await in_thread(self.runs.requests):
                    answer = await _cancelled(runner, run_id)
                    if answer is not None:
                        await in_thread(partial(self.runs.reply, request_id, answer))
                works = True
            except StorageError as error:
                if works:
                    log.warning("other servers cannot be reached for now: %s", error)
                works = False
            look += 1
            await _set_within(self._requests, _RENEW_SECONDS if self._listening else _LOOK_SECONDS)
            self._requests.clear()


def open_peers(memory: StepMemory, most_bytes: int) -> Peers | None:
    """Return the servers on a PostgreSQL memory; None for a file, which one server serves.

    It may block for some seconds: a server that stands alone beside others would tell their runs'
    readers what the store says of a run that was cut off.
    """
    if not memory.address.startswith("postgres"):
        return None
    from hybridagi_steps.stores.postgres.live_runs import LiveRuns

    for tries_left in range(_START_TRIES, -1, -1):
        try:
            return Peers(memory, LiveRuns(memory.whole_address, memory.namespace), most_bytes)
        except StorageError as error:
            if not tries_left or isinstance(error, ReadOnlyStorageError):
                log.warning("this server knows nothing of others on the same memory: %s", error)
                return None
        time.sleep(_START_SECONDS)
    return None


async def _set_within(signal: asyncio.Event, seconds: float) -> None:
    """Wait for a signal, but no longer than some seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await signal.wait()


async def _cancelled(runner: StepRunner | None, run_id: str) -> bool | None:
    """Stop a run as another server asks; None when it is not here."""
    if runner is None or register_of(runner.memory).find(run_id) is None:
        return None
    return await runner.cancel(run_id)


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
