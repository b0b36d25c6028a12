"""What the routes share: one memory, its sessions, the runs in flight, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import NotAllowedError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.server.metrics import ServerMetrics
from hybridagi_steps.server.openai_form import Conversations
from hybridagi_steps.server.run_hub import RunHub, left_behind
from hybridagi_steps.server.security import CALLER
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.slots import Slots
from hybridagi_steps.server.tokens import Caller
from hybridagi_steps.sessions.repository import SessionRepository

T = TypeVar("T")


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

    def _is_known(self, caller: Caller, run_id: str) -> bool:
        live, inside = self.hub.find(run_id), self.hub.sessions_in_flight()
        if live is not None and live.user_id == caller.only_user:
            return True
        session_id = live.session_id if live is not None else inside.get(run_id)
        if session_id is None and (steps := self.memory.run_steps(run_id)):
            return {step.user_id for step in steps} == {caller.only_user}
        if session_id is None:
            messages = left_behind(self.memory, run_id)
            session_id = messages[0].session_id if messages else None
        with suppress(NotAllowedError):
            if session_id is not None:
                self.sessions_of(caller).check_allowed(session_id)
                return True
        return False

    async def asked(self, name: str, call: Callable[[], T]) -> T:
        """Return what a blocking question to the store answers, timed under a name."""
        with self.metrics.queries.labels(name).time():
            return await in_thread(call)


async def services_of(request: Request) -> Services:
    """Return the services of the app that a request came to."""
    services: Services = request.app.state.services
    return services


async def caller_of(request: Request) -> Caller:
    """Return who asks; routes without a token have nobody."""
    caller: Caller = request.scope[CALLER]
    return caller


async def check_path(request: Request) -> None:
    """Refuse a session or a run in a request's path that is not the caller's."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None or caller.only_user is None:
        return
    services, named = await services_of(request), request.path_params
    if (session_id := named.get("session_id")) is not None:
        await in_thread(partial(services.sessions_of(caller).check_allowed, session_id))
    if (run_id := named.get("run_id")) is not None:
        await in_thread(partial(services.check_run, caller, run_id))


Shared = Annotated[Services, Depends(services_of)]
Who = Annotated[Caller, Depends(caller_of)]
