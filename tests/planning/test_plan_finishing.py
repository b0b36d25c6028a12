"""What a model hands on with finish_step in another form is understood, or truly named."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import pytest

from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.testing import ScriptedLM, ToolCall


def finished(shape: str, arguments: dict[str, Any]) -> Any:
    """Return what became of a step whose model ends it once so, and then as it should."""
    turns = [arguments, {"summary": "s", "artifacts": {"v": 1}}]

    def model(request: Any) -> list[ToolCall]:
        return [ToolCall("finish_step", turns.pop(0))]

    plan = f"PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS: {shape}"
    result = Orchestrator(lm=ScriptedLM(model), max_attempts=1, max_replans=0).run(plan=plan)
    assert result.success, str(result)
    return result.step("a")


@pytest.mark.parametrize("artifacts", ['{"v": 7}', ' {"v": 7}\n', {"v": 7}])
def test_an_object_is_taken_also_as_its_text(artifacts: Any) -> None:
    step = finished("v: integer", {"summary": "s", "artifacts": artifacts})
    assert (step.artifacts, step.problems) == ({"v": 7}, [])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"v": 7}, "v stood beside `artifacts`"),
        ({"artifacts": {"v": 7}, "w": 8}, "w stood beside `artifacts`"),
        ({"artifacts": '{"v": 7'}, "`artifacts` was a text"),
        ({"artifacts": "seven"}, "`artifacts` was a text"),
        ({"artifacts": "[7]"}, "`artifacts` was a list"),
        ({"artifacts": [{"v": 7}]}, "`artifacts` was a list"),
        ({"artifacts": 7}, "`artifacts` was a single value"),
        ({}, "the artifact 'v' is missing"),
        ({"artifacts": ""}, "the artifact 'v' is missing"),
        ({"artifacts": {"v": 2**64}}, "v: integer over 64 bits"),
    ],
)
def test_what_is_wrong_is_told_to_the_model(arguments: dict[str, Any], told: str) -> None:
    step = finished("v: integer", {"summary": "s", **arguments})
    assert step.artifacts == {"v": 1}
    (problem,) = step.problems
    assert (problem.type, problem.tool) == ("ArtifactError", "finish_step")
    assert told in problem.message


@pytest.mark.parametrize("arguments", [{"artifacts": "none"}, {"artifacts": []}, {"v": 7}])
def test_a_step_that_promised_nothing_may_say_so_in_any_form(arguments: dict[str, Any]) -> None:
    step = finished("none", {"summary": "s", **arguments})
    assert (step.artifacts, step.problems) == ({}, [])
