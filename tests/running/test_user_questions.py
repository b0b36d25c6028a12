"""What a run asks a person waits in the memory: any process answers, a killed one loses none."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import dspy
import pytest
from agent_programs import chain, say
from runner_cases import SyncAgent, messages, thought

pytest.importorskip("fastapi", reason="the server needs the extra `server`")

from server_cases import serving

from hybridagi_steps import AgentSession, StepMemory, StepRunner, UserQuestions, retry_from_sequence
from hybridagi_steps.errors import InvalidSettingError, SequenceConflictError, UnknownStepError
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.programs import Action
from hybridagi_steps.programs.tools import AskUser, Speak
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.running.pending_calls import UserQuestion
from hybridagi_steps.server.tokens import Caller, TokenScope
from hybridagi_steps.testing import ScriptedLM, request_text

SESSION = AgentSession("trip", "ann")


OWN = frozenset({TokenScope.READ, TokenScope.APPEND})


def model() -> ScriptedLM:
    """A model that asks once, then repeats what it heard."""

    def reply(request: Any) -> Any:
        text = request_text(request)
        if "next_tool_name" not in text:
            return {
                "reasoning": "r",
                "answer": "by train" if "by train" in str(request) else "unheard",
            }
        done = text.count("## observation_") + sum(m.role == "tool" for m in request.messages[-2:])
        return thought("enough", "finish") if done else thought("on", "ask_user", question="How?")

    return ScriptedLM(reply)


def runner(memory: StepMemory, *, in_thread: bool = False) -> StepRunner:
    """An agent that asks its user."""
    tools = [UserQuestions(memory).ask_user]
    agent: Any = SyncAgent(tools) if in_thread else dspy.ReAct("question -> answer", tools=tools)
    agent.set_lm(model())
    return StepRunner(agent, memory)


def answer_elsewhere(place: str, text: str = "by train") -> UserQuestion:
    """Do what another process does."""
    with StepMemory(place, embedder="hashing") as memory:
        questions = UserQuestions(memory)
        [asked] = questions.open(session_id="trip")
        with pytest.raises(UnknownStepError):
            questions.answer(asked.id, "by plane", user_id="bob")
        with pytest.raises(InvalidSettingError, match="a text"):
            questions.answer(asked.id, None)
        questions.answer(asked.id, text, user_id="ann")
        with pytest.raises(SequenceConflictError):
            questions.answer(asked.id, "by plane")
        assert questions.open() == []
        return asked


async def collect(events: Any) -> list[Any]:
    """Read a stream."""
    return [event async for event in events]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("place", ["file", pytest.param("postgres", marks=pytest.mark.slow)])
def test_a_question_is_answered_by_whoever_has_the_memory(
    tmp_path: Path, request: pytest.FixtureRequest, in_thread: bool, place: str
) -> None:
    server = place == "postgres"
    address = request.getfixturevalue("postgres_address") if server else str(tmp_path / "s.db")
    with StepMemory(address, embedder="hashing") as memory:
        running = runner(memory, in_thread=in_thread)
        events = asyncio.run(collect(running.run_stream(SESSION, "Book my trip")))
        assert events[-1].type == StepEventType.RUN_PAUSED
        asked = answer_elsewhere(address)
        [told] = [e.data for e in events if e.type == StepEventType.INPUT_REQUIRED]
        assert told == {"question_id": asked.id, "question": "How?"}
        assert (asked.text, asked.user_id) == ("How?", "ann")
        events = asyncio.run(collect(running.resume(SESSION)))
        assert events[-1].type == StepEventType.RUN_COMPLETED
        said = [step.content for step in messages(memory, "trip")]
        assert said[-2:] == ["by train", "by train"]
        # Neither is experience: no search finds them.
        assert all(hit.step.scope is None for hit in memory.search("by train"))


def wait_for_user(place: str) -> None:
    """What a process does that is gone while its user thinks."""
    with StepMemory(place, embedder="hashing") as memory:
        asyncio.run(runner(memory).run(SESSION, "Book my trip"))


def test_a_question_outlives_its_process(tmp_path: Path) -> None:
    place = str(tmp_path / "steps.db")
    child = multiprocessing.get_context("spawn").Process(target=wait_for_user, args=(place,))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    with StepMemory(place, embedder="hashing") as memory:
        questions = UserQuestions(memory)
        [asked] = questions.open()
        events = asyncio.run(collect(runner(memory).resume(SESSION)))
        assert events[-1].type == StepEventType.RUN_PAUSED  # nobody has answered
        assert questions.open() == [asked]
        answer_elsewhere(place)
        events = asyncio.run(collect(runner(memory).resume(SESSION)))
        assert events[-1].type == StepEventType.RUN_COMPLETED
        said = [step.content for step in messages(memory, "trip")]
        assert said[-2:] == ["by train", "by train"]
        assert said.count("Book my trip") == 1
        assert len(list(memory.iter_steps({"scope": "user_question"}))) == 2
        # Who makes the turn again is asked again.
        again = retry_from_sequence("trip", 1, memory.repository(), runner(memory))
        assert asyncio.run(collect(again))[-1].type == StepEventType.RUN_PAUSED
        assert answer_elsewhere(place).id != asked.id
        events = asyncio.run(collect(runner(memory).resume(SESSION)))
        assert events[-1].type == StepEventType.RUN_COMPLETED
        assert memory.purge({"user_id": "ann"})
        assert list(memory.iter_steps({"scope": "*"})) == []


@pytest.mark.parametrize("how", ["message", "retry"])
def test_a_question_that_was_passed_over_is_no_longer_open(tmp_path: Path, how: str) -> None:
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        questions, agent = UserQuestions(memory), runner(memory)
        asyncio.run(agent.run(SESSION, "Book my trip"))
        [first] = questions.open()
        if how == "retry":
            asyncio.run(collect(agent.retry("trip", 1)))
        else:
            asyncio.run(agent.run(SESSION, "Book another trip"))
        opened, waiting = questions.open(), asyncio.run(agent.pending("trip"))
        assert first.id not in [asked.id for asked in opened]
        assert [call.question_id for call in waiting] == [asked.id for asked in opened]
        with pytest.raises(SequenceConflictError, match="passed over"):
            questions.answer(first.id, "by train")
        for asked in opened:
            questions.answer(asked.id, "by train")
        assert questions.open() == []


def test_only_a_run_can_wait_for_its_user(memory: StepMemory) -> None:
    with pytest.raises(InvalidSettingError, match="StepRunner"):
        UserQuestions(memory).ask_user("nobody waits")


def test_a_node_of_a_graph_program_asks_so(tmp_path: Path) -> None:
    place = str(tmp_path / "steps.db")
    with StepMemory(place, embedder="hashing") as memory:
        asks = AskUser(UserQuestions(memory).ask_user)
        node = Action("ask", "AskUser", "Ask", "How?", disable_inference=True)
        running = StepRunner(GraphInterpreter(chain(node, say("Well.")), [asks, Speak()]), memory)
        assert asyncio.run(running.run(SESSION, "Book my trip")).status == "paused"
        assert answer_elsewhere(place).text == "How?"
        events = asyncio.run(collect(running.resume(SESSION)))
        assert events[-1].type == StepEventType.RUN_COMPLETED
        [heard] = memory.find({"tools": ["AskUser"], "status": "ok"}).steps
        assert heard.result == "by train"


def test_a_question_is_listed_and_answered_over_http(tmp_path: Path) -> None:
    callers = {f"token-of-the-user-{name}": Caller(OWN, name) for name in ("ann", "bob")}
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, runner(memory), callers) as served,
    ):

        def said(user: str, method: str, path: str, body: Any = None) -> Any:
            headers = {"Authorization": f"Bearer token-of-the-user-{user}"}
            return served.client.request(method, path, json=body, headers=headers)

        served.chat("trip", "Book", Authorization="Bearer token-of-the-user-ann")
        [asked] = said("ann", "GET", "/questions").json()["questions"]
        assert asked["text"] == "How?"
        assert said("bob", "GET", "/questions").json() == {"questions": []}
        path = f"/steps/{asked['id']}/answer"
        assert said("bob", "POST", path, {"text": "by plane"}).status_code == 403
        assert said("ann", "POST", path, {"text": 5}).status_code == 422
        assert said("ann", "POST", path, {"text": "by train"}).json() == {"answered": True}
        assert said("ann", "POST", path, {"text": "by train"}).status_code == 409
        assert said("ann", "POST", "/sessions/trip/resume").status_code == 200
        assert [step.content for step in messages(memory, "trip")][-1] == "by train"
