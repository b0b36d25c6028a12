"""Values of a step as filters compare them, taken from the step itself.

Names compare as text. A metadata value equals one of the same JSON kind: `True` is not 1, while 1
is 1.0, and None equals a stored null, not a missing key.
"""

from __future__ import annotations

import math
from typing import Literal

from hybridagi_steps.records.agent_step import AgentStep

ScalarKind = Literal["null", "true", "false", "number", "text", "other"]

_CALL_TYPES = ("ProgramCall", "ProgramEnd")
_INTEGERS = range(-(2**63), 2**63)


def scalar_kind(value: object) -> tuple[ScalarKind, str | int | float | None]:
    """Return the JSON kind of a value and the value to compare within that kind.

    Integers that a database column cannot hold are compared as floats everywhere.
    """
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return ("true", None) if value else ("false", None)
    if isinstance(value, int):
        return "number", value if value in _INTEGERS else _as_float(value)
    if isinstance(value, float):
        return "number", value
    return ("text", value) if isinstance(value, str) else ("other", None)


def program_called(step: AgentStep) -> str | None:
    """Return the program that a ProgramCall or ProgramEnd names."""
    name = (step.inputs or {}).get("program")
    return name if str(step.step_type) in _CALL_TYPES and isinstance(name, str) else None


def tool_used(step: AgentStep) -> str | None:
    """Return the tool that an Action names, if it is a text."""
    name = (step.inputs or {}).get("tool")
    return name if isinstance(name, str) else None


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
