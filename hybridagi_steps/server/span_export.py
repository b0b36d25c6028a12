"""Sends runs that have ended to an OpenTelemetry collector, over OTLP/HTTP as JSON.

A hook of a runner. It only notes the run; a thread of its own reads the steps back and sends them,
so that no run waits for a collector, and a collector that is away loses spans and nothing else:
they stay in the memory, and `hybridagi-steps export --format otlp` writes them later.

Reference: OpenTelemetry Protocol 1.x, "OTLP/HTTP", JSON encoding.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_attempt,
    stop_any,
    stop_when_event_set,
    wait_exponential,
)

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.exchange.formats.otlp_export import request_lines
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.running.hooks import RunInfo

log = logging.getLogger("hybridagi_steps.server")

_MOST_WAITING = 1000
_ATTEMPTS, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 4, 0.2, 5.0
_WORTH_AGAIN = (429, 502, 503, 504)
"""Answers after which OTLP asks a sender to try once more."""


class SpanExport:
    """Exports each run that ends, as spans.

    Args:
        memory: Where the runs are stored.
        endpoint: Where traces go, such as `http://localhost:4318/v1/traces`.
        headers: Sent along, such as a key of the collector.
        timeout_seconds: How long one request may take.

    Example:
        `hs.StepRunner(program, memory, hooks=[SpanExport(memory, endpoint)])`
    """

    def __init__(
        self,
        memory: StepMemory,
        endpoint: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        if urlsplit(endpoint).scheme not in ("http", "https"):
            raise InvalidSettingError(
                f"traces go to a URL such as http://localhost:4318/v1/traces, not {endpoint!r}."
            )
        self._memory, self._endpoint = memory, endpoint
        self._client = httpx.Client(
            headers={**(headers or {}), "Content-Type": "application/json"},
            timeout=timeout_seconds,
        )
        self._waiting: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="span-export", daemon=True)
        self._thread.start()

    def on_run_end(self, run: RunInfo, status: str, data: dict[str, Any]) -> None:  # noqa: ARG002
        """Note that a run has ended."""
        try:
            self._waiting.put_nowait(run.run_id)
        except queue.Full:
            log.warning("spans of run %s are not exported: too many wait.", run.run_id)

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Send what waits, as long as the time allows, and end."""
        with contextlib.suppress(queue.Full):  # then it will find `_closing` set
            self._waiting.put_nowait(None)
        self._thread.join(timeout_seconds)
        self._closing.set()
        if self._thread.is_alive():
            log.warning(
                "spans are not exported: %s took nothing for %g s; `hybridagi-steps export "
                "--format otlp` writes them.",
                self._endpoint,
                timeout_seconds,
            )
        self._client.close()

    def _work(self) -> None:
        while (run_id := self._waiting.get()) is not None and not self._closing.is_set():
            try:
                for body in request_lines(self._memory.run_steps(run_id)):
                    self._send(body)
            except Exception as error:
                if not self._closing.is_set():
                    log.warning("spans of run %s could not be exported: %s", run_id, error)

    def _send(self, body: bytes) -> None:
        again = Retrying(
            retry=retry_if_exception(_worth_again),
            stop=stop_any(stop_after_attempt(_ATTEMPTS), stop_when_event_set(self._closing)),
            wait=wait_exponential(_FIRST_PAUSE_SECONDS, max=_LONGEST_PAUSE_SECONDS),
            sleep=sleep_using_event(self._closing),
            reraise=True,
        )
        again(lambda: self._client.post(self._endpoint, content=body).raise_for_status())


def _worth_again(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _WORTH_AGAIN
    return isinstance(error, httpx.TransportError)
