"""Runs that end go to a collector as OTLP spans; a collector that is away harms no run."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the export needs the extra `otel`")

from hybridagi_steps import StepMemory, StepRunner
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.server.span_export import SpanExport


class Collector(HTTPServer):
    """Keeps what it is sent; answers with each status in turn, the last one for good."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.statuses = [200]

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class Handler(BaseHTTPRequestHandler):
    """One request of a collector."""

    @property
    def collector(self) -> Collector:
        """The server."""
        assert isinstance(self.server, Collector)
        return self.server

    def do_POST(self) -> None:
        """Take spans."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.collector.got.append((self.path, dict(self.headers.items()), json.loads(body)))
        statuses = self.collector.statuses
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that listens."""
    made = Collector()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


async def answering(messages: list[dict[str, Any]]) -> str:
    """Answer."""
    return "yes"


def run(memory: StepMemory, export: SpanExport) -> Any:
    """One run with the export as its hook."""
    runner = StepRunner(answering, memory, hooks=[export])
    result = asyncio.run(runner.run("talk", "Is it?"))
    export.close()
    return result


def test_a_run_arrives_as_spans_of_one_trace(memory: StepMemory, collector: Collector) -> None:
    export = SpanExport(memory, collector.endpoint, headers={"x-key": "k"})
    run(memory, export)
    ((path, headers, body),) = collector.got
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert path == "/v1/traces"
    assert {name.lower(): value for name, value in headers.items()}["x-key"] == "k"
    assert len(spans) >= 1
    assert len({span["traceId"] for span in spans}) == 1
    assert len({span["spanId"] for span in spans}) == len(spans)
    assert all(int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) for span in spans)


def test_the_span_of_a_run_says_what_its_user_said(
    memory: StepMemory, collector: Collector
) -> None:
    run(memory, SpanExport(memory, collector.endpoint))
    ((_, _, body),) = collector.got
    first = body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    said = {each["key"]: each["value"] for each in first["attributes"]}
    assert first["name"] == "invoke_agent answering"
    (message,) = json.loads(said["gen_ai.input.messages"]["stringValue"])
    assert (message["role"], message["parts"][0]["content"]) == ("user", "Is it?")


def test_what_a_collector_cannot_take_now_is_sent_again(
    memory: StepMemory, collector: Collector
) -> None:
    collector.statuses = [503, 429, 200]
    run(memory, SpanExport(memory, collector.endpoint))
    assert len(collector.got) == 3
    assert collector.got[0][2] == collector.got[2][2]


def test_what_a_collector_refuses_is_told_and_harms_no_run(
    memory: StepMemory, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.statuses = [400]
    with caplog.at_level(logging.WARNING):
        result = run(memory, SpanExport(memory, collector.endpoint))
    assert (result.status, result.text) == ("completed", "yes")
    assert len(collector.got) == 1
    assert f"spans of run {result.run_id} could not be exported" in caplog.text


@pytest.mark.parametrize("how", ["away", "silent"])
def test_a_collector_that_is_away_holds_up_no_end(
    memory: StepMemory, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # it accepts, and says nothing
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces"
        if how == "away":
            listening.close()
        export = SpanExport(memory, endpoint)
        runner = StepRunner(answering, memory, hooks=[export])
        for number in range(3):
            asyncio.run(runner.run(f"talk-{number}", "Is it?"))
        with caplog.at_level(logging.WARNING):
            export.close()
    assert "export --format otlp" in caplog.text, "given up while it was still being tried"


def test_an_address_that_is_none_is_refused(memory: StepMemory) -> None:
    with pytest.raises(InvalidSettingError, match="v1/traces"):
        SpanExport(memory, "localhost:4318")
