"""What the routes share: one memory, its sessions, the runs in flight, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.server.metrics import ServerMetrics
from hybridagi_steps.server.run_hub import RunHub
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.slots import Slots
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

    async def asked(self, name: str, call: Callable[[], T]) -> T:
        """Return what a blocking question to the store answers, timed under a name."""
        with self.metrics.queries.labels(name).time():
            return await in_thread(call)


async def services_of(request: Request) -> Services:
    """Return the services of the app that a request came to."""
    services: Services = request.app.state.services
    return services


Shared = Annotated[Services, Depends(services_of)]
