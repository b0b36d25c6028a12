"""One policy for a provider that refuses: so many requests a call, whoever makes the call."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.planning.executor import StepExecutor
from hybridagi_steps.planning.orchestrator import Orchestrator


class Provider(ThreadingHTTPServer):
    """A provider on this machine that refuses its first requests, and counts them all."""

    def __init__(self, status: int = 429, refusals: int = 1_000) -> None:
        self.status, self.refusals, self.asked = status, refusals, 0
        self._counting = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Answer)

    def count(self) -> int:
        with self._counting:
            self.asked += 1
            return self.asked

    def lm(self, **settings: Any) -> dspy.LM:
        base = f"http://127.0.0.1:{self.server_address[1]}/v1"
        return dspy.LM("openai/gpt-4o", api_base=base, api_key="none", cache=False, **settings)


class _Answer(BaseHTTPRequestHandler):
    server: Provider  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        asked = self.server.count()
        self.rfile.read(int(self.headers["Content-Length"]))
        if asked <= self.server.refusals:
            refusal = {"error": {"message": "slow down", "type": "limit"}}
            self._send(self.server.status, json.dumps(refusal), "application/json")
            return
        told = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
        said = {"role": "assistant", "content": "[[ ## answer ## ]]\nParis"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        pieces = [
            {**told, "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
            {**told, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**told, "choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
        self._send(200, "".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")

    def _send(self, status: int, body: str, kind: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the library
        """Say nothing."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    with hs.StepMemory(":memory:") as memory:
        yield memory


def chat(program: Any, memory: hs.StepMemory, lm: dspy.LM | None = None, **limits: Any) -> Any:
    """Return the events of one message."""
    runner = hs.StepRunner(program, memory, config=hs.StepRunnerConfig(**limits))

    async def collect() -> list[Any]:
        with dspy.context(lm=lm):
            return [event async for event in runner.run_stream("chat", "Capital of France?")]

    return anyio.run(collect)


@pytest.mark.parametrize("max_retries", [0, 2])
def test_a_session_asks_a_provider_so_often_again(
    provider: Provider, memory: hs.StepMemory, max_retries: int
) -> None:
    lm = provider.lm()
    events = chat(dspy.Predict("question -> answer"), memory, lm, max_retries=max_retries)
    assert provider.asked == max_retries + 1
    assert events[-1].type is hs.StepEventType.RUN_FAILED
    assert lm.num_retries == 3, "the user's own client was changed"


def test_a_predictor_with_a_client_of_its_own_asks_no_oftener(
    provider: Provider, memory: hs.StepMemory
) -> None:
    program = dspy.ChainOfThought("question -> answer")
    program.set_lm(provider.lm(num_retries=7))
    chat(program, memory, max_retries=1)
    assert provider.asked == 2


def test_a_function_that_asks_the_client_asks_no_oftener(
    provider: Provider, memory: hs.StepMemory
) -> None:
    async def program(messages: list[dict[str, Any]]) -> str:
        return str((await dspy.settings.lm.acall("Hello"))[0])

    chat(program, memory, provider.lm(), max_retries=2)
    assert provider.asked == 3


def test_what_works_the_third_time_is_answered(provider: Provider, memory: hs.StepMemory) -> None:
    provider.refusals = 2
    lm = provider.lm()
    events = chat(dspy.Predict("question -> answer"), memory, lm)
    assert events[-1].type is hs.StepEventType.RUN_COMPLETED
    assert provider.asked == 3
    assert len(lm.history) == 1, "the user's client does not know what it was asked"


STEPS = "PLAN: p\nSTEP: one\nTYPE: analyze\nGOAL: g\nSTEP: two\nGOAL: g\nDEPENDENCIES: one\n"


@pytest.mark.parametrize("own_client", [True, False])
@pytest.mark.parametrize("max_retries", [0, 2])
def test_a_plan_asks_a_provider_so_often_again(
    provider: Provider, max_retries: int, own_client: bool
) -> None:
    executor, lm = StepExecutor(), provider.lm()
    if own_client:
        executor.work.set_lm(lm)
    with dspy.context(lm=None if own_client else lm):
        made = Orchestrator(executor=executor, max_retries=max_retries).run(plan=STEPS)
    assert provider.asked == max_retries + 1
    assert made.step("one").attempts == 1
    assert "slow down" in str(made.step("one").error)


def test_a_plan_that_has_to_be_made_asks_so_often_again(provider: Provider) -> None:
    made = Orchestrator(lm=provider.lm(), max_retries=1).run("Count the books.")
    assert provider.asked == 2
    assert not made.success


def test_a_refused_key_is_not_tried_again(provider: Provider) -> None:
    provider.status = 401
    Orchestrator(lm=provider.lm()).run(plan=STEPS)
    assert provider.asked == 1


def test_a_plan_in_a_queue_asks_so_often_again(provider: Provider, tmp_path: Path) -> None:
    pytest.importorskip("dbos", reason="needs the extra `durable`")
    from hybridagi_steps.durable.plan_steps import DurableQueue

    with DurableQueue(tmp_path / "queue.db") as queue:
        Orchestrator(lm=provider.lm(), max_retries=1, durable=queue).run(plan=STEPS, key="k")
    assert provider.asked == 2
