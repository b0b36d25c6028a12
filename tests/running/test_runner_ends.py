"""How runs end: limits, cancelling, failures, readers that leave: truthfully, and always whole."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from runner_cases import (
    SEARCHES,
    SyncAgent,
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

from hybridagi_steps import StepEventType, StepMemory
from hybridagi_steps.errors import LimitReachedError
from hybridagi_steps.messages.agent_steps import INTERRUPTED
from hybridagi_steps.running.hooks import RunHook
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.stopping import RunVetoed, done_on
from hybridagi_steps.running.stored_events import stored_events
from hybridagi_steps.sessions.session_handle import retry_from_sequence
from hybridagi_steps.testing import ScriptedLM, request_text

QA = "question -> answer"
LONG = "word " * 40


def ended(events: list[Any]) -> tuple[str, str]:
    """Kind and reason of a run's end."""
    return events[-1].type.value, (events[-1].data or {})["termination_reason"]


def recorded_end(memory: StepMemory, events: list[Any]) -> tuple[str, str]:
    """The same from what is stored."""
    return ended(stored_events(memory, events[0].run_id))


@pytest.mark.parametrize("program", [dspy.ReAct(QA, tools=[search]), SyncAgent()])
@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_steps": 2}, "max_steps"), ({"max_tokens": 200}, "max_tokens")],
)
def test_a_limit_fails_the_run_and_says_which(
    memory: StepMemory, program: Any, limits: dict[str, Any], reason: str
) -> None:
    lm = ScriptedLM([thought("again", "search", query="x")] * 9)
    runner = StepRunner(program, memory, config=StepRunnerConfig(**limits))
    events = run(runner, "chat", "Capital?", lm)
    check_stream(memory, events)
    assert ended(events) == ("run_failed", reason) == recorded_end(memory, events)
    assert (events[-1].data or {})["error"]["type"] == "LimitReachedError"
    assert [role for role, _ in said(memory, "chat")] == ["user", *["assistant", "tool"] * 2]


def test_a_limit_of_money_holds(memory: StepMemory) -> None:
    lm = ScriptedLM([thought("again", "search", query="x")] * 9)
    real = lm.update_history

    def with_price(entry: dict[str, Any]) -> None:
        real({**entry, "cost": 0.4})

    lm.update_history = with_price
    config = StepRunnerConfig(max_cost=1.0)
    events = run(StepRunner(dspy.ReAct(QA, tools=[search]), memory, config=config), "c", "?", lm)
    assert ended(events) == ("run_failed", "max_cost")
    assert (events[-1].data or {})["metrics"]["cost"] == pytest.approx(1.2)


@pytest.mark.parametrize("wait", [True, False])
def test_a_hanging_program_times_out(memory: StepMemory, wait: bool) -> None:
    class Hanging(dspy.Module):
        async def aforward(self, question: str) -> Any:
            await asyncio.sleep(60)
            left.set()

    class Blocked(dspy.Module):
        def forward(self, question: str) -> Any:
            released.wait(60)
            left.set()

    released, left = threading.Event(), threading.Event()
    config = StepRunnerConfig(timeout_seconds=0.2)
    program = Hanging() if wait else Blocked()
    events = run(StepRunner(program, memory, config=config), "chat", "Hello", answering("x"))
    assert not left.is_set(), "the run waited for its program"
    released.set()
    assert ended(events) == ("run_failed", "timeout") == recorded_end(memory, events)
    assert said(memory, "chat") == [("user", "Hello")]


class Grouped(dspy.Module):
    """Asks in a task of its own, which fails."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    async def aforward(self, question: str) -> Any:
        """Look for what is not there."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.look(question))
        return await self.ask.acall(question=task.result())

    async def look(self, question: str) -> str:
        """Find nothing."""
        raise LookupError(f"nothing about {question}")


def test_what_one_task_of_a_program_raised_is_what_the_run_tells(memory: StepMemory) -> None:
    events = run(StepRunner(Grouped(), memory), "chat", "Hello", answering("never"))
    check_stream(memory, events)
    assert (events[-1].data or {})["error"]["type"] == "LookupError"


def test_a_failing_program_fails_the_run(memory: StepMemory) -> None:
    lm = ScriptedLM([ValueError("boom")])
    events = run(StepRunner(dspy.Predict(QA), memory), "chat", "Hello", lm)
    check_stream(memory, events)
    assert kinds(events) == ["run_started", "step_completed", "error", "run_failed"]
    assert "boom" in (events[-1].data or {})["error"]["message"]
    assert recorded_end(memory, events) == ("run_failed", "error")


@pytest.mark.parametrize("given", [None, dspy.Prediction(), {"role": "assistant"}])
def test_a_program_that_returns_nothing_fails_the_run(memory: StepMemory, given: Any) -> None:
    events = run(StepRunner(lambda _: given, memory), "chat", "Hello")
    assert ended(events) == ("run_failed", "error")
    assert "returned nothing" in (events[-1].data or {})["error"]["message"]
    assert said(memory, "chat") == [("user", "Hello")]


def test_after_a_failure_the_session_goes_on(memory: StepMemory) -> None:
    runner = StepRunner(dspy.Predict(QA), memory)
    run(runner, "chat", "Hello", ScriptedLM([ValueError("boom")]))
    lm = answering("Hi")
    events = run(runner, "chat", "Hello again", lm)
    check_stream(memory, events)
    assert said(memory, "chat")[-1] == ("assistant", "Hi")


@pytest.mark.parametrize("program", [dspy.Predict(QA), SyncAgent()])
def test_cancelling_keeps_what_was_said(memory: StepMemory, program: Any) -> None:
    lm = ScriptedLM(
        [{"next_thought": LONG, "next_tool_name": "finish", "next_tool_args": {}, "answer": LONG}],
        delay_seconds=2.0,
    )
    runner = StepRunner(program, memory)

    async def cancelled() -> list[Any]:
        events: list[Any] = []
        with dspy.context(lm=lm):
            async for event in runner.run_stream("chat", "Hello"):
                events.append(event)
                if event.type is StepEventType.STEP_DELTA and len(events) == 6:
                    assert await runner.cancel(event.run_id)
                    assert not await runner.cancel("no such run")
        return events

    events = asyncio.run(cancelled())
    check_stream(memory, events)
    assert ended(events) == ("run_cancelled", "cancelled") == recorded_end(memory, events)
    user, partial = messages(memory, "chat")
    assert user.content == "Hello"
    assert LONG.startswith(str(partial.content).strip())
    assert (partial.metadata or {})["partial"] is True
    step = memory.get([str(partial.agent_step_id)]).steps[0]
    assert step.status == "partial"
    assert not asyncio.run(runner.cancel(events[0].run_id))


def test_half_a_secret_is_not_kept_when_a_run_is_cancelled() -> None:
    secret = "hunter2-" * 10

    async def program(messages: list[dict[str, Any]]) -> Any:
        yield "It is well known. " * 20
        yield f"The password is {secret[:-1]}"
        await asyncio.sleep(30)

    with StepMemory(
        ":memory:", embedder="hashing", redact=lambda text: text.replace(secret, "[secret]")
    ) as memory:
        runner = StepRunner(program, memory)

        async def cancelled() -> list[Any]:
            events: list[Any] = []
            async for event in runner.run_stream("chat", "Hello"):
                events.append(event)
                if event.type is StepEventType.STEP_DELTA:
                    await asyncio.sleep(0.05)
                    await runner.cancel(event.run_id)
            return events

        events = asyncio.run(cancelled())
        check_stream(memory, events)
        partial = messages(memory, "chat")[-1]
        assert str(partial.content).startswith("It is well known. It is")
        assert "hunter2" not in str([event.to_sse() for event in events])
        assert "hunter2" not in str([step.to_dict() for step in memory.iter_steps()])


@pytest.mark.parametrize("how", ["aclose", "cancel", "break"])
def test_a_reader_that_leaves_cancels_the_run(memory: StepMemory, how: str) -> None:
    runner = StepRunner(dspy.Predict(QA), memory)

    async def leaving() -> None:
        stream = runner.run_stream("chat", "Hello")
        async for event in stream:
            if event.type is StepEventType.STEP_DELTA:
                break
        if how == "aclose":
            await stream.aclose()
            assert runner.active_runs() == {}
        elif how == "cancel":
            reader = asyncio.ensure_future(collected(stream))
            await asyncio.sleep(0.05)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        # after a break the loop's end closes what is left

    with dspy.context(lm=answering(LONG, delay_seconds=2.0)):
        asyncio.run(leaving())
    user, partial = messages(memory, "chat")
    assert user.content == "Hello"
    assert (partial.metadata or {})["run"] == {"status": "cancelled", "reason": "cancelled"}
    assert runner.active_runs() == {}


def test_a_reader_that_stops_reading_does_not_hold_the_run_up(memory: StepMemory) -> None:
    runner = StepRunner(dspy.Predict(QA), memory)

    async def slow() -> list[Any]:
        stream = runner.run_stream("chat", "Hello")
        events = [await anext(stream)]
        while await memory.repository().get_step_count("chat") < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return [*events, *await collected(stream)]

    with dspy.context(lm=answering(LONG, delay_seconds=0.1)):
        events = asyncio.run(slow())
    check_stream(memory, events)
    deltas = [event for event in events if event.type is StepEventType.STEP_DELTA]
    assert len(deltas) == 1


def test_a_tool_in_flight_is_answered_when_the_run_is_cancelled(memory: StepMemory) -> None:
    async def slow(query: str) -> str:
        """Search slowly."""
        await asyncio.sleep(30)
        return "never"

    runner = StepRunner(dspy.ReAct(QA, tools=[slow]), memory)

    async def cancelled() -> list[Any]:
        events: list[Any] = []
        with dspy.context(lm=ScriptedLM([thought("wait", "slow", query="x")])):
            async for event in runner.run_stream("chat", "Hello"):
                events.append(event)
                if event.snapshot is not None and event.snapshot.has_tool_calls():
                    await runner.cancel(event.run_id)
        return events

    events = asyncio.run(cancelled())
    check_stream(memory, events)
    *_, asks, result = messages(memory, "chat")
    assert result.content == INTERRUPTED
    assert result.metadata == {"interrupted": True, "is_error": True}
    assert result.agent_step_id == asks.agent_step_id
    assert memory.get([str(result.agent_step_id)]).steps[0].status == "cancelled"


class PassingError(Exception):
    """What a provider raises that may work the next time."""

    status_code = 503


def test_a_provider_that_fails_is_asked_again(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    waits: list[tuple[float, float]] = []

    def shortest(low: float, high: float) -> float:
        waits.append((low, high))
        return low

    monkeypatch.setattr(
        "hybridagi_steps.running.answering.random", SimpleNamespace(uniform=shortest)
    )

    async def program(messages: list[dict[str, Any]]) -> str:
        asked.append(len(messages))
        if len(asked) < 3:
            raise PassingError("busy")
        return "Hi"

    events = run(StepRunner(program, memory), "chat", "Hello")
    check_stream(memory, events)
    assert asked == [1, 1, 1]
    retries = [event.data or {} for event in events if event.type is StepEventType.ERROR]
    assert [retry["attempt"] for retry in retries] == [1, 2]
    assert waits == [(0, 0.5), (0, 1.0)]
    assert said(memory, "chat") == [("user", "Hello"), ("assistant", "Hi")]


def test_nothing_is_asked_again_after_the_first_token(memory: StepMemory) -> None:
    asked: list[int] = []

    async def program(messages: list[dict[str, Any]]) -> Any:
        asked.append(1)
        yield "Hel"
        raise PassingError("busy")

    events = run(StepRunner(program, memory), "chat", "Hello")
    check_stream(memory, events)
    assert len(asked) == 1
    assert ended(events) == ("run_failed", "error")
    assert messages(memory, "chat")[-1].content == "Hel"
    assert (messages(memory, "chat")[-1].metadata or {})["partial"] is True


def test_asking_again_has_an_end(memory: StepMemory) -> None:
    asked: list[int] = []

    async def program(messages: list[dict[str, Any]]) -> str:
        asked.append(1)
        raise PassingError("busy")

    config = StepRunnerConfig(max_retries=1)
    events = run(StepRunner(program, memory, config=config), "chat", "Hello")
    assert len(asked) == 2
    assert ended(events) == ("run_failed", "error")


def test_a_limit_may_end_with_a_summary(memory: StepMemory) -> None:
    lm = ScriptedLM([*[thought("again", "search", query="x")] * 2, {"summary": "I found x."}])
    config = StepRunnerConfig(max_steps=2, termination_summary=True)
    runner = StepRunner(dspy.ReAct(QA, tools=[search]), memory, config=config)
    events = run(runner, "chat", "Capital?", lm)
    check_stream(memory, events)
    assert ended(events) == ("run_failed", "max_steps") == recorded_end(memory, events)
    last = messages(memory, "chat")[-1]
    assert last.content == "I found x."
    assert (last.metadata or {})["summary"] is True


def test_a_tool_that_ends_after_it_was_cut_off_changes_nothing(memory: StepMemory) -> None:
    cut_off, gone = threading.Event(), threading.Event()

    def slow(query: str) -> str:
        """Search slowly."""
        assert cut_off.wait(30)
        return "too late"

    class Ends(RunHook):
        def on_tool_end(self, run: Any, request: Any, result: Any) -> None:
            gone.set()

    def reply(request: Any) -> Any:
        if "next_tool_name" in request_text(request):
            return thought("I look it up", "slow", query="x")
        # The call has its synthetic result; now its tool ends in the thread it was left in.
        cut_off.set()
        assert gone.wait(30)
        return {"summary": "I found nothing."}

    config = StepRunnerConfig(timeout_seconds=2.0, termination_summary=True)
    runner = StepRunner(SyncAgent([slow]), memory, config=config, hooks=[Ends()])
    events = run(runner, "chat", "Capital?", ScriptedLM(reply))
    check_stream(memory, events)
    assert ended(events) == ("run_failed", "timeout") == recorded_end(memory, events)
    assert "storage" not in [(e.data or {}).get("where") for e in events]
    assert [step.content for step in messages(memory, "chat") if step.is_tool_step()] == [
        INTERRUPTED
    ]
    [cut] = [step for step in memory.run(events[0].run_id).steps if step.tool == "slow"]
    assert (cut.status, (cut.outputs or {})["error"]["type"]) == ("cancelled", "Interrupted")


@pytest.mark.parametrize("number", range(3, 15))
def test_cancelling_while_tools_end_leaves_whole_runs(memory: StepMemory, number: int) -> None:
    """Whoever tells of a call first is believed: the tool's thread, or the run that cuts it off."""

    def quick(query: str) -> str:
        """Search quickly."""
        time.sleep(0.003)
        return "found"

    agent = SyncAgent([quick])
    agent.react.max_iters = 100
    agent.set_lm(ScriptedLM(lambda request: thought("on", "quick", query="x")))
    runner = StepRunner(agent, memory)

    async def cut_off(session_id: str) -> list[Any]:
        events: list[Any] = []
        async for event in runner.run_stream(session_id, "Capital?"):
            events.append(event)
            if event.number == number:
                assert await runner.cancel(event.run_id)
        return events

    async def side_by_side() -> list[list[Any]]:
        return await asyncio.gather(*(cut_off(f"chat {n}") for n in range(4)))

    for events in asyncio.run(side_by_side()):
        check_stream(memory, events)
        assert ended(events) == ("run_cancelled", "cancelled") == recorded_end(memory, events)
        steps = memory.run(events[0].run_id).steps
        assert [step.hop for step in steps] == list(range(len(steps)))
        ends = [step.program_id for step in steps if step.step_type == "ProgramEnd"]
        assert ends.count(str(steps[0].id)) == 1
        assert len(set(ends)) == len(ends)


class Leaving(dspy.Module):
    """Says when its thread comes out of it."""

    def __init__(self, left: threading.Event, tools: list[Any]) -> None:
        super().__init__()
        self.inner, self._left = SyncAgent(tools), left

    def forward(self, question: str) -> Any:
        """Ask the program inside."""
        try:
            return self.inner(question=question)
        finally:
            self._left.set()


@pytest.mark.parametrize("place", ["model", "tool"])
def test_a_cancelled_run_waits_for_its_thread_unless_a_tool_has_it(
    memory: StepMemory, place: str
) -> None:
    """A thread that outlives the event loop may wait for it for ever, and the process with it."""
    reached, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def work(query: str) -> str:
        """Search."""
        if place == "tool":
            reached.set()
            assert go_on.wait(30)
        return "found"

    def reply(request: Any) -> Any:
        if place == "model":
            reached.set()
            time.sleep(0.1)
        return thought("on", "work", query="x")

    program = Leaving(left, [work])
    program.set_lm(ScriptedLM(reply))
    runner = StepRunner(program, memory)

    async def cut_off() -> Any:
        events = runner.run_stream("chat", "Capital?")
        first = await anext(events)
        waiting = asyncio.create_task(collected(events))
        await asyncio.to_thread(reached.wait, 30)
        assert await runner.cancel(first.run_id)
        return [first, *await waiting], left.is_set()

    events, was_left = asyncio.run(cut_off())
    go_on.set()
    check_stream(memory, events)
    assert ended(events) == ("run_cancelled", "cancelled")
    assert was_left == (place == "model")
    assert left.wait(30)


def test_a_thread_does_not_wait_for_a_closed_event_loop() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    closing = threading.Timer(0.05, loop.close)
    closing.start()
    with pytest.raises(RuntimeError, match="closed"):
        done_on(loop, never())
    closing.join()


@pytest.mark.parametrize("way", ["retry", "edit", "resume", "resume_from_user_step", "function"])
def test_a_stream_that_is_closed_leaves_no_run_behind(memory: StepMemory, way: str) -> None:
    repo = memory.repository()

    async def program(given: list[dict[str, Any]]) -> str:
        await asyncio.sleep(30)
        return "never"

    async def closed() -> None:
        await repo.append("chat", [{"role": "user", "content": "Hello"}])
        runner = StepRunner(program, memory)
        last = await repo.get_last_step("chat")
        stream: Any = {
            "retry": lambda: runner.retry("chat", 1),
            "edit": lambda: runner.edit("chat", 1, "Good day"),
            "resume": lambda: runner.resume("chat"),
            "resume_from_user_step": lambda: runner.resume_from_user_step("chat", last),
            "function": lambda: retry_from_sequence("chat", 1, repo, runner),
        }[way]()
        await anext(stream)
        assert runner.active_runs() != {}
        await stream.aclose()
        assert runner.active_runs() == {}

    asyncio.run(closed())


def test_a_summary_that_says_nothing_is_no_message(memory: StepMemory) -> None:
    def program(given: list[dict[str, Any]]) -> dict[str, Any]:
        function = {"name": "search", "arguments": '{"query": "x"}'}
        call = {"id": f"call_{len(given)}", "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    config = StepRunnerConfig(max_steps=2, termination_summary=True)
    events = run(StepRunner(program, memory, tools=[search], config=config), "chat", "Capital?")
    check_stream(memory, events)
    assert ended(events) == ("run_failed", "max_steps") == recorded_end(memory, events)
    assert messages(memory, "chat")[-1].is_tool_step()


class Listener(RunHook):
    """Notes every point it is called at."""

    def __init__(self) -> None:
        self.points: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            object.__getattribute__(self, "points").append(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("program", [dspy.ReAct(QA, tools=[search]), SyncAgent()])
def test_hooks_are_called_at_nine_points(memory: StepMemory, program: Any) -> None:
    hook = Listener()
    runner = StepRunner(program, memory, hooks=[hook])
    run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    run(runner, "chat", "Capital?", ScriptedLM([ValueError("boom")]))
    assert set(hook.points) == {name for name in vars(RunHook) if name.startswith("on_")}
    assert len(set(hook.points)) == 9
    assert hook.points[0] == "on_run_start"
    assert hook.points.count("on_model_start") == 4


def test_hooks_hear_what_is_sent_to_the_model(memory: StepMemory) -> None:
    heard: list[Any] = []

    class Ears(RunHook):
        async def on_model_start(self, run: Any, messages: list[dict[str, Any]]) -> None:
            heard.append((run.session_id, messages))

    run(StepRunner(dspy.Predict(QA), memory, hooks=[Ears()]), "chat", "Capital?", answering("P"))
    [(session_id, sent)] = heard
    assert session_id == "chat"
    assert "Capital?" in str(sent[-1]["content"])


class Broken:
    """A hook that fails, once sync and once async."""

    def on_run_start(self, run: Any) -> None:
        raise ValueError("sync")

    async def on_tool_end(self, run: Any, request: Any, result: Any) -> None:
        raise ValueError("async")


def test_a_session_is_free_however_its_run_ended(memory: StepMemory) -> None:
    class Last:
        async def on_run_end(self, *_: object) -> None:
            raise asyncio.CancelledError

    runner = StepRunner(dspy.Predict(QA), memory, hooks=[Last()])
    for _ in range(2):
        events = run(runner, "chat", "Hello", answering("Hi"))
        assert events[-1].type is StepEventType.RUN_FAILED
        assert runner.active_runs() == {}


def test_a_failing_hook_is_an_event_and_no_end(memory: StepMemory) -> None:
    runner = StepRunner(dspy.ReAct(QA, tools=[search]), memory, hooks=[Broken()])
    events = run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    errors = [event.data or {} for event in events if event.type is StepEventType.ERROR]
    assert [(error["hook"], error["message"]) for error in errors] == [
        ("on_run_start", "sync"),
        ("on_tool_end", "async"),
    ]
    assert ended(events) == ("run_completed", "completed")


@pytest.mark.parametrize("point", ["on_run_start", "on_model_start", "on_tool_start"])
@pytest.mark.parametrize("program", [dspy.ReAct(QA, tools=[search]), SyncAgent()])
def test_a_hook_may_veto(memory: StepMemory, point: str, program: Any) -> None:
    called: list[str] = []

    def veto(run: Any, *args: Any) -> None:
        called.append(point)
        raise RunVetoed("not today")

    hook = type("Veto", (), {point: staticmethod(veto)})()
    runner = StepRunner(program, memory, hooks=[hook])
    events = run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    check_stream(memory, events)
    assert ended(events) == ("run_failed", "vetoed")
    assert (events[-1].data or {})["error"] == {"type": "RunVetoed", "message": "not today"}
    assert called == [point]


def test_agents_nest_to_a_depth(memory: StepMemory) -> None:
    inner = StepRunner(dspy.Predict(QA), memory)
    lm = ScriptedLM(
        [
            thought("I ask", "expert", message="Capital?"),
            {"answer": "Paris"},
            thought("I know", "finish"),
            {"reasoning": "r", "answer": "It is Paris"},
        ]
    )
    program = dspy.ReAct(QA, tools=[inner.as_tool("expert", "Knows it")])
    events = run(StepRunner(program, memory), "chat", "Capital?", lm)
    check_stream(memory, events)
    assert said(memory, "chat")[2] == ("tool", "Paris")
    assert (events[-1].data or {})["metrics"]["llm_calls"] == 4
    sessions = asyncio.run(memory.repository().sessions())
    nested = next(s.session_id for s in sessions if s.session_id != "chat")
    assert said(memory, nested) == [("user", "Capital?"), ("assistant", "Paris")]
    assert {step.parent_run_id for step in messages(memory, nested)} == {events[0].run_id}
    assert {step.run_id for step in snapshots(events)} == {events[0].run_id}


def test_agents_that_nest_too_deep_are_refused(memory: StepMemory) -> None:
    config = StepRunnerConfig(max_depth=1)
    inner = StepRunner(dspy.Predict(QA), memory, config=config)
    caught: list[Exception] = []

    async def program(messages: list[dict[str, Any]]) -> str:
        try:
            await inner.run("inner", "Hello")
        except LimitReachedError as error:
            caught.append(error)
        return "done"

    events = run(StepRunner(program, memory), "chat", "Hello", answering("x"))
    assert ended(events) == ("run_completed", "completed")
    assert [error.limit for error in caught if isinstance(error, LimitReachedError)] == [
        "max_depth"
    ]


def test_stored_events_tell_a_run_again(memory: StepMemory) -> None:
    runner = StepRunner(dspy.ReAct(QA, tools=[search]), memory)
    events = run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    again = stored_events(memory, events[0].run_id, after=40)
    assert [event.number for event in again] == list(range(41, 41 + len(again)))
    assert [event.snapshot for event in again[:-1]] == snapshots(events)
    assert again[-1].type is StepEventType.RUN_COMPLETED
    assert (again[-1].data or {})["metrics"]["total_tokens"] == (events[-1].data or {})["metrics"][
        "total_tokens"
    ]


@pytest.mark.parametrize("program", [dspy.ReAct(QA, tools=[search]), SyncAgent()])
@pytest.mark.parametrize("retried", [False, True])
def test_the_stored_end_of_a_run_is_the_one_that_was_told(
    memory: StepMemory, program: Any, retried: bool
) -> None:
    runner = StepRunner(program, memory)
    run(runner, "chat", "Before?", ScriptedLM(SEARCHES))

    async def cancelled() -> list[Any]:
        events: list[Any] = []
        with dspy.context(lm=ScriptedLM([thought(LONG, "search", query="x")], delay_seconds=0.2)):
            asked = runner.retry("chat", 1) if retried else runner.run_stream("chat", "Now?")
            async for event in asked:
                events.append(event)
                if event.type is StepEventType.STEP_DELTA:
                    await runner.cancel(event.run_id)
        return events

    events = asyncio.run(cancelled())
    live, again = events[-1].data, stored_events(memory, events[0].run_id)[-1].data
    assert live is not None
    assert again is not None
    assert live["status"] == "cancelled"
    assert {**live, "metrics": 0} == {**again, "metrics": 0}
    stored = str(memory.run(events[0].run_id).steps)
    assert "scope" not in stored.replace("scope=None", "")
    assert "<Task" not in stored


def test_the_stored_events_of_an_answer_that_was_replaced_are_whole(memory: StepMemory) -> None:
    runner = StepRunner(dspy.Predict(QA), memory)
    events = run(runner, "chat", "Hello", answering("Hi"))

    async def again() -> list[Any]:
        with dspy.context(lm=answering("Hi again")):
            return [event async for event in runner.retry("chat", 1)]

    run(runner, "chat", "And now?", answering("Fine"))
    asyncio.run(again())
    told = stored_events(memory, events[0].run_id)
    assert [event.snapshot for event in told[:-1] if event.snapshot] == snapshots(events)
    assert (told[-1].data or {})["branch_id"] == (events[-1].data or {})["branch_id"]


def test_a_program_that_cancels_itself_has_failed(memory: StepMemory) -> None:
    async def program(given: list[dict[str, Any]]) -> str:
        raise asyncio.CancelledError

    events = run(StepRunner(program, memory), "chat", "Hello")
    assert ended(events) == recorded_end(memory, events) == ("run_failed", "error")
    said_why = "program raised CancelledError, and nobody cancelled it"
    assert (events[-1].data or {})["error"] == {"type": "StepsError", "message": said_why}
