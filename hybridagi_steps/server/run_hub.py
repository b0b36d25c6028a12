"""The runs of a server: begun by one request, read by any, ended by themselves or when asked.

A run belongs to the hub, not to the request that began it: a browser that closes loses nothing.
Events of runs that are over are kept for a while; later ones come from the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import SequenceConflictError, StorageError, UnknownRunError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.outside_files import queues_of
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import RunSummary
from hybridagi_steps.running.active_run import register_of
from hybridagi_steps.server.metrics import ServerMetrics
from hybridagi_steps.server.peers import Peers, open_peers
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.slots import Slots
from hybridagi_steps.server.sse import LiveRun
from hybridagi_steps.server.views import listed_run, work_data

if TYPE_CHECKING:
    from hybridagi_steps.running.hooks import RunInfo
    from hybridagi_steps.running.runner import StepRunner

log = logging.getLogger("hybridagi_steps.server")

_LAST_WORDS_SECONDS = 2.0
"""How long runs that are cancelled at the end may take to keep what they said."""
_LAST_LOOKS = 20
_SESSIONS, _MESSAGES = 200, 50
"""How far a run that was cut off is looked for."""


class RunHub:
    """The runs of one server.

    Args:
        runner: The `StepRunner` of the program that is served; None when none is.
        memory: Where runs are stored.
        settings: Limits.
        slots: A place for each run in flight.
        metrics: Counts what runs store and how they end.
    """

    def __init__(
        self,
        runner: StepRunner | None,
        memory: StepMemory,
        settings: ServerSettings,
        slots: Slots,
        metrics: ServerMetrics,
    ) -> None:
        self._runner, self._memory, self._settings = runner, memory, settings
        self._slots, self._metrics = slots, metrics
        self._live: dict[str, LiveRun] = {}
        self._over: OrderedDict[str, LiveRun] = OrderedDict()
        self._over_bytes = 0
        self._erasures = self._count_erasures()
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = set[str]()
        """Of users, that runs here hold."""
        self.cut_off: list[str] = []
        """Runs that were in flight when it was closed."""
        self.peers: Peers | None = None
        """The other servers on the same memory; None while there can be none."""

    @property
    def runner(self) -> StepRunner:
        """The runner; 503 when no program is served."""
        if self._runner is None:
            raise HTTPException(
                503,
                "this server has no program; start it with --program package.module:name.",
            )
        return self._runner

    @property
    def program_name(self) -> str | None:
        """What steps call the program that is served; None when none is."""
        from hybridagi_steps.running.program_adapter import program_name

        return None if self._runner is None else program_name(self._runner.program)

    @property
    def in_flight(self) -> int:
        """How many runs are."""
        return self._slots.used

    def find(self, run_id: str) -> LiveRun | None:
        """Return a run that is in flight, or was not long ago."""
        return self._live.get(run_id) or self._over.get(run_id)

    def is_live(self, run_id: str) -> bool:
        """Whether a run is in flight."""
        return run_id in self._live

    def run_that_answers(self, session_id: str, user_id: str | None, key: str) -> LiveRun | None:
        """Return the run that a user began with an idempotency key, in flight or not long ago."""
        for run in (*self._live.values(), *self._over.values()):
            begun = run.begun_by
            if begun and (run.session_id, begun.user_id, begun.key) == (session_id, user_id, key):
                return run
        return None

    async def open(self) -> None:
        """Take part among the servers on the same memory."""
        self.peers = await in_thread(
            partial(open_peers, self._memory, self._settings.run_buffer_bytes)
        )
        if self.peers is not None:
            self.peers.begin(self._runner)

    def drain(self) -> None:
        """Take in no more runs."""
        self._slots.close()

    @property
    def draining(self) -> bool:
        """Whether no more runs are taken in."""
        return self._slots.closed

    async def cancel(self, run_id: str) -> bool:
        """Stop a run, whichever server has it; return whether it was in flight."""
        if self.is_live(run_id):
            return await self.runner.cancel(run_id)
        return self.peers is not None and await self.peers.cancel(run_id)

    async def claim(self, message_id: str) -> bool:
        """Whether it is this server that begins the run of a message with a key."""
        return self.peers is None or await in_thread(
            partial(self.peers.runs.claim, f"key:{message_id}")
        )

    async def check_idle(self, session_id: str) -> None:
        """Refuse to begin a run in a session in which another server has one in flight."""
        meant = StepFilter(session_id=session_id)
        if self.peers and (runs := await in_thread(partial(self.peers.runs.elsewhere, meant))):
            raise SequenceConflictError(
                f"session {session_id!r} has a run in flight; wait for its end or cancel it: "
                f"{runs[0]}."
            )

    def active(self, run_id: str) -> RunInfo | None:
        """Return what is known of a run in flight, also of one inside another."""
        run = register_of(self._memory).find(run_id)
        return None if run is None else run.info

    def active_in(self, session_id: str) -> RunInfo | None:
        """Return what is known of the run in flight in a session, also of one inside another."""
        run = register_of(self._memory).in_session(session_id)
        return None if run is None else run.info

    async def end(self, meant: StepFilter) -> bool:
        """Cancel the runs in flight of a filter's session, run and user; whether all have ended."""
        runs = [run for run in self._live.values() if _is_meant(run, meant)]
        for run in runs:
            await self.runner.cancel(run.run_id)
        if not await self._end_elsewhere(meant):
            return False
        late = asyncio.get_running_loop().time() + _LAST_WORDS_SECONDS
        for run in runs:
            while self.is_live(run.run_id):
                left = late - asyncio.get_running_loop().time()
                if left <= 0:
                    return False
                await asyncio.wait({run.change()}, timeout=left)
        return True

    async def _end_elsewhere(self, meant: StepFilter) -> bool:
        """Have other servers cancel the runs that a filter means; whether all have ended."""
        if self.peers is None:
            return True
        find = partial(self.peers.runs.elsewhere, meant)
        for run_id in await in_thread(find):
            await self.peers.cancel(run_id)
        for _ in range(_LAST_LOOKS):
            if not await in_thread(find):
                return True
            await asyncio.sleep(_LAST_WORDS_SECONDS / _LAST_LOOKS)
        return False

    def work(self) -> dict[str, Any]:
        """Return who works on the memory, and on what; may block."""
        if self.peers is not None:
            runs = self.peers.runs
            found = runs.processes(), runs.queues(), runs.in_flight()
        else:
            name = f"server-{socket.gethostname()}-{os.getpid()}"
            queue = Path(f"{self._memory.whole_address}.runs")
            live = [(r.run_id, r.session_id, r.user_id, name) for r in [*self._live.values()]]
            processes = [(name, socket.gethostname(), os.getpid(), 0.0)]
            found = processes, queues_of(queue), live
        return work_data(*found)

    def forget(self, meant: StepFilter) -> None:
        """Forget the events and keys of the runs over of a filter's session, run and user.

        What the store still has of them is read from there.
        """
        for run in [run for run in self._over.values() if _is_meant(run, meant)]:
            self._over_bytes -= self._over.pop(run.run_id).size

    async def follow_erasures(self) -> None:
        """Forget all runs over once something was erased since, by any process.

        Which of them it was of, only the store can tell, and from there they are read again.
        """
        found = await in_thread(self._count_erasures)
        if found != self._erasures:
            self._erasures = found
            self._over.clear()
            self._over_bytes = 0

    def _count_erasures(self) -> tuple[int, int]:
        """Return what is another after every erasure."""
        position = self._memory.repository().store.frontier().position
        return position.epoch, position.tombstone

    def check(self) -> None:
        """Refuse a run that would be one too many."""
        self._slots.check()

    async def start(
        self, events: AsyncIterator[StepEvent], user_id: str | None = None
    ) -> LiveRun | None:
        """Let a run go on by itself; return it once it has begun, None when there was nothing."""
        self.check()
        began: asyncio.Future[LiveRun | None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._in_its_place(events, user_id, began))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await began

    async def elsewhere(self, run_id: str) -> LiveRun | None:
        """Return a run that another server has in flight, or had, as it goes on."""
        return None if self.peers is None else await self.peers.follow(run_id)

    async def stored(self, run_id: str, after: int, *, message: Step | None = None) -> LiveRun:
        """Return a run that is over as its messages and its end, numbered after `after`.

        Given a `message` of it, a run that was cut off is not looked for.
        """
        events = await in_thread(lambda: events_from_store(self._memory, run_id, after, message))
        run = self._new_run(run_id, events[0].session_id)
        for event in events:
            run.publish(event)
        run.end()
        return run

    def without_steps(self, run_id: str) -> dict[str, Any]:
        """Return a run that has no AgentStep: cut off, or of a plain function; may block."""
        known, messages = self.find(run_id), left_behind(self._memory, run_id)
        if not messages and known is None:
            raise UnknownRunError(run_id)
        times = [message.created_at.isoformat() for message in messages]
        ended: Any = (messages[-1].metadata or {}).get("run") if messages else None
        stored: str = ended["status"] if ended else "interrupted"
        session_id = known.session_id if known else messages[0].session_id
        about = (run_id, session_id, None, 0, 0, "", min(times, default=""), max(times, default=""))
        run = RunSummary(*about, None, None, known.status if known else stored)
        return {"run": listed_run(run), "steps": [], "titles": {}, "metrics": {"steps": 0}}

    async def close(self) -> None:
        """Cancel what is in flight, keep what was said as partial, let all readers go."""
        self.cut_off += [run_id for run_id in self._live if run_id not in self.cut_off]
        for run_id in list(self._live):
            await self.runner.cancel(run_id)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_LAST_WORDS_SECONDS)
        if self.peers is not None:
            await self.peers.close()
            self.peers = None
        for run in list(self._live.values()):
            run.end()

    async def _in_its_place(
        self,
        events: AsyncIterator[StepEvent],
        user_id: str | None,
        began: asyncio.Future[LiveRun | None],
    ) -> None:
        try:
            async with self._slots.place(), self._place_of(user_id):
                await self._work(events, user_id, began)
        except (HTTPException, StorageError) as error:  # others took the last one meanwhile
            began.set_exception(error)

    @asynccontextmanager
    async def _place_of(self, user_id: str | None) -> AsyncGenerator[None]:
        """Hold one of a user's places, which all servers on a memory share."""
        if user_id is None or self._settings.max_user_runs is None:
            yield
            return
        place = await self._free_place(user_id, self._settings.max_user_runs)
        try:
            yield
        finally:
            self._places.discard(place)
            if self.peers is not None:
                try:
                    await in_thread(partial(self.peers.runs.let_go, place))
                except StorageError as error:  # it lapses with this server
                    log.warning("a place of user %s is not given back: %s", user_id, error)

    async def _free_place(self, user_id: str, most: int) -> str:
        for number in range(most):
            place = f"user:{user_id}:{number}"
            if place in self._places:
                continue
            self._places.add(place)
            try:
                if self.peers is None or await in_thread(partial(self.peers.runs.hold, place)):
                    return place
            except BaseException:
                self._places.discard(place)
                raise
            self._places.discard(place)
        self._metrics.refused.labels("user_runs").inc()
        detail = f"this user has {most:,} runs in flight, the most at a time; wait for one to end."
        raise HTTPException(429, detail, {"Retry-After": "5"})

    async def _work(
        self,
        events: AsyncIterator[StepEvent],
        user_id: str | None,
        began: asyncio.Future[LiveRun | None],
    ) -> None:
        run: LiveRun | None = None
        try:
            async for event in events:
                if run is None:
                    run = self._new_run(event.run_id, event.session_id)
                    active = self.active(run.run_id)
                    run.user_id = user_id or (active and active.user_id)
                    self._live[run.run_id] = run
                    began.set_result(run)
                await self._publish(run, event)
                self._metrics.event(event)
        except Exception as error:
            if run is None:
                began.set_exception(error)
                return
            log.exception("run %s broke off", run.run_id)
            await self._publish(run, _broken(run, error))
        finally:
            if run is not None:
                self._ended(run)
            elif not began.done():
                began.set_result(None)

    async def _publish(self, run: LiveRun, event: StepEvent) -> None:
        if self.peers is not None:
            await self.peers.note(run, event)
        run.publish(event)

    def _new_run(self, run_id: str, session_id: str | None) -> LiveRun:
        return LiveRun(run_id, session_id, self._settings.run_buffer_bytes)

    def _ended(self, run: LiveRun) -> None:
        run.end()
        del self._live[run.run_id]
        self._over[run.run_id] = run
        self._over_bytes += run.size
        while self._over_bytes > self._settings.kept_bytes:
            self._over_bytes -= self._over.popitem(last=False)[1].size


def _is_meant(run: LiveRun, meant: StepFilter) -> bool:
    """Whether a run is of a filter's session, run and user, as far as it names them."""
    return (
        meant.session_id in (None, run.session_id)
        and (meant.run_id is None or run.run_id in meant.runs)
        and (meant.user_id is None or run.user_id in meant.users)
    )


def _broken(run: LiveRun, error: Exception) -> StepEvent:
    about = {"type": type(error).__name__, "message": str(error)}
    return StepEvent(
        type=StepEventType.RUN_FAILED,
        run_id=run.run_id,
        number=run.last_number + 1,
        session_id=run.session_id,
        data={"status": "failed", "termination_reason": "error", "error": about},
    )


def events_from_store(
    memory: StepMemory, run_id: str, after: int, message: Step | None = None
) -> list[StepEvent]:
    """Return a run's messages and its end as events, numbered after `after`; may block."""
    from hybridagi_steps.running.stored_events import stored_events

    try:
        return stored_events(memory, run_id, after=after)
    except UnknownRunError:
        if messages := left_behind(memory, run_id) if message is None else [message]:
            return _cut_off(run_id, messages, after)
        raise


def left_behind(memory: StepMemory, run_id: str, user_id: str | None = None) -> list[Step]:
    """Return the messages of a run that stand at the end of a user's session; may block."""
    store = memory.repository().store
    for session in store.sessions(limit=_SESSIONS, user_id=user_id):
        first = max(1, session.messages - _MESSAGES + 1)
        last = store.messages(session.session_id, first, session.messages)
        if own := [step for step in last if step.run_id == run_id]:
            return own
    return []


def _cut_off(run_id: str, messages: list[Step], after: int) -> list[StepEvent]:
    events = [
        StepEvent(type=StepEventType.STEP_COMPLETED, run_id=run_id, step_id=step.id, snapshot=step)
        for step in messages
    ]
    if after == 0:
        events.insert(0, StepEvent(type=StepEventType.RUN_STARTED, run_id=run_id))
    how = {
        "status": "failed",
        "termination_reason": "interrupted",
        "last_sequence": messages[-1].sequence,
    }
    events.append(StepEvent(type=StepEventType.RUN_FAILED, run_id=run_id, data=how))
    for number, event in enumerate(events, after + 1):
        event.number, event.session_id = number, messages[0].session_id
    return events
