"""What the service measures of itself, for Prometheus: the six key figures of a step memory.

Step creation, context build time, retries, forks, storage growth and query latency. Each app has
a registry of its own, so that two of them in one process do not add up.
"""

from __future__ import annotations

import threading
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.running.streaming import FINAL_EVENTS

_PREFIX = "hybridagi_steps"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Counters and timings of one app; `memory_info` tells the namespace, to have figures by it."""

    def __init__(self, namespace: str = "default") -> None:
        self._registry = CollectorRegistry()
        served = Info("memory", "What is served.", namespace=_PREFIX, registry=self._registry)
        served.info({"namespace": namespace})
        self._counting, self._counted = threading.Lock(), False
        self._agent_steps = 0
        counter = partial(Counter, namespace=_PREFIX, registry=self._registry)
        gauge = partial(Gauge, namespace=_PREFIX, registry=self._registry)
        seconds = partial(Histogram, namespace=_PREFIX, registry=self._registry, buckets=_SECONDS)
        self._created = counter(
            "created", "Messages and AgentSteps stored by runs and calls of this server.", ["kind"]
        )
        self._runs = counter("runs", "Runs that have ended, by how.", ["status"])
        self.retries = counter("retries", "Messages answered once more.")
        self.forks = counter("forks", "Sessions forked.")
        self.refused = counter(
            "refused",
            "Requests refused because as many as may were in progress, by what they wanted, or "
            "because their user asked too often (`requests`).",
            ["kind"],
        )
        self.dropped = counter(
            "dropped", "Requests whose client left before their turn came.", ["kind"]
        )
        self.contexts = seconds(
            "context_build_seconds", "Time to build a context from stored messages."
        )
        self.queries = seconds(
            "query_seconds", "Time to answer a question to the store.", ["query"]
        )
        self._stored = gauge("stored", "What the memory holds.", ["kind"])
        self._bytes = gauge("storage_bytes", "Bytes of the memory on disk.")
        self._now = {
            "streams": gauge("streams", "Event streams being read."),
            "runs_in_flight": gauge("runs_in_flight", "Runs in flight."),
            "questions_in_flight": gauge(
                "questions_in_flight", "Questions to the memory being answered."
            ),
            "questions_waiting": gauge(
                "questions_waiting", "Questions to the memory that wait for their turn."
            ),
        }

    def event(self, event: StepEvent) -> None:
        """Take note of an event of a run."""
        if event.type is StepEventType.STEP_COMPLETED:
            self._created.labels("message").inc()
        elif event.type in FINAL_EVENTS:
            self._runs.labels(event.type.value.removeprefix("run_")).inc()

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
        return generate_latest(self._registry)

    def _count(self, memory: StepMemory) -> None:
        added = memory.added
        self._created.labels("agent_step").inc(added - self._agent_steps)
        self._agent_steps = added
        stats = memory.stats()
        for kind in ("steps", "runs", "messages", "sessions"):
            if isinstance(found := stats.get(kind), int):
                self._stored.labels(kind).set(found)
        if isinstance(size := stats.get("bytes"), int):
            self._bytes.set(size)
        self._counted = True
