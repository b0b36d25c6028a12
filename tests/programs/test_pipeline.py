"""Pipelines: modules in order, checked before they run, visible to optimisers and recorders."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.testing import ScriptedLM

SUMMARISE, TITLE = "text -> summary", "summary, tone -> title"


def shout(title: str, mark: str = "!") -> dict[str, str]:
    return {"loud": title.upper() + mark}


def made() -> hs.Pipeline:
    summarise, title = dspy.Predict(SUMMARISE), dspy.ChainOfThought(TITLE)
    return hs.Pipeline(summarise=summarise, title=title).add("shout", shout)


def scripted() -> ScriptedLM:
    return ScriptedLM([{"summary": "short"}, {"reasoning": "r", "title": "A cat"}])


@pytest.mark.parametrize("later", [False, True])
def test_each_gets_what_those_before_gave(memory: hs.StepMemory, later: bool) -> None:
    pipeline, asked = made(), {"text": "A long text.", "tone": "dry"}
    with dspy.context(lm=scripted()), hs.record(memory) as run:
        answer = asyncio.run(pipeline.acall(**asked)) if later else pipeline(**asked)
    assert answer.toDict() == {"loud": "A CAT!"}
    predictors = {step.predictor for step in memory.run(run.id).steps}
    assert predictors >= {"Pipeline.summarise", "Pipeline.title.predict"}


def test_optimisers_see_its_modules() -> None:
    names = [name for name, _ in made().named_predictors()]
    assert names == ["summarise", "title.predict"]
    assert [name for name, _ in made().deepcopy().named_predictors()] == names


def test_what_is_missing_is_said_before_anything_runs() -> None:
    lm = scripted()
    with dspy.context(lm=lm), pytest.raises(InvalidSettingError, match="title takes tone"):
        made()(text="x")
    assert lm.history == []


def test_what_gives_no_names_is_refused() -> None:
    def answer(text: str) -> Any:
        return text

    with pytest.raises(InvalidSettingError, match="so that it has names"):
        hs.Pipeline(answer=answer)(text="x")
    with pytest.raises(InvalidSettingError, match="no modules"):
        hs.Pipeline()()


@pytest.mark.parametrize(
    ("name", "module"), [("shout", shout), ("forward", shout), ("_x", shout), ("a b", shout)]
)
def test_names_are_taken_once(name: str, module: Any) -> None:
    with pytest.raises(InvalidSettingError, match="is taken"):
        made().add(name, module)


def test_a_module_can_be_called() -> None:
    with pytest.raises(InvalidSettingError, match="cannot be called"):
        made().add("more", "a text")  # pyright: ignore[reportArgumentType] - callers err
