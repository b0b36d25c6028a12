"""Errors of messages, contexts and sessions."""

from __future__ import annotations

from hybridagi_steps.errors.base import StepsError


class MessageError(StepsError, ValueError):
    """What was given is no LLM message; the text names its place."""


class ContextBudgetError(StepsError, ValueError):
    """The system prompt and the newest unit of a session need more tokens than there are."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"the system prompt and the newest message need {needed:,} tokens, the budget is "
            f"{budget:,}. Raise the budget or shorten the system prompt."
        )
        self.needed, self.budget = needed, budget


class UnknownSessionError(StepsError, KeyError):
    """No session has this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session has the id {session_id!r}.")
        self.session_id = session_id


class UnknownSequenceError(StepsError, KeyError):
    """The session has no message at this sequence."""

    def __init__(self, session_id: str, sequence: int, last: int) -> None:
        super().__init__(
            f"session {session_id!r} has the messages 1 to {last}; there is no {sequence}."
            if last
            else f"session {session_id!r} has no messages; there is no {sequence}."
        )
        self.session_id, self.sequence, self.last = session_id, sequence, last


class SequenceConflictError(StepsError, ValueError):
    """The session ends elsewhere than the writer thought, or its key stored something else."""
