"""A session's messages without a builder: as they are, ready to be sent, or counted.

Both functions read through a repository, for which a session that is not there is an empty one.
"""

from __future__ import annotations

from typing import Protocol

from hybridagi_steps.context.builder import ContextBuilder
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.messages.provider_out import check_text, openai_messages
from hybridagi_steps.messages.units import flat, message_units
from hybridagi_steps.records.json_reading import JsonObject
from hybridagi_steps.records.message import Step


class StepReader(Protocol):
    """What is needed of a session repository."""

    async def get_steps(
        self, session_id: str, start_seq: int | None = None, end_seq: int | None = None
    ) -> list[Step]:
        """Return the messages of a session in a range of sequences, both ends included."""
        ...


async def build_context_from_steps(
    session_id: str,
    repo: StepReader,
    system_prompt: str | None = None,
    start_seq: int | None = None,
    end_seq: int | None = None,
    budget: int | None = None,
) -> list[JsonObject]:
    """Return a session as messages, ready to be sent.

    Args:
        session_id: The session.
        repo: Where it is stored.
        system_prompt: Put before everything; by default what leading system messages say.
        start_seq: First sequence, 1 for the beginning; so is what is below.
        end_seq: Last sequence, included. A range that ends before it begins is empty.
        budget: Most tokens; the newest messages that fit are kept. None keeps all.

    Returns:
        Messages in OpenAI's form. Without messages in the range, or of a session that is not
        there, only the system prompt, if one is given; ContextBuilder refuses such a session.

    Raises:
        InvalidSettingError: A sequence or the budget is no number, or the prompt no text.
        ContextBudgetError: System prompt and newest unit do not fit into the budget.
    """
    check_text("system_prompt", system_prompt)
    for name, sequence in (("start_seq", start_seq), ("end_seq", end_seq)):
        if sequence is not None and (isinstance(sequence, bool) or not isinstance(sequence, int)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidSettingError(f"{name} is a sequence, 1 for the first; got {sequence!r}.")
    steps = await repo.get_steps(session_id, start_seq=start_seq, end_seq=end_seq)
    if budget is not None and steps:
        builder = ContextBuilder(budget=budget, recent=None, k=0)
        return builder.build(steps=steps, system_prompt=system_prompt).messages
    system, units = message_units(steps)
    return openai_messages(system if system_prompt is None else system_prompt, flat(units))


async def get_context_summary(session_id: str, repo: StepReader) -> JsonObject:
    """Return how many messages of each kind a session has, and its range of sequences.

    All are 0 for a session that is not there.
    """
    steps = await repo.get_steps(session_id)
    sequences = [step.sequence for step in steps]
    return {
        "total_steps": len(steps),
        "user_steps": sum(step.is_user_step() for step in steps),
        "assistant_steps": sum(step.is_assistant_step() for step in steps),
        "tool_steps": sum(step.is_tool_step() for step in steps),
        "sequence_range": {
            "min": min(sequences, default=0),
            "max": max(sequences, default=0),
        },
    }
