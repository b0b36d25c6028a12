"""Where a context's messages come from: a session of the memory, or steps handed over.

Knows what each message costs: counts are read from the store, if it keeps them for this counter,
and what had to be counted is kept there for the next time. A message in a store never changes, so
its count holds for good. Knows, too, whose conversation it is, and so what it may recall,
and what is told of that user.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast
from uuid import UUID, uuid5

from hybridagi_steps.context.receipt import ReceiptEntry
from hybridagi_steps.errors import InvalidSettingError, StorageError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import shown_steps, to_messages
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.messages.parts import anthropic_part, json_text, not_sent
from hybridagi_steps.messages.provider_out import OPENING, openai_message
from hybridagi_steps.messages.units import (
    SYNTHETIC,
    THINKING,
    Conversation,
    Costs,
    Unit,
    Units,
    message_units,
)
from hybridagi_steps.protocols import MessageTokenStore
from hybridagi_steps.recording_hooks import active_user_id
from hybridagi_steps.records import provenance
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.json_reading import JsonObject, as_list
from hybridagi_steps.records.message import MessageRole, Step, in_utc
from hybridagi_steps.records.store_values import PROFILES, BranchPosition
from hybridagi_steps.sessions.lines import History, TokenCounts, history_of, only_user
from hybridagi_steps.sessions.session_checks import check_session, checked_user
from hybridagi_steps.token_counters import MessageCounter

log = logging.getLogger("hybridagi_steps")

_NO_SESSION = "context"
_BOTH_FORMS = "+both-forms"
"""Follows the counter's id where the count of a message is more than that of OpenAI's form."""
"""The scope of profiles."""
_PROFILE_IDS = UUID("6d0d5c5e-5a64-4b0e-9d8e-2f1f6f0f7a11")
_MOST_PROFILES = 100
_MEDIA = ("image", "document", "container_upload")


@dataclass(slots=True)
class Source:
    """The messages of a conversation, and what is known about them."""

    messages: Sequence[Step]
    """In order; at least one is no system message."""
    session_id: str
    """The session they belong to."""
    of_agent_steps: bool = False
    """Whether AgentSteps were given: then those are what receipts name."""
    users: set[str | None] = field(default_factory=set[str | None])
    """Whom the AgentSteps that were given, or else the messages, name; None for nobody."""
    token_store: MessageTokenStore | None = None
    """Where token counts are kept."""
    last_step: AgentStep | None = None
    """The newest of the AgentSteps that were given."""
    conversation: Conversation | None = None
    """The messages in units, where they are known to be shared; made when asked for."""
    counts: TokenCounts | None = None
    """What is known of the tokens of a line's messages; None where two may have one id."""
    end: BranchPosition | None = None
    """Where the session was seen to end."""
    kept: list[object] = field(default_factory=list[object])
    """What is kept with the session's line, such as an index of its older units."""

    @classmethod
    def of_history(
        cls, history: History, session_id: str, token_store: MessageTokenStore | None = None
    ) -> Source:
        """Return what a session's line holds."""
        return cls(
            history.messages,
            session_id,
            token_store=token_store,
            conversation=history.conversation,
            counts=history.counts,
            end=history.end,
            kept=history.kept,
            users={*history.users},
        )

    def in_units(self) -> Conversation:
        """Return the messages in units."""
        return self.conversation or message_units(self.messages)

    def tokens(self, units: Units, counter: MessageCounter) -> Costs:
        """Return the tokens of each message of each unit, in either provider's form.

        A unit that was counted is not looked at again, and of the others only what is new counted.
        """
        counter_id = counter.counter.counter_id
        if (known := units.costs) is not None and known[0] == counter_id:
            return known[1]
        held = [unit.costs for unit in units]  # read once: others may count with another counter
        uncounted = [n for n, costs in enumerate(held) if costs is None or costs[0] != counter_id]
        asked = [self._asked(units[place], counter_id) for place in uncounted]
        self._look_up(chain.from_iterable(asked))
        fresh: dict[str, dict[str, int]] = {}
        same: dict[tuple[int, ...], tuple[str, tuple[int, ...]]] = {}
        for place, keys in zip(uncounted, asked, strict=True):
            costs = self._costs(units[place], keys, counter, fresh)
            # Most units cost what another does: they share it.
            units[place].costs = held[place] = same.setdefault(costs, (counter_id, costs))
        if self.token_store is not None:
            for kept_as, counts in fresh.items():
                _keep(self.token_store, counts, kept_as)
        costs = Costs(each[1] for each in held if each is not None)
        units.costs = counter_id, costs
        return costs

    def _asked(self, unit: Unit, counter_id: str) -> list[tuple[str, str]]:
        """Return under which ids the counts of a unit's messages are kept, and their own ids.

        Of a unit that was repaired, or whose messages may share an id, no count is kept.
        """
        if unit.notes or self.counts is None:
            return []
        return [(_kept_as(message, counter_id), message.id) for message in unit.messages]

    def _costs(
        self,
        unit: Unit,
        asked: Sequence[tuple[str, str]],
        counter: MessageCounter,
        fresh: dict[str, dict[str, int]],
    ) -> tuple[int, ...]:
        """Return the tokens of a unit's messages; note those that were not known."""
        counts = self.counts
        if counts is None or not asked:
            return tuple(tokens_of(message, counter) for message in unit.messages)
        known = [counts[kept_as].get(message_id) for kept_as, message_id in asked]
        for place, cost in enumerate(known):
            if cost is None:
                kept_as, message_id = asked[place]
                known[place] = counted = tokens_of(unit.messages[place], counter)
                counts[kept_as][message_id] = counted
                fresh.setdefault(kept_as, {})[message_id] = counted
        return tuple(cost for cost in known if cost is not None)

    def _look_up(self, asked: Iterable[tuple[str, str]]) -> None:
        """Read the counts that are kept of messages which nobody here has counted."""
        store, counts = self.token_store, self.counts
        if counts is None:
            return
        unknown: dict[str, list[str]] = {}
        for kept_as, message_id in asked:
            if message_id not in counts.setdefault(kept_as, {}):
                unknown.setdefault(kept_as, []).append(message_id)
        for kept_as, ids in unknown.items():
            if store is None:
                continue
            known = store.message_tokens(ids, kept_as)
            # The texts that the messages hold, not those of the answer.
            counts[kept_as] |= {each: known[each] for each in ids if each in known}

    def names(self, message: Step) -> str:
        """Return what the receipt calls a message."""
        steps = shown_steps(message) if self.of_agent_steps else []
        return steps[0] if steps else message.id

    def entry(self, message: Step, why: str, tokens: int) -> ReceiptEntry:
        """Return a line of the receipt about a message."""
        return ReceiptEntry(self.names(message), why, tokens)


def session_source(memory: StepMemory | None, session_id: str) -> Source:
    """Return a session of the memory."""
    if memory is None:
        raise InvalidSettingError("a session_id needs a memory: ContextBuilder(memory, …).")
    store = memory.repository().store
    return Source.of_history(history_of(store, session_id), session_id, store)


def source_of(
    memory: StepMemory | None,
    session_id: str | None,
    steps: Iterable[AgentStep] | Iterable[Step] | None,
    query: str | None,
) -> Source:
    """Return the messages of a session or of steps; for an empty one, what the query says."""
    if (session_id is None) == (steps is None):
        raise InvalidSettingError("a context is built of either session_id=… or steps=….")
    if session_id is not None:
        check_session(session_id)
    source = _given(_as_list(steps)) if session_id is None else session_source(memory, session_id)
    return with_user(source, query)


def with_user(source: Source, query: str | None = None) -> Source:
    """Return a conversation in which somebody speaks: in an empty one what the query says."""
    if all(message.role is MessageRole.SYSTEM for message in source.messages):
        said = query if query and query.strip() else OPENING
        session_id, note = source.session_id, {SYNTHETIC: True}
        query_message = Step(
            id="query", session_id=session_id, role=MessageRole.USER, content=said, metadata=note
        )
        source.messages = [*source.messages, query_message]
        source.token_store = source.conversation = source.counts = None
    return source


def recallable(
    memory: StepMemory | None, source: Source, where: StepFilter | None
) -> tuple[StepFilter, bool]:
    """Return which steps a conversation may recall, and whether only those that name no user.

    They are its user's, unless `where` says whose. Its user is the one that the running code is
    recorded for, else the only one that its steps and messages name, who owns the session where
    messages alone do. Whoever is not known to be somebody gets the steps of nobody.
    """
    asked = where or StepFilter()
    if memory is None or asked.says_whose:
        return asked, False
    user = active_user_id(memory) or _user_of(memory, source)
    if user is None:
        return asked, True
    return asked.model_copy(update={"user_id": user}), False


def newest_step(memory: StepMemory | None, source: Source) -> AgentStep | None:
    """Return the newest recorded step of a conversation, None if none is recorded."""
    if source.last_step is not None or memory is None:
        return source.last_step
    shown = (ids for message in reversed(source.messages) if (ids := shown_steps(message)))
    return next(iter(memory.get_steps(next(shown, list[str]())[-1:])), None)


def _user_of(memory: StepMemory, source: Source) -> str | None:
    users = {user for user in source.users if user is not None}
    if not source.of_agent_steps:
        return only_user(memory.repository().store, source.session_id, source.end, users)
    return users.pop() if len(users) == 1 else None


def _kept_as(message: Step, counter_id: str) -> str:
    """Return the id under which a message's count is kept.

    Where the forms may differ it is not the counter's own: earlier versions kept counts of OpenAI's
    form alone under that.
    """
    alike = not _thinking(message) and not isinstance(message.content, list)
    return counter_id if alike else counter_id + _BOTH_FORMS


def timed(message: Step) -> Step:
    """Return a user's message with its time before what it says; any other as it is."""
    synthetic = (message.metadata or {}).get(SYNTHETIC)
    if not message.content or synthetic or not message.is_user_step():
        return message
    when = f"[{in_utc(message.created_at):%Y-%m-%d %H:%M} UTC]"
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{when} {message.content}"})
    parts = [{"type": "text", "text": when}, *message.content]
    return message.model_copy(update={"content": parts})


def tokens_of(message: Step, counter: MessageCounter) -> int:
    """Return the tokens of a message: of OpenAI's form, and of what only Anthropic's has besides.

    That is thinking, and parts for which OpenAI's form has no more than their name.
    """
    tokens = counter.message(openai_message(message)) + counter.content(_thinking(message))
    for part in message.content if isinstance(message.content, list) else ():
        if named := not_sent(part, message.role):
            sent = anthropic_part(part, message.role)
            whole = sent if sent.get("type") in (*_MEDIA, "text") else {"text": json_text(sent)}
            tokens += max(0, counter.content([whole]) - counter.text(named))
    return tokens


def _thinking(message: Step) -> list[JsonObject]:
    """Return the thinking that Anthropic's form of a message begins with."""
    if message.role is not MessageRole.ASSISTANT or not message.metadata:
        return []
    return [block for block in as_list(message.metadata.get(THINKING)) if isinstance(block, dict)]


def _keep(store: MessageTokenStore, counts: dict[str, int], counter_id: str) -> None:
    """Keep counts for the next time; a context must not fail because they cannot be written."""
    try:
        store.save_message_tokens(counts, counter_id)
    except StorageError as error:
        log.info("token counts of %d messages were not kept: %s", len(counts), error)


def _given(steps: list[Any]) -> Source:
    if all(isinstance(step, Step) for step in steps):
        messages: list[Step] = steps
        session_id = messages[0].session_id if messages else _NO_SESSION
        return Source(list(messages), session_id, users={step.user_id for step in messages})
    if all(isinstance(step, AgentStep) for step in steps):
        messages = to_messages(steps, carry=False)
        users = {step.user_id for step in steps}
        session_id, last = messages[0].session_id, steps[-1]
        return Source(messages, session_id, of_agent_steps=True, users=users, last_step=last)
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


class UserProfiles:
    """The profiles of a memory's users; `StepRunnerConfig(user_profile=True)` shows them.

    Each is a step in a scope of its own, which no search shows unless it is named. It names its
    user and no session: so it is redacted like any step, erased with its user and hidden while he
    is revoked, whatever becomes of his sessions.

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
            id=uuid5(_PROFILE_IDS, _user_named(user_id)),
            step_type=AgentStepType.Action,
            inputs={"purpose": "Know the user"},
            outputs={"profile": text},
            user_id=user_id,
            scope=PROFILES,
        )
        self._memory.update(step)

    def get(self, user_id: str) -> str | None:
        """Return the profile of a user; None where there is none, or he is revoked.

        What was imported from elsewhere is none: nobody of this memory has set it.
        """
        own = [step for step in self._of(user_id) if provenance.source_of(step.metadata) is None]
        profile = (own[-1].outputs or {}).get("profile") if own else None
        return profile if isinstance(profile, str) else None

    def remove(self, user_id: str) -> bool:
        """Delete the profile of a user; return whether there was one."""
        return self._memory.delete([step.id for step in self._of(user_id)]) > 0

    def _of(self, user_id: str) -> list[AgentStep]:
        where = {"scope": PROFILES, "user_id": _user_named(user_id)}
        return list(self._memory.find(where, limit=_MOST_PROFILES).steps)


def profile_note(profile: str | None) -> str | None:
    """Return how a profile stands in a system prompt; None for none."""
    if profile is None or not profile.strip():
        return None
    return f"About the user:\n{inert(profile.strip())}"


def _user_named(user_id: object) -> str:
    if not isinstance(user_id, str):
        raise InvalidSettingError(f"a profile is of a user_id, a text, not {user_id!r:.80}.")
    return checked_user(user_id) or ""
