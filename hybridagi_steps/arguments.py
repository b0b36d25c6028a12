"""What callers hand over, in the one form that the parts understand, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.protocols import UNREVOKED
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter

if TYPE_CHECKING:
    from hybridagi_steps.dspy_types import AgentStepList
    from hybridagi_steps.records.agent_step import AgentStep

Where = StepFilter | Mapping[str, Any] | None
"""Which steps: a filter, its keys as a dict, or all of a user's own history."""
Steps: TypeAlias = "AgentStep | Iterable[AgentStep] | AgentStepList"
"""One step, several, or what holds them."""
StepId = UUID | str
"""A UUID and its text are the same id."""
_MOST = 2**63 - 1
"""The largest number of a database."""


def in_every_scope(where: Where) -> StepFilter:
    """Return a filter that sees trial runs too, unless one scope is asked for."""
    asked = StepFilter.of(where)
    return asked if asked.scope else asked.model_copy(update={"scope": EVERY_SCOPE})


def for_recall(where: Where) -> StepFilter:
    """Return a filter that sees no revoked step, unless their scope is asked for."""
    asked = StepFilter.of(where)
    if asked.scope != EVERY_SCOPE:
        return asked
    return asked.model_copy(update={"scope": UNREVOKED})


def is_number(value: object) -> bool:
    """Whether a value is a number that others can be compared with: NaN is not even itself."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == value


def checked_page(limit: int, offset: int) -> tuple[int, int]:
    """Return a page of a listing; what no database can count to is as good as everything.

    Raises:
        InvalidQueryError: `limit` or `offset` is no number of steps.
    """
    for name, number in (("limit", limit), ("offset", offset)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidQueryError(f"{name} is a number of steps, at least 0; got {number!r}.")
    return min(limit, _MOST), min(offset, _MOST)


def one_id(step_id: StepId) -> str:
    """Return an id as a text.

    Raises:
        InvalidQueryError: It is none.
    """
    if not isinstance(step_id, str | UUID):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidQueryError(f"ids are UUIDs or texts; got {step_id!r:.60}.")
    return id_text(step_id)


def id_texts(ids: StepId | Iterable[StepId]) -> list[str]:
    """Return one id or several as a list of texts.

    Raises:
        InvalidQueryError: It is neither, or one of them is none.
    """
    if isinstance(ids, str | UUID) or not isinstance(ids, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        return [one_id(ids)]
    return [one_id(step_id) for step_id in ids]
