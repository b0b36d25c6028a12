"""Tools of a run: consent, time, order, and what others may know of them."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import threading
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
    thought,
)

from hybridagi_steps import StepEventType, StepMemory
from hybridagi_steps.errors import ToolInputError
from hybridagi_steps.running import tool_calls
from hybridagi_steps.running.limits import StepRunnerConfig, ToolRequest
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.testing import ScriptedLM

QA = "question -> answer"
PROGRAMS = [dspy.ReAct(QA, tools=[search]), SyncAgent()]
DENIED = "Error: the user did not allow this call."


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("later", [False, True])
def test_a_denied_tool_does_not_run_and_the_program_is_told(
    memory: StepMemory, program: Any, later: bool
) -> None:
    asked: list[ToolRequest] = []

    def at_once(request: ToolRequest) -> bool:
        asked.append(request)
        return False

    async def after_a_while(request: ToolRequest) -> str:
        await asyncio.sleep(0.01)
        asked.append(request)
        return "deny"

    config = StepRunnerConfig(consent=after_a_while if later else at_once)
    events = run(StepRunner(program, memory, config=config), "chat", "?", ScriptedLM(SEARCHES))
    check_stream(memory, events)
    assert [(request.tool, request.arguments) for request in asked] == [("search", {"query": "x"})]
    assert "tool_auth_required" in kinds(events)
    assert "tool_auth_denied" in kinds(events)
    assert kinds(events)[-1] == "run_completed"
    result = messages(memory, "chat")[2]
    assert (result.content, (result.metadata or {})["denied"]) == (DENIED, True)
    check_denied(memory, result)


def check_denied(memory: StepMemory, result: Any) -> None:
    """What the step of a denied call says: that it failed, and why."""
    [step] = memory.get([str(result.agent_step_id)]).steps
    problem = {"type": "ToolDenied", "message": "the user did not allow this call."}
    assert (step.status, step.outputs) == ("error", {"error": problem})
    assert memory.find({"status": "ok", "tools": ["search"]}).steps == []


def test_a_tool_that_a_callable_asks_for_is_denied(memory: StepMemory) -> None:
    def program(given: list[dict[str, Any]]) -> Any:
        return "done" if given[-1]["role"] == "tool" else calls(("search", "x"))

    config = StepRunnerConfig(consent=lambda _: False)
    runner = StepRunner(program, memory, config=config, tools=[search])
    assert kinds(run(runner, "chat", "?"))[-1] == "run_completed"
    result = messages(memory, "chat")[2]
    assert result.content == DENIED
    check_denied(memory, result)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("allowed", [True, False])
def test_consent_is_given_from_elsewhere(memory: StepMemory, program: Any, allowed: bool) -> None:
    runner = StepRunner(program, memory, config=StepRunnerConfig(consent=lambda _: None))

    async def answered() -> list[Any]:
        with dspy.context(lm=ScriptedLM(SEARCHES)):
            paused = await runner.run("chat", "?")
            said = {paused.waiting[0]["call_id"]: allowed}
            return await collected(runner.resume("chat", answers=said))

    events = asyncio.run(answered())
    assert messages(memory, "chat")[2].content == ("result for x" if allowed else DENIED)
    assert ("tool_auth_denied" in kinds(events)) is not allowed


def test_consent_for_an_agent_inside_an_agent_is_asked_outside(memory: StepMemory) -> None:
    config = StepRunnerConfig(consent=lambda _: None)
    inner = StepRunner(dspy.ReAct(QA, tools=[search]), memory, config=config)
    program = dspy.ReAct(QA, tools=[inner.as_tool("expert", "Knows it")])
    outer = StepRunner(program, memory)
    asks = thought("I ask", "expert", message="Capital?")
    lm = ScriptedLM([asks, *SEARCHES, thought("done", "finish"), {"reasoning": "", "answer": "P"}])

    async def answered() -> list[Any]:
        with dspy.context(lm=lm):
            paused = await collected(outer.run_stream("chat", "?"))
            [asked] = [e.data or {} for e in paused if e.type is StepEventType.TOOL_AUTH_REQUIRED]
            assert asked["nested_run_id"] != paused[0].run_id
            said = {asked["call_id"]: True}
            return await collected(outer.resume("chat", answers=said))

    events = asyncio.run(answered())
    check_stream(memory, events)
    assert said(memory, "chat")[2] == ("tool", "Paris")


def test_silence_and_errors_are_no_consent(memory: StepMemory) -> None:
    def broken(request: ToolRequest) -> bool:
        raise ValueError("no idea")

    async def silent(request: ToolRequest) -> bool:
        await asyncio.Event().wait()
        return True

    config = StepRunnerConfig(consent=silent, consent_timeout_seconds=0.05)
    events = run(StepRunner(PROGRAMS[0], memory, config=config), "a", "?", ScriptedLM(SEARCHES))
    denied = [e.data or {} for e in events if e.type is StepEventType.TOOL_AUTH_DENIED]
    assert denied[0]["why"] == "no answer in time"
    config = StepRunnerConfig(consent=broken)
    events = run(StepRunner(PROGRAMS[0], memory, config=config), "b", "?", ScriptedLM(SEARCHES))
    assert {"error", "tool_auth_denied"} <= set(kinds(events))
    assert messages(memory, "a")[2].content == messages(memory, "b")[2].content == DENIED


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("later", [False, True])
def test_a_blocking_call_on_the_event_loop_cannot_wait_for_consent(
    memory: StepMemory, later: bool
) -> None:
    class Blocking(dspy.Module):
        async def aforward(self, question: str) -> Any:
            return dspy.Prediction(answer=dspy.Tool(search)(query=question))

    async def after_a_while(request: ToolRequest) -> bool:
        return True

    config = StepRunnerConfig(consent=after_a_while if later else lambda _: True)
    events = run(StepRunner(Blocking(), memory, config=config), "chat", "x")
    check_stream(memory, events)
    assert said(memory, "chat")[-1] == ("assistant", DENIED if later else "result for x")


@pytest.mark.parametrize(
    ("sync_program", "sync_tool"),
    [(True, True), (False, True), (False, False)],  # DSPy runs no async tools in sync programs
)
def test_a_tool_that_takes_too_long_is_given_up(
    memory: StepMemory, sync_program: bool, sync_tool: bool
) -> None:
    released, left = threading.Event(), threading.Event()

    def search(query: str) -> str:
        """Search slowly."""
        released.wait(60)
        left.set()
        return "late"

    async def asearch(query: str) -> str:
        """Search slowly."""
        await asyncio.sleep(60)
        left.set()
        return "late"

    tool = dspy.Tool(search if sync_tool else asearch, name="search")
    program = SyncAgent([tool]) if sync_program else dspy.ReAct(QA, tools=[tool])
    config = StepRunnerConfig(tool_timeout_seconds=0.1)
    events = run(StepRunner(program, memory, config=config), "chat", "?", ScriptedLM(SEARCHES))
    assert not left.is_set(), "the run waited for the tool"
    released.set()
    check_stream(memory, events)
    result = messages(memory, "chat")[2]
    assert "search took longer than 0.1 s" in str(result.content)
    assert (result.metadata or {})["is_error"] is True
    assert memory.get([str(result.agent_step_id)]).steps[0].status == "error"
    assert kinds(events)[-1] == "run_completed"


def test_a_failing_tool_is_an_error_and_no_end(memory: StepMemory) -> None:
    def search(query: str) -> str:
        """Search the corpus."""
        raise LookupError("no corpus")

    events = run(
        StepRunner(dspy.ReAct(QA, tools=[search]), memory), "chat", "?", ScriptedLM(SEARCHES)
    )
    check_stream(memory, events)
    errors = [event.data or {} for event in events if event.type is StepEventType.ERROR]
    assert [(e["where"], e["tool"], e["message"]) for e in errors] == [
        ("tool", "search", "no corpus")
    ]
    assert messages(memory, "chat")[2].content == "Error: LookupError: no corpus"
    assert said(memory, "chat")[-1] == ("assistant", "Paris")


class Unprintable(Exception):  # noqa: N818 - it is what it is called
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no words")


async def cancelled_pool(query: str) -> str:
    """Wait for something that was cancelled by somebody else."""
    waiting = asyncio.get_running_loop().create_task(asyncio.sleep(5))
    waiting.cancel()
    await waiting
    return query


def cancelled_thread(query: str) -> str:
    """Do so without a task."""
    raise asyncio.CancelledError("pool")


def unprintable(query: str) -> str:
    """Raise what cannot be shown."""
    raise Unprintable


_ITSELF = "raised CancelledError, and nobody cancelled it"


@pytest.mark.parametrize("make", [lambda t: dspy.ReAct(QA, tools=[t]), lambda t: SyncAgent([t])])
@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (cancelled_pool, "StepsError", f"tool search {_ITSELF}"),
        (cancelled_thread, "StepsError", f"tool search {_ITSELF}: pool"),
        (unprintable, "Unprintable", "<ValueError in str()>"),
    ],
)
def test_strange_errors_of_tools_are_told_as_any_other(
    memory: StepMemory, make: Any, function: Any, kind: str, message: str
) -> None:
    program = make(dspy.Tool(function, name="search"))
    with dspy.context(allow_tool_async_sync_conversion=True):
        events = run(StepRunner(program, memory), "chat", "?", ScriptedLM(SEARCHES))
    check_stream(memory, events)
    assert kinds(events)[-1] == "run_completed"
    errors = [event.data or {} for event in events if event.type is StepEventType.ERROR]
    assert [(e["where"], e["type"], e["message"]) for e in errors] == [("tool", kind, message)]
    result = messages(memory, "chat")[2]
    assert (result.content, result.metadata) == (f"Error: {kind}: {message}", {"is_error": True})
    [step] = memory.get([str(result.agent_step_id)]).steps
    assert (step.status, step.outputs) == ("error", {"error": {"type": kind, "message": message}})


def calls(*wanted: tuple[str, str]) -> dict[str, Any]:
    """An assistant's message that asks for tools."""
    made = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": name, "arguments": f'{{"query": "{query}"}}'},
        }
        for n, (name, query) in enumerate(wanted)
    ]
    return {"role": "assistant", "content": "I look", "tool_calls": made}


def test_results_of_parallel_tools_stand_in_the_order_of_the_calls(memory: StepMemory) -> None:
    order: list[str] = []

    async def search(query: str) -> str:
        """Search: the last one asked for is done first."""
        before = {"a": "bb", "bb": "cccc", "cccc": None}[query]
        while before is not None and before not in order:
            await asyncio.sleep(0.001)
        order.append(query)
        return f"result for {query}"

    def program(given: list[dict[str, Any]]) -> Any:
        if given[-1]["role"] == "user":
            return calls(("search", "a"), ("search", "bb"), ("unknown", "x"), ("search", "cccc"))
        return "done"

    events = run(StepRunner(program, memory, tools=[search]), "chat", "?")
    check_stream(memory, events)
    assert order == ["cccc", "bb", "a"]
    assert said(memory, "chat") == [
        ("user", "?"),
        ("assistant", "I look"),
        ("tool", "result for a"),
        ("tool", "result for bb"),
        ("tool", "Error: no tool is named unknown; there are search."),
        ("tool", "result for cccc"),
        ("assistant", "done"),
    ]


def test_tools_that_a_program_runs_side_by_side_by_itself_leave_whole_rounds(
    memory: StepMemory,
) -> None:
    class Both(dspy.Module):
        async def aforward(self, question: str) -> Any:
            tool = dspy.Tool(slow)
            results = await asyncio.gather(tool.acall(query="a"), tool.acall(query="b"))
            return dspy.Prediction(answer=" and ".join(results))

    async def slow(query: str) -> str:
        """Search slowly."""
        await asyncio.sleep(0.05 if query == "a" else 0.01)
        return f"result for {query}"

    events = run(StepRunner(Both(), memory), "chat", "?")
    check_stream(memory, events)
    assert [role for role, _ in said(memory, "chat")] == [
        "user",
        *["assistant", "tool"] * 2,
        "assistant",
    ]
    stored = messages(memory, "chat")
    for asks, result in (stored[1:3], stored[3:5]):
        assert (asks.tool_calls or [{}])[0]["id"] == result.tool_call_id
    assert stored[-1].content == "result for a and result for b"


def test_a_call_is_stored_before_its_tool_runs(memory: StepMemory) -> None:
    seen: list[list[str]] = []

    def search(query: str) -> str:
        """Look at what is stored."""
        seen.append([step.role.value for step in memory.repository().store.messages("chat")])
        return "ok"

    program = dspy.ReAct(QA, tools=[search])
    replies = [thought("one", "search", query="1"), thought("two", "search", query="2")]
    run(StepRunner(program, memory), "chat", "?", ScriptedLM([*replies, *SEARCHES[1:]]))
    assert seen == [["user", "assistant"], ["user", "assistant", "tool", "assistant"]]


def test_tools_inside_a_tool_leave_steps_and_no_messages(memory: StepMemory) -> None:
    inner = dspy.Tool(search)

    def outer(query: str) -> str:
        """Ask another tool."""
        return inner(query=query).upper()

    program = dspy.ReAct(QA, tools=[dspy.Tool(outer, name="search")])
    events = run(StepRunner(program, memory), "chat", "?", ScriptedLM(SEARCHES))
    check_stream(memory, events)
    assert said(memory, "chat")[2] == ("tool", "RESULT FOR X")
    tools = [step.tool for step in memory.run(events[0].run_id).steps if step.tool]
    assert tools == ["search", "search", "finish"]


def test_a_storage_that_fails_stops_the_run_before_the_tool(memory: StepMemory) -> None:
    ran: list[str] = []

    def search(query: str) -> str:
        """Note that it ran."""
        ran.append(query)
        return "ok"

    async def program(given: list[dict[str, Any]]) -> Any:
        await memory.repository().append("chat", [{"role": "user", "content": "intruder"}])
        return calls(("search", "a"))

    events = run(StepRunner(program, memory, tools=[search]), "chat", "?")
    assert ran == []
    assert (events[-1].type.value, (events[-1].data or {})["termination_reason"]) == (
        "run_failed",
        "storage",
    )
    assert said(memory, "chat") == [("user", "?"), ("user", "intruder")]


def test_values_of_tools_are_texts_or_json(memory: StepMemory) -> None:
    def search(query: str) -> Any:
        """Return structure."""
        return {"hits": [1, 2], "of": query}

    program = dspy.ReAct(QA, tools=[search])
    run(StepRunner(program, memory), "chat", "?", ScriptedLM(SEARCHES))
    assert messages(memory, "chat")[2].content == '{"hits":[1,2],"of":"x"}'


def test_arguments_that_are_no_json_are_named_as_such(memory: StepMemory) -> None:
    called: list[str] = []

    def note(text: str) -> str:
        """Note a text."""
        called.append(text)
        return "noted"

    async def program(messages: list[dict[str, Any]]) -> str:
        broken = {"partial_json": '{"text": "half of'}  # as DSPy's client gives it
        for call in (dspy.Tool(note).acall, dspy.asyncify(dspy.Tool(note))):
            with pytest.raises(ToolInputError, match="arguments of note are no JSON object"):
                await call(**broken)
        return "done"

    events = run(StepRunner(program, memory), "chat", "Note it", answering("x"))
    results = [step.content for step in messages(memory, "chat") if step.is_tool_step()]
    assert len(results) == 2
    assert called == []
    assert all("are no JSON object" in str(each) for each in results)
    failed = [step for step in memory.run(events[0].run_id).steps if step.tool == "note"]
    assert [step.outputs["error"]["type"] for step in failed if step.outputs] == [
        "ToolInputError"
    ] * 2
    assert (events[-1].data or {})["metrics"]["tool_errors"] == 2


def test_threads_that_make_the_first_runners_at_once_watch_tools_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, seen = dspy.Tool.__call__, list[Any]()

    class Tool:
        """As `dspy.Tool`, when no runner was made yet."""

        acall = dspy.Tool.acall

        def __call__(self) -> None: ...

    class Dspy:
        def __getattr__(self, _: str) -> type[Tool]:
            if not seen:
                seen.append(beside)
                beside.start()
                beside.join(0.3)  # as long as it takes where nothing keeps it waiting
            return Tool

    before, beside = Tool.__call__, threading.Thread(target=tool_calls.watch_tools)
    for name in ("_plain_call", "_plain_acall"):
        monkeypatch.setattr(tool_calls, name, getattr(tool_calls, name))
    monkeypatch.setattr(tool_calls, "_watching", False)
    monkeypatch.setattr(tool_calls, "dspy", Dspy())
    tool_calls.watch_tools()
    beside.join()
    assert tool_calls._plain_call is before  # pyright: ignore[reportPrivateUsage]
    assert dspy.Tool.__call__ is plain
