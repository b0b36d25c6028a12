"""Errors that do not end a run: an Action's ERROR edge, and tools whose errors are observed."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import dspy
import pytest
from agent_programs import both, chain, say
from dspy.utils.exceptions import LMUnexpectedError

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.interpreter import GraphInterpreter, ready_agent
from hybridagi_steps.graph.tools.tool_box import ToolBox
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import CallGraphProgram, Predict, Speak
from hybridagi_steps.testing import request_text, scripted_lm


def fetch(page: str) -> str:
    """Fetch a page."""
    if page == "down":
        raise TimeoutError("no answer from the page")
    return f"the text of {page}"


def guarded(fetched: Action | None = None) -> GraphProgram:
    """Fetches a page, and says what it held, or what went wrong."""
    program = GraphProgram("main", "Fetch a page")
    program.add(fetched or Action("fetch", "fetch", "Fetch", "{{ query }}", [], "got", True))
    program.add(say("It says: {{ got }}", "tell", var_in=["got"]))
    program.add(say("That failed. {{ got }}", "sorry", var_in=["got"]))
    program.connect("start", "fetch").connect("fetch", "tell")
    program.connect("fetch", "sorry", label="ERROR")
    return program.connect("tell", "end").connect("sorry", "end")


class TestTheErrorEdge:
    def agent(self, **options: Any) -> GraphInterpreter:
        return GraphInterpreter(guarded(), [fetch, Speak()], **options)

    @both
    def test_is_taken_when_the_action_fails(self, call: Any, memory: hs.StepMemory) -> None:
        out = call(self.agent(memory=memory), query="down")
        assert (out.finish_reason, out.error) == ("finished", None)
        assert out.final_answer == "That failed. Error: TimeoutError: no answer from the page"
        assert [step.status for step in out.program_trace.steps] == ["ok", "error", "ok", "ok"]
        assert out.program_trace.steps[1].outputs == {
            "error": {"type": "TimeoutError", "message": "no answer from the page"}
        }
        assert list(memory.iter_steps()) == out.program_trace.steps

    def test_is_left_alone_when_all_goes_well(self) -> None:
        assert self.agent()(query="home").final_answer == "It says: the text of home"

    @pytest.mark.parametrize("options", [{"on_error": "raise"}, {"debug": True}])
    def test_is_taken_when_other_errors_are_raised(self, options: Any) -> None:
        assert self.agent(**options)(query="down").final_answer.startswith("That failed.")

    def test_takes_arguments_that_never_fit(self) -> None:
        asking = Action("fetch", "fetch", "Fetch", "Fetch {{ query }}", [], "got")
        agent = GraphInterpreter(guarded(asking), [fetch, Speak()], max_corrections=1)
        model = scripted_lm(lambda _: {"arguments": {"site": "home"}})
        with dspy.context(lm=model):
            out = agent(query="q")
        assert out.final_answer.startswith("That failed. Error: ToolInputError: fetch was called")
        assert len(model.requests) == 2

    def test_takes_what_fails_in_a_program_that_the_action_calls(self) -> None:
        program = guarded(Action("fetch", "CallGraphProgram", "Call", "helper", [], "got", True))
        deeper = chain(Action("f", "fetch", "Fetch", "down", disable_inference=True), name="deeper")
        helper = chain(Program("d", "Go deeper", "deeper"), name="helper")
        agent = GraphInterpreter([program, helper, deeper], [fetch, CallGraphProgram(), Speak()])
        out = agent(query="q")
        assert out.final_answer.startswith("That failed. Error: TimeoutError")
        ends = [step for step in out.program_trace.steps if step.step_type == "ProgramEnd"]
        assert [(end.program, end.status) for end in ends] == [
            ("deeper", "error"),
            ("helper", "error"),
            ("main", "ok"),
        ]
        main, *_, said, _ = out.program_trace.steps
        assert (said.tool, said.program_id) == ("Speak", str(main.id))

    def test_is_not_for_a_model_that_cannot_be_asked(self) -> None:
        asking = Action("fetch", "fetch", "Fetch", "Fetch {{ query }}", [], "got")
        agent = GraphInterpreter(guarded(asking), [fetch, Speak()])
        with dspy.context(lm=scripted_lm([RuntimeError("no credit")])):
            out = agent(query="q")
        assert (out.finish_reason, out.final_answer) == ("error", "")
        with dspy.context(lm=scripted_lm([RuntimeError("no credit")])):
            agent.on_error = "raise"
            with pytest.raises(LMUnexpectedError, match="no credit"):
                agent(query="q")

    def test_is_not_for_the_end_of_the_iterations(self) -> None:
        helper = chain(say("a", "a"), say("b", "b"), name="helper")
        program = guarded(Action("fetch", "CallGraphProgram", "Call", "helper", [], "got", True))
        tools = [CallGraphProgram(), Speak()]
        out = GraphInterpreter([program, helper], tools, max_iters=2)(query="q")
        assert (out.finish_reason, out.final_answer) == ("max_iters", "")

    def test_lets_a_model_try_again(self) -> None:
        program = GraphProgram("main", "Fetch until it works")
        program.add(Action("fetch", "fetch", "Fetch", "Fetch what the past steps leave to try"))
        program.add(say("done")).connect("start", "fetch").connect("fetch", "say")
        program.connect("fetch", "fetch", label="ERROR").connect("say", "end").build()
        model = scripted_lm([{"arguments": {"page": "down"}}, {"arguments": {"page": "home"}}])
        with dspy.context(lm=model):
            out = GraphInterpreter(program, [fetch, Speak()])(query="q")
        assert (out.finish_reason, out.final_answer) == ("finished", "done")
        assert "no answer from the page" in request_text(model.requests[1])

    def test_leaves_nothing_for_an_answer(self) -> None:
        program = GraphProgram("main").add(Action("fetch", "fetch", "F", "down", [], None, True))
        program.connect("start", "fetch").connect("fetch", "end").connect("fetch", "end", "ERROR")
        out = GraphInterpreter(program, [fetch])(query="q")
        assert (out.finish_reason, out.final_answer) == ("finished", "")

    @pytest.mark.parametrize("label", ["ERROR", "error", " Error "])
    def test_survives_the_text_form(self, label: str) -> None:
        program = guarded()
        program.edges = [edge._replace(label=edge.label and label) for edge in program.edges]
        again = GraphProgram.from_cypher(program.to_cypher())
        assert again == program.build()
        assert (again.next("fetch"), again.on_error("fetch")) == ("tell", "sorry")
        assert again.on_error("tell") is None

    def test_is_drawn(self) -> None:
        assert ">ERROR<" in guarded()._repr_html_()  # pyright: ignore[reportPrivateUsage]


class TestWhatIsNoErrorEdge:
    @pytest.mark.parametrize(
        ("connect", "complaint"),
        [
            ([("fetch", "end", "ERROR")], "'fetch' is a dead end"),
            (
                [("fetch", "end", None), ("fetch", "end", "ERROR"), ("fetch", "end", "error")],
                "2 ERROR edges leave the Action 'fetch'",
            ),
            ([("fetch", "end", None), ("fetch", "end", "FAILED")], "only edges out of a Decision"),
        ],
    )
    def test_is_refused(self, connect: list[Any], complaint: str) -> None:
        program = GraphProgram("main").add(Action("fetch", "fetch", "F", "home"))
        program.connect("start", "fetch")
        for edge in connect:
            program.connect(*edge)
        with pytest.raises(errors.InvalidProgramError, match=complaint) as raised:
            program.build()
        assert "ERROR" in str(raised.value) or "dead end" in complaint

    def test_a_called_program_has_none(self) -> None:
        program = GraphProgram("main").add(Program("call", "Call", "helper"))
        program.connect("start", "call").connect("call", "end").connect("call", "end", "ERROR")
        with pytest.raises(errors.InvalidProgramError, match="an Action's may be ERROR"):
            program.build()

    def test_a_decision_may_offer_that_word(self) -> None:
        program = GraphProgram("main").add(Decision("d", "Look", "Is it an error?"))
        program.add(say("broken", "bad")).add(say("fine", "good")).connect("start", "d")
        program.connect("d", "bad", "ERROR").connect("d", "good", "OK")
        program.connect("bad", "end").connect("good", "end")
        with dspy.context(lm=scripted_lm([{"choice": "ERROR"}])):
            assert GraphInterpreter(program, [Speak()])(query="q").final_answer == "broken"


class TestToolBox:
    @both
    def test_tells_the_agent_what_went_wrong(self, call: Any) -> None:
        program = chain(
            Action("act", "Act", "Act", "Fetch it", var_out="got"),
            Action("think", "Predict", "Think", "What now?"),
        )
        model = scripted_lm([{"tool": "fetch", "arguments": {"page": "down"}}, {"answer": "hm"}])
        with dspy.context(lm=model):
            out = call(GraphInterpreter(program, [ToolBox([fetch]), Predict()]), query="q")
        assert (out.finish_reason, out.final_answer) == ("finished", "hm")
        assert out.session.variables["got"] == "Error: TimeoutError: no answer from the page"
        assert "no answer from the page" in request_text(model.requests[1])

    def test_prefers_an_error_edge(self) -> None:
        program = guarded(Action("fetch", "Act", "Act", "Fetch it", [], "got"))
        model = scripted_lm([{"tool": "fetch", "arguments": {"page": "down"}}])
        with dspy.context(lm=model):
            out = GraphInterpreter(program, [ToolBox([fetch]), Speak()])(query="q")
        assert out.final_answer.startswith("That failed.")

    def test_goes_on_after_calls_that_never_fit(self) -> None:
        program = chain(Action("act", "Act", "Act", "Fetch it", var_out="got"), say("so be it"))
        agent = GraphInterpreter(program, [ToolBox([fetch]), Speak()], max_corrections=0)
        with dspy.context(lm=scripted_lm([{"tool": "fly", "arguments": {}}])):
            out = agent(query="q")
        assert out.final_answer == "so be it"
        assert out.session.variables["got"].startswith("Error: UnknownToolError")

    def test_shows_a_model_no_more_than_a_part_of_a_long_error(self) -> None:
        def log() -> None:
            raise ValueError("x" * 1_000_000)

        program = chain(Action("act", "Act", "Act", '{"tool": "log"}', [], "got", True))
        out = GraphInterpreter(program, [ToolBox([log])])(query="q")
        assert len(out.session.variables["got"]) < 3_000


class TestReadyAgents:
    def test_react_goes_on_after_a_tool_that_fails(self) -> None:
        replies: list[Any] = [
            {"reasoning": "-", "answer": "Look it up."},
            {"choice": "ACT"},
            {"tool": "fetch", "arguments": {"page": "down"}},
            {"reasoning": "-", "answer": "Try the other page."},
            {"choice": "ACT"},
            {"tool": "fetch", "arguments": {"page": "home"}},
            {"reasoning": "-", "answer": "Enough."},
            {"choice": "ANSWER"},
            {"message": "It is there."},
        ]
        model = scripted_lm(replies)
        with dspy.context(lm=model):
            out = ready_agent("react", tools=[fetch])(query="Where is it?")
        assert (out.finish_reason, out.final_answer) == ("finished", "It is there.")
        assert "no answer from the page" in request_text(model.requests[3])

    def test_plan_and_act_may_change_a_plan_whose_step_failed(self) -> None:
        replies: list[Any] = [
            {"reasoning": "-", "answer": "1. Fetch the page."},
            {"answer": "Fetch the page."},
            {"tool": "fetch", "arguments": {"page": "down"}},
            {"choice": "CHANGE"},
            {"reasoning": "-", "answer": "1. Fetch the home page."},
            {"answer": "Fetch the home page."},
            {"tool": "fetch", "arguments": {"page": "home"}},
            {"choice": "DONE"},
            {"message": "It is there."},
        ]
        model = scripted_lm(replies)
        with dspy.context(lm=model):
            out = ready_agent("plan_and_act", tools=[fetch])(query="Where is it?")
        assert (out.finish_reason, out.final_answer) == ("finished", "It is there.")
        assert "no answer from the page" in request_text(model.requests[3])
        assert "no answer from the page" in request_text(model.requests[4])
