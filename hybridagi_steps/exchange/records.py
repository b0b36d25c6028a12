"""What parsers yield: a step with the place it came from, or why a record was passed over.

Parsers are generators over records, which are JSON values with their line; they know nothing of
files or memories, so each can be tried on a literal. A bad record never stops the ones after it.

Links to parents are kept from leading in a circle. Such a circle can only be closed by a step that
another one named as its parent before it came, so only such steps are followed upwards. The link
that would close one is cut, and `metadata["repairs"]` says so, as validation does of other repairs.

Vectors of two embedders cannot be compared, even when they have the same length. So a vector goes
out with the `model_id` of its memory's embedder, and comes in only where that is the embedder, too;
anywhere else the step is embedded anew. One that says nothing of its origin is taken as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridagi_steps.errors import UnknownSessionError
from hybridagi_steps.messages.conversation import (
    NOT_READ,
    UNREAD_TIME,
    Conversation,
    conversation_steps,
)
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject
from hybridagi_steps.records.message import Step
from hybridagi_steps.validation import without_parent

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.stores.sql.salvage import Salvaged


class Record(NamedTuple):
    """One JSON value of a file: a line, an item of a list, or the whole document."""

    line: int
    value: Any
    place: str = ""
    """Where in the line it stands, ready to be put before a reason: "item 3: "."""


class SessionPlace(NamedTuple):
    """How a step of a conversation stands to the messages of a session."""

    messages: list[Step]
    """Those that end with it: the steps since the ones before belong to them."""
    line: str | None = None
    """The session they go to, where it is not the step's own."""
    begins: bool = False
    """Whether a conversation begins with it."""
    anywhere: bool = False
    """Whether it may begin anywhere in its session."""
    title: str | None = None
    """The title of the conversation that begins with it."""


class Parsed(NamedTuple):
    """A step, and the line on which its record began."""

    line: int
    step: AgentStep
    session: SessionPlace | None = None
    """None for a step that is not of a conversation."""
    embedder: str | None = None
    """Model id of the embedder of its vector; None when the file does not say."""


class ParsedMessages(NamedTuple):
    """Messages of a session, as we write them: the steps before them belong to them."""

    line: int
    session_id: str
    messages: list[Step]
    shares: int = 0
    """How many messages of a session written before it begins with."""
    last_shared: str | None = None
    """The id of the last of them."""


class ParsedScore(NamedTuple):
    """How good a run was, as we write it."""

    line: int
    run_id: str
    score: float
    feedback: str | None


class ParsedTrace(NamedTuple):
    """Spans of one trace, maybe not all: those stored already have a say in where they stand."""

    line: int
    run_id: str
    spans: int
    """How many there are."""
    placed: Callable[[Iterable[AgentStep]], Iterator[Parsed | Skipped]]
    """Yields the steps of the whole trace, from what is stored of its run; line 0 stands for a
    span that is stored and not in the file."""


class Skipped(NamedTuple):
    """A record that was not imported."""

    line: int
    reason: str


Entry = Parsed | ParsedMessages | ParsedScore | ParsedTrace | Skipped
"""What a parser yields."""
Records = Iterable[Record | Skipped]
"""What a parser reads; what is skipped already passes through."""


def read_each(
    records: Records, read: Callable[[Record], Iterable[Parsed | Skipped]]
) -> Iterator[Parsed | Skipped]:
    """Yield what `read` makes of each record; of one that it refuses, why."""
    for record in records:
        try:
            entries = [record] if isinstance(record, Skipped) else list(read(record))
        except (BadRecordError, RecursionError) as error:
            entries = [refused(record, error)]
        yield from entries


def record_steps(
    record: Record,
    conversation: Conversation,
    *,
    title: str | None = None,
    user_id: str | None = None,
) -> list[Parsed | Skipped]:
    """Return the steps of a record's conversation, which a user had under a title."""
    line, anywhere = conversation.line, conversation.of_steps
    parsed: list[Parsed | Skipped] = []
    for place, (step, messages) in enumerate(conversation_steps(conversation)):
        if user_id is not None:
            for owned in (step, *messages):
                owned.user_id = owned.user_id or user_id
        session = SessionPlace(messages, line, place == 0, anywhere, None if place else title)
        parsed.append(Parsed(record.line, step, session))
    return parsed


def refused(record: Record | Skipped, error: BadRecordError | RecursionError) -> Skipped:
    """Return why a record was passed over."""
    reason = str(error) if isinstance(error, BadRecordError) else "nested too deeply"
    return Skipped(record.line, getattr(record, "place", "") + reason)


_PLURAL = re.compile(r"\s(?=of |without )")
"""Where what a label names takes its plural: `span of …`, `step without …`."""


class UnreadCounts:
    """Counts what was imported without being understood."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.understood = self._times = 0

    def see(self, step: AgentStep, *, is_own: bool) -> None:
        """Count a step that is imported, by what of it was not understood.

        A step that `is_own`, in our own format, is understood whatever it holds.
        """
        unread = js.as_list((step.metadata or {}).get(NOT_READ))
        labels = [label for label in unread if label != UNREAD_TIME]
        self._times += len(unread) - len(labels)
        is_empty = _is_empty(step)
        if not labels and is_empty and step.step_type is AgentStepType.Action:
            labels = ["step of type Action without words, arguments or result"]
        self._counts.update(str(label) for label in labels)
        self.understood += is_own or not (labels or is_empty)

    def notes(self) -> list[str]:
        """Return the counts in words."""
        times = f"{self._times:,} time{'s'[: self._times > 1]} could not be read"
        return [times][: self._times] + [
            f"{count:,} {_PLURAL.sub('s ', label, 1)} were not understood"
            if count > 1
            else f"1 {label} was not understood"
            for label, count in self._counts.most_common()
        ]


def _is_empty(step: AgentStep) -> bool:
    inputs = step.inputs or {}
    return not (inputs.get("purpose") or inputs.get("arguments") or step.outputs)


def check_session(memory: StepMemory, session_id: str) -> None:
    """Check that a session is there: it has messages, or steps that name it."""
    try:
        memory.repository().store.session_end(session_id)
    except UnknownSessionError:
        where = StepFilter(session_id=session_id, scope=EVERY_SCOPE)
        if next(memory.iter_steps(where), None) is None:
            raise


StepsOf = Callable[[Iterable[str]], list[AgentStep]]
"""Returns the steps with these ids that are stored."""


class ParentLinks:
    """Looks at the parents of steps in the order in which they are to be stored."""

    def __init__(self, steps_of: StepsOf) -> None:
        self._steps_of = steps_of
        self._parents: dict[str, str | None] = {}
        self._absent: set[str] = set()
        self._awaited: set[str] = set()
        self._cut = 0

    def sound(self, steps: Sequence[AgentStep], there: dict[str, AgentStep]) -> list[AgentStep]:
        """Return the steps of a batch, in order, without links that lead back to them.

        `there` are stored already, by id, and stay as they are; the others are added.
        """
        outside: set[str] = set()
        own: set[str] = set()
        for step in steps:
            outside |= {str(step.parent_id)} - own if step.parent_id is not None else set()
            own.add(str(step.id))
        stored = self._steps_of(outside) if outside else []
        self._parents = {str(step.id): _parent_of(step) for step in stored}
        self._absent = outside - self._parents.keys()
        return [self._checked(step, there) for step in steps]

    def _checked(self, step: AgentStep, there: dict[str, AgentStep]) -> AgentStep:
        own = str(step.id)
        stored = there.get(own)
        parent = _parent_of(stored or step)
        if stored is None and (parent == own or self._leads_to(own, parent)):
            self._cut += 1
            step, parent = without_parent(step), None
        self._awaited.discard(own)
        self._parents[own] = parent
        if parent is not None and parent not in self._parents:
            self._awaited.add(parent)
        there.setdefault(own, step)
        return step

    def notes(self) -> list[str]:
        """Return what was cut, in words."""
        cut = self._cut
        return [f"links to a parent cut, since they led in a circle: {cut:,}"] if cut else []

    def _leads_to(self, own: str, parent: str | None) -> bool:
        """Whether going up from a parent arrives at a step that was awaited before it came."""
        passed: set[str] = set()
        if own not in self._awaited:
            return False
        while parent is not None and parent != own and parent not in passed:
            passed.add(parent)
            if parent not in self._parents and parent not in self._absent:
                self._parents |= {str(s.id): _parent_of(s) for s in self._steps_of([parent])}
            parent = self._parents.get(parent)
        return parent == own


def _parent_of(step: AgentStep) -> str | None:
    return None if step.parent_id is None else str(step.parent_id)


VECTOR_EMBEDDER = "vector_embedder"
"""The field, in Parquet the column, that names the embedder."""


def with_origin(step: AgentStep, embedder: str) -> AgentStep:
    """Return a step as it is to be written, its vector's origin named."""
    if step.vector is None:
        return step
    return step.model_copy(update={VECTOR_EMBEDDER: embedder})


def origin_of(fields: JsonObject) -> tuple[JsonObject, str | None]:
    """Return the fields of a step without the name of its vector's embedder, and that name."""
    name = fields.get(VECTOR_EMBEDDER)
    if not isinstance(name, str) or fields.get("vector") is None:
        return fields, None
    return js.without(fields, VECTOR_EMBEDDER), name


class VectorOrigins:
    """Leaves out vectors that another embedder made than the memory's."""

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        self._left_out: Counter[str] = Counter()

    def fitting(self, step: AgentStep, embedder: str | None) -> AgentStep:
        """Return a step, without its vector where that `embedder` is another than the memory's."""
        if step.vector is None or embedder in (None, self._memory.embedder.model_id):
            return step
        self._left_out[embedder] += 1
        return step.model_copy(update={"vector": None})

    def notes(self) -> list[str]:
        """Return what was left out, in words."""
        return [
            f"vectors by {name:.80} left out, since this memory embeds with "
            f"{self._memory.embedder.model_id:.80}: {count:,}"
            for name, count in self._left_out.items()
        ]


RUN_SCORE = "run_score"


class RunScores:
    """The scores of runs, as a memory knows them: each is looked up when its run comes."""

    def __init__(self, memory: StepMemory | Salvaged) -> None:
        self._memory = memory
        self._scores: dict[str, tuple[float, str | None] | None] = {}
        self._written: set[str] = set()

    def of(self, run_id: str | None) -> tuple[float, str | None] | None:
        """Return the score of a run and the feedback with it; None when it has no score."""
        if run_id is not None and run_id not in self._scores:
            rows = self._memory.repository().store.run_scores([run_id])
            self._scores[run_id] = rows.get(run_id)
        return None if run_id is None else self._scores[run_id]

    def with_score(self, step: AgentStep) -> AgentStep:
        """Return a step as it is to be written: the first of its run holds the run's score."""
        score = self.of(step.run_id)
        if score is None or step.run_id is None or step.run_id in self._written:
            return step
        self._written.add(step.run_id)
        fields = js.known_fields(value=score[0], feedback=score[1])
        return step.model_copy(update={RUN_SCORE: fields})


class RunScoresRead:
    """The scores of runs, as the lines of a file tell them."""

    def __init__(self) -> None:
        self.scores: dict[str, ParsedScore] = {}

    def without(self, line: int, fields: JsonObject) -> JsonObject:
        """Return the fields of a step without the score of its run."""
        run_id, score = fields.get("run_id"), js.as_object(fields.get(RUN_SCORE))
        if not isinstance(run_id, str):
            return fields
        if isinstance(value := score.get("value"), int | float):
            read = ParsedScore(line, run_id, float(value), js.as_text(score.get("feedback")))
            self.scores.setdefault(run_id, read)
            fields = js.without(fields, RUN_SCORE)
        own = self.scores.get(run_id)
        inherits = own is not None and fields.get("score") == own.score
        return {**fields, "score": None} if inherits else fields
