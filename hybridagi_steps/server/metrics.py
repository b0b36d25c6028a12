"""What the service measures of itself, for Prometheus: the six key figures of a step memory.

Step creation, context build time, retries, forks, storage growth and query latency. Each app has
a registry of its own, so that two of them in one process do not add up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.running.streaming import FINAL_EVENTS

_PREFIX = "hybridagi_steps"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Counters and timings of one app."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._counting, self._counted = threading.Lock(), False
        self._created = Counter(
            f"{_PREFIX}_created",
            "Messages and AgentSteps stored by runs and calls of this server.",
            ["kind"],
            registry=registry,
        )
        self._runs = Counter(
            f"{_PREFIX}_runs", "Runs that have ended, by how.", ["status"], registry=registry
        )
        self.retries = Counter(
            f"{_PREFIX}_retries", "Messages answered once more.", registry=registry
        )
        self.forks = Counter(f"{_PREFIX}_forks", "Sessions forked.", registry=registry)
        self.refused = Counter(
            f"{_PREFIX}_refused",
            "Requests refused because as many as may were in progress, by what they wanted.",
            ["kind"],
            registry=registry,
        )
        self.dropped = Counter(
            f"{_PREFIX}_dropped",
            "Requests whose client left before their turn came.",
            ["kind"],
            registry=registry,
        )
        self._context = Histogram(
            f"{_PREFIX}_context_build_seconds",
            "Time to build a context from stored messages.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._query = Histogram(
            f"{_PREFIX}_query_seconds",
            "Time to answer a question to the store.",
            ["query"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._stored = Gauge(
            f"{_PREFIX}_stored", "What the memory holds.", ["kind"], registry=registry
        )
        self._bytes = Gauge(
            f"{_PREFIX}_storage_bytes", "Bytes of the memory on disk.", registry=registry
        )
        self._now = {
            name: Gauge(f"{_PREFIX}_{name}", about, registry=registry)
            for name, about in (
                ("streams", "Event streams being read."),
                ("runs_in_flight", "Runs in flight."),
                ("questions_in_flight", "Questions to the memory being answered."),
                ("questions_waiting", "Questions to the memory that wait for their turn."),
            )
        }

    def event(self, event: StepEvent) -> None:
        """Take note of an event of a run."""
        if event.type is StepEventType.STEP_COMPLETED:
            self._created.labels("message").inc()
        elif event.type in FINAL_EVENTS:
            self._runs.labels(event.type.value.removeprefix("run_")).inc()

    def agent_steps(self, count: int) -> None:
        """Take note of AgentSteps that were stored."""
        self._created.labels("agent_step").inc(count)

    @contextmanager
    def context_built(self) -> Generator[None]:
        """Time the building of a context."""
        with self._context.time():
            yield

    @contextmanager
    def query(self, name: str) -> Generator[None]:
        """Time a question to the store."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._query.labels(name).observe(time.perf_counter() - began)

    def text(self, memory: StepMemory, **now: int) -> bytes:
        """Return everything in Prometheus's text form, with what goes on `now`; may block."""
        # It counts all that is stored: one at a time does, the others show what it found before.
        if self._counting.acquire(blocking=not self._counted):
            try:
                self._count(memory)
            finally:
                self._counting.release()
        for name, count in now.items():
            self._now[name].set(count)
        return generate_latest(self.registry)

    def _count(self, memory: StepMemory) -> None:
        stats = memory.stats()
        for kind in ("steps", "runs", "messages", "sessions"):
            if isinstance(found := stats.get(kind), int):
                self._stored.labels(kind).set(found)
        if isinstance(size := stats.get("bytes"), int):
            self._bytes.set(size)
        self._counted = True
