"""Metrics for agents made of graph programs, as DSPy's `Evaluate` and optimisers call them.

A run that ended early is no answer, whatever was said before: it scores 0, and what is told of it
names the node and the error, which is what a reflecting optimiser such as GEPA can use.
"""

from __future__ import annotations

from typing import Any, cast

import dspy

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.graph.run_state import AgentOutput


def answer_matches(example: dspy.Example, output: AgentOutput, trace: object = None) -> bool:
    """Return whether the run finished with the example's `answer`, compared as DSPy does.

    Case, punctuation and articles do not count; `answer` may be a list of right ones.

    Raises:
        InvalidSettingError: The example's `answer` is neither a text nor texts, or what is judged
            comes from no `GraphInterpreter`.
    """
    answer: Any = example.get("answer")
    answers = cast("list[object]", answer or [None]) if isinstance(answer, list) else [answer]
    if not all(isinstance(each, str) for each in answers):
        raise InvalidSettingError(
            f"answer_matches compares with an example's answer, a str or some, not {answer!r}."
        )
    if not hasattr(output, "finish_reason") or not hasattr(output, "final_answer"):
        raise InvalidSettingError(
            f"answer_matches judges what a GraphInterpreter gives, not a {type(output).__name__}; "
            "for other programs there is dspy.evaluate.answer_exact_match."
        )
    finished = output.finish_reason == "finished"
    said = dspy.Prediction(answer=output.final_answer)
    return finished and bool(dspy.evaluate.answer_exact_match(example, said, trace))


class _Judge(dspy.Signature):
    """Judge how well an answer does what was asked. If there is a reference, it is right."""

    question: str = dspy.InputField()
    reference: str = dspy.InputField()
    answer: str = dspy.InputField()
    critique: str = dspy.OutputField(desc="What is good, what is wrong or missing, in short")
    score: float = dspy.OutputField(desc="From 0, useless, to 1, all that was asked")


class AnswerCritic(dspy.Module):
    """Has a language model judge final answers: a metric that says why.

    Args:
        reference: The field of an example that holds a right answer; examples may lack it.
        threshold: The score from which a run is good enough to learn from.
        lm: The language model that judges, instead of the one configured.

    Raises:
        InvalidSettingError: The threshold is not from 0 to 1.

    Example:
        >>> metric = AnswerCritic()
        >>> evaluate = dspy.Evaluate(devset=[], metric=metric)
    """

    def __init__(
        self, reference: str = "answer", threshold: float = 0.7, lm: object = None
    ) -> None:
        super().__init__()
        if not 0 <= threshold <= 1:
            raise InvalidSettingError(f"threshold is from 0 to 1, not {threshold!r}.")
        self.reference, self.threshold = reference, threshold
        self.judge = dspy.Predict(_Judge)
        if lm is not None:
            self.judge.set_lm(lm)

    def forward(
        self,
        example: dspy.Example,
        output: AgentOutput,
        trace: object = None,
        pred_name: str | None = None,
        pred_trace: object = None,
    ) -> Any:
        """Return score (0 to 1) and feedback; whether it is good enough where demos are chosen."""
        del pred_trace
        judged = self._judged(example, output)
        chooses_demos = trace is not None and pred_name is None
        return bool(judged.score >= self.threshold) if chooses_demos else judged

    def _judged(self, example: dspy.Example, output: AgentOutput) -> dspy.Prediction:
        if output.finish_reason != "finished":
            place = ".".join(output.stopped_at[-1]) if output.stopped_at else "its beginning"
            error = output.error
            told = f"{error.type}: {error.message}" if error is not None else output.finish_reason
            return dspy.Prediction(score=0.0, feedback=f"The run stopped at {place}. {told}")
        judged = self.judge(
            question=output.session.query,
            reference=str(example.get(self.reference, "")),
            answer=output.final_answer,
        )
        score = min(1.0, max(0.0, judged.score))
        return dspy.Prediction(score=score, feedback=judged.critique)
