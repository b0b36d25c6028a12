"""What may enter a memory: every step is checked, repaired and redacted before it is stored.

Nothing here writes; how large a step may be is the stores' affair. A step that cannot be kept is
refused with a typed error; what JSON cannot hold is repaired with a note; what `redact` takes out
never reaches a disk, an index or a log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from operator import itemgetter
from types import NoneType
from typing import Any, Protocol, TypeAlias, TypeVar, cast, get_args
from uuid import UUID

import numpy as np
from pydantic import ValidationError

from hybridagi_steps.errors import (
    DimensionMismatchError,
    InvalidFilterError,
    InvalidQueryError,
    InvalidSettingError,
    InvalidStepError,
    InvalidVectorError,
    MessageError,
    StepsError,
    StepTooDeepError,
)
from hybridagi_steps.records.agent_step import ID_FIELDS, AgentStep, id_text, repaired
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.json_values import (
    MAX_DEPTH,
    first_fault,
    is_clean,
    is_json,
    json_value,
    too_deep,
    with_repairs,
)
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics, from_local, in_utc
from hybridagi_steps.records.redaction import Redact, redacted_fields, redacted_message
from hybridagi_steps.records.store_values import UNREVOKED

MAX_ID_LENGTH = 128
MOST_PRIORITY = 1_000
"""Of work in a queue; the least is its negative."""

_VALUES = ("inputs", "outputs", "metadata")
_ids_of = itemgetter(*ID_FIELDS)


def admitted(steps: object, redact: Redact | None) -> list[AgentStep]:
    """Return the steps as they may be stored; the ones given, or what holds them, are not changed.

    `redact` is applied to every string of inputs, outputs, metadata and extra fields.
    """
    if isinstance(steps, AgentStep):
        return [_admitted(steps, redact)]
    held: object = getattr(steps, "steps", steps)
    if isinstance(held, str | bytes | dict) or not isinstance(held, Iterable):
        raise InvalidStepError(f"expected AgentSteps, got {type(steps).__name__}.")
    return [_admitted(step, redact) for step in cast("Iterable[AgentStep]", held)]


def check_vector(step: AgentStep, dimension: int) -> None:
    """Check the vector that a step brings along."""
    vector = np.asarray(step.vector, np.float32)
    where = f"the vector of step {step.id}"
    if vector.ndim != 1 or len(vector) != dimension:
        raise DimensionMismatchError(vector.size, dimension, where=where)
    if not np.isfinite(vector).all() or not vector.any():
        raise InvalidVectorError(f"{where} holds NaN or Inf, or is all zero.")


def checked_redact(redact: Redact | None) -> Redact | None:
    """Return `redact`."""
    if redact is not None and not callable(redact):  # pyright: ignore[reportUnnecessaryComparison] - callers err
        raise InvalidStepError(
            "redact is a function that takes a text and returns what may be kept of it, "
            f"not {redact!r}."
        )
    return redact


def _admitted(step: AgentStep, redact: Redact | None) -> AgentStep:
    if not isinstance(step, AgentStep):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidStepError(f"expected an AgentStep, got {type(step).__name__}.")
    fields = step.__dict__
    try:
        ids = _ids_of(fields)
    except KeyError:  # it was pickled by an earlier version, which had fewer
        ids = tuple(map(fields.get, ID_FIELDS))
    for value in ids:
        if value is None or type(value) is UUID:
            continue
        if type(value) is not str or not 0 < len(value) <= MAX_ID_LENGTH or not value.isprintable():
            _check_ids(step, fields)
            break
    if (parent := fields.get("parent_id")) is not None and _is_same(parent, fields["id"]):
        step = without_parent(step)
        fields = step.__dict__
    extra = step.__pydantic_extra__
    if redact is None and _is_plain(fields) and (not extra or is_json(extra)):
        return step
    values = {name: fields.get(name) for name in _VALUES}
    if extra:
        values.update(extra)
    for name, value in values.items():
        if (path := too_deep(value, name)) is not None:
            raise StepTooDeepError(str(step.id), path, MAX_DEPTH)
    fixed = repaired(values)
    if redact is not None:
        kept = _redacted_or_refused(id_text(step.id), fixed, redact, redacted_fields)
        fixed = repaired(kept)
    if fixed is values:
        return step
    kept = step.model_copy(update={name: fixed.pop(name) for name in _VALUES})
    if extra:
        cast("dict[str, Any]", kept.__pydantic_extra__).clear()
        cast("dict[str, Any]", kept.__pydantic_extra__).update(fixed)
    return kept


def without_parent(step: AgentStep) -> AgentStep:
    """Return a step without the link to its parent, and with a note of why."""
    note = f"parent_id: {step.parent_id} cut, it led in a circle"
    metadata = with_repairs(step.metadata, [note])
    return step.model_copy(update={"parent_id": None, "metadata": metadata})


def _is_same(one: UUID | str, other: UUID | str) -> bool:
    return one == other or (type(one) is not type(other) and id_text(one) == id_text(other))


def _is_plain(fields: Mapping[str, Any]) -> bool:
    """Return whether the values of nearly every step are as they may be stored."""
    value = fields.get
    return is_json(value("inputs")) and is_json(value("outputs")) and is_json(value("metadata"))


def _check_ids(step: AgentStep, fields: Mapping[str, Any]) -> None:
    for name in ID_FIELDS:
        if (value := fields.get(name)) is not None:
            _check_name(name, id_text(value), f"{name} of step {str(step.id)[:40]!r}")


def _check_name(name: str, text: str, called: str) -> None:
    if not 0 < len(text) <= MAX_ID_LENGTH:
        raise InvalidStepError(
            f"{called} has {len(text)} characters; 1 to {MAX_ID_LENGTH} are allowed."
        )
    if not text.isprintable() and not is_clean(text):
        raise InvalidStepError(f"{name} {text!r} holds NUL or a lone surrogate.")


def _redacted_or_refused(
    step_id: str,
    values: dict[str, Any],
    redact: Redact,
    fields: Callable[[dict[str, Any], Redact], dict[str, Any]],
) -> dict[str, Any]:
    try:
        return fields(values, redact)
    except InvalidStepError:
        raise
    except Exception as error:
        raise refused_redaction(step_id, error) from None


def refused_redaction(step_id: str, error: Exception) -> InvalidStepError:
    """Return the error to raise, `from None`, when `redact` failed.

    The cause is left out: its message may quote what was to be removed.
    """
    return InvalidStepError(
        f"redact failed on step {step_id} with {type(error).__name__}; nothing was stored."
    )


_MESSAGE_IDS = ("id", "run_id", "tool_call_id", "agent_step_id", "parent_run_id", "user_id")
_TEXTS = ("name", "content_for_user", "reasoning_content")
_KINDS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, (str, NoneType)),
    "content": (str, list, NoneType),
    "tool_calls": (list, NoneType),
    "metadata": (dict, NoneType),
    "metrics": (StepMetrics, NoneType),
}
_MESSAGE_VALUES = ("content", "tool_calls", *_TEXTS, "metadata")


def admitted_messages(messages: object, session_id: str, redact: Redact | None) -> list[Step]:
    """Return messages as they may be stored in a session; the ones given are not changed.

    They are Steps, or in a provider's form. `redact` is applied to every string of content, calls,
    reasoning, name and metadata.
    """
    check_id("session_id", session_id)
    if isinstance(messages, Step | Mapping):
        return [_admitted_message(cast("object", messages), session_id, redact)]
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise InvalidStepError(
            f"a message is a Step or a dict, such as {{'role': 'user', 'content': 'Hello'}}, not "
            f"{type(messages).__name__}."
        )
    return [
        _admitted_message(item, session_id, redact) for item in cast("Iterable[object]", messages)
    ]


def check_id(name: str, value: object) -> None:
    """Check an id that is stored with a message."""
    if not isinstance(value, str):
        raise InvalidStepError(f"{name} is a text, not {type(value).__name__}.")
    _check_name(name, value, f"{name} {value[:40]!r}")


def _admitted_message(message: Any, session_id: str, redact: Redact | None) -> Step:
    step = message if isinstance(message, Step) else _from_dict(message, session_id)
    _check_shape(step)
    values = {name: getattr(step, name, None) for name in _MESSAGE_VALUES}
    if redact is None and is_json(values, depth=-1) and _is_whole(step):
        return step
    for name, value in values.items():
        nested = isinstance(value, dict | list)
        if nested and (path := too_deep(value, name)) is not None:
            raise StepTooDeepError(step.id, path, MAX_DEPTH)
    fixed = _repaired(values)
    if redact is not None:
        fixed = _repaired(_redacted_or_refused(step.id, fixed, redact, redacted_message))
    fixed["created_at"] = in_utc(from_local(step.created_at))
    fixed["metrics"] = _finite(step.metrics)
    fixed["role"] = MessageRole(step.role)
    return step.model_copy(update=fixed)


def _is_whole(step: Step) -> bool:
    """Return whether all but the values of a message is as it may be stored."""
    known = type(step.role) is MessageRole and step.created_at.tzinfo is UTC
    return known and (step.metrics is None or is_json(vars(step.metrics)))


def _from_dict(message: object, session_id: str) -> Step:
    if not isinstance(message, Mapping):
        raise InvalidStepError(f"expected a Step, got {type(message).__name__}.")
    known = dict(cast("Mapping[str, Any]", message))
    # Before validation, which would refuse what can be repaired.
    known.update(_repaired({name: known.get(name) for name in _MESSAGE_VALUES}))
    try:
        return Step.model_validate({**known, "session_id": session_id})
    except ValidationError as error:
        raise MessageError(f"this is no message: {first_fault(error)}.") from error


def _check_shape(step: Step) -> None:
    """Check what a caller may have put into a Step after it was made."""
    for name in _MESSAGE_IDS:
        if (value := getattr(step, name, None)) is not None or name == "id":
            check_id(name, value)
    if step.role not in list(MessageRole):
        roles = ", ".join(MessageRole)
        raise InvalidStepError(f"message {step.id!r}: its role is {step.role!r}, not of {roles}.")
    if wrong := [n for n, kind in _KINDS.items() if not isinstance(getattr(step, n, None), kind)]:
        raise InvalidStepError(
            f"message {step.id!r}: {', '.join(wrong)} is of another type than a Step has; "
            "build it with Step(…)."
        )


def _repaired(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them; each repair is named in `metadata["repairs"]`."""
    if is_json(values, depth=-1):
        return dict(values)
    notes: list[str] = []
    fixed = {name: json_value(value, notes, name) for name, value in values.items()}
    return {**fixed, "metadata": with_repairs(fixed["metadata"], notes)}


def _finite(metrics: StepMetrics | None) -> StepMetrics | None:
    """Return metrics without NaN and Inf: a figure that is no number was not measured."""
    if metrics is None or is_json(dict(vars(metrics))):
        return metrics
    plain = {name: json_value(value, [], name) for name, value in vars(metrics).items()}
    return StepMetrics.model_construct(**plain)


Where = StepFilter | Mapping[str, Any] | None
"""Which steps: a filter, its keys as a dict, or all of a user's own history."""


class StepHolder(Protocol):
    """What holds steps: an AgentStepList, a QueryWithSteps."""

    @property
    def steps(self) -> Iterable[AgentStep]:
        """The steps, in their order."""
        ...


Steps: TypeAlias = "AgentStep | Iterable[AgentStep] | StepHolder"
"""One step, several, or what holds them."""
Choice = TypeVar("Choice")
StepId = UUID | str
"""A UUID and its text are the same id."""
_MOST = 2**62 - 1  # two of them are a number that databases have
"""The largest number of a database."""


def in_every_scope(where: Where) -> StepFilter:
    """Return a filter that sees trial runs too, unless one scope is asked for."""
    asked = StepFilter.of(where)
    return asked if asked.scope else asked.model_copy(update={"scope": EVERY_SCOPE})


def of_steps(where: Where) -> StepFilter:
    """Return a filter for a listing of AgentSteps; one that leaves all of them out is an error."""
    asked = StepFilter.of(where)
    if asked.kinds and "step" not in asked.kinds:
        raise InvalidFilterError(
            "only AgentSteps are listed here, and `kinds` leaves them out: search finds messages "
            "of sessions (memory.search(query, where={'kinds': ['message']})), and `await "
            "memory.repository().get_steps(session_id)` or `hybridagi-steps sessions ID` reads "
            "them.",
            key="kinds",
        )
    return asked


def for_recall(where: Where) -> StepFilter:
    """Return a filter that sees no revoked step, unless their scope is asked for."""
    asked = StepFilter.of(where)
    if asked.scope != EVERY_SCOPE:
        return asked
    return asked.model_copy(update={"scope": UNREVOKED})


def check_score(value: float) -> None:
    """Refuse what is no score."""
    if not is_number(value) or not -sys.float_info.max <= value <= sys.float_info.max:
        raise InvalidStepError("a score is a finite number that a float can hold.")


def is_number(value: object) -> bool:
    """Whether a value is a number that others can be compared with: NaN is not even itself."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def whole_number(
    name: str, value: object, least: int, error: type[StepsError] = InvalidSettingError
) -> int:
    """Return an argument that is a whole number of at least `least`; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise error(f"{name} is at least {least}, a whole number, not {value!r:.80}.")
    return value


def chosen(
    name: str, value: Choice, choices: object, error: type[StepsError] = InvalidSettingError
) -> Choice:
    """Return an argument that is one of the words of a `Literal`."""
    if value not in (words := get_args(choices)):
        raise error(f"{name} is one of {', '.join(words)}, not {value!r:.80}.")
    return value


def checked_priority(priority: object) -> int:
    """Return a priority of work in a queue: from -1,000 to 1,000, the smallest goes first."""
    number = whole_number("priority", priority, -MOST_PRIORITY)
    if number > MOST_PRIORITY:
        raise InvalidSettingError(f"priority is at most {MOST_PRIORITY:,}, not {number:,}.")
    return number


def checked_page(limit: int, offset: int) -> tuple[int, int]:
    """Return a page of a listing; what no database can count to is as good as everything."""
    return (
        min(whole_number("limit", limit, 0, InvalidQueryError), _MOST),
        min(whole_number("offset", offset, 0, InvalidQueryError), _MOST),
    )


def one_id(step_id: StepId) -> str:
    """Return an id as a text."""
    if not isinstance(step_id, str | UUID):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidQueryError(f"ids are UUIDs or texts; got {step_id!r:.60}.")
    return id_text(step_id)


def id_texts(ids: StepId | Iterable[StepId]) -> list[str]:
    """Return one id or several as texts; a filter is none."""
    if isinstance(ids, Mapping | StepFilter):
        raise InvalidQueryError(
            f"ids are wanted, not a filter ({ids!r:.60}); find and purge of a memory take one."
        )
    if isinstance(ids, str | UUID) or not isinstance(ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        return [one_id(ids)]
    return [one_id(step_id) for step_id in ids]
