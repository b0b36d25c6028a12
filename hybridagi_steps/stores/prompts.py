"""Prompts: what language models were sent and gave, kept beside the steps that they were asked for.

An ability that a store may have. A prompt is cut into parts named by a hash of what they hold, so
that what requests have in common, such as a system message or the turns of an agent so far, is
stored once. Cuts fall by length after the end of a line: two texts that begin alike have the same
parts as far as they agree. Nothing here is indexed, searched or exported; a prompt is read by the
id of its step, and goes with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable
from uuid import UUID

import orjson

from hybridagi_steps.errors import InvalidMemoryError, UnknownStepError
from hybridagi_steps.protocols import MessageIndex, StoreBackend
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.listings import LMCalls
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.prompts import SETTINGS, LMCall
from hybridagi_steps.records.provenance import RECALLED_MORE, recalled_by
from hybridagi_steps.records.redaction import Redact, redacted, redacted_message
from hybridagi_steps.stores.checksums import ChecksumError
from hybridagi_steps.stores.listing import OnStore
from hybridagi_steps.validation import StepId, one_id

_SHORTEST, _LONGEST = 1_024, 16_384
"""Bytes of a part: it ends at the first end of a line after so many, or where it gets too long."""
_LINE = b"\\n"
"""The end of a line as JSON writes it."""
_HASH_LENGTH = 32
_NAMES = SETTINGS | frozenset(
    """role content name tool_calls tool_call_id function_call reasoning_content parts refusal audio
    metadata text logprobs citations type function description parameters strict input_schema
    cache_control""".split()  # noqa: SIM905 - a paragraph reads better than its quotes
)
"""Keys by which messages, tools, settings and answers are read; any other may be a secret."""
_PAGE = 500
_EVERY_SESSION = 2**62


@runtime_checkable
class PromptStore(Protocol):
    """What a store has besides that keeps prompts; without it nothing can be recorded with them."""

    def keep_prompts(self, prompts: Mapping[str, Prompt]) -> None:
        """Keep prompts by the ids of their steps, in the place of any before; all or none.

        What the step of an id would show is gone when the step is: ids of no step are skipped.
        They wait for no disk: a power loss may take the last ones, nothing less does.
        """
        ...

    def prompts_of(self, step_ids: Sequence[str]) -> dict[str, Prompt]:
        """Return the prompts of steps; steps without one are missing.

        Raises:
            DamagedFileError: One is not what was kept.
        """
        ...

    def forget_prompts(self, step_ids: Sequence[str]) -> None:
        """Forget prompts, and parts that no other has; steps without one are skipped."""
        ...

    def prompted_steps(self) -> list[str]:
        """Return the ids of the steps that have a prompt."""
        ...

    def runs_inside(self, run_ids: Set[str]) -> set[str]:
        """Return runs with those that agents used as tools began inside them, at any depth."""
        ...


class Prompt(NamedTuple):
    """The calls that a step stands for, cut into parts."""

    body: bytes
    """The calls as JSON, with hashes in the place of messages and tools."""
    parts: Mapping[str, bytes]
    """What these stand for."""


def prompt_of_calls(calls: Sequence[LMCall]) -> Prompt:
    """Return calls as they are stored."""
    parts: dict[str, bytes] = {}

    def hashes(value: object) -> list[str]:
        cut = [(part_hash(part), part) for part in _cut(orjson.dumps(value))]
        parts.update(cut)
        return [name for name, _ in cut]

    body = [
        {
            **call.model_dump(mode="json", exclude={"messages", "tools"}, exclude_none=True),
            "messages": [hashes(message) for message in call.messages],
            "tools": [hashes(tool) for tool in call.tools],
        }
        for call in calls
    ]
    return Prompt(orjson.dumps(body), parts)


def hashes_in(body: bytes) -> list[str]:
    """Return the hashes of all parts of a prompt, each once."""
    calls: list[dict[str, Any]] = orjson.loads(body)
    of_calls = (part for call in calls for part in (*call["messages"], *call["tools"]))
    return list(dict.fromkeys(name for part in of_calls for name in part))


def calls_of_prompt(prompt: Prompt) -> list[LMCall]:
    """Return the calls that were stored as this."""

    def whole(names: list[str]) -> Any:
        return orjson.loads(b"".join(prompt.parts[name] for name in names))

    calls: list[dict[str, Any]] = orjson.loads(prompt.body)
    for call in calls:
        call.update({kind: [whole(each) for each in call[kind]] for kind in ("messages", "tools")})
    return [LMCall.model_validate(call) for call in calls]


def part_hash(part: bytes) -> str:
    """Return the name of a part."""
    return sha256(part).hexdigest()[:_HASH_LENGTH]


def packed(text: bytes) -> bytes:
    """Return a part or body as it lies in a database."""
    return zlib.compress(text)


def unpacked(blob: Any, name: str | None = None) -> bytes:
    """Return what was packed; ValueError when it is another, by its own checksum or its `name`."""
    try:
        text = zlib.decompress(bytes(blob))
    except (zlib.error, TypeError) as error:
        raise ChecksumError from error
    if name is not None and part_hash(text) != name:
        raise ChecksumError
    return text


def _cut(text: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(text):
        end = text.find(_LINE, start + _SHORTEST, start + _LONGEST)
        end = start + _LONGEST if end < 0 else end + len(_LINE)
        yield text[start:end]
        start = end


def forget_prompts_beyond(
    store: StoreBackend,
    steps: Sequence[AgentStep],
    messages: Sequence[Step],
    session_ids: Collection[str],
) -> None:
    """Forget the prompts that may hold what is about to be erased, though their steps stay.

    Those are of steps that recalled what goes or is not there, or more than they list; of sessions
    that read messages which will be rewritten, or that go; and of runs that steps go out of, with
    the runs of agents that these asked. What a fork of a session reads stays with it.
    """
    if not isinstance(store, PromptStore) or not (names := store.prompted_steps()):
        return
    going = {id_text(step.id): step.run_id for step in steps}
    rewritten, heard = {each.id for each in messages}, {each.session_id for each in messages}
    said = {*rewritten}
    for each in store.sessions(limit=_EVERY_SESSION):
        if each.session_id in session_ids:
            said |= _message_ids(store, each.session_id)
        elif each.forked_at is not None:
            for _, step_id in store.pinned_steps(each.session_id):
                going.pop(step_id, None)
            if not rewritten.isdisjoint(_message_ids(store, each.session_id)):
                heard.add(each.session_id)
    runs = store.runs_inside({run for run in going.values() if run})
    for start in range(0, len(names), _PAGE):
        prompted = store.get(names[start : start + _PAGE])
        asked = list({name: None for step in prompted for name in recalled_by(step.metadata)})
        known = {id_text(step.id) for step in store.get(asked)} - going.keys()
        if isinstance(store, MessageIndex):
            known |= store.rows_of_messages(asked).keys() - said
        gone = [
            id_text(step.id)
            for step in prompted
            if step.session_id in heard
            or step.run_id in runs
            or RECALLED_MORE in (step.metadata or {})
            or not known.issuperset(recalled_by(step.metadata))
        ]
        store.forget_prompts(gone)


def _message_ids(store: StoreBackend, session_id: str) -> set[str]:
    """Return the ids of all messages that a session reads, or one of its attempts."""
    lines = (
        store.messages(session_id, branch_id=branch.branch_id)
        for branch in store.attempts(session_id)
    )
    return {message.id for line in lines for message in line}


class Prompting(OnStore):
    """What a memory knows of prompts."""

    redact: Redact | None

    def prompt_of(self, step_id: StepId) -> LMCalls:
        """Return what the model saw: the calls that a step was made of, in their order.

        There are some where the step was recorded with `keep_prompts=True` and asked a model.

        Raises:
            UnknownStepError: No step has this id.
        """
        store, name = self._open_store, one_id(step_id)
        if not store.get([name]):
            raise UnknownStepError(name)
        found = store.prompts_of([name]) if isinstance(store, PromptStore) else {}
        return LMCalls(call for prompt in found.values() for call in calls_of_prompt(prompt))

    def keep_prompts(
        self, prompts: Mapping[UUID, Sequence[LMCall]] | Mapping[str, Sequence[LMCall]]
    ) -> None:
        """Keep what models were asked for steps, redacted as steps are; recorders do.

        Args:
            prompts: By the ids of stored steps, in the place of what was kept; others are skipped.

        Raises:
            InvalidMemoryError: The store of this memory keeps no prompts.
        """
        store = self._open_store
        if not isinstance(store, PromptStore):
            raise InvalidMemoryError(self, "a store that keeps prompts")
        store.keep_prompts(
            {
                id_text(one_id(step_id)): prompt_of_calls([self._clean(call) for call in calls])
                for step_id, calls in prompts.items()
            }
        )

    def _clean(self, call: LMCall) -> LMCall:
        if (redact := self.redact) is None:
            return call
        return LMCall.model_validate({name: _redacted(value, redact) for name, value in call})


def _redacted(value: Any, redact: Redact) -> Any:
    """Redact what providers take and give: the names by which they read it stay."""
    if isinstance(value, list):
        return [_redacted(item, redact) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return redacted(value, redact)
    fields = cast("dict[str, Any]", value)
    known = redacted_message({key: fields[key] for key in fields if key in _NAMES}, redact)
    rest: dict[str, Any] = redacted(
        {key: fields[key] for key in fields if key not in known}, redact
    )
    return {key: known[key] for key in fields if key in _NAMES} | rest
