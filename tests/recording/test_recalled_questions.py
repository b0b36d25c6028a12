"""A program that asks its memory again and again finds answers there, not its own questions."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm

WORDINGS = [
    "When did we say the Seattle flight leaves?",
    "What time did we say the Seattle flight leaves?",
    "The Seattle flight: when did we say it leaves?",
    "When did we say that the Seattle flight leaves, please?",
    "Tell me when we said the Seattle flight leaves.",
]
FLIGHT = "HAT742 leaves for Seattle at 9:40"


class Answer(dspy.Signature):
    """Answer, using past steps where they help."""

    question: str = dspy.InputField()
    past: hs.StepContext = dspy.InputField()
    answer: str = dspy.OutputField()


class Remembering(dspy.Module):
    def __init__(self, memory: hs.StepMemory, reranker: Any) -> None:
        super().__init__()
        self.retrieve = hs.StepRetriever(memory, k=3, reranker=reranker)
        self.answer = dspy.Predict(Answer)

    def forward(self, question: str) -> dspy.Prediction:
        return self.answer(question=question, past=self.retrieve(question).as_context())


class Clock(dspy.Module):
    """Tells when a flight leaves, without a model."""

    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer=f"at 9:40, you asked {question!r}")


def call(number: int, program: str = "desk") -> hs.AgentStep:
    return hs.AgentStep(
        id=f"call-{number}",
        step_type=hs.AgentStepType.ProgramCall,
        inputs={"program": program, "purpose": "refund", "arguments": {"question": "refund a hat"}},
    )


def done(number: int) -> hs.AgentStep:
    return hs.AgentStep(
        id=f"done-{number}",
        step_type=hs.AgentStepType.Action,
        inputs={"purpose": f"look at thing {number}"},
        outputs={"result": "a refund"},
    )


def recalled(retrieve: hs.StepRetriever, question: str = "refund a hat", **asked: Any) -> list[str]:
    return [str(step.id) for step in retrieve(question, **asked).steps]


@pytest.mark.parametrize("reranker", [None, hs.rerankers.Outcome()], ids=["plain", "outcome"])
@pytest.mark.parametrize("embedder", ["hashing", "wordllama"])
def test_the_fifth_wording_of_a_question_still_finds_the_answer(
    embedder: str, reranker: Any
) -> None:
    prompts: list[str] = []

    def script(request: Any) -> dict[str, str]:
        prompts.append(request.messages[-1].text)
        return {"answer": "I do not know"}

    with hs.StepMemory(":memory:", embedder=embedder) as memory:
        memory.add(
            hs.AgentStep(
                step_type=hs.AgentStepType.Action,
                inputs={
                    "purpose": "look up the next flight to a city",
                    "tool": "find_flight",
                    "arguments": {"city": "Seattle"},
                },
                outputs={"result": FLIGHT},
                run_id="old",
            )
        )
        program = Remembering(memory, reranker)
        with dspy.context(lm=scripted_lm(script)):
            for wording in WORDINGS:
                with hs.record(memory):
                    program(question=wording)
    assert len(prompts) == len(WORDINGS)
    for prompt in prompts:
        assert FLIGHT in prompt
        assert "StepRetriever" not in prompt
        assert "Call Program: Remembering" not in prompt


def test_what_a_program_without_a_model_answered_is_recalled(memory: hs.StepMemory) -> None:
    with hs.record(memory):
        Clock()(question=WORDINGS[0])
    memory.add([done(number) for number in range(3)])
    found = hs.StepRetriever(memory, k=1)(WORDINGS[1])
    assert "-> at 9:40" in found.as_context().format()


def test_calls_take_only_places_that_nothing_else_wants(memory: hs.StepMemory) -> None:
    memory.add([*map(call, range(3)), done(0), done(1)])
    memory.update(
        call(0).model_copy(update={"inputs": {**(call(0).inputs or {}), "program": "refund hat"}})
    )
    assert {*recalled(hs.StepRetriever(memory, k=2))} == {"done-0", "done-1"}
    found = hs.StepRetriever(memory, k=3)("refund a hat")
    assert {str(step.id) for step in found.steps} == {"done-0", "done-1", "call-0"}
    assert found.scores == sorted(found.scores, reverse=True)


def test_calls_do_not_crowd_out_steps_of_a_large_memory(memory: hs.StepMemory) -> None:
    many = [call(n, f"desk {n}") for n in range(200)]
    memory.add([*many, done(0), done(1)])
    for reranker in (None, hs.rerankers.Outcome()):
        assert {*recalled(hs.StepRetriever(memory, k=2, reranker=reranker))} == {"done-0", "done-1"}


def test_calls_that_are_asked_for_are_found(memory: hs.StepMemory) -> None:
    memory.add([call(0), done(0)])
    asked = {"step_types": ["ProgramCall"]}
    assert recalled(hs.StepRetriever(memory, k=1, where=asked)) == ["call-0"]
    assert recalled(hs.StepRetriever(memory, k=1), where=asked) == ["call-0"]
    assert [step.id for step in hs.StepRetriever(memory, k=1)(call(1)).steps] == ["call-0"]


def test_what_a_user_said_is_found_like_any_step(memory: hs.StepMemory) -> None:
    text = "my hat is the red one"
    inputs = {"program": "chat", "purpose": text, "arguments": {"message": text}}
    said = hs.AgentStep(id="said", step_type=hs.AgentStepType.ProgramCall, inputs=inputs)
    plain = hs.AgentStep(
        id="plain", step_type=hs.AgentStepType.ProgramCall, inputs={"purpose": "wear the red hat"}
    )
    memory.add([said, plain, done(0), done(1)])
    found = hs.StepRetriever(memory, k=2)("which hat is red?")
    assert {str(step.id) for step in found.steps} == {"said", "plain"}
    assert hs.StepContext.of(found).format().count(text) == 1


@pytest.mark.parametrize("program", ["StepRetriever", "StepReranker", "LMStepReranker"])
def test_calls_of_retrievers_are_never_recalled(memory: hs.StepMemory, program: str) -> None:
    memory.add(call(0, program))
    assert recalled(hs.StepRetriever(memory)) == []
    assert recalled(hs.StepRetriever(memory, where={"step_types": "ProgramCall"})) == []
    assert memory.search("refund a hat") == []
    assert [step.id for step in memory.find().steps] == ["call-0"]
