"""SessionDetails: what people call a session, and what programs note of it.

They are kept as one step that is pinned to no message, under an id made of the session's. So they
stay when a turn is made again, no search shows them, a fork has its own, and who erases a session
knows what to erase with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.protocols import StoreBackend
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.json_values import first_fault
from hybridagi_steps.records.store_values import DETAILS, details_id
from hybridagi_steps.sessions.repository import SessionRepository
from hybridagi_steps.sessions.session_checks import check_session
from hybridagi_steps.stores.listing import details_told

MAX_TITLE = 200
"""Characters of the longest title."""

Admit = Callable[[Sequence[AgentStep]], list[AgentStep]]
"""Checks and redacts steps."""


class SessionDetails(BaseModel):
    """The title and metadata of a session."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", frozen=True)

    title: Annotated[str, Field(max_length=MAX_TITLE)] | None = None
    """What people call it; an empty one takes it away."""
    metadata: dict[str, JsonValue] | None = None
    """Anything else, JSON values only; replaced as a whole."""

    def merged(self, changed: SessionDetails) -> SessionDetails:
        """Return these with what others say in place of what they said."""
        told: dict[str, Any] = changed.model_dump(exclude_none=True)
        return self.model_copy(update={**told, "title": told.get("title", self.title) or None})


async def describe_session(
    repo: SessionRepository,
    session_id: str,
    *,
    title: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> SessionDetails:
    """Give a session a title, metadata or both; what is None stays as it was.

    Args:
        repo: Where the session is.
        session_id: The session.
        title: Up to 200 characters; an empty text takes it away.
        metadata: JSON values, in place of what there was.

    Returns:
        What the session has now, redacted like everything.

    Raises:
        UnknownSessionError: No such session.
        NotAllowedError: The repository acts for a user whose session it is not.
        InvalidSettingError: Title or metadata that cannot be kept.
    """
    check_session(session_id)
    told = None if metadata is None else dict(metadata)
    try:
        changed = SessionDetails(title=title, metadata=told)
    except ValidationError as error:
        raise InvalidSettingError(
            f"{first_fault(error)}; a title is a text of up to 200 characters, and metadata are "
            "JSON values."
        ) from error
    write = partial(_describe, repo.store, session_id, changed, repo._admit)  # noqa: SLF001 - a call of the repository, too  # pyright: ignore[reportPrivateUsage]
    return await repo._asked(session_id, write)  # noqa: SLF001 - as above  # pyright: ignore[reportPrivateUsage]


def name_session(repo: SessionRepository, session_id: str, title: str) -> None:
    """Give a session a title, cut to what a title may be, unless it has one; may block."""
    if _details_of(repo.store, session_id).title is None:
        changed = SessionDetails(title=" ".join(title.split())[:MAX_TITLE])
        _describe(repo.store, session_id, changed, repo._admit)  # noqa: SLF001 - as above  # pyright: ignore[reportPrivateUsage]


async def session_details(repo: SessionRepository, session_id: str) -> SessionDetails:
    """Return the title and metadata of a session, both None where nobody has set any.

    Raises:
        UnknownSessionError: No such session.
        NotAllowedError: The repository acts for a user whose session it is not.
    """
    check_session(session_id)
    read = partial(_details_of, repo.store, session_id)
    return await repo._asked(session_id, read)  # noqa: SLF001 - as above  # pyright: ignore[reportPrivateUsage]


def _describe(
    store: StoreBackend, session_id: str, changed: SessionDetails, admit: Admit
) -> SessionDetails:
    step = AgentStep(
        id=details_id(session_id),
        step_type=AgentStepType.Action,
        inputs={"purpose": "Describe a session"},
        outputs=_details_of(store, session_id).merged(changed).model_dump(exclude_none=True),
        user_id=store.session_owner(session_id),
        scope=DETAILS,
    )
    store.append(admit([step]), replace=True)
    return _details_of(store, session_id)


def _details_of(store: StoreBackend, session_id: str) -> SessionDetails:
    [told] = details_told(store, {session_id: store.session_owner(session_id)})
    return SessionDetails.model_construct(title=told.get("title"), metadata=told.get("metadata"))
