"""Runs survive a kill at any moment: what stands on disk is whole units, and can be taken up."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import dspy
import pytest
from provider_double import check_openai
from runner_cases import collected, messages, thought

from hybridagi_steps import Step, StepMemory, StepRunner
from hybridagi_steps.testing import ScriptedLM, request_text

QA = "question -> answer"
KILLS = int(os.environ.get("HYBRIDAGI_STEPS_KILLS", "6"))


def model() -> ScriptedLM:
    """A model that has two tools called in each turn, then answers."""

    def reply(request: Any) -> Any:
        text = request_text(request)
        done = sum(message.role == "tool" for message in request.messages[-4:])
        done += text.count("## observation_")
        if "next_tool_name" not in text:
            return {"reasoning": "r", "answer": "Paris"}
        return thought("on", "search", query="x") if done < 2 else thought("enough", "finish")

    return ScriptedLM(reply, delay_seconds=0.02)


def program() -> Any:
    """An agent with a slow tool."""

    async def search(query: str) -> str:
        """Search the corpus."""
        await asyncio.sleep(0.02)
        return f"result for {query}"

    return dspy.ReAct(QA, tools=[search], max_iters=4)


def work(path: str, ready: Event) -> None:
    """Take up what was cut off, then have one turn after the other until killed."""

    async def forever() -> None:
        with StepMemory(path, embedder="hashing") as memory, dspy.context(lm=model()):
            runner, turn = StepRunner(program(), memory), 0
            ready.set()
            if await memory.repository().get_step_count("chat"):
                await collected(runner.resume("chat"))
            while True:
                turn += 1
                await runner.run("chat", f"question {turn}")

    asyncio.run(forever())


def check_line(memory: StepMemory, line: list[Step]) -> None:
    """What holds at every moment: no gap, no doubled result, every link leads somewhere."""
    assert [step.sequence for step in line] == list(range(1, len(line) + 1))
    asked = [call["id"] for step in line for call in step.tool_calls or []]
    answered = [step.tool_call_id for step in line if step.is_tool_step()]
    assert len(set(asked)) == len(asked)
    assert answered == asked[: len(answered)]
    assert len(asked) - len(answered) <= 1
    linked = [step for step in line if step.is_tool_step() or not step.has_tool_calls()]
    ids = [str(step.agent_step_id) for step in linked if step.agent_step_id]
    assert [str(step.id) for step in memory.get(ids).steps] == ids
    for run_id in {step.run_id for step in line if step.run_id}:
        hops = [step.hop for step in memory.run(run_id).steps]
        assert hops == list(range(len(hops)))


@pytest.mark.slow
def test_a_worker_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path, context = str(tmp_path / "steps.db"), multiprocessing.get_context("spawn")
    before: list[Step] = []
    for _ in range(KILLS):
        ready = context.Event()
        worker = context.Process(target=work, args=(path, ready))
        worker.start()
        assert ready.wait(60)
        worker.join(random.uniform(0.1, 0.9))
        assert worker.is_alive()
        os.kill(worker.pid or 0, signal.SIGKILL)
        worker.join()
        with StepMemory(path, embedder="hashing") as memory:
            now = messages(memory, "chat")
            assert now[: len(before)] == before
            check_line(memory, now)
            before = now
    with StepMemory(path, embedder="hashing") as memory, dspy.context(lm=model()):
        asyncio.run(collected(StepRunner(program(), memory).resume("chat")))
        line = messages(memory, "chat")
        check_line(memory, line)
        assert len(line) > 2  # how many is a matter of how busy the machine is
        check_openai([step.to_message_dict() for step in line])
        asked = sum(step.is_user_step() for step in line)
        answers = [s for s in line if s.is_assistant_step() and not s.has_tool_calls()]
        assert len(answers) == asked
        assert all(answer.content == "Paris" for answer in answers)
        assert memory.verify() == []
