"""What fails fails where an optimiser would score it, and is returned or observed elsewhere."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any

import dspy
import pytest
from agent_programs import both, chain, say
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import LMUnexpectedError

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs import Action
from hybridagi_steps.programs.tools import Predict, Speak
from hybridagi_steps.testing import request_text, scripted_lm


def refused(request: object) -> Any:
    """Answer nothing, as a provider that was given a wrong key."""
    raise RuntimeError("401: incorrect API key provided")


def thinker(**options: Any) -> GraphInterpreter:
    """An agent that thinks, then answers."""
    program = chain(
        Action("think", "Predict", "Think", "Think about {{ query }}", var_out="thought"),
        Action("answer", "Speak", "Answer", "Say {{ thought }}", var_in=["thought"]),
    )
    return GraphInterpreter(program, [Predict(), Speak()], **options)


def broken() -> None:
    """Fail."""
    raise OSError("disk on fire")


def breaking(**options: Any) -> GraphInterpreter:
    """An agent that says something, and fails."""
    program = chain(say("Wait."), Action("b", "broken", "Break", disable_inference=True))
    return GraphInterpreter(program, [Speak(), broken], **options)


def examples(count: int) -> list[dspy.Example]:
    """Questions with an answer."""
    return [
        dspy.Example(query=f"q{number}", final_answer="fine").with_inputs("query")
        for number in range(count)
    ]


def lenient(example: object, output: object, trace: object = None) -> bool:
    """Be content with whatever comes back."""
    return True


def evaluation(count: int = 4, **options: Any) -> dspy.Evaluate:
    """An evaluation with a metric that is content with anything."""
    given = {"num_threads": 1, "max_errors": 100, "display_progress": False, **options}
    return dspy.Evaluate(devset=examples(count), metric=lenient, **given)


class TestInsideTrials:
    def test_an_evaluation_scores_nothing_when_the_model_is_down(self) -> None:
        with dspy.context(lm=scripted_lm(refused)):
            assert evaluation()(thinker()).score == 0

    def test_the_errors_of_an_evaluation_are_counted(self) -> None:
        with (
            dspy.context(lm=scripted_lm(refused)),
            pytest.raises(Exception, match=r"cancelled|incorrect API key"),
        ):
            evaluation(max_errors=2)(thinker())

    def test_an_evaluation_on_threads_scores_nothing_either(self) -> None:
        with dspy.context(lm=scripted_lm(refused)):
            assert evaluation(num_threads=2)(thinker()).score == 0

    def test_a_random_search_with_a_wrong_key_does_not_compile(self) -> None:
        search = dspy.BootstrapFewShotWithRandomSearch(
            metric=lenient, num_candidate_programs=1, num_threads=1, max_errors=2
        )
        with (
            dspy.context(lm=scripted_lm(refused)),
            pytest.raises(Exception, match=r"cancelled|incorrect API key"),
        ):
            search.compile(thinker(), trainset=examples(6))

    def test_runs_that_failed_give_no_demos(self) -> None:
        def think_only(request: Any) -> dict[str, str]:
            asks_for_message = "[[ ## message ## ]]" in request_text(request)
            return refused(request) if asks_for_message else {"answer": "hm"}

        teleprompter = dspy.BootstrapFewShot(
            metric=None, max_bootstrapped_demos=3, max_labeled_demos=0, max_errors=100
        )
        with dspy.context(lm=scripted_lm(think_only)):
            learned = teleprompter.compile(thinker(), trainset=examples(4))
        assert {name: list(each.demos) for name, each in learned.named_predictors()} == {
            "nodes['main.think']": [],
            "nodes['main.answer']": [],
        }

    def test_the_first_error_of_a_bootstrap_may_end_it(self) -> None:
        teleprompter = dspy.BootstrapFewShot(metric=None, max_labeled_demos=0, max_errors=1)
        with dspy.context(lm=scripted_lm(refused)), pytest.raises(LMUnexpectedError):
            teleprompter.compile(thinker(), trainset=examples(4))

    def test_tracers_see_the_run_fail(self) -> None:
        class Tracer(BaseCallback):
            """Does what MLflow's tracer does: a span is an error when its call ends in one."""

            def __init__(self) -> None:
                self.ends: list[BaseException | None] = []
                self.calls: set[str] = set()

            def on_module_start(self, call_id: str, instance: Any, inputs: Any) -> None:
                if isinstance(instance, GraphInterpreter):
                    self.calls.add(call_id)

            def on_module_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
                if call_id in self.calls:
                    self.ends.append(exception)

        tracer = Tracer()
        with dspy.context(lm=scripted_lm(refused), callbacks=[tracer]):
            evaluation(1)(thinker())
        assert [type(error) for error in tracer.ends] == [LMUnexpectedError]

    def test_the_failing_steps_are_stored_all_the_same(self, memory: hs.StepMemory) -> None:
        with dspy.context(lm=scripted_lm(refused)):
            evaluation(1)(thinker(memory=memory))
        trial = list(memory.iter_steps({"scope": "*"}))
        assert [(str(step.step_type), step.status) for step in trial] == [
            ("ProgramCall", "ok"),
            ("Action", "error"),
            ("ProgramEnd", "error"),
        ]
        assert all(step.scope for step in trial)

    def test_an_agent_that_is_told_to_return_returns(self) -> None:
        with dspy.context(lm=scripted_lm(refused)):
            assert evaluation()(thinker(on_error="return")).score == 100

    def test_running_out_of_iterations_is_no_exception(self) -> None:
        def unfinished(example: object, output: AgentOutput, trace: object = None) -> bool:
            return output.finish_reason == "max_iters" and not output.final_answer

        judge = dspy.Evaluate(devset=examples(2), metric=unfinished, num_threads=1)
        with dspy.context(lm=scripted_lm(lambda _: {"answer": "hm"})):
            assert judge(thinker(max_iters=1)).score == 100


class TestOutsideOfTrials:
    def test_an_error_is_returned_with_its_traceback(self) -> None:
        out = breaking()(query="q")
        assert out.finish_reason == "error"
        assert out.error is not None
        assert (out.error.type, out.error.message) == ("OSError", "disk on fire")
        raised = out.error.exception
        assert isinstance(raised, OSError)
        assert traceback.extract_tb(raised.__traceback__)[-1].name == "broken"
        assert "in broken" in out.error.traceback
        assert "At the node main.b of the agent." in out.error.traceback

    def test_what_is_returned_can_be_copied_and_sent(self) -> None:
        with dspy.context(lm=scripted_lm(refused)):
            out = thinker()(query="q")
        assert out.error is not None
        for copied in (copy.deepcopy(out), pickle.loads(pickle.dumps(out))):
            assert copied == out
            assert copied.error is not None
            assert copied.error.traceback == out.error.traceback
        assert copy.deepcopy(out.error).exception is out.error.exception
        assert AgentOutput(**out.toDict()) == out
        assert "exception" not in out.toDict()["error"]
        assert "exception" not in out.model_dump()["error"]

    def test_steps_and_messages_tell_no_traceback(self) -> None:
        with dspy.context(lm=scripted_lm(refused)):
            told = thinker()(query="q").told_fields()
        assert told["error"] == {
            "type": "LMUnexpectedError",
            "message": "[scripted/model] 401: incorrect API key provided",
        }

    @both
    def test_an_agent_that_is_told_to_raise_raises(self, call: Any, memory: hs.StepMemory) -> None:
        agent = thinker(on_error="raise", memory=memory)
        with dspy.context(lm=scripted_lm(refused)), pytest.raises(LMUnexpectedError) as raised:
            call(agent, query="q")
        assert "main.think" in "".join(raised.value.__notes__)
        assert [step.status for step in memory.iter_steps()] == ["ok", "error", "error"]

    @both
    def test_debugging_raises_where_it_happened(self, call: Any) -> None:
        with pytest.raises(OSError, match="disk on fire") as raised:
            call(breaking(debug=True), query="q")
        assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "broken"

    def test_a_copy_keeps_its_policy(self) -> None:
        with dspy.context(lm=scripted_lm(refused)), pytest.raises(LMUnexpectedError):
            thinker(on_error="raise").deepcopy()(query="q")

    @pytest.mark.parametrize("wrong", ["ignore", True, "", 1])
    def test_another_policy_is_refused(self, wrong: Any) -> None:
        with pytest.raises(errors.InvalidSettingError, match="'raise' or 'return'"):
            thinker(on_error=wrong)

    def test_debugging_and_returning_contradict_one_another(self) -> None:
        with pytest.raises(errors.InvalidSettingError, match="debug"):
            thinker(on_error="return", debug=True)

    def test_verbose_prints_each_step_as_it_is_stored(self, capsys: Any) -> None:
        def hide(text: str) -> str:
            return text.replace("4111", "[card]")

        with hs.StepMemory(":memory:", embedder="hashing", redact=hide) as memory:
            agent = GraphInterpreter(
                chain(say("card {{ query }}")), [Speak()], memory, verbose=True
            )
            out = agent(query="4111")
        assert capsys.readouterr().out.splitlines() == [
            line for step in out.program_trace.steps for line in str(step).splitlines()
        ]
        GraphInterpreter(chain(say("hi")), [Speak()])(query="q")
        assert capsys.readouterr().out == ""


class TestTheFinalAnswer:
    def test_is_empty_when_a_run_failed(self) -> None:
        out = breaking()(query="q")
        assert (out.finish_reason, out.final_answer) == ("error", "")
        assert out.session.chat_history[-1].content == "Wait."
        assert out.program_trace.steps[-1].outputs == {
            "error": {"type": "OSError", "message": "disk on fire"}
        }

    def test_is_no_thought_on_the_way(self) -> None:
        with dspy.context(lm=scripted_lm([{"answer": "The refund is probably 500 dollars"}])):
            out = thinker(max_iters=1)(query="q")
        assert (out.finish_reason, out.final_answer) == ("max_iters", "")

    def test_is_what_was_said_or_the_finished_result(self) -> None:
        result = Action("r", "Predict", "Work", "42", disable_inference=True)
        for nodes, expected in (([say("hi"), result], "hi"), ([result], "42")):
            out = GraphInterpreter(chain(*nodes), [Speak(), Predict()])(query="q")
            assert out.final_answer == expected
