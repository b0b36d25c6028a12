"""What the routes share: one memory, its sessions, the runs in flight, and what is measured."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

from fastapi import Depends, Request

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import (
    NotAllowedError,
    RateLimitedError,
    UnknownSessionError,
    UnknownStepError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.server.metrics import ServerMetrics
from hybridagi_steps.server.run_hub import RunHub, left_behind
from hybridagi_steps.server.security import CALLER
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.slots import RequestRates, Slots
from hybridagi_steps.server.tokens import Caller
from hybridagi_steps.server.views import named
from hybridagi_steps.sessions.repository import SessionRepository

P = ParamSpec("P")
T = TypeVar("T")

Transcript = Sequence[tuple[str, Any]]
"""Role and content of each message, as the client has them."""


class End(NamedTuple):
    """Where a conversation ended."""

    session_id: str
    position: BranchPosition


class Conversations:
    """The ends of conversations of clients that send the whole history and name no session.

    Only keyed digests are kept, in this process alone: they tell nothing of what was said. Of more
    than so many the one that was written first goes first.
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


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes share."""

    memory: StepMemory
    repository: SessionRepository
    hub: RunHub
    work: Slots
    """Questions to the memory."""
    slots: Slots
    """Event streams."""
    metrics: ServerMetrics
    settings: ServerSettings
    has_program: bool
    rates: RequestRates = field(default_factory=RequestRates)
    """Where no other servers share them."""
    conversations: Conversations = field(default_factory=Conversations)
    """Those of OpenAI's clients."""

    def sessions_of(self, caller: Caller) -> SessionRepository:
        """Return the sessions that somebody may know."""
        if caller.only_user is None:
            return self.repository
        return self.memory.repository(user_id=caller.only_user)

    def check_run(self, caller: Caller, run_id: str) -> None:
        """Check that somebody may know a run, in flight or stored; may block."""
        if caller.only_user is not None and not self._is_known(caller, run_id):
            raise NotAllowedError(f"run {run_id!r} is another user's, or is not there.")

    def check_step(self, caller: Caller, step_id: str) -> None:
        """Check that somebody may know a step or message; may block."""
        if caller.only_user is not None:
            try:
                named(self.memory, step_id, {"user_id": caller.only_user})
            except UnknownStepError:
                refused = f"step {step_id!r} is another user's, or is not there."
                raise NotAllowedError(refused) from None

    def _is_known(self, caller: Caller, run_id: str) -> bool:
        """Whether a run is a user's, in memory as after a restart.

        One that is another's is looked for as long as one that is not there.
        """
        live, active, store = self.hub.find(run_id), self.hub.active(run_id), self.repository.store
        remote = self.hub.peers and self.hub.peers.runs.find(run_id)
        known = (each.user_id for each in (live, active, remote) if each is not None)
        named = next(filter(None, known), None)
        run = StepFilter(run_id=run_id, scope=EVERY_SCOPE)
        own = run.model_copy(update={"user_id": caller.only_user})
        steps, own_steps = len(store.rows(run)), len(store.rows(own))
        if named == caller.only_user or (named is None and 0 < steps == own_steps):
            return True
        messages = left_behind(self.memory, run_id, caller.only_user)
        found = live or active or next(iter(messages), None)
        others = {named, *(message.user_id for message in messages)} - {None, caller.only_user}
        if others or steps or found is None or found.session_id is None:
            return False
        return self.is_allowed(caller, found.session_id)

    def is_allowed(self, caller: Caller, session_id: str) -> bool:
        """Whether somebody may know a session; may block."""
        with suppress(NotAllowedError):
            self.sessions_of(caller).check_allowed(session_id)
            return True
        return False

    def is_there(self, session_id: str) -> bool:
        """Whether a session has begun; may block."""
        with suppress(UnknownSessionError):
            self.repository.store.session_owner(session_id)
            return True
        return False

    def check_new(self, caller: Caller, session_id: str) -> None:
        """Check that somebody may write to a session, or begin it; may block."""
        active = self.hub.active_in(session_id)
        own = active is None or active.user_id == caller.only_user
        # One that was erased while another's run goes on in it is not yet free.
        self.sessions_of(caller).check_allowed(session_id, new=own)

    async def check_rate(self, user_id: str | None) -> None:
        """Count a request of a user, and refuse it when there were too many."""
        most, peers = self.settings.requests_per_minute, self.hub.peers
        if user_id is None or most is None:
            return
        if peers is None:
            wait = self.rates.admit(user_id, most)
        else:
            wait = await in_thread(partial(peers.runs.admit, user_id, most))
        if wait is not None:
            self.metrics.refused.labels("requests").inc()
            raise RateLimitedError(most, max(1, math.ceil(wait)))

    async def asked(
        self, name: str, call: Callable[P, T], /, *args: P.args, **named: P.kwargs
    ) -> T:
        """Return what a blocking question to the store answers, timed under a name."""
        with self.metrics.queries.labels(name).time():
            return await in_thread(partial(call, *args, **named))


async def services_of(request: Request) -> Services:
    """Return the services of the app that a request came to."""
    services: Services = request.app.state.services
    return services


async def caller_of(request: Request) -> Caller:
    """Return who asks; routes without a token have nobody."""
    caller: Caller = request.scope[CALLER]
    return caller


async def check_path(request: Request) -> None:
    """Refuse a session, a run or a step in a request's path that is not the caller's."""
    caller: Caller | None = request.scope.get(CALLER)
    services, given = await services_of(request), request.path_params
    if "run_id" in given:
        await services.hub.follow_erasures()
    if caller is None or caller.only_user is None:
        return
    if (session_id := given.get("session_id")) is not None:
        await in_thread(partial(services.sessions_of(caller).check_allowed, session_id))
    if (run_id := given.get("run_id")) is not None:
        await in_thread(partial(services.check_run, caller, run_id))
    if (step_id := given.get("step_id")) is not None:
        await in_thread(partial(services.check_step, caller, step_id))


Shared = Annotated[Services, Depends(services_of)]
Who = Annotated[Caller, Depends(caller_of)]
