"""BestOfN, Refine, MultiChainComparison: what was tried, how rewarded, and what was chosen."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportCallIssue=false

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from recorder_programs import all_steps

import hybridagi_steps as hs
from hybridagi_steps.testing import asked_fields, plausible_reply, scripted_lm

LENGTHS = {"a": 0.2, "bbbb": 0.8, "cc": 0.4}


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


def reward(_: Any, prediction: Any) -> float:
    """Longer is better."""
    return LENGTHS[prediction.answer]


class Draft(dspy.Module):
    """Drafts an answer, then says it."""

    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.Predict("question -> draft")
        self.say = dspy.Predict("draft -> answer")

    def forward(self, question: str) -> Any:
        """Draft and say."""
        return self.say(draft=self.draft(question=question).draft)


def said_in(step: hs.AgentStep) -> Any:
    """The answer in a step."""
    return (step.outputs or {}).get("answer")


def answers() -> Any:
    """A model that answers otherwise each time, and advises when asked."""
    given = iter(LENGTHS)

    def reply(request: Any) -> Any:
        asked = asked_fields(request)
        if "answer" in asked:
            return {name: "why" for name in asked if name != "answer"} | {"answer": next(given)}
        if "advice" in asked:
            return {"discussion": "…", "advice": {}}
        return plausible_reply(request)

    return scripted_lm(reply)


@pytest.mark.parametrize("module", [Draft(), dspy.ChainOfThought("question -> answer")])
@pytest.mark.parametrize("kind", [dspy.BestOfN, dspy.Refine])
def test_losers_are_not_recalled_as_if_they_had_won(
    memory: hs.StepMemory, kind: Any, module: Any
) -> None:
    program = kind(module=module, N=3, reward_fn=reward, threshold=1.0)
    own_reward = program.reward_fn
    with dspy.context(lm=answers()), hs.record(memory) as run:
        assert program(question="q").answer == "bbbb"
    assert run.errors == []
    assert program.reward_fn is own_reward

    end = memory.find({"step_types": "ProgramEnd", "program": kind.__name__}).steps[-1]
    attempts = (end.metadata or {})["attempts"]
    assert [each["reward"] for each in attempts] == [0.2, 0.8, 0.4]
    assert [each["chosen"] for each in attempts] == [False, True, False]
    said = [said_in(memory.get(each["step"]).steps[0]) for each in attempts]
    assert said == list(LENGTHS)
    recalled = [said_in(step) for step in memory.find().steps]
    assert {*recalled} - {None} == {"bbbb"}
    assert not any("cc" in str(hit.step.outputs) for hit in memory.search("cc", k=20))
    everything = all_steps(memory)
    assert [step.hop for step in sorted(everything, key=lambda s: s.hop)] == list(
        range(len(everything))
    )
    assert memory.runs()[0].scope is None
    assert memory.verify() == []


class Lengths:
    """A reward that is an object."""

    scale = 2.0
    seen = False

    def __call__(self, _: Any, prediction: Any) -> float:
        """Longer is better."""
        return self.scale * reward(_, prediction)


def test_a_reward_that_is_an_object_stays_what_it_is(memory: hs.StepMemory) -> None:
    own = Lengths()

    class Looking(dspy.BestOfN):
        """Looks at its reward while it is called."""

        def forward(self, **kwargs: Any) -> Any:
            """Look, and call."""
            found: Any = self.reward_fn
            assert isinstance(found, Lengths)
            assert (found.scale, found == own, hash(found)) == (2.0, True, hash(own))
            found.seen = True
            assert copy.deepcopy(found).scale == 2.0
            assert type(pickle.loads(pickle.dumps(found))) is Lengths
            return super().forward(**kwargs)

    program = Looking(module=Draft(), N=3, reward_fn=own, threshold=9.0)
    program.reward_fn = own  # DSPy's own is a function around it
    with dspy.context(lm=answers()), hs.record(memory) as run:
        assert program(question="q").answer == "bbbb"
    assert run.errors == []
    assert program.reward_fn is own
    assert own.seen
    end = memory.find({"step_types": "ProgramEnd", "program": "Looking"}).steps[-1]
    assert [each["reward"] for each in (end.metadata or {})["attempts"]] == [0.4, 1.6, 0.8]


def test_several_threads_share_one_best_of_n(memory: hs.StepMemory) -> None:
    def by_question(request: Any) -> Any:
        return {"answer": "a" if "one" in str(request.messages[-1]) else "bbbb"}

    predict = dspy.Predict("question -> answer")
    program = dspy.BestOfN(module=predict, N=2, reward_fn=reward, threshold=0.7)
    own_reward = program.reward_fn
    with dspy.context(lm=scripted_lm(by_question)), hs.record(memory) as run:
        examples = [dspy.Example(question=n).with_inputs("question") for n in ("one", "two") * 4]
        dspy.Parallel(num_threads=4, disable_progress_bar=True)([(program, e) for e in examples])
    assert run.errors == []
    assert program.reward_fn is own_reward
    ends = memory.find({"step_types": "ProgramEnd"}).steps
    told = sorted(str([a["reward"] for a in (e.metadata or {})["attempts"]]) for e in ends)
    assert told == ["[0.2, 0.2]"] * 4 + ["[0.8]"] * 4


@pytest.mark.filterwarnings("ignore:The 'prefix' argument:DeprecationWarning")  # DSPy's own use
def test_a_comparison_says_which_answers_it_was_given(memory: hs.StepMemory) -> None:
    compare = dspy.MultiChainComparison("question -> answer", M=2)
    completions = [
        dspy.Prediction(reasoning="x", answer="Rome"),
        dspy.Prediction(reasoning="y", answer="Oslo"),
    ]
    lm = scripted_lm([{"rationale": "z", "answer": "Oslo"}])
    with dspy.context(lm=lm), hs.record(memory):
        compare(completions, question="q")
    end = memory.find({"step_types": "ProgramEnd"}).steps[0]
    attempts = (end.metadata or {})["attempts"]
    assert [(each["answer"], each["chosen"]) for each in attempts] == [
        ("Rome", False),
        ("Oslo", True),
    ]
