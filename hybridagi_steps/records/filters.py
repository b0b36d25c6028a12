"""StepFilter and StepHit: what a search is asked and what it answers.

A filter is closed: an unknown key is an error, never an empty result. A hit's score is 0..1, bigger
is better, and means something only among the hits of one query.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hybridagi_steps.errors import InvalidFilterError
from hybridagi_steps.records.agent_step import (
    AgentStep,
    AgentStepType,
    StepStatus,
    id_text,
    shown,
)
from hybridagi_steps.records.message import from_local, in_utc

EVERY_SCOPE = "*"
"""The value of `scope` that shows a user's own history and all trial runs."""
Trust = Literal["own", "team", "imported"]
"""Where steps may come from: recorded here by one user, by anybody, or from anywhere."""

_OPEN: dict[str, Any] = {
    "scope": EVERY_SCOPE,
    "trust": "imported",
    "metadata": {},
    "exclude_run_id": [],
}
"""Values with which a condition lets everything pass."""
_LEVELS: tuple[Trust, ...] = ("imported", "team", "own")


class StepFilter(BaseModel):
    """Which steps to look at. Conditions add up; a list means any of its members."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", frozen=True)

    session_id: str | None = None
    """Steps of this session's lineage."""
    run_id: str | None = None
    """Steps of this run."""
    program: str | None = None
    """Steps that call, end or stand directly inside a program of this name."""
    program_id: str | None = None
    """Steps directly inside this ProgramCall."""
    step_types: list[AgentStepType] | None = None
    """Steps of these types."""
    tools: list[str] | None = None
    """Actions that used one of these tools."""
    status: list[StepStatus] | None = None
    """Steps that ended like this."""
    min_score: float | None = Field(default=None, allow_inf_nan=False)
    """Steps whose score, or whose run's score, is at least this."""
    since: datetime | None = None
    """Steps made at or after this time; a datetime without a zone is local, a text is UTC."""
    until: datetime | None = None
    """Steps made before this time; a datetime without a zone is local, a text is UTC."""
    scope: str | None = None
    """None for a user's own history, `*` for everything, else one scope's name."""
    exclude_run_id: list[str] | None = None
    """Not the steps of these runs."""
    user_id: str | None = None
    """Steps of this user."""
    metadata: dict[str, str | int | float | bool | None] | None = None
    """Top-level metadata keys with exactly these values."""
    sources: list[str] | None = None
    """Steps that came from one of these: a file's name, or `mcp`."""
    trust: Trust | None = None
    """Least trust: `own` (recorded here by `user_id`, without one by nobody), `team` (recorded here
    by anybody), `imported` (all)."""

    @field_validator("step_types", "tools", "status", "exclude_run_id", "sources", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        if isinstance(value, set | frozenset | tuple):
            return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return value if value is None or isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]

    @field_validator("min_score", mode="before")
    @classmethod
    def _no_boolean(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("a score is a number")
        return value

    @field_validator("program_id", "run_id", "session_id", mode="before")
    @classmethod
    def _id_text(cls, value: Any) -> Any:
        return id_text(value) if isinstance(value, UUID) else value

    @field_validator("since", "until", mode="before")
    @classmethod
    def _local_time(cls, value: Any) -> Any:
        return from_local(value)

    @field_validator("since", "until")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        return None if value is None else in_utc(value)

    def __init__(self, **conditions: Any) -> None:
        """Make a filter.

        Raises:
            InvalidFilterError: An unknown key, or a value of the wrong kind.
        """
        try:
            super().__init__(**conditions)
        except ValidationError as error:
            raise _invalid(error) from error

    @classmethod
    def of(cls, where: StepFilter | Mapping[str, Any] | None) -> StepFilter:
        """Return `where` as a filter.

        Raises:
            InvalidFilterError: An unknown key, or a value of the wrong kind.
        """
        if isinstance(where, StepFilter):
            return where
        if where is not None and not isinstance(where, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidFilterError(
                f"a filter is a StepFilter or a dict, not {type(where).__name__}."
            )
        conditions = dict(where or {})
        if odd := [key for key in conditions if not isinstance(key, str)]:  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidFilterError(f"filter keys are text, not {odd[0]!r}.", key=str(odd[0]))
        return cls(**conditions)

    @property
    def says_whose(self) -> bool:
        """Whether it says whose steps: a user's, or everybody's; `own` ones are somebody's."""
        everybody = "user_id" in self.model_fields_set and self.trust != "own"
        return self.user_id is not None or everybody

    @property
    def passes_everything(self) -> bool:
        """Whether no condition leaves any step out; trial runs are not counted as left out."""
        asked = self.model_dump(exclude_none=True)
        return all(value == _OPEN.get(key) for key, value in asked.items())

    def and_(self, other: StepFilter) -> StepFilter | None:
        """Return a filter in which both hold, None when no step can pass both.

        A key that one of them leaves out or None is the other's. Two names that differ leave
        nothing: no single filter says "in both sessions". `scope` "*" gives way to a scope's name.
        """
        joined = self.model_dump(exclude_unset=True)
        for key, theirs in other.model_dump(exclude_unset=True).items():
            own = joined.get(key)
            if own is None or theirs is None:
                joined[key] = theirs if own is None else own
            elif (both := _both(key, own, theirs)) is None:
                return None
            else:
                joined[key] = both
        return StepFilter(**joined)


def _both(key: str, one: Any, two: Any) -> Any:
    """Return the value of a key that means both values, None when there is none."""
    if key == "exclude_run_id":
        return list(dict.fromkeys([*one, *two]))
    if key in ("min_score", "since"):
        return max(one, two)
    if key == "until":
        return min(one, two)
    if key == "trust":
        return max(one, two, key=_LEVELS.index)
    if key == "metadata":
        clash = any(name in two and not _same(value, two[name]) for name, value in one.items())
        return None if clash else {**one, **two}
    if isinstance(one, list):
        return [value for value in one if value in two] or None  # pyright: ignore[reportUnknownVariableType]
    if key == "scope" and EVERY_SCOPE in (one, two):
        return two if one == EVERY_SCOPE else one
    return one if one == two else None


def _same(one: object, two: object) -> bool:
    """Whether two metadata values are equal; True is 1 in Python, and not in a step."""
    return one == two and isinstance(one, bool) == isinstance(two, bool)


def _invalid(error: ValidationError) -> InvalidFilterError:
    first = error.errors(include_url=False)[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        known = ", ".join(StepFilter.model_fields)
        return InvalidFilterError(f"unknown filter key {key!r}; known keys: {known}.", key=key)
    return InvalidFilterError(f"filter key {key!r}: {first['msg']}.", key=key)


class StepHit(BaseModel):
    """One step that a search found, and why."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    step: AgentStep
    """The step."""
    score: float
    """How well it matches, 0..1, bigger is better; comparable within one query only."""
    dense_score: float | None = None
    """Cosine similarity of meaning, -1..1; None when the step has no vector or was not compared."""
    lexical_score: float | None = None
    """Okapi BM25 of the words; None when words were not compared."""
    why: str = ""
    """What matched, in words."""
    context: list[AgentStep] = Field(default_factory=list[AgentStep])
    """The steps around it that `expand` asked for."""

    def shown(self) -> dict[str, Any]:
        """Return the hit as plain data for display, whatever its steps hold by now."""
        context = [shown(step) for step in self.context]
        return {**vars(self), "step": shown(self.step), "context": context}

    def _repr_html_(self) -> str:
        """Show the hit in a notebook."""
        from hybridagi_steps.display import hits_html

        return hits_html([self.shown()])
