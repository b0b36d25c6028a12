"""Where a context's messages come from: a session of the memory, or steps handed over.

Knows what each message costs: counts are read from the store, if it keeps them for this counter,
and what had to be counted is kept there for the next time. A message in a store never changes, so
its count holds for good.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hybridagi_steps.context.receipt import ReceiptEntry
from hybridagi_steps.errors import InvalidSettingError, StorageError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import shown_steps, to_messages
from hybridagi_steps.messages.provider_out import OPENING, openai_message
from hybridagi_steps.messages.units import SYNTHETIC, Unit
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.session_protocols import BranchPosition, MessageTokenStore
from hybridagi_steps.token_counters import MessageCounter

log = logging.getLogger("hybridagi_steps")

_NO_SESSION = "context"
_REMEMBERED_SESSIONS = 16


@dataclass(slots=True)
class Source:
    """The messages of a conversation, and what is known about them."""

    messages: list[Step]
    """In order; at least one is no system message."""
    session_id: str
    """The session they belong to."""
    of_agent_steps: bool = False
    """Whether AgentSteps were given: then those are what receipts name."""
    user_id: str | None = None
    """Whose session it is, if known."""
    token_store: MessageTokenStore | None = None
    """Where token counts are kept."""

    def tokens(self, units: Sequence[Unit], counter: MessageCounter) -> list[list[int]]:
        """Return the tokens of each message of each unit."""
        store, counter_id = self.token_store, counter.counter.counter_id
        sound = [m.id for unit in units if not unit.notes for m in unit.messages]
        known = store.message_tokens(sound, counter_id) if store is not None and sound else {}
        fresh: dict[str, int] = {}
        costs: list[list[int]] = []
        for unit in units:
            row: list[int] = []
            for message in unit.messages:
                cost = None if unit.notes else known.get(message.id)
                if cost is None:
                    cost = counter.message(openai_message(message))
                    if not unit.notes:
                        fresh[message.id] = cost
                row.append(cost)
            costs.append(row)
        if store is not None and fresh:
            _keep(store, fresh, counter_id)
        return costs

    def entry(self, message: Step, why: str, tokens: int) -> ReceiptEntry:
        """Return a line of the receipt about a message."""
        steps = shown_steps(message) if self.of_agent_steps else []
        return ReceiptEntry(steps[0] if steps else message.id, why, tokens)


class SessionReader:
    """Reads sessions of a memory, and of a session it knows only what was added since.

    A branch only ever grows, so what was read of it stays true; a session that points at another
    branch by now is read anew. Threads may share a reader: what it knows is replaced, not changed.
    """

    def __init__(self, memory: StepMemory | None) -> None:
        self._memory = memory
        self._known: OrderedDict[str, tuple[BranchPosition, list[Step]]] = OrderedDict()

    def read(self, session_id: str) -> Source:
        """Return a session's messages.

        Raises:
            InvalidSettingError: There is no memory.
            UnknownSessionError: The memory has no such session.
        """
        if self._memory is None:
            raise InvalidSettingError("a session_id needs a memory: ContextBuilder(memory, …).")
        store = self._memory.repository().store
        end = store.session_end(session_id)
        position, messages = self._known.get(session_id, (end, list[Step]()))
        if position.branch_id != end.branch_id or position.sequence > end.sequence:
            messages = list[Step]()
        if len(messages) < end.sequence:
            messages = messages + store.messages(session_id, len(messages) + 1, end.sequence)
        self._known[session_id] = (end, messages)
        if len(self._known) > _REMEMBERED_SESSIONS:
            self._known.popitem(last=False)
        return Source(list(messages), session_id, token_store=store)


def source_of(
    reader: SessionReader,
    session_id: str | None,
    steps: Iterable[AgentStep] | Iterable[Step] | None,
    query: str | None,
) -> Source:
    """Return the messages of a session or of steps; for an empty one, what the query says.

    Raises:
        InvalidSettingError: Neither is given, or both, or no memory, or steps of no known kind.
        UnknownSessionError: The memory has no such session.
    """
    if (session_id is None) == (steps is None):
        raise InvalidSettingError("a context is built of either session_id=… or steps=….")
    source = _given(_as_list(steps)) if session_id is None else reader.read(session_id)
    if all(message.role is MessageRole.SYSTEM for message in source.messages):
        said = query if query and query.strip() else OPENING
        source.messages.append(
            Step(
                id="query",
                session_id=source.session_id,
                role=MessageRole.USER,
                content=said,
                metadata={SYNTHETIC: True},
            )
        )
        source.token_store = None
    return source


def own_history(memory: StepMemory | None, source: Source) -> StepFilter:
    """Return a filter for the history of the session's own user, if it is known."""
    user = source.user_id
    if user is None and memory is not None and not source.of_agent_steps:
        first = next(memory.iter_steps({"session_id": source.session_id}), None)
        user = first.user_id if first is not None else None
    return StepFilter() if user is None else StepFilter(user_id=user)


def _keep(store: MessageTokenStore, counts: dict[str, int], counter_id: str) -> None:
    """Keep counts for the next time; a context must not fail because they cannot be written."""
    try:
        store.save_message_tokens(counts, counter_id)
    except StorageError as error:
        log.info("token counts of %d messages were not kept: %s", len(counts), error)


def _given(steps: list[Any]) -> Source:
    if all(isinstance(step, Step) for step in steps):
        messages: list[Step] = steps
        return Source(list(messages), messages[0].session_id if messages else _NO_SESSION)
    if all(isinstance(step, AgentStep) for step in steps):
        messages = to_messages(steps, carry=False)
        users = {step.user_id for step in steps}
        user = users.pop() if len(users) == 1 else None
        return Source(messages, messages[0].session_id, of_agent_steps=True, user_id=user)
    kinds = ", ".join(sorted({type(step).__name__ for step in steps}))
    raise InvalidSettingError(f"steps are all AgentSteps or all Steps, not {kinds}.")


def _as_list(steps: Any) -> list[Any]:
    if isinstance(steps, AgentStep | Step):
        return [steps]
    held = getattr(steps, "steps", None)
    if held is None and (isinstance(steps, str | Mapping) or not isinstance(steps, Iterable)):
        name = type(cast("object", steps)).__name__
        raise InvalidSettingError(f"steps are a list of AgentSteps or of Steps, not {name}.")
    return list(held if isinstance(held, list) else steps)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
