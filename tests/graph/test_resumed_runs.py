"""A run of an agent that stopped is taken up at its node, with its session and what it did."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from agent_programs import both, chain, say

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs import Action, Program
from hybridagi_steps.programs.tools import CallGraphProgram, FunctionTool, Predict, Speak
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


def visited(out: AgentOutput) -> list[str]:
    notes = [step.metadata or {} for step in out.program_trace.steps]
    return [note["node"] for note in notes if "node" in note]


@both
def test_a_failed_run_goes_on_at_its_node(call: Any) -> None:
    shop = Shop(failures=1)
    agent = nested(shop)
    stopped = call(agent, query="Some tea, please")
    assert stopped.stopped_at == [("main", "order"), ("ordering", "pay")]
    out = call(agent, query="Some tea, please", resume=stopped)
    assert (out.finish_reason, out.final_answer, out.stopped_at) == ("finished", "Done.", [])
    assert visited(out) == ["ordering.pay", "main.say"]
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
    with pytest.raises(InvalidSettingError, match=r"not str"):
        agent(query="Tea", resume="the last one")
    changed = GraphInterpreter(chain(say("hi")), [Speak()])
    with pytest.raises(InvalidSettingError, match=r"main\.order.* programs have changed"):
        changed(query="Tea", resume=stopped)
