"""Asking a language model on behalf of a node, and reading weak models all the same.

Small models leave out the marks that DSPy reads fields by. When all that is asked for is a single
text, whatever such a model said first is that text: a program goes on, with what was really said.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from hybridagi_steps.programs.driving import Request, Work
from hybridagi_steps.programs.dspy_settings import overriding
from hybridagi_steps.recording import step_shapes as shapes


def asked(predictor: dspy.Module, inputs: dict[str, Any], lm: Any = None) -> Work[Any]:
    """Ask a language model and return its prediction.

    Args:
        predictor: The node's predictor.
        inputs: What it is told.
        lm: The model to ask when the predictor has none of its own, instead of the one configured.

    Raises:
        AdapterParseError: The answer cannot be read, and more than a single text was asked for.
    """
    request = Request(
        now=functools.partial(_call, predictor, inputs, lm),
        later=functools.partial(_acall, predictor, inputs, lm),
    )
    try:
        return (yield request)
    except AdapterParseError as error:
        name, said = _single_text(predictor), _first_said(error)
        if name is None or not said:
            raise
        return dspy.Prediction(**{name: said})


def _call(predictor: dspy.Module, inputs: dict[str, Any], lm: Any) -> Any:
    with _asking(lm):
        return predictor(**inputs)


async def _acall(predictor: dspy.Module, inputs: dict[str, Any], lm: Any) -> Any:
    with _asking(lm):
        return await predictor.acall(**inputs)


def _asking(lm: Any) -> AbstractContextManager[None]:
    return nullcontext() if lm is None else overriding(lm=lm)


def _single_text(predictor: dspy.Module) -> str | None:
    """Return the name of the only field besides reasoning that is asked for, if it is a text."""
    inner: list[Any] = predictor.predictors()
    outputs = [pair for each in inner for pair in each.signature.output_fields.items()]
    rest = [(name, field) for name, field in outputs if name not in shapes.REASONING]
    return rest[0][0] if len(rest) == 1 and rest[0][1].annotation is str else None


def _first_said(error: AdapterParseError) -> str:
    """Return what the model said before DSPy asked it again for JSON."""
    while isinstance(error.__context__, AdapterParseError):
        error = error.__context__
    return shapes.said([error.lm_response])
