"""A run that nobody answers pauses: its attempt ends, and `resume(answers=…)` goes on."""

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
from provider_double import check_openai
from runner_cases import SyncAgent, check_stream, collected, kinds, messages, run, said, thought

from hybridagi_steps import StepMemory, StepRunner, StepRunnerConfig, UserQuestions
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.programs import Action
from hybridagi_steps.programs.tools import AskUser, Speak
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.run import RunResult
from hybridagi_steps.running.limits import ToolRequest
from hybridagi_steps.running.stored_events import stored_events
from hybridagi_steps.testing import ScriptedLM, request_text

QA = "question -> answer"
ASKS = StepRunnerConfig(consent=lambda _: None)


class Till:
    """A tool that pays, and how often it ran."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def pay(self, what: str) -> str:
        """Pay something."""
        self.paid.append(what)
        return f"paid {what}"


def model(tool: str = "pay", **arguments: str) -> ScriptedLM:
    """A model that calls one tool unless it was shown a result, then says what it heard."""

    def reply(request: Any) -> Any:
        text = request_text(request)
        heard = [m for m in request.messages if m.role == "tool"]
        if "next_tool_name" not in text:
            return {
                "reasoning": "r",
                "answer": "denied" if "did not allow" in str(request) else "done",
            }
        if heard or "## observation_" in text:
            return thought("enough", "finish")
        return thought("on", tool, **(arguments or {"what": "the bill"}))

    return ScriptedLM(reply)


def agent(memory: StepMemory, till: Till, config: StepRunnerConfig = ASKS) -> StepRunner:
    program = dspy.ReAct(QA, tools=[till.pay])
    program.set_lm(model())
    return StepRunner(program, memory, config=config)


def resumed(runner: StepRunner, **how: Any) -> list[StepEvent]:
    return asyncio.run(collected(runner.resume("chat", **how)))


def waiting(events: list[StepEvent]) -> list[dict[str, Any]]:
    """What the final event of a paused run says that it waits for."""
    assert events[-1].type is StepEventType.RUN_PAUSED
    data = events[-1].data or {}
    assert (data["status"], data["termination_reason"]) == ("paused", "paused")
    return data["waiting"]


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_run_that_nobody_answers_pauses_and_goes_on(
    memory: StepMemory, allowed: bool, in_thread: bool
) -> None:
    till = Till()
    program: Any = SyncAgent([till.pay]) if in_thread else dspy.ReAct(QA, tools=[till.pay])
    lm = model()
    program.set_lm(lm)
    runner = StepRunner(program, memory, config=ASKS)
    events = run(runner, "chat", "Pay my bill.")
    check_stream(memory, events)
    [asked] = waiting(events)
    assert (asked["tool"], asked["arguments"]) == ("pay", {"what": "the bill"})
    assert asked["waits_for"] == "consent"
    assert runner.active_runs() == {}
    calls = len(lm.history)
    [waits] = asyncio.run(runner.pending("chat"))
    assert waits.call_id == asked["call_id"]
    [listed] = memory.runs()
    assert (listed.run_id, listed.status) == (events[0].run_id, "paused")

    # Who asks again without an answer is asked again, and no model is.
    assert waiting(resumed(runner))[0]["call_id"] == waits.call_id
    assert len(lm.history) == calls
    assert till.paid == []

    events = resumed(runner, answers={waits.call_id: allowed})
    assert kinds(events)[-1] == "run_completed"
    assert till.paid == (["the bill"] if allowed else [])
    assert said(memory, "chat")[-1] == ("assistant", "done" if allowed else "denied")
    check_openai([step.to_message_dict() for step in messages(memory, "chat")])
    assert asyncio.run(runner.pending("chat")) == []
    assert memory.verify() == []


def test_what_a_paused_run_tells_is_redacted(tmp_path: Path) -> None:
    def hide(text: str) -> str:
        return text.replace("the bill", "…")

    path = tmp_path / "steps.db"
    with StepMemory(path, embedder="hashing", redact=hide) as memory:
        runner = agent(memory, Till())
        events = run(runner, "chat", "Pay.")
        [waits] = waiting(events)
        assert waits["arguments"] == {"what": "…"}
        stored = stored_events(memory, events[0].run_id)[-1]
        assert (stored.data or {})["waiting"] == [waits]
    assert all(b"the bill" not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_paused_run_is_a_result(memory: StepMemory) -> None:
    result = asyncio.run(agent(memory, Till()).run("chat", "Pay my bill."))
    assert (result.status, result.reason) == ("paused", "paused")
    assert [each["tool"] for each in result.waiting] == ["pay"]
    assert "paused" in repr(result)


def test_a_callback_that_is_awaited_has_answered(memory: StepMemory) -> None:
    async def consent(_: ToolRequest) -> bool:
        await asyncio.sleep(0.3)
        return True

    till = Till()
    config = StepRunnerConfig(consent=consent)
    assert kinds(run(agent(memory, till, config), "chat", "Pay."))[-1] == "run_completed"
    assert till.paid == ["the bill"]


def test_the_time_that_somebody_takes_is_not_the_runs(memory: StepMemory) -> None:
    async def consent(_: ToolRequest) -> bool:
        await asyncio.sleep(3.2)
        return True

    till = Till()
    config = StepRunnerConfig(consent=consent, timeout_seconds=3.0)
    assert kinds(run(agent(memory, till, config), "chat", "Pay."))[-1] == "run_completed"
    assert till.paid == ["the bill"]


def pause_in_a_process(place: str) -> None:
    with StepMemory(place, embedder="hashing") as memory:
        run(agent(memory, Till()), "chat", "Pay my bill.")


def test_another_process_finds_the_pause_and_goes_on(tmp_path: Path) -> None:
    place = str(tmp_path / "steps.db")
    child = multiprocessing.get_context("spawn").Process(target=pause_in_a_process, args=(place,))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    till = Till()
    with StepMemory(place, embedder="hashing") as memory:
        assert [each.status for each in memory.runs()] == ["paused"]
        runner = agent(memory, till)
        [waits] = asyncio.run(runner.pending("chat"))
        assert waits.waits_for == "consent"
        assert kinds(resumed(runner, answers={waits.call_id: True}))[-1] == "run_completed"
    assert till.paid == ["the bill"]


def calls(*names: str) -> dict[str, Any]:
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def test_calls_in_flight_finish_and_no_new_one_begins(memory: StepMemory) -> None:
    ran: list[str] = []
    paused = asyncio.Event()

    async def slow() -> str:
        """Go on until the run is paused, and a little longer."""
        await paused.wait()
        await asyncio.sleep(0.05)
        ran.append("slow")
        return "slowly"

    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    asked: list[str] = []

    def program(given: list[dict[str, Any]]) -> Any:
        asked.append("model")
        return calls("slow", "pay") if given[-1]["role"] == "user" else "done"

    async def consent(request: ToolRequest) -> bool | None:
        if request.tool == "slow":
            return True
        asyncio.get_running_loop().call_later(0.02, paused.set)
        return None

    runner = StepRunner(
        program, memory, tools=[slow, pay], config=StepRunnerConfig(consent=consent)
    )
    [waits] = waiting(run(runner, "chat", "?"))
    assert (ran, waits["tool"], asked) == (["slow"], "pay", ["model"])
    assert said(memory, "chat")[-1] == ("tool", "slowly")
    assert kinds(resumed(runner, answers={waits["call_id"]: True}))[-1] == "run_completed"
    assert ran == ["slow", "pay"]
    check_openai([step.to_message_dict() for step in messages(memory, "chat")])


def test_a_call_that_had_not_begun_runs_after_the_pause(memory: StepMemory) -> None:
    """A program calls what its model asked for one after the other: the first one waits."""
    ran: list[str] = []

    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    tools = {"pay": dspy.Tool(pay), "look": dspy.Tool(look)}

    class InTurn(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tools = tools
            self.ask = dspy.Predict("question -> calls: dspy.ToolCalls, answer")

        def forward(self, question: str) -> Any:
            told = self.ask(question=question)
            for call in told.calls.tool_calls:
                tools[call.name](**call.args)
            return dspy.Prediction(answer="done")

    wanted = {"tool_calls": [{"name": "pay", "args": {}}, {"name": "look", "args": {}}]}
    lm = ScriptedLM(
        [{"calls": wanted, "answer": "x"}, {"calls": {"tool_calls": []}, "answer": "x"}]
    )

    def consent(request: ToolRequest) -> bool | None:
        return None if request.tool == "pay" else True

    runner = StepRunner(InTurn(), memory, config=StepRunnerConfig(consent=consent))
    [waits] = waiting(run(runner, "chat", "?", lm))
    assert ran == []
    with dspy.context(lm=lm):
        events = resumed(runner, answers={waits["call_id"]: True})
    assert kinds(events)[-1] == "run_completed"
    assert ran == ["pay", "look"]


def test_an_answered_call_runs_though_another_one_still_waits(memory: StepMemory) -> None:
    ran: list[str] = []

    def first() -> str:
        """Do the first thing."""
        ran.append("first")
        return "1"

    def second() -> str:
        """Do the second thing."""
        ran.append("second")
        return "2"

    def program(given: list[dict[str, Any]]) -> Any:
        return calls("first", "second") if given[-1]["role"] == "user" else "done"

    runner = StepRunner(program, memory, tools=[first, second], config=ASKS)
    one, two = waiting(run(runner, "chat", "?"))
    [left] = waiting(resumed(runner, answers={two["call_id"]: True}))
    assert (ran, left["call_id"]) == (["second"], one["call_id"])
    assert [each.status for each in memory.runs()] == ["paused", "superseded"]
    assert kinds(resumed(runner, answers={one["call_id"]: False}))[-1] == "run_completed"
    listed = [each.status for each in memory.runs()]
    assert listed == ["completed", "superseded", "superseded"]
    assert ran == ["second"]
    assert [text for role, text in said(memory, "chat") if role == "tool"][1] == "2"


def test_wrong_answers_are_refused(memory: StepMemory) -> None:
    runner = agent(memory, Till())
    [waits] = waiting(run(runner, "chat", "Pay."))
    for wrong in ({waits["call_id"]: 1}, {waits["call_id"]: None}, {"other": True}):
        with pytest.raises(InvalidSettingError):
            resumed(runner, answers=wrong)
    assert len(asyncio.run(runner.pending("chat"))) == 1


@pytest.mark.parametrize("by_question", [True, False])
def test_a_question_to_the_user_pauses(memory: StepMemory, by_question: bool) -> None:
    questions = UserQuestions(memory)
    program = dspy.ReAct(QA, tools=[questions.ask_user])
    program.set_lm(model("ask_user", question="How?"))
    runner = StepRunner(program, memory)
    events = run(runner, "chat", "Book my trip.")
    [asked] = [each.data or {} for each in events if each.type is StepEventType.INPUT_REQUIRED]
    [waits] = waiting(events)
    assert (waits["waits_for"], waits["tool"]) == ("answer", "ask_user")
    assert waits["arguments"] == {"question": "How?"}
    assert [each.text for each in questions.open(session_id="chat")] == ["How?"]
    name = asked["question_id"] if by_question else waits["call_id"]
    with pytest.raises(InvalidSettingError, match="text"):
        resumed(runner, answers={name: True})
    assert kinds(resumed(runner, answers={name: "by train"}))[-1] == "run_completed"
    assert said(memory, "chat")[-2:] == [("tool", "by train"), ("assistant", "done")]
    assert questions.open() == []


@pytest.mark.parametrize("callback", [True, False])
def test_a_node_of_a_graph_that_asks_pauses(memory: StepMemory, callback: bool) -> None:
    asks = AskUser((lambda _: None) if callback else UserQuestions(memory).ask_user)
    node = Action("ask", "AskUser", "Ask", "How?", disable_inference=True)
    graph = GraphInterpreter(chain(node, say("Well.")), [asks, Speak()])
    runner = StepRunner(graph, memory)
    [waits] = waiting(run(runner, "chat", "Book my trip."))
    assert (waits["waits_for"], waits["arguments"]) == ("answer", {"question": "How?"})
    assert [each.call_id for each in asyncio.run(runner.pending("chat"))] == [waits["call_id"]]
    assert waiting(resumed(runner))[0]["call_id"] == waits["call_id"]
    assert kinds(resumed(runner, answers={waits["call_id"]: "by train"}))[-1] == "run_completed"
    heard = memory.find({"tools": ["AskUser"], "status": "ok"}).steps
    assert [step.result for step in heard] == ["by train"]
    assert said(memory, "chat")[-1] == ("assistant", "Well.")


def test_an_answer_holds_though_the_model_asks_in_other_words(memory: StepMemory) -> None:
    asks = AskUser(UserQuestions(memory).ask_user)
    program = chain(Action("ask", "AskUser", "Ask", "Ask how"), say("Well."))
    graph = GraphInterpreter(program, [asks, Speak()])
    runner = StepRunner(graph, memory)
    lm = ScriptedLM([{"question": text} for text in ("How?", "By what?", "Which way?")])
    with dspy.context(lm=lm):
        [waits] = waiting(run(runner, "chat", "Book my trip."))
        assert waiting(resumed(runner)) == [waits]
        assert kinds(resumed(runner, answers={waits["call_id"]: "by train"}))[-1] == "run_completed"
    [heard] = memory.find({"tools": ["AskUser"], "status": "ok"}).steps
    assert heard.result == "by train"


@pytest.mark.parametrize("allowed", [True, False])
def test_an_agent_inside_a_tool_pauses_outward(memory: StepMemory, allowed: bool) -> None:
    till = Till()
    inner = agent(memory, till)
    program = dspy.ReAct(QA, tools=[inner.as_tool("expert", "Pays")])
    program.set_lm(model("expert", message="Pay, please."))
    outer = StepRunner(program, memory)
    events = run(outer, "chat", "Pay my bill.")
    [waits] = waiting(events)
    assert waits["tool"] == "pay"
    [listed] = asyncio.run(outer.pending("chat"))
    assert (listed.call_id, listed.waits_for) == (waits["call_id"], "consent")
    assert waiting(resumed(outer))[0]["call_id"] == waits["call_id"]
    assert kinds(resumed(outer, answers={waits["call_id"]: allowed}))[-1] == "run_completed"
    assert till.paid == (["the bill"] if allowed else [])
    heard = "done" if allowed else "denied"
    assert said(memory, "chat")[-2] == ("tool", heard)
    assert asyncio.run(outer.pending("chat")) == []


def test_a_module_that_begins_anew_gets_the_stored_results(memory: StepMemory) -> None:
    ran: list[str] = []

    def look(what: str) -> str:
        """Look."""
        ran.append("look")
        return f"seen {what}"

    def pay(what: str) -> str:
        """Pay."""
        ran.append("pay")
        return f"paid {what}"

    class Steady(dspy.Module):
        """Calls its tools itself, without a model."""

        def __init__(self) -> None:
            super().__init__()
            self.look, self.pay = dspy.Tool(look), dspy.Tool(pay)

        def forward(self, question: str) -> Any:
            seen = self.look(what=question)
            return dspy.Prediction(answer=self.pay(what=seen))

    def consent(request: ToolRequest) -> bool | None:
        return None if request.tool == "pay" else True

    runner = StepRunner(Steady(), memory, config=StepRunnerConfig(consent=consent))
    [waits] = waiting(run(runner, "chat", "the bill"))
    assert kinds(resumed(runner, answers={waits["call_id"]: True}))[-1] == "run_completed"
    assert ran == ["look", "pay"]
    assert said(memory, "chat")[-1] == ("assistant", "paid seen the bill")


def test_a_retry_that_pauses_goes_on(memory: StepMemory) -> None:
    till = Till()
    free = agent(memory, till, StepRunnerConfig(consent=lambda _: False))
    run(free, "chat", "Pay my bill.")
    runner = agent(memory, till)
    [waits] = waiting(asyncio.run(collected(runner.retry("chat", 1))))
    assert kinds(resumed(runner, answers={waits["call_id"]: True}))[-1] == "run_completed"
    assert till.paid == ["the bill"]


def well(_: list[dict[str, Any]]) -> str:
    return "Well."


def test_a_new_message_takes_the_question_back(memory: StepMemory) -> None:
    till = Till()
    runner = agent(memory, till)
    waiting(run(runner, "chat", "Pay my bill."))
    run(StepRunner(well, memory), "chat", "Never mind.")
    assert asyncio.run(runner.pending("chat")) == []
    assert resumed(runner) == []
    assert till.paid == []
    [closed] = [step for step in messages(memory, "chat") if step.role.value == "tool"]
    assert (closed.metadata or {})["denied"] is True
    check_openai([step.to_message_dict() for step in messages(memory, "chat")])


def test_a_run_that_is_cancelled_while_it_pauses_is_cancelled(memory: StepMemory) -> None:
    async def slow() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    def program(given: list[dict[str, Any]]) -> Any:
        return calls("slow", "pay")

    def consent(request: ToolRequest) -> bool | None:
        return None if request.tool == "pay" else True

    till = Till()
    config = StepRunnerConfig(consent=consent)
    runner = StepRunner(program, memory, tools=[slow, till.pay], config=config)

    async def cancelled() -> RunResult:
        events = runner.run_stream("chat", "?")

        async def stop(run_id: str) -> None:
            await asyncio.sleep(0.1)
            assert await runner.cancel(run_id)

        first = await anext(events)
        stopping = asyncio.ensure_future(stop(first.run_id))
        result = await RunResult.of(events, first=first)
        await stopping
        return result

    assert asyncio.run(cancelled()).status == "cancelled"
    assert till.paid == []


def test_a_message_supersedes_what_waits_but_a_retry_that_fails_leaves_it(
    memory: StepMemory,
) -> None:
    def pay() -> str:
        """Pay."""
        return "paid"

    broken: list[bool] = []

    def program(given: list[dict[str, Any]]) -> Any:
        if broken:
            raise RuntimeError("out of order")
        return "done" if given[-1]["content"] == "never mind" else calls("pay")

    runner = StepRunner(program, memory, tools=[pay], config=ASKS)
    waiting(run(runner, "chat", "?"))
    broken.append(True)
    asyncio.run(collected(runner.retry("chat", 1)))
    assert [each.status for each in memory.runs()] == ["failed", "paused"]
    broken.clear()
    run(runner, "chat", "never mind")
    assert [each.status for each in memory.runs()] == ["completed", "failed", "superseded"]
