"""Titles: the one line by which a person tells a step from its neighbours.

A step is named after its tool, its program, or the predictor that made it by the name that the
program's author gave it; a bare `dspy.Predict` by its fields, `question -> answer`. What it is
about is its question or first argument, else its purpose. DSPy's own "Given the fields …" says
nothing that these do not, and stands in no title.

Any value as text stands here, too: nothing raises on odd data, because what is shown may be
anybody's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

LINE = 160
"""Most characters of a text on a line."""

_BOILERPLATE = re.compile(r"Given the fields? `.*`, produce the fields? `.*`\.\Z", re.DOTALL)
_NODE = re.compile(r"\['(?:[^']*\.)?(?P<name>[^'.]+)'\](?:\.predict)?\Z")
"""A predictor that a dict keeps by name, as a graph program its node `main.clear`."""
_SHELLS = frozenset({"predict"})
"""What DSPy calls the predictor inside another, as that of ChainOfThought."""
_BOOKKEEPING = frozenset({"trajectory", "history", "past_steps", "objective"})
"""Arguments that tell what came before."""
UNASKED = frozenset({"error", "reasoning", "trajectory", "rationale"})
"""Outputs that are not what a predictor was asked for."""


class Title(NamedTuple):
    """What a step is called and what it is about; either may be empty."""

    name: str
    about: str

    def __str__(self) -> str:
        """Both in one line."""
        return ": ".join(filter(None, self))


def is_boilerplate(purpose: str) -> bool:
    """Whether a purpose is the one that DSPy gives to a signature without instructions."""
    return _BOILERPLATE.match(purpose) is not None


def title_of(step: Mapping[str, Any]) -> Title:
    """Return the title of a step that is given as plain data, whatever it holds."""
    inputs, outputs = fields(step.get("inputs")), fields(step.get("outputs"))
    arguments = fields(inputs.get("arguments", inputs.get("args")))
    is_program = as_text(step.get("step_type")).startswith("Program")
    called = _told(inputs.get("program" if is_program else "tool"))
    purpose = _told(inputs.get("purpose"))
    if is_boilerplate(purpose) or purpose == called:
        purpose = ""
    name = called or _own_name(as_text(step.get("predictor")))
    about = _first(arguments) or (purpose if name else "")
    chosen = fields(step.get("metadata")).get("output_field")  # a Decision's own name for `choice`
    asked = [chosen or key for key in outputs if key not in UNASKED]
    if not name and not purpose and arguments and asked:
        name = line(f"{', '.join(arguments)} -> {', '.join(map(as_text, asked))}")
    return Title(name or purpose, about)


def _told(value: object) -> str:
    return "" if value is None else line(value)


def _own_name(predictor: str) -> str:
    """Return the name that its program gave to a predictor; none to one that is the program."""
    if node := _NODE.search(predictor):
        return node["name"]
    named = [part for part in predictor.split(".")[1:] if part not in _SHELLS]
    return named[-1] if named else ""


def _first(arguments: Mapping[str, Any]) -> str:
    """Return the first text that was asked, else the first number or the like."""
    told = {key: value for key, value in arguments.items() if key not in _BOOKKEEPING}
    texts = (line(value) for value in told.values() if isinstance(value, str))
    plain = (line(value) for value in told.values() if isinstance(value, int | float))
    return next(filter(None, texts), "") or next(plain, "")


def line(value: object, length: int = LINE) -> str:
    """Return any value as one line of at most `length` characters."""
    said = value if isinstance(value, str) else json_text(value, indent=None)
    flat = " ".join(said[: length * 4].split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def fields(value: object) -> dict[str, Any]:
    """Return fields by name; what has none is shown as the one it is."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {} if value is None else {"value": value}


def as_text(value: object) -> str:
    """Return any value as text, nothing for None."""
    try:
        return "" if value is None else str(value)
    except Exception as error:  # noqa: BLE001, RUF100 - what is shown may be anybody's class
        return f"<{type(value).__name__}: {type(error).__name__} in str()>"


def json_text(value: object, indent: int | None) -> str:
    """Return any value as JSON, what that cannot hold as text."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=as_text)
    except Exception:  # noqa: BLE001, RUF100 - keys that are no text, cycles, odd mappings
        return as_text(value)
