"""A run of an agent that stopped is taken up at its node, with its session and what it did."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dspy
import pytest
from agent_programs import both, chain, say

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError, UnknownRunError
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import (
    AskUser,
    CallGraphProgram,
    FunctionTool,
    PastActionSearch,
    Predict,
    Speak,
    UpdateObjective,
)
from hybridagi_steps.testing import request_text, scripted_lm


class Shop:
    """A tool that fails so many times, then works; what it was asked is kept."""

    def __init__(self, failures: int) -> None:
        self.failures, self.asked = failures, list[str]()

    def buy(self, what: str) -> str:
        """Buy something."""
        self.asked.append(what)
        if len(self.asked) <= self.failures:
            raise ConnectionError("the shop is closed")
        return f"bought {what}"


def act(tool: str, prompt: str, node_id: str, **options: Any) -> Action:
    """An Action that gives its prompt to a tool as it is."""
    return Action(node_id, tool, f"Use {tool}", prompt, disable_inference=True, **options)


def nested(shop: Shop) -> GraphInterpreter:
    """An agent whose called program fails at its second node."""
    programs = [
        chain(say("Let me see.", "greet"), Program("order", "Order it", "ordering"), say("Done.")),
        chain(
            act("Predict", "tea", "choose", var_out="wanted"),
            act("buy", "{{ wanted }}", "pay", var_in=["wanted"], var_out="receipt"),
            name="ordering",
        ),
    ]
    return GraphInterpreter(programs, [Speak(), Predict(), FunctionTool(shop.buy)])


def visited(steps: Iterable[hs.AgentStep]) -> list[str]:
    """Return the nodes whose Actions and Decisions these are."""
    told = [step for step in steps if step.step_type in ("Action", "Decision")]
    return [str((step.metadata or {})["node"]) for step in told]


@both
def test_a_failed_run_goes_on_at_its_node(call: Any) -> None:
    shop = Shop(failures=1)
    agent = nested(shop)
    stopped = call(agent, query="Some tea, please")
    assert stopped.stopped_at == [("main", "order"), ("ordering", "pay")]
    out = call(agent, query="Some tea, please", resume=stopped)
    assert (out.finish_reason, out.final_answer, out.stopped_at) == ("finished", "Done.", [])
    assert visited(out.program_trace.steps) == ["ordering.pay", "main.say"]
    assert shop.asked == ["tea", "tea"]
    assert out.session.variables["receipt"] == "bought tea"
    said = [message.content for message in out.session.chat_history]
    assert said == ["Some tea, please", "Let me see.", "Done."]
    assert [message.content for message in stopped.session.chat_history] == said[:2]


def test_it_goes_on_in_another_process() -> None:
    stopped = nested(Shop(failures=1))(query="Tea")
    read = AgentOutput.model_validate_json(stopped.model_dump_json())
    out = nested(Shop(failures=0))(query="Tea", resume=read)
    assert (out.finish_reason, out.session.variables["receipt"]) == ("finished", "bought tea")


def test_a_run_out_of_nodes_goes_on_with_the_next() -> None:
    agent = GraphInterpreter(chain(say("one", "a"), say("two", "b"), say("three", "c")), [Speak()])
    agent.max_iters = 2
    stopped = agent(query="Count")
    assert (stopped.finish_reason, stopped.stopped_at) == ("max_iters", [("main", "c")])
    out = agent(query="Count", resume=stopped)
    assert (out.finish_reason, out.final_answer) == ("finished", "three")


def test_it_knows_what_it_had_done() -> None:
    shop = Shop(failures=1)
    program = chain(
        act("Predict", "NEEDLE", "note"),
        act("buy", "tea", "pay"),
        Action("think", "Predict", "Think", "Go"),
    )
    agent = GraphInterpreter(program, [Predict(), FunctionTool(shop.buy)])
    model = scripted_lm([{"answer": "well"}])
    with dspy.context(lm=model):
        out = agent(query="q", resume=agent(query="q"))
    assert out.final_answer == "well"
    assert "NEEDLE" in request_text(model.requests[0])


def test_the_new_run_names_the_old_one(memory: hs.StepMemory) -> None:
    agent = nested(Shop(failures=1))
    agent.memory = memory
    stopped = agent(query="Tea")
    out = agent(query="Tea", resume=stopped)
    [first, *_] = out.program_trace.steps
    assert first.metadata is not None
    assert first.metadata["resumes"] == stopped.program_trace.steps[0].run_id
    assert first.run_id != stopped.program_trace.steps[0].run_id


def test_a_new_query_is_said_and_pursued() -> None:
    agent = nested(Shop(failures=1))
    out = agent(query="Coffee then", resume=agent(query="Tea"))
    assert [each.content for each in out.session.chat_history if each.role == "user"] == [
        "Tea",
        "Coffee then",
    ]
    assert out.session.objective == "Coffee then"


def test_a_program_that_an_action_called_is_begun_anew() -> None:
    shop = Shop(failures=1)
    programs = [
        chain(act("CallGraphProgram", "ordering", "pick"), say("Done.")),
        chain(say("Let me see.", "greet"), act("buy", "tea", "pay"), name="ordering"),
    ]
    agent = GraphInterpreter(programs, [Speak(), CallGraphProgram(), FunctionTool(shop.buy)])
    stopped = agent(query="Tea")
    assert stopped.stopped_at == [("main", "pick")]
    out = agent(query="Tea", resume=stopped)
    assert out.finish_reason == "finished"
    said = [message.content for message in out.session.chat_history]
    assert said == ["Tea", "Let me see.", "Let me see.", "Done."]


def test_what_cannot_be_resumed_is_refused() -> None:
    agent = nested(Shop(failures=0))
    done = agent(query="Tea")
    with pytest.raises(InvalidSettingError, match="nothing to resume"):
        agent(query="Tea", resume=done)
    stopped = nested(Shop(failures=1))(query="Tea")
    with pytest.raises(InvalidSettingError, match="leave out session"):
        agent(query="Tea", resume=stopped, session=done.session)
    with pytest.raises(InvalidSettingError, match=r"not int"):
        agent(query="Tea", resume=7)
    changed = GraphInterpreter(chain(say("hi")), [Speak()])
    with pytest.raises(InvalidSettingError, match=r"main\.order.* programs have changed"):
        changed(query="Tea", resume=stopped)


# -- by the id of a run, from what the memory holds of it


def eventful(memory: hs.StepMemory, paid: list[str]) -> GraphInterpreter:
    """An agent with every kind of node and of way between them; payments are counted."""

    def pay(what: str) -> dict[str, str]:
        """Pay."""
        paid.append(what)
        return {"bought": what}

    def fail() -> str:
        """Fail."""
        raise TimeoutError("no answer")

    main = GraphProgram("main", "Buy something", ["kind"])
    main.add(act("UpdateObjective", "Have {{ query }} today", "aim"))
    main.add(act("PastActionSearch", "the query", "recall", var_out="found"))
    main.add(Decision("clear", "Check", "Is it clear?"))
    main.add(act("AskUser", "Which {{ query }}?", "ask", var_out="said"))
    main.add(Program("order", "Order it", "ordering"))
    main.add(act("fail", "", "notify", var_out="failed"))
    main.add(act("Speak", "Nobody was told: {{ failed }}", "sorry", var_in=["failed"]))
    main.add(act("CallGraphProgram", "wrapping", "wrap"))
    main.connect("start", "aim").connect("aim", "recall").connect("recall", "clear")
    main.connect("clear", "order", label="YES").connect("clear", "ask", label="NO")
    main.connect("ask", "clear").connect("order", "notify").connect("notify", "end")
    main.connect("notify", "sorry", label="ERROR").connect("sorry", "wrap").connect("wrap", "end")
    buy = act("pay", "{{ kind }} tea", "pay", var_in=["kind"], var_out="receipt")
    programs = [
        main,
        chain(say("Let me see.", "greet"), buy, name="ordering", var_in=("kind",)),
        chain(act("Predict", "paper", "choose", var_out="wrapped"), name="wrapping"),
    ]
    tools = [Speak(), AskUser(lambda question: "green"), UpdateObjective(), PastActionSearch()]
    tools += [Predict(), CallGraphProgram(), FunctionTool(pay), FunctionTool(fail)]
    return GraphInterpreter(programs, tools, memory, max_iters=50)


ANSWERS = ["NO", "YES"]


@both
def test_wherever_it_was_killed_it_ends_alike(call: Any, memory: hs.StepMemory) -> None:
    """Whatever a crash left of the steps, the rest is done, and nothing of it twice."""
    asked = {"purpose": "the query"}
    old = hs.AgentStep(step_type=hs.AgentStepType.Action, inputs=asked, run_id="old")
    memory.add(old)
    with dspy.context(lm=scripted_lm({"choice": ANSWERS})):
        whole = call(eventful(memory, []), query="tea", kind="green", objective="Rest")
    steps = whole.program_trace.steps
    assert whole.final_answer == "Nobody was told: Error: TimeoutError: no answer"
    assert visited(steps)[-3:] == ["main.sorry", "wrapping.choose", "main.wrap"]
    for cut in range(1, len(steps)):
        left = steps[:cut]
        nodes = visited(left)
        with hs.StepMemory(":memory:", embedder="hashing") as after:
            after.add([old, *left])
            agent = eventful(after, paid := [])
            if cut == 1:
                assert agent.stopped_run(str(left[0].run_id)).session.objective == "Rest"
            answers = ANSWERS[nodes.count("main.clear") :] or ["none is asked for"]
            with dspy.context(lm=scripted_lm({"choice": answers})):
                out = call(agent, query="tea", kind="green", resume=left[0].run_id)
            assert (out.finish_reason, out.final_answer) == ("finished", whole.final_answer)
            found = out.session.variables["found"]
            # What follows the best may be a step of the attempt that was cut off.
            assert found.steps[:1] == whole.session.variables["found"].steps
            out.session.variables["found"] = whole.session.variables["found"]  # but for its scores
            assert out.session.model_dump() == whole.session.model_dump()
            assert paid == ([] if "ordering.pay" in nodes else ["green tea"])


def interrupted(error: BaseException) -> Any:
    """Return what raises an error when it is asked the first time."""
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        if len(asked) == 1:
            raise error
        return "green"

    return answer


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), OSError("gone")])
def test_a_run_that_was_interrupted_while_it_asked_asks_again(
    error: BaseException, memory: hs.StepMemory
) -> None:
    ask = act("AskUser", "Which tea?", "ask", var_out="kind")
    program = chain(say("Welcome.", "greet"), ask, say("{{ kind }}!", var_in=["kind"]))
    tools = [Speak(), AskUser(interrupted(error))]
    agent = GraphInterpreter(program, tools, memory, on_error="raise")
    with hs.record(memory) as run, pytest.raises(type(error)):
        agent(query="Tea")
    out = agent(query="Tea", resume=run.id)
    said = [message.content for message in out.session.chat_history]
    assert said == ["Tea", "Welcome.", "Which tea?", "green", "green!"]


KILLED = """
import os, signal, sys
import hybridagi_steps as hs
from hybridagi_steps.programs import GraphProgram
from hybridagi_steps.programs.tools import Speak

def note(what: str) -> str:
    print(what, flush=True)
    if what == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return what

memory = hs.StepMemory(sys.argv[1])
programs = [GraphProgram.load(path) for path in sys.argv[4:]]
agent = hs.GraphInterpreter(programs, [note, Speak()], memory)
calls = memory.find({"step_types": ["ProgramCall"]}, newest_first=True).steps
out = agent(query="q", resume=calls[0].run_id if calls else None)
print(out.final_answer)
"""


def test_a_process_that_is_killed_twice_is_taken_up_twice(tmp_path: Path) -> None:
    inner = chain(*(act("note", word, word) for word in ("two", "three")), name="inner")
    main = chain(act("note", "one", "one"), Program("call", "Call it", "inner"), say("Done."))
    paths = [str(each.save(tmp_path)) for each in (main, inner)]
    printed: list[list[str]] = []
    for killed_at in ("two", "three", "nowhere"):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "s.db"), killed_at, "", *paths]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == (0 if killed_at == "nowhere" else -signal.SIGKILL), done.stderr
        printed.append(done.stdout.split())
    assert printed == [["one", "two"], ["two", "three"], ["three", "Done."]]


def test_what_an_id_cannot_resume_is_refused(memory: hs.StepMemory) -> None:
    shop = Shop(failures=1)
    agent = nested(shop)
    agent.memory = memory
    with hs.record(memory, user_id="ann") as run:
        agent(query="Tea")
    with pytest.raises(UnknownRunError):
        agent(query="Tea", resume="no such run")
    with hs.record(memory, user_id="bob"), pytest.raises(UnknownRunError):
        agent(query="Tea", resume=run.id)
    greeting = GraphInterpreter(chain(say("Hello.", "hello")), [Speak()], memory)
    with pytest.raises(InvalidSettingError, match=r"main\.greet.*main\.hello.* have changed"):
        greeting(query="Tea", resume=run.id)
    with hs.record(memory, user_id="ann") as taken_up:
        agent(query="Tea", resume=run.id)
    with pytest.raises(InvalidSettingError, match="finished: there is nothing to resume"):
        agent(query="Tea", resume=taken_up.id)
    alone = nested(shop)
    with pytest.raises(InvalidSettingError, match="this agent has none"):
        alone(query="Tea", resume=run.id)


def test_what_was_too_large_to_be_stored_is_not_made_up(memory: hs.StepMemory) -> None:
    shop = Shop(failures=1)
    program = chain(act("long", "", "long", var_out="text"), act("buy", "tea", "pay"), name="main")
    tools = [FunctionTool(lambda: "x" * 9_000_000, "long"), FunctionTool(shop.buy)]
    agent = GraphInterpreter(program, tools, memory)
    stopped = agent(query="Tea")
    with pytest.raises(InvalidSettingError, match=r"main\.long gave was too large"):
        agent(query="Tea", resume=stopped.program_trace.steps[0].run_id)
    assert agent(query="Tea", resume=stopped).finish_reason == "finished"


def test_variables_that_were_not_stored_whole_are_given_again(memory: hs.StepMemory) -> None:
    pay = act("buy", "{{ numbers | length }}", "pay", var_in=["numbers"])
    program = chain(say("Hm.", "greet"), pay, var_in=("numbers",))
    agent = GraphInterpreter(program, [Speak(), FunctionTool(Shop(failures=1).buy)], memory)
    numbers = [0.5] * 300
    run_id = agent(query="Tea", numbers=numbers).program_trace.steps[0].run_id
    missing = agent(query="Tea", resume=run_id)
    assert missing.error is not None
    assert "needs the variable 'numbers'" in missing.error.message
    out = agent(query="Tea", numbers=numbers, resume=run_id)
    assert (out.finish_reason, out.final_answer) == ("finished", "Hm.")


def test_a_run_is_not_gone_on_with_from_that_of_another_user(memory: hs.StepMemory) -> None:
    agent = nested(Shop(failures=9))
    agent.memory = memory
    with hs.record(memory, user_id="bob") as secret:
        agent(query="My secret tea")
    with hs.record(memory, user_id="ann", tags={"resumes": secret.id}) as forged:
        agent(query="Tea")
    with pytest.raises(UnknownRunError):
        agent.stopped_run(forged.id)


def test_the_conversation_that_it_was_begun_with_can_be_given_again(memory: hs.StepMemory) -> None:
    agent = nested(Shop(failures=1))
    agent.memory = memory
    talk = GraphInterpreter(chain(say("Good morning.")), [Speak()])(query="Hello").session
    stopped = agent(query="Tea", session=talk)
    out = agent(query="Tea", session=talk, resume=stopped.program_trace.steps[0].run_id)
    said = [message.content for message in out.session.chat_history]
    assert said == ["Hello", "Good morning.", "Tea", "Let me see.", "Done."]
