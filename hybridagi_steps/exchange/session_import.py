"""The messages of imported conversations into sessions, each unit together with its steps.

A unit is a user's message, or an assistant's with the results of its calls, and the AgentSteps that
are pinned to it, so that a fork sees those of its own messages and no later ones. Units of one
session are stored in one commit.

A message is only ever put behind the one that stands before it in the file. As long as both say the
same, the file is followed through the session that is there. Where the session ends, the file goes
on. Where it goes on differently, or begins like another session, a fork shares what they have in
common and takes the rest. Where neither can be, the rest of the line is refused by name.

A trace may come in several files, in any order, and where a step stands depends on its other spans.
So when more of a trace is stored, the whole is placed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridagi_steps.errors import MessageError, UnknownSessionError
from hybridagi_steps.exchange import records as entries
from hybridagi_steps.exchange.records import Entry, Parsed, Skipped
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.json_reading import JsonObject
from hybridagi_steps.records.message import Step
from hybridagi_steps.sessions.repository import SessionRepository
from hybridagi_steps.sessions.session_details import name_session
from hybridagi_steps.validation import admitted, admitted_messages, check_id

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory

_LONGEST_STEM = 110
"""Characters of a session's id that the id of a fork of it begins with."""


class Unit(NamedTuple):
    """Messages that belong together, and the steps that are pinned to the first of them."""

    line: int
    messages: Sequence[Step]
    records: list[Parsed]


@dataclass
class _Line:
    """Where a file stands in the session that it tells of."""

    asked: str
    session_id: str
    """The session that is written: the one asked for, or a fork of it."""
    held: list[str] | None
    """Ids of its messages, in order; None as long as it is not there."""
    numbered: bool
    """Whether messages know their sequence."""
    placed: bool = True
    """Whether it is known where the file begins in the session."""
    passed: int = 0
    """Messages of the file so far: the next one has this place."""
    shared: tuple[str, int] | None = None
    """Another session, and the last message of it that the file has as well."""
    thread: str = ""
    """The session that gives those their names which an import makes beside it."""
    is_branch: bool = False
    """Whether it need not be a session when all it says stands in another one."""
    refused: str = ""
    """Why the rest cannot be stored."""
    title: str | None = None
    """What the session is called, unless somebody has named it here."""


class SessionImport:
    """Writes the messages of one line after the other."""

    def __init__(self, sessions: SessionRepository) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._line = _Line("", "", [], numbered=False)
        self._forks: list[str] = []

    def begin(
        self,
        session_id: str,
        *,
        anywhere: bool,
        branch_of: str | None = None,
        title: str | None = None,
    ) -> None:
        """Begin a line that goes into a session.

        `anywhere` it may begin later than with the session's first message: where its own first one
        stands, else at the end. `branch_of` is the thread whose branch it is, where we gave the
        name.
        """
        self.end()
        held = self._ids(session_id)
        line = _Line(session_id, session_id, held, numbered=False, placed=not anywhere)
        line.thread, line.is_branch = branch_of or session_id, branch_of is not None
        line.title = title
        self._line = line

    def begin_own(self, session_id: str, shares: int, last_shared: str | None) -> None:
        """Begin a session that we wrote, which shares so many messages with another.

        `last_shared` is the id of the last of them; None when it shares nothing.
        """
        self.end()
        check_id("session_id", session_id)
        self._line = line = _Line(session_id, session_id, self._ids(session_id), numbered=True)
        if last_shared is None:
            return
        line.passed = shares
        if line.held is not None and line.held[shares - 1 : shares] == [last_shared]:
            return
        place = self._store.place_of(last_shared)
        if place is None or place[1] != shares:
            line.refused = f"the beginning that session {session_id!r} shares is not here"
            raise MessageError(f"{line.refused}; import the session that it was forked from first.")
        line.shared = place
        if line.held is not None:
            line.session_id = _fork_name(session_id, last_shared)
            line.held = self._ids(line.session_id)

    def commit(self, units: Sequence[Unit]) -> list[Parsed]:
        """Store units of the line, leaving out messages that are there.

        What is returned are the steps of units without a new message, which were not stored.
        """
        before = deepcopy(self._line)
        try:
            return self._commit(units)
        except BaseException:
            self._line = before
            raise

    def refuse_rest(self, why: str) -> None:
        """Store no more of this line: what follows a gap would follow on the wrong message."""
        self._line.refused = self._line.refused or why

    @property
    def refused(self) -> bool:
        """Whether the rest of the line cannot be stored."""
        return bool(self._line.refused)

    def end(self) -> None:
        """End the line; a session that has no message of its own is made."""
        line = self._line
        if line.title and line.held and not line.refused:
            name_session(self._sessions, line.session_id, line.title)
            line.title = None
        if line.held is not None or line.refused or line.session_id != line.asked:
            return
        if line.shared is not None and line.is_branch:
            return
        if line.shared is not None:
            self._fork(line, line.shared)
        elif line.numbered:
            self._sessions.commit_now(line.session_id, [])
        line.held = []

    def _commit(self, units: Sequence[Unit]) -> list[Parsed]:
        messages: list[Step] = []
        steps: list[AgentStep] = []
        after: list[int] = []
        rest: list[Parsed] = []
        for unit in units:
            fresh = [message for message in unit.messages if self._is_new(message)]
            if not fresh:
                rest += unit.records
                continue
            steps += [record.step for record in unit.records]
            after += [len(messages)] * len(unit.records)
            messages += fresh
        if messages:
            line, redact = self._line, getattr(self._sessions.memory, "redact", None)
            if line.session_id != line.asked and not line.numbered:
                run = {"run_id": line.session_id}
                steps = [step.model_copy(update=run) for step in steps]
                messages = [message.model_copy(update=run) for message in messages]
            kept = admitted_messages(messages, line.session_id, redact)
            self._sessions.commit_now(line.session_id, kept, steps, after=after, keep_times=True)
        return rest

    def _is_new(self, message: Step) -> bool:
        """Follow the file by one message; tell whether it is to be added to the session."""
        line = self._line
        if line.refused:
            raise MessageError(line.refused)
        if not line.placed:
            line.placed, held = True, line.held or []
            line.passed = held.index(message.id) if message.id in held else len(held)
        if line.numbered and message.sequence != line.passed + 1:
            if message.sequence <= line.passed and message.id in (line.held or []):
                return False  # the same line twice
            raise MessageError(f"message {line.passed + 1} is missing before {message.sequence}")
        place, line.passed = line.passed, line.passed + 1
        here = [] if line.held is None else line.held[place : place + 1]
        if here and (here == [message.id] or self._leave(line, place, message)):
            return False
        if line.held is None and self._shares(line, place, message):
            return False
        held = self._made(line)
        if self._store.place_of(message.id) is not None:
            raise MessageError(f"message {message.id!r} stands elsewhere already")
        held.append(message.id)
        return True

    def _leave(self, line: _Line, place: int, message: Step) -> bool:
        """Go on in a fork, since the session that is there says something else from here on.

        Tell whether the fork is there already, and has this message.
        """
        line.session_id, shared = _fork_name(line.asked, message.id), line.session_id
        line.shared = (shared, place) if place else None
        line.held = self._ids(line.session_id)
        if line.held is not None and line.held[place : place + 1] != [message.id]:
            raise MessageError(f"session {line.session_id!r} says something else as well")
        return line.held is not None

    def _shares(self, line: _Line, place: int, message: Step) -> bool:
        """Tell whether another session has this message at the same place."""
        found = self._store.place_of(message.id)
        if found is None or found[1] != place + 1:
            return False
        line.shared = found
        return True

    def _made(self, line: _Line) -> list[str]:
        """Return the ids of the session to write, which is made where it is not there yet."""
        if line.held is None:
            if line.shared is not None and not self._goes_on(line, *line.shared):
                self._fork(line, line.shared)
            line.held = self._ids(line.session_id) or []
        return line.held

    def _fork(self, line: _Line, shared: tuple[str, int]) -> None:
        self._store.fork(*shared, line.session_id, keep_times=True)
        if line.session_id == line.asked and not (line.numbered or line.is_branch):
            self._forks.append(f"{line.session_id!r} of {shared[0]!r}")

    def notes(self) -> list[str]:
        """Return what to tell of sessions that were made of messages which were there."""
        if not self._forks:
            return []
        more = f" and {len(self._forks) - 1:,} more" if len(self._forks) > 1 else ""
        return [
            "made as a fork, since its messages are stored already and keep the user and the "
            f"source they have: session {self._forks[0]}{more}"
        ]

    def _goes_on(self, line: _Line, shared: str, place: int) -> bool:
        """Go on in the line of the same thread that ends here, if it does, under its name."""
        ours = shared == line.thread or shared.startswith(f"{line.thread[:_LONGEST_STEM]}@")
        if not (line.is_branch or line.session_id != line.asked) or line.numbered or not ours:
            return False  # it has a name of its own
        if self._store.session_end(shared).sequence != place:
            return False
        line.session_id = shared
        return True

    def _ids(self, session_id: str) -> list[str] | None:
        try:
            return [message.id for message in self._store.messages(session_id)]
        except UnknownSessionError:
            return None


def _fork_name(session_id: str, message_id: str) -> str:
    """Return the session that an import goes on in; always the same one."""
    return f"{session_id[:_LONGEST_STEM]}@{message_id[:8]}"


PlacedEntry = Parsed | entries.ParsedMessages | entries.ParsedScore | Skipped
"""What an import stores."""
_PLACE = ("joins", "note", "trace")
"""Keys of `metadata` that depend on the other spans of the trace."""


class TraceImport:
    """Places the steps of traces."""

    def __init__(self, memory: StepMemory, scores: entries.RunScores) -> None:
        self._memory, self._scores = memory, scores
        self._moved = 0
        self._alone: dict[str, int] = {}

    def placed(self, batch: Sequence[Entry]) -> list[PlacedEntry]:
        """Return entries, the traces among them as their steps."""
        found: list[PlacedEntry] = []
        for entry in batch:
            if isinstance(entry, entries.ParsedTrace):
                found += self._whole(entry)
            else:
                found.append(entry)
        return found

    def notes(self) -> list[str]:
        """Return what was moved and what is missing, in words."""
        notes: list[str] = []
        if self._moved:
            notes.append(f"steps moved to their places, since their trace grew: {self._moved:,}")
        if alone := sum(self._alone.values()):
            notes.append(f"spans whose parent span has not come yet: {alone:,}")
        return notes

    def _whole(self, trace: entries.ParsedTrace) -> Iterator[Parsed | Skipped]:
        """Yield the steps of a trace; when more of it is stored, as they stand among that."""
        run = StepFilter(run_id=trace.run_id, scope=EVERY_SCOPE)
        stored = {str(step.id): step for step in self._memory.iter_steps(run)}
        told = list(trace.placed(stored.values()))
        self._move(stored, _steps(told))
        self._count_alone(trace.run_id, _steps(told))
        for entry in told:
            if entry.line:
                yield entry
            elif isinstance(entry, Skipped) or str(entry.step.id) not in stored:
                yield entry._replace(line=trace.line)

    def _move(self, stored: dict[str, AgentStep], steps: list[AgentStep]) -> None:
        """Put what is stored where it stands now."""
        pairs = [(stored.get(str(step.id)), step) for step in steps]
        found = [self._moved_to(known, step) for known, step in pairs if known is not None]
        if moved := [step for step in found if step is not None]:
            self._memory.update(moved)
            self._moved += len(moved)

    def _moved_to(self, known: AgentStep, fresh: AgentStep) -> AgentStep | None:
        """Return a stored step where it stands now; None when it stands there already."""
        step = known.model_copy(update=_place(known, fresh))
        if known.step_type is not fresh.step_type:
            if (known.step_type, fresh.step_type) != (
                AgentStepType.Action,
                AgentStepType.ProgramCall,
            ):
                return None
            said = ("step_type", "inputs", "outputs", "status", "metrics", "created_at")
            step = step.model_copy(update={name: getattr(fresh, name) for name in said})
        [step] = admitted([step], self._memory.redact)
        if _stands(step) == _stands(known):
            return None
        scored = self._scores.of(known.run_id) if known.score is not None else None
        inherited = scored is not None and scored[0] == known.score
        return step.model_copy(update={"score": None}) if inherited else step

    def _count_alone(self, run_id: str, steps: list[AgentStep]) -> None:
        """Count the spans whose parents are not there, a step each but for ends of programs."""
        spans = [step for step in steps if step.step_type is not AgentStepType.ProgramEnd]
        inside = {None, *(str(step.id) for step in steps)}
        if alone := sum(span.program_id not in inside for span in spans):
            self._alone[run_id] = alone
        else:
            self._alone.pop(run_id, None)


def _steps(entries: Iterable[Parsed | Skipped]) -> list[AgentStep]:
    return [entry.step for entry in entries if isinstance(entry, Parsed)]


def _place(known: AgentStep, fresh: AgentStep) -> JsonObject:
    """Return the fields of a stored step that depend on the other spans of its trace."""
    before, now = known.metadata or {}, fresh.metadata or {}
    rest = {name: before[name] for name in before if name not in _PLACE}
    here = {name: now[name] for name in _PLACE if name in now}
    inputs = known.inputs or {}
    if not known.purpose and fresh.purpose:
        inputs = {**inputs, "purpose": fresh.purpose}
    return {
        "parent_id": fresh.parent_id,
        "hop": fresh.hop,
        "program_id": fresh.program_id,
        "session_id": known.session_id or fresh.session_id,
        "user_id": known.user_id or fresh.user_id,
        "inputs": inputs,
        "metadata": {**rest, **here},
    }


def _stands(step: AgentStep) -> tuple[Any, ...]:
    parent = step.parent_id and str(step.parent_id)
    place = parent, step.hop, step.program_id, step.session_id, step.user_id
    return *place, step.step_type, step.inputs, step.metadata
