"""AgentStep: one thing a program did.

The fields, defaults and templates are those of HybridAGI's public data structure, so what was
written for it reads ours. A step is a plain value: it does no I/O, `str()` never raises and never
changes it, and whatever it holds is JSON, because validation repairs the rest and says so.
"""

from __future__ import annotations

import json
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal
from uuid import UUID, SafeUUID

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from hybridagi_steps.lazy import describe_fields
from hybridagi_steps.records.json_values import is_json, json_value, with_repairs
from hybridagi_steps.records.message import StepMetrics, UtcTime, new_id, utc_now

StepStatus = Literal["ok", "error", "partial", "cancelled", "paused"]
"""How a step ended; `paused`: the run of a program waits for an answer."""

ACTION_TEMPLATE = """--- Step {hop} ---
Action Purpose: {purpose}
Action: {prediction}"""

DECISION_TEMPLATE = """--- Step {hop} ---
Decision Purpose: {purpose}
Decision: {choice}"""

CALL_PROGRAM_TEMPLATE = """--- Step {hop} ---
Call Program: {program}
Program Purpose: {purpose}"""

END_PROGRAM_TEMPLATE = """--- Step {hop} ---
End Program: {program}"""

_UUID_TEXT_LENGTH, _UUID_DIGITS = 36, 32
_UNKNOWN = SafeUUID.unknown
_set = object.__setattr__
# Text is tried first: of JSON, pydantic would take any spelling of a UUID for one.
_Id = Annotated[str | UUID, Field(union_mode="left_to_right")]


class AgentStepType(StrEnum):
    """What kind of thing a program did."""

    Action = "Action"
    Decision = "Decision"
    ProgramCall = "ProgramCall"
    ProgramEnd = "ProgramEnd"


_TYPES = tuple(AgentStepType)


class AgentStep(BaseModel):
    """One thing a program did, with a link to what it did before.

    Keys by convention: an Action has `inputs {purpose, tool?, arguments}` and `outputs {result}`
    (or a predictor's output fields); a Decision `inputs {purpose, options, arguments}` and
    `outputs {choice}`; a ProgramCall `inputs {program, purpose, arguments}`; a ProgramEnd `inputs
    {program}` and the program's outputs. A failure is `outputs {error: {type, message}}`.
    """

    model_config = ConfigDict(
        json_schema_extra=describe_fields, extra="allow", ser_json_inf_nan="constants"
    )

    id: _Id = Field(default_factory=new_id)
    """Unique identifier for a step, by default a UUID that begins with the time (version 7).

    A UUID's 36-character text becomes the UUID."""
    parent_id: _Id | None = None
    """The previous step, if any."""
    hop: int = 0
    """The step's place in its run, counted from 0."""
    step_type: AgentStepType
    """The step's type."""
    inputs: dict[str, Any] | None = None
    """The inputs of the step, JSON values."""
    outputs: dict[str, Any] | None = None
    """The outputs of the step, JSON values."""
    vector: list[float] | None = Field(default=None, repr=False)
    """Vector representation of the step."""
    metadata: dict[str, Any] | None = None
    """Additional information, JSON values; `repairs` names what validation had to change."""
    created_at: UtcTime = Field(default_factory=utc_now)
    """When the step was made, UTC. A datetime without a zone is local, a text without one UTC."""
    session_id: str | None = None
    """The session the step belongs to."""
    user_id: str | None = None
    """Whose history it is."""
    run_id: str | None = None
    """The run the step belongs to."""
    program_id: str | None = None
    """Id of the enclosing ProgramCall step."""
    predictor: str | None = None
    """The DSPy predictor that made the step: the class of the outermost program and its path in
    there, such as `Agent.plan.predict`."""
    signature: str | None = None
    """12 hexadecimal characters over the names and types of that predictor's fields: what an
    optimiser rewrites, the instructions, leaves it as it is."""
    scope: str | None = None
    """None for a user's own history, else `compile:…` or `evaluate:…`."""
    status: StepStatus = "ok"
    """How the step ended."""
    score: float | None = None
    """How good the step was; bigger is better."""
    metrics: StepMetrics | None = None
    """What the step cost."""

    @field_validator("id", "parent_id", mode="before")
    @classmethod
    def _uuid_text(cls, value: object) -> Any:
        return as_id(value) if isinstance(value, str) else value

    @field_validator("program_id", mode="before")
    @classmethod
    def _id_text(cls, value: object) -> Any:
        return str(value) if isinstance(value, UUID) else value

    @model_validator(mode="before")
    @classmethod
    def _json_values(cls, data: object) -> Any:
        """Repair what JSON cannot hold before the fields are looked at, and name each repair."""
        if isinstance(data, dict) and data.get("step_type") not in _TYPES:  # pyright: ignore[reportUnknownMemberType]
            kinds, given = ", ".join(AgentStepType), data.get("step_type")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            raise PydanticCustomError(
                "step_type",
                "step_type is one of {kinds}{given}",
                {"kinds": kinds, "given": "" if given is None else f", not {given!r:.80}"},
            )
        return repaired(data) if isinstance(data, dict) else data  # pyright: ignore[reportUnknownArgumentType]

    @property
    def purpose(self) -> str:
        """Why the step was made; empty when not said."""
        return _text_of(self.inputs, "purpose")

    @property
    def tool(self) -> str | None:
        """The tool an Action used."""
        return _text_of(self.inputs, "tool") or None

    @property
    def program(self) -> str | None:
        """The program a ProgramCall or ProgramEnd names."""
        return _text_of(self.inputs, "program") or None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the step was called with; the old key `args` is read too."""
        inputs = self.inputs or {}
        found = inputs.get("arguments", inputs.get("args"))
        return found if isinstance(found, dict) else {} if found is None else {"value": found}  # pyright: ignore[reportUnknownVariableType]

    @property
    def result(self) -> Any:
        """What a tool gave back; the old key `observation` is read too."""
        outputs = self.outputs or {}
        return outputs.get("result", outputs.get("observation"))

    def __str__(self) -> str:
        """The step as prompt text, in the template of its type."""
        inputs, outputs = self.inputs or {}, self.outputs or {}
        purpose, program = inputs.get("purpose", ""), inputs.get("program", "")
        kind = str(self.step_type)
        if kind == "Action":
            prediction = _indented(self.outputs)
            return ACTION_TEMPLATE.format(hop=self.hop, purpose=purpose, prediction=prediction)
        if kind == "Decision":
            choice = outputs.get("choice", "")
            return DECISION_TEMPLATE.format(hop=self.hop, purpose=purpose, choice=choice)
        if kind == "ProgramCall":
            return CALL_PROGRAM_TEMPLATE.format(hop=self.hop, purpose=purpose, program=program)
        if kind == "ProgramEnd":
            return END_PROGRAM_TEMPLATE.format(hop=self.hop, program=program)
        return f"--- Step {self.hop} ---\n{kind}: {_indented(self.outputs)}"

    def __repr__(self) -> str:
        """The step in one line: what was done, what came of it, its id."""
        from hybridagi_steps.display.view import step_line

        return f"<step {step_line(shown(self))}, {self.id}>"

    def to_dict(self) -> dict[str, str]:
        """Return the step as prompt data: its text and nothing else."""
        return {"step": str(self)}

    def _repr_html_(self) -> str:
        """Show the step in a notebook."""
        from hybridagi_steps.display import step_html

        return step_html(shown(self))


NAME_FIELDS = tuple(
    name for name, field in AgentStep.model_fields.items() if field.annotation == (str | None)
)
"""Fields that hold a name or nothing."""
ID_FIELDS = ("id", "parent_id", *NAME_FIELDS)
"""Fields whose texts are compared as they are: no redaction touches them, and NUL is refused."""
_FIELDS = frozenset(AgentStep.model_fields)
_JSON_FIELDS = frozenset({"inputs", "outputs", "metadata", "score"})


def shown(step: AgentStep) -> dict[str, Any]:
    """Return a step as plain data for display, whatever it holds by now; never its vector."""
    values = {**vars(step), **(step.model_extra or {}), "vector": None}
    return json_value(values, [])


def as_id(value: UUID | str) -> UUID | str:
    """Return the id a step would hold: a UUID for its 36-character text, else the value."""
    if isinstance(value, str) and len(value) == _UUID_TEXT_LENGTH:
        return _uuid_or_text(value)
    return value


@lru_cache(maxsize=1_024)  # the parent of a step that is read was nearly always read just before
def _uuid_or_text(text: str) -> UUID | str:
    """Return what `UUID(text)` is, in half of its time, or the text where that is none."""
    digits = text.replace("-", "")
    try:
        if len(digits) != _UUID_DIGITS:
            return UUID(text)
        number = int(digits, 16)
    except ValueError:
        return text
    made = object.__new__(UUID)
    _set(made, "int", number)
    _set(made, "is_safe", _UNKNOWN)
    return made


def id_text(value: UUID | str) -> str:
    """Return the one text under which an id is stored and compared."""
    if type(value) is UUID:
        return orjson.dumps(value)[1:-1].decode()  # as str does, but sooner
    return str(as_id(value))


def repaired(data: dict[str, Any]) -> dict[str, Any]:
    """Return step fields that JSON can hold; repairs are named in `metadata["repairs"]`.

    The same object comes back when nothing had to change.
    """
    notes: list[str] = []
    held = {n: value for n, value in data.items() if n in _JSON_FIELDS or n not in _FIELDS}
    if is_json(held, depth=-1):
        return data
    fixed = {name: json_value(value, notes, name) for name, value in held.items()}
    if not notes:
        return data
    return {**data, **fixed, "metadata": with_repairs(fixed.get("metadata"), notes)}


def _text_of(values: dict[str, Any] | None, key: str) -> str:
    found = (values or {}).get(key)
    return found if isinstance(found, str) else "" if found is None else str(found)


def _indented(values: object) -> str:
    """Return values as indented JSON, or as Python shows them where JSON cannot."""
    try:
        return json.dumps(values, indent=2, default=str)
    except (TypeError, ValueError, RecursionError):
        return repr(values)
