"""UserProfiles: what programs are told about their user, kept for each user of a memory.

A profile is a step in a scope of its own, which no search shows unless it is named. It names its
user and no session: so it is redacted like any step, erased with its user and hidden while he is
revoked, whatever becomes of his sessions.
"""

from __future__ import annotations

from uuid import UUID, uuid5

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.sessions.session_checks import checked_user

PROFILES = "user_profile"
"""The scope of profiles."""
_IDS = UUID("6d0d5c5e-5a64-4b0e-9d8e-2f1f6f0f7a11")
_MOST = 100


class UserProfiles:
    """The profiles of a memory's users; `StepRunnerConfig(user_profile=True)` shows them.

    Args:
        memory: Where they are kept.

    Example:
        >>> profiles = UserProfiles(StepMemory(":memory:", embedder="hashing"))
        >>> profiles.set("ann", "Ann books trains, never flights.")
        >>> profiles.get("ann"), profiles.get("bob")
        ('Ann books trains, never flights.', None)
    """

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory

    def set(self, user_id: str, text: str) -> None:
        """Store what is to be known about a user, in place of what was; redacted like every step.

        Raises:
            InvalidSettingError: No user, or no text.
        """
        if not isinstance(text, str) or not text.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidSettingError(f"a profile is a text, not {text!r:.80}; see remove().")
        step = AgentStep(
            id=uuid5(_IDS, _named(user_id)),
            step_type=AgentStepType.Action,
            inputs={"purpose": "Know the user"},
            outputs={"profile": text},
            user_id=user_id,
            scope=PROFILES,
        )
        self._memory.update(step)

    def get(self, user_id: str) -> str | None:
        """Return the profile of a user; None where there is none, as long as he is revoked too.

        What was imported from elsewhere is none: nobody of this memory has set it.
        """
        own = [step for step in self._of(user_id) if source_of(step.metadata) is None]
        profile = (own[-1].outputs or {}).get("profile") if own else None
        return profile if isinstance(profile, str) else None

    def remove(self, user_id: str) -> bool:
        """Delete the profile of a user; return whether there was one."""
        return self._memory.delete([step.id for step in self._of(user_id)]) > 0

    def _of(self, user_id: str) -> list[AgentStep]:
        where = {"scope": PROFILES, "user_id": _named(user_id)}
        return list(self._memory.find(where, limit=_MOST).steps)


def profile_note(profile: str | None) -> str | None:
    """Return how a profile stands in a system prompt; None for none."""
    if profile is None or not profile.strip():
        return None
    return f"About the user:\n{inert(profile.strip())}"


def _named(user_id: object) -> str:
    if not isinstance(user_id, str):
        raise InvalidSettingError(f"a profile is of a user_id, a text, not {user_id!r:.80}.")
    return checked_user(user_id) or ""
