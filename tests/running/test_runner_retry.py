"""Retry, edit, fork and resume: nothing is lost, nothing is stored twice."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from provider_double import check_openai
from runner_cases import (
    SEARCHES,
    answering,
    check_stream,
    collected,
    kinds,
    messages,
    run,
    said,
    search,
    snapshots,
    thought,
)

from hybridagi_steps import AgentStep, AgentStepType, RunHook, StepEventType, StepMemory
from hybridagi_steps.errors import (
    InvalidSettingError,
    MessageError,
    SequenceConflictError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.messages.agent_steps import INTERRUPTED
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.tool_calls import idempotent
from hybridagi_steps.sessions.repository import fork_session
from hybridagi_steps.sessions.session_handle import edit_from_sequence, retry_from_sequence
from hybridagi_steps.testing import ScriptedLM, asked_fields

QA = "question -> answer"


def stream(events: AsyncIterator[Any], lm: Any) -> Any:
    """All events of a stream that was made before its loop."""

    async def all_of_them() -> Any:
        with dspy.context(lm=lm):
            return await collected(events)

    return asyncio.run(all_of_them())


def test_a_retry_replaces_the_answer_and_keeps_the_old_one(memory: StepMemory) -> None:
    repo, runner = memory.repository(), StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Capital?", answering("Lyon"))
    run(runner, "chat", "Sure?", answering("Yes"))
    events = stream(retry_from_sequence("chat", 1, repo, runner), answering("Paris"))
    check_stream(memory, events)
    assert said(memory, "chat") == [("user", "Capital?"), ("assistant", "Paris")]
    attempts = asyncio.run(repo.attempts("chat"))
    assert [(a.reason, a.forked_at, a.current) for a in attempts] == [
        ("start", 0, False),
        ("retry", 1, True),
    ]
    old = memory.repository().store.messages("chat", branch_id=attempts[0].branch_id)
    assert [step.content for step in old] == ["Capital?", "Lyon", "Sure?", "Yes"]


def test_a_failed_retry_leaves_the_old_answer(memory: StepMemory) -> None:
    repo, runner = memory.repository(), StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Capital?", answering("Paris"))
    before = messages(memory, "chat")
    failing = ScriptedLM([ValueError("no")])
    events = stream(retry_from_sequence("chat", 1, repo, runner), failing)
    assert events[-1].type is StepEventType.RUN_FAILED
    assert messages(memory, "chat") == before
    assert [a.current for a in asyncio.run(repo.attempts("chat"))] == [True, False]


def test_a_hundred_retries_of_one_message(memory: StepMemory) -> None:
    repo, runner = memory.repository(), StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Capital?", answering("0"))
    for n in range(1, 101):
        stream(retry_from_sequence("chat", 1, repo, runner), answering(str(n)))
    assert said(memory, "chat") == [("user", "Capital?"), ("assistant", "100")]
    assert len(asyncio.run(repo.attempts("chat"))) == 101


@pytest.mark.parametrize(
    ("session", "sequence", "error", "text"),
    [
        ("nowhere", 1, UnknownSessionError, "nowhere"),
        ("chat", 9, UnknownSequenceError, "no 9"),
        ("chat", 1, MessageError, "of role system"),
        ("chat", 2, MessageError, "assistant.*there is none"),
    ],
)
def test_a_retry_of_something_else_is_refused(
    memory: StepMemory, session: str, sequence: int, error: Any, text: str
) -> None:
    repo, runner = memory.repository(), StepRunner(dspy.Predict(QA), memory)
    said = [{"role": "system", "content": "Be kind."}, {"role": "assistant", "content": "Hello"}]
    asyncio.run(repo.append("chat", said))
    with pytest.raises(error, match=text):
        stream(retry_from_sequence(session, sequence, repo, runner), answering("x"))
    assert len(asyncio.run(repo.attempts("chat"))) == 1


@pytest.mark.parametrize(("sequence", "kept"), [(5, 5), (6, 5), (7, 5), (8, 7)])
def test_an_answer_or_a_tools_result_is_made_again(
    memory: StepMemory, sequence: int, kept: int
) -> None:
    times: list[int] = []

    def clock() -> str:
        """Tell the time."""
        times.append(1)
        return f"{len(times)} o'clock"

    def act(request: Any) -> Any:
        asked = asked_fields(request)
        if "next_tool_name" not in asked:
            return {"reasoning": "Seen.", "answer": f"after {len(times)}"}
        seen = "o'clock" in str(request.messages[-1].text)
        name = "finish" if seen else "clock"
        return {"next_thought": "Look.", "next_tool_name": name, "next_tool_args": {}}

    repo, runner = memory.repository(), StepRunner(dspy.ReAct(QA, tools=[clock]), memory)
    for _ in range(2):
        run(runner, "chat", "What time is it?", ScriptedLM(act))
    assert [each.role.value for each in asyncio.run(repo.get_steps("chat"))][4:] == [
        *("user", "assistant", "tool", "assistant")
    ]
    before = asyncio.run(repo.get_steps("chat"))
    events = stream(retry_from_sequence("chat", sequence, repo, runner), ScriptedLM(act))
    assert events[0].data["kept"] == kept
    after = asyncio.run(repo.get_steps("chat"))
    assert [each.id for each in after[:kept]] == [each.id for each in before[:kept]]
    assert {each.id for each in after[kept:]}.isdisjoint(each.id for each in before)
    assert after[-1].role == "assistant"
    if kept == 5:
        assert len(times) == 3, "what was called is called again"


def test_a_message_is_edited_and_answered_anew(memory: StepMemory) -> None:
    repo, runner = memory.repository(), StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Capital of France?", answering("Paris"))
    run(runner, "chat", "And its river?", answering("Seine"))
    lm = answering("Rhone")
    events = stream(edit_from_sequence("chat", 3, "And of Lyon?", repo, runner), lm)
    check_stream(memory, events)
    assert said(memory, "chat")[2:] == [("user", "And of Lyon?"), ("assistant", "Rhone")]
    assert [message.text for message in lm.requests[0].messages][:2] == [
        "Capital of France?",
        "Paris",
    ]
    first = stream(edit_from_sequence("chat", 1, "Hello?", repo, runner), answering("Hi"))
    check_stream(memory, first)
    assert said(memory, "chat") == [("user", "Hello?"), ("assistant", "Hi")]


def test_the_steps_of_a_replaced_answer_are_not_recalled(memory: StepMemory) -> None:
    repo, runner = memory.repository(), StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Capital?", answering("Lyonnaise"))
    stream(retry_from_sequence("chat", 1, repo, runner), answering("Parisian"))
    found = memory.search("Lyonnaise Parisian answer", k=10, mode="lexical")
    texts = str([hit.step.outputs for hit in found])
    assert "Parisian" in texts
    assert "Lyonnaise" not in texts


def test_the_patterns_of_the_guide_work_as_written(memory: StepMemory) -> None:
    """Multi-turn, regenerate and branch, word for word but for the imports."""
    repo, hooks, agent = memory.repository(), [], dspy.Predict(QA)
    session, seen = "session_456", []

    def print_event(event: Any) -> None:
        seen.append(event)

    async def multi_turn() -> None:
        runner = StepRunner(agent, hooks, repository=repo)
        async for _event in runner.run_stream(session, "Hello"):
            pass
        async for _event in runner.run_stream(session, "Tell me more"):
            pass

    async def regenerate() -> None:
        runner, session_id = StepRunner(agent, hooks, repository=repo), session
        steps = await repo.get_steps(session_id)
        last_assistant = next(s for s in reversed(steps) if s.is_assistant_step())
        await repo.delete_steps(session_id, start_seq=last_assistant.sequence)
        last_step = await repo.get_last_step(session_id)
        assert last_step is not None
        async for event in runner.resume_from_user_step(session_id, last_step):
            print_event(event)

    async def branch() -> str:
        runner, session_id = StepRunner(agent=agent, hooks=[], repository=repo), session
        new_session_id = await fork_session(session_id, 2, repo)
        async for _event in runner.run_stream(session_id, "Path A"):
            pass
        async for _event in runner.run_stream(new_session_id, "Path B"):
            pass
        return new_session_id

    with dspy.context(lm=answering("Hi", "More", "Much more", "A", "B")):
        asyncio.run(multi_turn())
        texts = [text for _, text in said(memory, session)]
        assert texts == ["Hello", "Hi", "Tell me more", "More"]
        asyncio.run(regenerate())
        check_stream(memory, seen)
        fork = asyncio.run(branch())
    texts = [text for _, text in said(memory, session)]
    assert texts == ["Hello", "Hi", "Tell me more", "Much more", "Path A", "A"]
    assert [text for _, text in said(memory, fork)] == ["Hello", "Hi", "Path B", "B"]


def test_resuming_somewhere_else_than_the_end_is_refused(memory: StepMemory) -> None:
    runner = StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Hello", answering("Hi"))
    first = messages(memory, "chat")[0]
    with pytest.raises(SequenceConflictError, match="ends at 2"):
        stream(runner.resume_from_user_step("chat", first), answering("x"))
    with pytest.raises(UnknownSessionError):
        stream(runner.resume_from_user_step("nowhere", first), answering("x"))
    with pytest.raises(UnknownSessionError):
        stream(runner.resume("nowhere"), answering("x"))
    assert stream(runner.resume("chat"), answering("x")) == []


def test_an_answer_is_not_answered(memory: StepMemory) -> None:
    runner = StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Hello", answering("Hi"))
    before = messages(memory, "chat")
    with pytest.raises(MessageError, match="message 2 of session 'chat' is an answer"):
        stream(runner.resume_from_user_step("chat", before[-1]), answering("x"))
    with pytest.raises(InvalidSettingError, match="a Step, not None"):
        stream(runner.resume_from_user_step("chat", None), answering("x"))
    assert messages(memory, "chat") == before


@pytest.mark.parametrize("tool_runs", [True, False])
def test_of_two_workers_that_close_one_call_the_later_says_so_once(
    tmp_path: Path, tool_runs: bool
) -> None:
    path = tmp_path / "steps.db"
    step_id = str(AgentStep(step_type=AgentStepType.Action).id)
    call = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    pending = [
        {"role": "user", "content": "Pay"},
        {"role": "assistant", "tool_calls": [call], "metadata": {"agent_step_ids": [step_id]}},
    ]
    with StepMemory(path, embedder="hashing") as one, StepMemory(path, embedder="hashing") as two:
        asyncio.run(one.repository().append("chat", pending))

        async def pay() -> str:
            """Let another worker close the call first."""
            await collected(StepRunner(answers, two).resume("chat"))
            return "paid"

        async def answers(given: list[dict[str, Any]]) -> str:
            return "done"

        class Slow(RunHook):
            async def on_run_start(self, run: Any) -> None:
                """Let another worker take the turn up first."""
                if not tool_runs:
                    await collected(StepRunner(answers, two).resume("chat"))

        tools = [idempotent(pay)] if tool_runs else []
        runner = StepRunner(answers, one, hooks=[Slow()], tools=tools)
        events = stream(runner.resume("chat"), None)
        errors = [event.data or {} for event in events if event.type is StepEventType.ERROR]
        assert [error["type"] for error in errors] == ["SequenceConflictError"]
        assert said(one, "chat")[2:] == [("tool", INTERRUPTED), ("assistant", "done")]
        [told] = one.get(step_id).steps
        assert told.status == "cancelled"


def _worker(path: str, tools: str) -> None:
    """Answer with a tool that kills the process in its second call."""
    done: list[str] = []

    def search(query: str) -> str:
        """Search the corpus."""
        if query == "deadly":
            os._exit(9)
        done.append(query)
        return f"result for {query}"

    lm = ScriptedLM(
        [thought("first", "search", query="x"), thought("second", "search", query="deadly")]
    )
    with StepMemory(path, embedder="hashing") as memory:
        run(StepRunner(dspy.ReAct(QA, tools=[search]), memory), "chat", "Capital?", lm)


@pytest.mark.parametrize("again", [True, False])
def test_a_turn_cut_off_by_a_crash_is_closed_and_answered(tmp_path: Path, again: bool) -> None:
    path, calls = tmp_path / "steps.db", []
    process = multiprocessing.get_context("spawn").Process(target=_worker, args=(str(path), ""))
    process.start()
    process.join(60)
    assert process.exitcode == 9

    def search(query: str) -> str:
        """Search the corpus."""
        calls.append(query)
        return f"late result for {query}"

    tool = idempotent(search) if again else search
    with StepMemory(path, embedder="hashing") as memory:
        left = messages(memory, "chat")
        assert [step.role.value for step in left] == ["user", "assistant", "tool", "assistant"]
        lm = ScriptedLM(SEARCHES[1:])
        runner = StepRunner(dspy.ReAct(QA, tools=[tool]), memory)
        events = stream(runner.resume("chat"), lm)
        check_stream(memory, events)
        now = messages(memory, "chat")
        assert now[:4] == left
        assert [step.role.value for step in now[4:]] == ["tool", "assistant"]
        assert now[4].tool_call_id == (left[3].tool_calls or [{}])[0]["id"]
        assert now[4].content == ("late result for deadly" if again else INTERRUPTED)
        assert calls == (["deadly"] if again else [])
        assert memory.exist(str(now[4].agent_step_id))
        assert now[4].agent_step_id == left[3].agent_step_id
        asked = lm.requests[0].messages
        roles = [message.role for message in asked]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "user"]
        assert asked[0].text == "Capital?"
        assert str(asked[-1].text).startswith("Go on from here.")
        assert stream(runner.resume("chat"), lm) == []


class Heard:
    """A hook that keeps what models are asked."""

    def __init__(self) -> None:
        self.prompts: list[list[dict[str, Any]]] = []

    def on_model_start(self, run: Any, messages: list[dict[str, Any]]) -> None:
        """Keep it."""
        self.prompts.append(messages)


def order(prompt: list[dict[str, Any]], *words: str) -> list[str]:
    """These words in the order in which a prompt says them."""
    text = "\n".join(str(message["content"]) for message in prompt if message["role"] != "system")
    places = {word: text.find(word) for word in words}
    return sorted((word for word in words if places[word] >= 0), key=places.__getitem__)


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter])
def test_a_resumed_agent_is_shown_what_it_does_after_what_was_done(
    memory: StepMemory, adapter: Any
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Before?"},
        {"role": "assistant", "content": "An earlier answer."},
        {"role": "user", "content": "Capital?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "old result", "tool_call_id": "call_1"},
    ]
    asyncio.run(memory.repository().append("chat", turns))
    heard = Heard()
    runner = StepRunner(dspy.ReAct(QA, tools=[search]), memory, hooks=[heard])
    with dspy.context(adapter=adapter()):
        events = stream(runner.resume("chat"), ScriptedLM(SEARCHES))
    assert kinds(events)[-1] == "run_completed"
    words = ("earlier", "Capital?", "old result", "Go on from here.", "result for x")
    assert [order(prompt, *words) for prompt in heard.prompts] == [
        list(words[:-1]),
        list(words),
        list(words),
    ]
    for prompt in heard.prompts:
        check_openai(prompt)
        assert prompt[-1]["role"] == "user"


def test_an_agent_with_a_history_hears_earlier_turns_first(memory: StepMemory) -> None:
    turn = [{"role": "user", "content": "Before?"}, {"role": "assistant", "content": "Yes."}]
    asyncio.run(memory.repository().append("chat", turn))
    calls = (
        [{"name": "search", "args": {"query": "x"}}],
        [{"name": "submit", "args": {"answer": "P"}}],
    )
    lm = ScriptedLM([{"next_thought": "t", "tool_calls": {"tool_calls": call}} for call in calls])
    heard = Heard()
    runner = StepRunner(dspy.ReActV2(QA, tools=[search]), memory, hooks=[heard])
    assert kinds(run(runner, "chat", "Capital?", lm))[-1] == "run_completed"
    words = ("Before?", "Yes.", "Capital?", "result for x")
    assert order(heard.prompts[1], *words) == list(words)


def test_a_new_message_closes_a_turn_that_was_cut_off(memory: StepMemory) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    pending = [
        {"role": "user", "content": "Pay"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    asyncio.run(memory.repository().append("chat", pending))
    lm = answering("Hi")
    events = run(StepRunner(dspy.Predict(QA), memory), "chat", "Hello?", lm)
    check_stream(memory, events)
    assert said(memory, "chat")[2:] == [
        ("tool", INTERRUPTED),
        ("user", "Hello?"),
        ("assistant", "Hi"),
    ]
    roles = [message.role for message in lm.requests[0].messages]
    assert roles == ["user", "assistant", "tool", "user"]


def test_a_message_without_an_answer_is_resumed(memory: StepMemory) -> None:
    repo = memory.repository()
    asyncio.run(repo.append("chat", [{"role": "user", "content": "Hello"}]))
    runner = StepRunner(dspy.Predict(QA), memory)
    events = stream(runner.resume("chat"), answering("Hi"))
    assert kinds(events) == ["run_started", "step_completed", "run_completed"]
    assert said(memory, "chat") == [("user", "Hello"), ("assistant", "Hi")]


def test_two_workers_cannot_resume_one_turn(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    with StepMemory(path, embedder="hashing") as one, StepMemory(path, embedder="hashing") as two:
        asyncio.run(one.repository().append("chat", [{"role": "user", "content": "Hello"}]))

        async def program(messages: list[dict[str, Any]]) -> str:
            await asyncio.sleep(0.05)
            return "Hi"

        async def both() -> Any:
            runners = (StepRunner(program, memory) for memory in (one, two))
            streams = (collected(runner.resume("chat")) for runner in runners)
            return await asyncio.gather(*streams)

        streams = asyncio.run(both())
        assert sorted(events[-1].type.value for events in streams) == [
            "run_completed",
            "run_failed",
        ]
        errors = [
            event.data for events in streams for event in events if event.type.value == "error"
        ]
        assert [(error or {})["type"] for error in errors] == ["SequenceConflictError"]
        assert said(one, "chat") == [("user", "Hello"), ("assistant", "Hi")]


def test_a_callable_is_resumed_with_what_was_done(memory: StepMemory) -> None:
    heard: list[Any] = []

    def program(given: list[dict[str, Any]]) -> str:
        heard.extend(given)
        return "done"

    call = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    pending = [
        {"role": "user", "content": "Pay"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    asyncio.run(memory.repository().append("chat", pending))
    events = stream(StepRunner(program, memory).resume("chat"), None)
    assert [step.content for step in snapshots(events)] == [INTERRUPTED, "done"]
    assert [message["role"] for message in heard] == ["user", "assistant", "tool"]
    assert heard[-1]["tool_call_id"] == "call_1"


def test_a_turn_of_a_thousand_calls_is_resumed(memory: StepMemory) -> None:
    turn: list[dict[str, Any]] = [{"role": "user", "content": "Count"}]
    for n in range(1000):
        function = {"name": "count", "arguments": "{}"}
        call = {"id": f"call_{n}", "type": "function", "function": function}
        turn.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turn.append({"role": "tool", "content": str(n), "tool_call_id": f"call_{n}"})
    asyncio.run(memory.repository().append("chat", turn))
    heard: list[int] = []

    def program(given: list[dict[str, Any]]) -> str:
        heard.append(len(given))
        return "done"

    events = stream(StepRunner(program, memory).resume("chat"), None)
    assert kinds(events)[-1] == "run_completed"
    assert heard == [2001]


def test_a_result_that_only_its_agent_step_tells_is_not_lost(memory: StepMemory) -> None:
    """A result waits for those of earlier calls; its AgentStep may be stored before it."""

    def agent_step(**outputs: Any) -> AgentStep:
        return AgentStep(
            step_type=AgentStepType.Action,
            inputs={"purpose": "pay", "tool": "pay", "arguments": {}},
            outputs=outputs,
            session_id="chat",
            run_id="cut off",
        )

    def asking(*steps: AgentStep) -> dict[str, Any]:
        function = {"name": "pay", "arguments": "{}"}
        ids = [str(step.id) for step in steps]
        calls = [{"id": key, "type": "function", "function": function} for key in ids]
        metadata = {"agent_step_ids": ids}
        return {"role": "assistant", "content": None, "tool_calls": calls, "metadata": metadata}

    slow, quick, broken = agent_step(), agent_step(result="paid"), agent_step(error="no money")
    memory.add([quick, broken])
    pending = [{"role": "user", "content": "Pay"}, asking(slow, quick, broken)]
    asyncio.run(memory.repository().append("chat", pending))

    def program(given: list[dict[str, Any]]) -> str:
        return "done"

    runner = StepRunner(program, memory)
    events = stream(runner.resume("chat"), None)
    told = [INTERRUPTED, "paid", "Error: no money"]
    assert [step.content for step in snapshots(events)] == [*told, "done"]
    assert kinds(events)[-1] == "run_completed"
    assert memory.get(quick.id).steps == [quick]

    memory.add([again := agent_step(result="twice")])
    asyncio.run(memory.repository().append("chat", [pending[0], asking(again)]))
    events = run(runner, "chat", "And now?")
    assert [step.content for step in snapshots(events)] == ["twice", "And now?", "done"]


def test_a_retry_hears_only_its_own_branch(memory: StepMemory) -> None:
    heard: list[Any] = []

    def program(given: list[dict[str, Any]]) -> str:
        heard.append(given)
        return f"answer {len(heard)}"

    repo, config = memory.repository(), StepRunnerConfig(context_budget=None)
    runner = StepRunner(program, memory, config=config)
    for text in ("one", "two"):
        run(runner, "chat", text)
    stream(retry_from_sequence("chat", 1, repo, runner), None)
    assert [message["content"] for message in heard[2]] == ["one"]
    assert search("x") == "result for x"
