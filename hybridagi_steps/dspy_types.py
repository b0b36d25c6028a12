"""Steps and queries as DSPy sees them: real `dspy.Prediction`s that are validated pydantic models.

Both parents want to own the data. Here only one does: the pydantic fields. What DSPy calls `_store`
is a live view of them, so that an append to `x.steps` shows in `x["steps"]`, and every write
through either side is validated. Iteration, `len()`, `in`, `keys()` and `get()` follow
`dspy.Example`: they speak of *fields*; `len(x.steps)` counts steps.

`StepContext` is a prompt type: left to itself DSPy writes a list of steps as full JSON, this as the
text of recalled steps, without vectors. Recalled text comes from anywhere, so it is fenced (see
messages/fences.py).

This is the one low module that needs DSPy; everything below the programs works without it.
"""

# DSPy ships no types, and the two parents disagree on the signatures of `copy`, `__iter__` and
# `__init__`; each of those is defined here on purpose.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import dspy
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    WrapSerializer,
    model_validator,
)

from hybridagi_steps.errors import InvalidStepError
from hybridagi_steps.messages.fences import fenced, listed, sealed
from hybridagi_steps.messages.recalled_text import recalled_text
from hybridagi_steps.records.agent_step import AgentStep, id_text, shown
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.listings import StepHits
from hybridagi_steps.records.step_text import cut

_TAG = "past_steps"
_NO_STEPS = "(no past steps)"


class _FieldStore(MutableMapping[str, Any]):
    """A prediction's fields as the mapping DSPy expects; it holds no data of its own."""

    __slots__ = ("_model",)

    def __init__(self, model: PredictionModel) -> None:
        self._model = model

    def __getitem__(self, key: str) -> Any:
        if key in type(self._model).model_fields:
            return getattr(self._model, key)
        return self._extra[key]

    def __setitem__(self, key: str, value: object) -> None:
        if key in type(self._model).model_fields:
            setattr(self._model, key, value)
        else:
            self._extra[key] = value

    def __delitem__(self, key: str) -> None:
        field = type(self._model).model_fields.get(key)
        if field is None:
            del self._extra[key]
        else:
            setattr(self._model, key, field.get_default(call_default_factory=True))

    def __iter__(self) -> Iterator[str]:
        return iter([*type(self._model).model_fields, *self._extra])

    def __len__(self) -> int:
        return len(type(self._model).model_fields) + len(self._extra)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(dict(self))

    def copy(self) -> dict[str, Any]:
        """Return the fields as a dict of their own; `dspy.Example` copies its store like this."""
        return dict(self)

    @property
    def _extra(self) -> dict[str, Any]:
        extra = self._model.__pydantic_extra__
        return extra if extra is not None else {}


class PredictionModel(BaseModel, dspy.Prediction):
    """A prediction with declared, validated fields; undeclared ones are kept as they are.

    Args:
        base: Fields to start from: a dict, or a `dspy.Example` (whose input keys are taken over).
        data: Fields; they win over those of `base`.

    Removing a declared field sets it back to its default. Two predictions are equal when their
    fields are, as in DSPy.
    """

    model_config = ConfigDict(
        validate_assignment=True,
        extra="allow",
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    _completions: Any = PrivateAttr(default=None)
    _lm_usage: Any = PrivateAttr(default=None)
    _demos: list[Any] = PrivateAttr(default_factory=list[Any])
    _input_keys: set[str] | None = PrivateAttr(default=None)

    def __init__(self, base: object = None, /, **data: object) -> None:
        base = data.pop("base", None) if base is None else base
        if base is not None and not isinstance(base, dict | dspy.Example):
            raise TypeError(
                f"{type(self).__name__} starts from a dict or a dspy.Example, not "
                f"{type(base).__name__}; pass the fields by name."
            )
        BaseModel.__init__(self, **{**_fields_of(base), **data})
        keys = getattr(base, "_input_keys", None)
        self._input_keys = None if keys is None else set(keys)

    @model_validator(mode="before")
    @classmethod
    def _from_example(cls, value: Any) -> Any:
        plain = isinstance(value, dspy.Example) and not isinstance(value, BaseModel)
        return _fields_of(value) if plain else value

    @property
    def _store(self) -> _FieldStore:
        return _FieldStore(self)

    @_store.setter
    def _store(self, values: Mapping[str, Any]) -> None:
        # Validated as a whole before anything is replaced.
        fresh = type(self)(dict(values))
        object.__setattr__(self, "__dict__", fresh.__dict__)
        object.__setattr__(self, "__pydantic_extra__", fresh.__pydantic_extra__)

    def __iter__(self) -> Iterator[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Iterate over the names of the fields."""
        return iter(self._store)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dspy.Example):
            return NotImplemented
        return dict(self._store) == dict(other._store)

    def __hash__(self) -> int:
        # As dspy.Example does for plain values, so that equal ones hash alike.
        return hash(frozenset((key, _hashable(value)) for key, value in self._store.items()))

    def __str__(self) -> str:
        return repr(self)

    def copy(self, **changes: object) -> Any:
        """Return a shallow copy with `changes` made to its fields."""
        return type(self)(self, **changes)

    def inputs(self) -> dspy.Example:
        """Return the fields named by `with_inputs`.

        Raises:
            ValueError: `with_inputs` was not called.
        """
        return self._as_example().inputs()

    def labels(self) -> dspy.Example:
        """Return the fields that `with_inputs` did not name."""
        return self._as_example().labels()

    def toDict(self) -> dict[str, Any]:  # noqa: N802 - DSPy's name
        """Return the fields as JSON data; what JSON cannot hold becomes text."""
        extra = dspy.Example(dict(self.__pydantic_extra__ or {})).toDict()
        fields = set(type(self).model_fields)
        declared = self.model_dump(mode="json", include=fields, round_trip=True)
        return cast("dict[str, Any]", json_value(declared | extra, []))

    def _as_example(self) -> dspy.Example:
        # A part of a prediction is no longer one of its type: required fields may be missing.
        example = dspy.Example(dict(self._store))
        example._input_keys = self._input_keys  # noqa: SLF001 - as Example.with_inputs does
        return example


def _without_vectors(
    steps: list[AgentStep], write: SerializerFunctionWrapHandler, info: SerializationInfo
) -> Any:
    """Leave vectors out of JSON, which DSPy's adapters put into prompts, unless it goes back."""
    if info.round_trip:
        return write(steps)
    return write([step.model_copy(update={"vector": None}) for step in steps])


_Steps = Annotated[list[AgentStep], WrapSerializer(_without_vectors, when_used="json")]


class AgentStepList(PredictionModel):
    """Steps, in order. As JSON they are without vectors, except with `round_trip=True`.

    It reads as the list of its steps: `len(found)`, `found[0]`, `for step in found`, and it is
    false without any. As a `dspy.Prediction` it speaks of fields: `found["steps"]`, `keys()`,
    `items()`, `dict(found)`; a text is `in` it if it names one.
    """

    steps: _Steps = Field(default_factory=list[AgentStep])
    """The steps."""

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[AgentStep]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Iterate over the steps."""
        return iter(self.steps)

    def __contains__(self, item: object) -> bool:
        return super().__contains__(item) if isinstance(item, str) else item in self.steps

    def __getitem__(self, key: Any) -> Any:
        """Return the step at a place, the steps of a slice, or a field, as of any prediction."""
        if isinstance(key, AgentStep):
            return self.steps[self.steps.index(key)]
        return self.steps[key] if isinstance(key, int | slice) else super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set a field, as of any prediction.

        `dspy.Predict` saves a demo by iterating over it and writing each item back as JSON, before
        it takes `toDict`, which has all of it: what it writes to a step is left out here.
        """
        if not isinstance(key, AgentStep):
            super().__setitem__(key, value)

    def index(self, step: AgentStep) -> int:
        """Return the place of a step.

        Raises:
            ValueError: It is none of these.
        """
        return self.steps.index(step)

    def to_dict(self) -> dict[str, Any]:
        """Return the steps as prompt data."""
        return {"steps": [step.to_dict() for step in self.steps]}

    def as_context(self) -> StepContext:
        """Return the steps as a `StepContext`, which prompts render as text without vectors."""
        return StepContext(steps=list(self.steps))

    def __repr__(self) -> str:
        """The steps as a tree, what a program did inside the program."""
        from hybridagi_steps.display.terminal import as_text, run_tree

        return as_text(run_tree([shown(step) for step in self.steps])) if self.steps else "no steps"

    def _repr_html_(self) -> str:
        """Show the steps in a notebook."""
        from hybridagi_steps.display import steps_html

        return steps_html([shown(step) for step in self.steps])


class Query(PredictionModel):
    """One question to the memory."""

    query: str = ""
    """The question."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> Any:
        return {"query": value} if isinstance(value, str) else value

    def to_dict(self) -> dict[str, Any]:
        """Return the query as prompt data."""
        return {"query": self.query}


class QueryList(PredictionModel):
    """Several questions asked at once."""

    queries: list[Query] = Field(default_factory=list[Query])
    """The questions; plain texts become queries."""

    @model_validator(mode="before")
    @classmethod
    def _from_queries(cls, value: object) -> Any:
        if isinstance(value, str | Query):
            return {"queries": [value]}
        return {"queries": list(value)} if isinstance(value, list | tuple) else value

    def to_dict(self) -> dict[str, Any]:
        """Return the queries as prompt data."""
        return {"queries": [query.query for query in self.queries]}


class QueryWithSteps(PredictionModel):
    """Questions and the steps found for them, best first.

    A retriever adds `scores`, `passages` (each step as `as_context` shows it), `indices` (their
    ids) and `distances` as further fields, one entry per step.
    """

    queries: QueryList = Field(default_factory=QueryList)
    """What was asked."""
    steps: _Steps = Field(default_factory=list[AgentStep])
    """What was found."""

    _hits: list[StepHit] = PrivateAttr(default_factory=list[StepHit])

    if TYPE_CHECKING:
        # Undeclared fields of a retriever's answer: absent, not None, when it was made by hand.
        @property
        def scores(self) -> list[float]: ...  # noqa: D102
        @property
        def passages(self) -> list[str]: ...  # noqa: D102
        @property
        def indices(self) -> list[Any]: ...  # noqa: D102

    @classmethod
    def from_hits(
        cls, queries: object, hits: Sequence[StepHit], **fields: object
    ) -> QueryWithSteps:
        """Return what was found, with scores, passages and indices in the order of `hits`.

        Args:
            queries: What was asked: text, texts, Query or QueryList.
            hits: What was found, in the order to keep.
            fields: Further fields.
        """
        found = cls.model_validate(
            {
                **fields,
                "queries": queries,
                "steps": [hit.step for hit in hits],
                "scores": [hit.score for hit in hits],
                "passages": [recalled_text(hit.step) for hit in hits],
                "indices": [hit.step.id for hit in hits],
            }
        )
        found._hits = list(hits)  # noqa: SLF001 - of this class
        return found

    @property
    def hits(self) -> list[StepHit]:
        """The steps as hits, in their present order, with what is known of how they matched."""
        known = {id_text(hit.step.id): hit for hit in self._hits}
        scores = self.get("scores") or []
        fallback = [*scores, *[0.0] * len(self.steps)]
        return [
            known.get(id_text(step.id)) or StepHit(step=step, score=fallback[place])
            for place, step in enumerate(self.steps)
        ]

    def copy(self, **changes: object) -> QueryWithSteps:
        """Return a shallow copy with `changes` made to its fields."""
        copied = cast("QueryWithSteps", super().copy(**changes))
        copied._hits = list(self._hits)  # noqa: SLF001 - of the same class
        return copied

    def to_dict(self) -> dict[str, Any]:
        """Return queries and steps as prompt data."""
        return {
            "queries": [query.query for query in self.queries.queries],
            "steps": [step.to_dict() for step in self.steps],
        }

    def as_context(self) -> StepContext:
        """Return the steps as a `StepContext`, which prompts render as text without vectors."""
        return StepContext(steps=list(self.steps))

    def __repr__(self) -> str:
        """The hits as a table, as those of a search."""
        return repr(StepHits(self.hits))

    def _repr_html_(self) -> str:
        """Show the hits in a notebook."""
        from hybridagi_steps.display import hits_html

        return hits_html([hit.shown() for hit in self.hits])


class _PromptText(dspy.Type):
    """A prompt type that is a text wherever it is shown."""

    def __str__(self) -> str:
        return str(self.format())

    __repr__ = __str__


class StepContext(_PromptText):
    """Steps in a prompt: `past: StepContext = dspy.InputField()`.

    Made of an AgentStepList, a QueryWithSteps, a step, a hit, or a list of steps or hits:
    `predict(past=StepContext.of(found))` or `predict(past=found.as_context())`. Any adapter writes
    it as the text of the steps, in demos too; vectors never show. Each step stands in the form of
    `messages/recalled_text`: its day, what was asked, the call with its arguments, what came of it.
    """

    steps: list[AgentStep] = Field(default_factory=list[AgentStep])
    """The steps, in the order they are shown."""

    @model_validator(mode="before")
    @classmethod
    def _from_steps(cls, value: object) -> Any:
        if isinstance(value, AgentStepList | QueryWithSteps):
            return {"steps": value.steps}
        if isinstance(value, AgentStep | StepHit):
            value = [value]
        if isinstance(value, list | tuple):
            return {"steps": [_step_of(item) for item in cast("list[Any]", value)]}
        return value

    @classmethod
    def of(cls, steps: object) -> Self:
        """Return steps of any of the kinds above as a prompt value.

        Raises:
            InvalidStepError: They are no steps.
        """
        try:
            return cls.model_validate(steps)
        except ValidationError as error:
            raise InvalidStepError(
                f"{cls.__name__} is made of a step, a hit, a list of these, an AgentStepList or a "
                f"QueryWithSteps, not of {cut(steps, 80)}."
            ) from error

    def format(self) -> str:
        """Return the steps as they stand in a prompt."""
        return sealed(_TAG, listed(map(recalled_text, self.steps))) if self.steps else _NO_STEPS

    @classmethod
    def description(cls) -> str:
        """Tell a language model what such a field holds."""
        return "Steps that programs made before, as text between marks of past_steps."


class PastMessages(_PromptText):
    """Past messages in a prompt, and what they quote; `hs.StepMessages` is made of anything."""

    messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """In OpenAI's form; a leading system message joins DSPy's own."""
    recalled: list[str] = Field(default_factory=list[str])
    """Ids of the steps that are quoted in them; no part of the prompt."""

    def format(self) -> str:
        """Return the messages as text, for adapters that know no native ones."""
        lines = [f"{m['role']}: {m.get('content') or m.get('tool_calls')}" for m in self.messages]
        return fenced_steps("\n".join(lines))

    @classmethod
    def description(cls) -> str:
        """Tell a language model what such a field holds."""
        return "The messages of the conversation so far."


class NumberedSteps(StepContext):
    """Steps to choose from: a numbered line each, what was done and what came of it."""

    max_characters: int = 8_000
    """Characters of all lines together, shared out evenly."""

    def format(self) -> str:
        """Return the steps as they stand in a prompt."""
        length = max(1, self.max_characters // max(1, len(self.steps)))
        lines = (
            cut(f"{number}. {recalled_text(step, length=length)}", length)
            for number, step in enumerate(self.steps, start=1)
        )
        return fenced_steps("\n".join(lines))


def _step_of(item: object) -> Any:
    return item.step if isinstance(item, StepHit) else item


def fenced_steps(text: str) -> str:
    """Return text of steps between the marks of past steps."""
    return fenced(_TAG, text) if text else _NO_STEPS


def _fields_of(base: dict[str, Any] | dspy.Example | None) -> dict[str, Any]:
    if base is None:
        return {}
    return dict(base._store if isinstance(base, dspy.Example) else base)  # noqa: SLF001


def _hashable(value: object) -> Any:
    if isinstance(value, BaseModel):
        value = dict(value.__dict__)
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, set):
        return frozenset(value)
    try:
        hash(value)
    except TypeError:
        return type(value).__name__
    return value
