"""StepFilter and StepHit: what a search is asked and what it answers.

A filter is closed: an unknown key is an error, never an empty result. A hit's score is 0..1, bigger
is better, and means something only among the hits of one query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hybridagi_steps.errors import InvalidFilterError, InvalidQueryError
from hybridagi_steps.lazy import describe_fields
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus, id_text, shown
from hybridagi_steps.records.filter_fields import (
    FILTER_FIELDS,
    KEY_FIELDS,
    WISHES,
    Operator,
    Plain,
    StepKey,
    checked_criteria,
    is_several,
)
from hybridagi_steps.records.message import UtcTime

EVERY_SCOPE = "*"
"""The value of `scope` that shows a user's own history and all trial runs."""
Kind = Literal["step", "message"]
"""What a search finds: AgentSteps, or messages of sessions."""
Trust = Literal["own", "team", "imported"]
"""Where steps may come from: recorded here by one user, by anybody, or from anywhere."""

_NUMBERS = {"limit", "top_k", "topk", "n", "n_results", "num_results", "size", "count"}
_FILTERS = {"filter", "filters", "conditions"}
_OPEN: dict[str, Any] = {
    "scope": EVERY_SCOPE,
    "trust": "imported",
    "metadata": {},
    "exclude_run_id": [],
    "exclude": [],
}
"""Values with which a condition lets everything pass."""
OF_STEPS_ALONE = (
    "program",
    "program_id",
    "step_types",
    "tools",
    "status",
    "predictors",
    "signatures",
)
"""Conditions that no message meets."""
_LEVELS: tuple[Trust, ...] = ("imported", "team", "own")


def _one_or_more(value: object) -> Any:
    if isinstance(value, set | frozenset | tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value if value is None or isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]


def _no_boolean(value: object) -> Any:
    if isinstance(value, bool):
        raise ValueError("a score is a number")
    return value


def _id_text(value: object) -> Any:
    return id_text(value) if isinstance(value, UUID) else value


def _names(value: Any) -> Any:
    """Return one name as it is, of several each once; no name at all would match nothing."""
    if not is_several(value):
        return _id_text(value)
    names: list[Any] = [*map(_id_text, value)]
    if not names:
        raise ValueError("the list is empty; leave the key out to let all pass")
    if None in names:
        raise ValueError("the list holds None, which would let all pass; name each one")
    if all(isinstance(name, str) for name in names):
        names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else names


def _described(schema: dict[str, Any]) -> None:
    # One that refers to itself stands among the definitions.
    properties = schema.get("properties") or schema["$defs"]["StepFilter"]["properties"]
    for field in FILTER_FIELDS:
        properties[field.name]["description"] = field.help


def _filters(value: object) -> Any:
    several: list[Any] | None = _one_or_more(value)
    return several and [StepFilter.of(one) if isinstance(one, dict) else one for one in several]  # pyright: ignore[reportUnknownArgumentType]


_Id = Annotated[str | None, BeforeValidator(_id_text)]
_Names = Annotated[str | list[str] | None, BeforeValidator(_names)]
_Texts = Annotated[list[str] | None, BeforeValidator(_one_or_more)]
_Types = Annotated[list[AgentStepType] | None, BeforeValidator(_one_or_more)]
_Statuses = Annotated[list[StepStatus] | None, BeforeValidator(_one_or_more)]
_Kinds = Annotated[list[Kind] | None, BeforeValidator(_one_or_more)]
_Metadata = Annotated[
    dict[str, Plain | list[Plain] | dict[Operator, Plain]] | None, BeforeValidator(checked_criteria)
]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Score = Annotated[_Finite | None, BeforeValidator(_no_boolean)]


_AnyOf = Annotated[
    Annotated[list["StepFilter"], Field(min_length=1, max_length=500)] | None,
    BeforeValidator(_filters),
]


class StepFilter(BaseModel):
    """Which steps to look at. Conditions add up; a list means any of its members.

    What each key does is listed on the page about searching, and in the JSON schema. A datetime
    without a zone is local, a text without one UTC.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_described)

    session_id: _Id = None
    run_id: _Names = None
    program: str | None = None
    program_id: _Id = None
    step_types: _Types = None
    tools: _Texts = None
    status: _Statuses = None
    min_score: _Score = None
    since: UtcTime | None = None
    until: UtcTime | None = None
    scope: str | None = None
    exclude_run_id: _Texts = None
    user_id: _Names = None
    metadata: _Metadata = None
    sources: _Texts = None
    predictors: _Texts = None
    signatures: _Texts = None
    trust: Trust | None = None
    kinds: _Kinds = None
    exclude: Annotated[list[StepFilter] | None, BeforeValidator(_filters)] = None
    any_of: _AnyOf = None

    def __init__(self, **conditions: object) -> None:
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
    def users(self) -> list[str]:
        """The users it names, of whom a step has to be one; none where it names nobody."""
        return _listed(self.user_id)

    @property
    def runs(self) -> list[str]:
        """The runs it names, of which a step has to be of one; none where it names none."""
        return _listed(self.run_id)

    @property
    def only_users(self) -> frozenset[str | None] | None:
        """Of whom what passes is, None among them for what is nobody's; None: of anybody."""
        nobody = frozenset[str | None]([None]) if self.trust == "own" else None
        own = frozenset(self.users) or nobody
        either = [each.only_users for each in self.alternatives()]
        whose = frozenset[str | None]().union(*(users for users in either if users is not None))
        if not either or None in either:
            return own
        return whose if own is None else whose & own

    @property
    def says_whose(self) -> bool:
        """Whether it says whose steps: a user's, or everybody's; `own` ones are somebody's."""
        if self.any_of and all(each.says_whose for each in self.any_of):
            return True
        everybody = "user_id" in self.model_fields_set and self.trust != "own"
        return self.user_id is not None or everybody

    @property
    def passes_everything(self) -> bool:
        """Whether no condition leaves any step out; trial runs are not counted as left out."""
        rest = self.conditions - {"kinds"}
        if any(each.passes_everything for each in self.alternatives()):
            rest -= {"any_of"}
        return not rest and "step" in (self.kinds or ["step"])

    @property
    def picks_nothing(self) -> bool:
        """Whether it only says what to leave out, if anything: no filter to erase by."""
        rest = self.model_copy(update=dict.fromkeys(("exclude", "exclude_run_id", "any_of")))
        open_ = self.any_of is None or any(each.picks_nothing for each in self.any_of)
        return open_ and rest.passes_everything

    @property
    def conditions(self) -> set[str]:
        """The names of those conditions that leave some step or message out, scopes not counted."""
        asked = self.model_dump(exclude_none=True)
        if {"step", "message"} <= set(self.kinds or ()):
            del asked["kinds"]
        if self.any_of is not None and not all(each.conditions for each in self.any_of):
            del asked["any_of"]
        return {key for key, value in asked.items() if value != _OPEN.get(key)}

    @property
    def fences(self) -> StepFilter:
        """The filter without its wishes: what a search may look at to answer it."""
        asked = {name for name, value in vars(self).items() if value is not None}
        update: dict[str, Any] = dict.fromkeys(WISHES & asked)
        if self.any_of is not None:
            fences = [each.fences for each in self.any_of]
            if not all(each.conditions for each in fences):
                update["any_of"] = None
            elif any(each is not own for each, own in zip(fences, self.any_of, strict=True)):
                update["any_of"] = fences
        return self.model_copy(update=update) if update else self

    def finds(self, kind: Kind) -> bool:
        """Whether rows of a kind can match at all: a message has no tool and no program."""
        if self.kinds is not None and kind not in self.kinds:
            return False
        if self.any_of is not None and not any(each.finds(kind) for each in self.any_of):
            return False
        return kind == "step" or all(getattr(self, name) is None for name in OF_STEPS_ALONE)

    def excluded(self) -> list[StepFilter]:
        """Return the filters whose steps are left out, each with the scope that it means."""
        return [
            each.model_copy(update={"scope": each.scope or EVERY_SCOPE})
            for each in self.exclude or ()
        ]

    def alternatives(self) -> list[StepFilter]:
        """Return the filters of which one has to match, each for the users asked for."""
        users = {} if self.user_id is None else {"user_id": self.user_id}
        return [
            each.model_copy(
                update={"scope": each.scope or EVERY_SCOPE} | (users if not each.users else {})
            )
            for each in self.any_of or ()
        ]

    def equalities(self) -> Iterator[tuple[StepKey, list[str | None]]]:
        """Yield step keys that must have one of some values, those first that leave least."""
        for field in KEY_FIELDS:
            asked: str | list[str] | None = getattr(self, field.name)
            if field.name == "program_id" and self.program_id is not None:
                asked = list({self.program_id: None, id_text(self.program_id): None})
            if asked is not None and field.key is not None:
                yield field.key, [asked] if isinstance(asked, str) else list(map(str, asked))
        if self.trust in ("own", "team"):
            yield "source", [None]
        if self.trust == "own" and self.user_id is None:
            yield "user_id", [None]

    def and_(self, other: StepFilter) -> StepFilter | None:
        """Return a filter in which both hold, None when no step can pass both.

        A key that one of them leaves out or None is the other's. Two names that differ leave
        nothing: no single filter says "in both sessions". `scope` "*" gives way to a scope's name.
        """
        if self._compares_twice(other):
            inner = StepFilter(**other.model_dump(include={"metadata", "any_of"}))
            other = other.model_copy(update={"metadata": None, "any_of": [inner]})
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

    def _compares_twice(self, other: StepFilter) -> bool:
        """Whether a value is compared by both, otherwise than with one value each."""
        mine, theirs = self.metadata or {}, other.metadata or {}
        return any(
            repr(value) != repr(theirs[key])
            and not (isinstance(value, Plain) and isinstance(theirs[key], Plain))
            for key, value in mine.items()
            if key in theirs
        )


def unknown_argument(**others: Any) -> InvalidQueryError:
    """Return the error for arguments that a search does not have, which names those it has."""
    name, value = next(iter(others.items()))
    means = ""
    if name in _NUMBERS:
        means = f": k={value!r} says how many hits are wanted"
    elif name in StepFilter.model_fields:
        means = f": write where={{{name!r}: {value!r}}}"
    elif name in _FILTERS:
        means = f": write where={value!r}"
    return InvalidQueryError(
        f"search has no argument {name!r}{means}. It takes query, k, where, mode, expand, "
        "min_score and aim."
    )


def _both(key: str, one: Any, two: Any) -> Any:
    """Return the value of a key that means both values, None when there is none."""
    if key == "exclude":
        return [*one, *two]
    if key == "any_of":
        pairs = (StepFilter.of(mine).and_(StepFilter.of(theirs)) for mine in one for theirs in two)
        return [each for each in pairs if each is not None] or None
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
    if isinstance(one, list) or isinstance(two, list):
        return [value for value in _listed(one) if value in _listed(two)] or None
    if key == "scope" and EVERY_SCOPE in (one, two):
        return two if one == EVERY_SCOPE else one
    return one if one == two else None


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]


def _same(one: object, two: object) -> bool:
    """Whether two metadata values are equal; True is 1 in Python, and not in a step."""
    return one == two and isinstance(one, bool) == isinstance(two, bool)


def _invalid(error: ValidationError) -> InvalidFilterError:
    first = error.errors(include_url=False)[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        known = ", ".join(StepFilter.model_fields)
        return InvalidFilterError(f"unknown filter key {key!r}; known keys: {known}.", key=key)
    said = first["msg"].removeprefix("Value error, ")
    if key == "metadata" and first["loc"][-1] == "[key]":
        said = f"its keys are texts, not {first['input']!r:.60}"
    return InvalidFilterError(f"filter key {key!r}: {said}.", key=key)


class StepHit(BaseModel):
    """One step that a search found, and why."""

    model_config = ConfigDict(json_schema_extra=describe_fields)

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
    parts: dict[str, float] = Field(default_factory=dict[str, float])
    """The parts of its score that were looked at, by name, each 0..1: `window` (words), `meaning`,
    `neighbour` and others that the page about searching lists."""
    feedback: str | None = None
    """What was said of the step's run when it was scored."""
    context: list[AgentStep] = Field(default_factory=list[AgentStep])
    """The steps around it that `expand` asked for."""
    kind: Kind = "step"
    """Whether it is a stored AgentStep or a message of a session; then `step` tells what was said,
    with the question that it answers, under the message's id."""
    session_id: str | None = None
    """The session: of a message one that reads it, the one asked for if it does."""
    sequence: int | None = None
    """Which message of the session it is; None of a step."""

    def shown(self) -> dict[str, Any]:
        """Return the hit as plain data for display, whatever its steps hold by now."""
        context = [shown(step) for step in self.context]
        return {**vars(self), "step": shown(self.step), "context": context}

    def __repr__(self) -> str:
        """The hit in one line: its score, the step, its id."""
        from hybridagi_steps.display.view import step_line

        return f"<hit {self.score:.3f} {step_line(shown(self.step))}, {self.step.id}>"

    def _repr_html_(self) -> str:
        """Show the hit in a notebook."""
        from hybridagi_steps.display import hits_html

        return hits_html([self.shown()])
