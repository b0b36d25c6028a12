"""Metrics for agents, under DSPy's own Evaluate, BootstrapFewShot and GEPA."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import dspy
import pytest
from agent_programs import chain, say

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.programs import Action, AnswerCritic, answer_matches
from hybridagi_steps.programs.tools import FunctionTool, Speak
from hybridagi_steps.testing import request_text, scripted_lm


def example(query: str, answer: str | list[str] = "Paris") -> dspy.Example:
    return dspy.Example(query=query, answer=answer).with_inputs("query")


def closed() -> str:
    """Fail."""
    raise ConnectionError("the shop is closed")


SPEAKER = chain(Action("say", "Speak", "Answer", "Answer {{ query }}"))


def speaker() -> GraphInterpreter:
    return GraphInterpreter(SPEAKER, [Speak()])


def failing() -> GraphInterpreter:
    program = chain(say("Paris"), Action("buy", "closed", "Buy", disable_inference=True))
    return GraphInterpreter(program, [Speak(), FunctionTool(closed)])


def test_answers_match_as_dspy_compares_them() -> None:
    out = GraphInterpreter(chain(say("The paris.")), [Speak()])(query="q")
    assert answer_matches(example("q"), out) is True
    assert answer_matches(example("q", ["London", "Paris"]), out) is True
    assert answer_matches(example("q", "London"), out) is False


@pytest.mark.parametrize("answer", [5, None, [], ["Paris", 5]])
def test_an_answer_that_is_no_text_is_refused(answer: Any) -> None:
    out = GraphInterpreter(chain(say("Paris")), [Speak()])(query="q")
    with pytest.raises(InvalidSettingError, match="a str or some"):
        answer_matches(example("q", answer), out)
    with pytest.raises(InvalidSettingError, match="a str or some"):
        answer_matches(dspy.Example(query="q").with_inputs("query"), out)


def test_what_no_graph_gave_is_refused() -> None:
    said: Any = dspy.Prediction(answer="Paris")
    with pytest.raises(InvalidSettingError, match="answer_exact_match"):
        answer_matches(example("q"), said)


def test_a_run_that_failed_matches_nothing() -> None:
    out = failing()(query="q")
    assert out.session.chat_history[-1].content == "Paris"
    assert answer_matches(example("q"), out) is False


def test_evaluate_takes_scores_of_the_critic() -> None:
    judge = scripted_lm([{"critique": "fine", "score": 0.5}, {"critique": "good", "score": 1.5}])
    metric = AnswerCritic(lm=judge)
    with dspy.context(lm=scripted_lm(lambda _: {"message": "Paris"})):
        result = dspy.Evaluate(
            devset=[example("a"), example("b")],
            metric=metric,
            num_threads=1,
            provide_traceback=True,
        )(speaker())
    assert result.score == 75.0
    assert "reference ## ]]\nParis" in request_text(judge.requests[0])


def test_the_critic_asks_nobody_about_a_run_that_failed() -> None:
    judge = scripted_lm([])
    verdict = AnswerCritic(lm=judge)(example("q"), failing()(query="q"))
    assert verdict.score == 0
    assert verdict.feedback == "The run stopped at main.buy. ConnectionError: the shop is closed"
    assert judge.requests == []


def test_demos_are_taken_from_good_runs_only() -> None:
    def judged(request: Any) -> dict[str, Any]:
        return {"critique": "so", "score": 0.9 if "Paris" in request_text(request) else 0.2}

    replies = [{"message": "Paris"}, {"message": "no idea"}]
    with dspy.context(lm=scripted_lm(replies)):
        compiled = dspy.BootstrapFewShot(
            metric=AnswerCritic(reference="none", lm=scripted_lm(judged)), max_labeled_demos=0
        ).compile(speaker(), trainset=[example("a"), example("b")])
    [demos] = [predictor.demos for predictor in compiled.predictors()]
    assert [demo["message"] for demo in demos] == ["Paris"]


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_that_is_none_is_refused(threshold: float) -> None:
    with pytest.raises(InvalidSettingError, match="threshold"):
        AnswerCritic(threshold=threshold)
