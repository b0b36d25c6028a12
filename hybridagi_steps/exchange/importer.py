"""From files into a memory, in batches.

An import may be interrupted and repeated at any time: batches are stored whole, and steps whose id
is stored already are counted and left as they are, but for a tool call that the file has the result
of since. A record that cannot be kept is named with its line (in Parquet, its row) and the rest
goes on. The messages of a conversation become a session that can be continued, in one commit with
the steps that tell what was done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridagi_steps.errors import (
    DuplicateStepError,
    ExchangeError,
    InvalidStepError,
    MessageError,
    UnknownRunError,
    VectorError,
)
from hybridagi_steps.exchange import records as entries
from hybridagi_steps.exchange.containers import (
    PassedOver,
    appearance,
    opened_members,
    passed_over_notes,
)
from hybridagi_steps.exchange.formats import FORMATS, OWN_FORMATS
from hybridagi_steps.exchange.reader import file_path
from hybridagi_steps.exchange.records import Entry, Parsed, Skipped
from hybridagi_steps.exchange.session_import import SessionImport, TraceImport, Unit
from hybridagi_steps.messages.conversation import UNANSWERED
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step, utc_now
from hybridagi_steps.records.provenance import from_outside
from hybridagi_steps.validation import admitted

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory

BATCH = 500
"""Steps stored in one transaction."""
MAX_NAMED = 1_000
"""Skipped records named in a report; all are counted."""

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in the file); for Parquet with rows."""


class ImportReport(NamedTuple):
    """What an import did: `read` is the sum of the other counts."""

    read: int
    added: int
    """New steps, and calls whose results were missing before."""
    already_there: int
    skipped: list[tuple[int, str]]
    """(line, reason) of the first `MAX_NAMED` records that were not imported."""
    skipped_count: int
    """All records that were not imported."""
    notes: tuple[str, ...] = ()
    """What of the records that were imported was left out, repaired or not understood."""
    understood: int = 0
    """New steps that say something; with none of them, the file was stored and not understood."""
    broken_files: int = 0
    """Files of several that could not be read; the notes say why."""


def import_file(
    memory: StepMemory,
    path: str | os.PathLike[str],
    *,
    format: str = "auto",  # noqa: A002 - the word people expect
    session_id: str | None = None,
    user_id: str | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Store the steps of a file; importing it again changes nothing.

    Every step and message says so in `metadata.source`, whatever the file itself says there.

    Args:
        memory: Where to store.
        path: A JSON, JSONL or Parquet file, or spans in protobuf; a zip or a folder of files; an
            SQLite file of LangGraph's checkpointer or of the Agents SDK.
        format: One of `FORMATS`, or `auto`: told by the content.
        session_id: The session of steps that name none.
        user_id: The user of steps that name none.
        progress: Called after each batch.

    Raises:
        ExchangeError: The file cannot be read from its beginning (nothing was stored), or its
            encoding breaks later on (what came before is stored).
        MissingExtraError: Parquet needs the extra `parquet`, LangGraph's SQLite files `langgraph`,
            spans in protobuf `otel`.
    """
    if format not in FORMATS:
        raise ExchangeError(f"unknown format {format!r}; known formats: {', '.join(FORMATS)}.")
    defaults = {"session_id": session_id, "user_id": user_id}
    file = file_path(path)
    given = {key: value for key, value in defaults.items() if value}
    importer = _Importer(memory, given)
    with opened_members(file, format) as members:
        for member in members:
            if isinstance(member, PassedOver):
                importer.pass_over(member)
                continue
            source = {"kind": "import", "format": member.format, "name": file.name}
            source["at"] = utc_now().isoformat()
            importer.begin_file(member.name, source)
            for batch in _batches(member.entries):
                importer.take(batch)
                if progress is not None:
                    progress(*member.progress(batch[-1].line))
    report = importer.report()
    if report.read and report.read == report.skipped_count:
        report = report._replace(notes=(*report.notes, *appearance(file)))
    return report


def check_file(path: str | os.PathLike[str]) -> None:
    """Look at the beginning of a file that is to be imported."""
    with opened_members(file_path(path), "auto"):
        pass


def _batches(records: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield entries in batches; parts of one trace come in different ones, one after the other."""
    batch: list[Entry] = []
    steps = 0
    runs: set[str] = set()
    for record in records:
        run = record.run_id if isinstance(record, entries.ParsedTrace) else None
        if steps >= BATCH or run in runs:
            yield batch
            batch, steps = [], 0
            runs.clear()
        batch.append(record)
        steps += 1
        if isinstance(record, entries.ParsedTrace):
            steps += record.spans - 1
            runs.add(record.run_id)
    if batch:
        yield batch


def _says(step: AgentStep) -> tuple[Any, ...]:
    return step.step_type, step.inputs, step.outputs


def _waits(step: AgentStep) -> bool:
    """Whether a step is a call whose result had not come."""
    return (step.metadata or {}).get("note") == UNANSWERED


class _Importer:
    """Stores batches and keeps count."""

    def __init__(self, memory: StepMemory, defaults: dict[str, str]) -> None:
        self._memory, self._defaults = memory, defaults
        self._from: dict[str, str] = {}
        self._file = ""
        self._passed: list[PassedOver] = []
        self._added = self._already_there = self._skipped_count = 0
        self._skipped: list[tuple[int, str]] = []
        self._sessions = SessionImport(memory.repository())
        self._vectors, self._scores = entries.VectorOrigins(memory), entries.RunScores(memory)
        self._traces = TraceImport(memory, self._scores)
        self._links, self._unread = entries.ParentLinks(memory.get_steps), entries.UnreadCounts()
        self._units: list[Unit] = []
        self._unit: list[Parsed] = []

    def begin_file(self, name: str, source: dict[str, str]) -> None:
        """Go on with a file, which is one of several if it has a name."""
        self._end_unit()
        self._file, self._from = name, source

    def pass_over(self, member: PassedOver) -> None:
        """Note a file of several that is of no known format."""
        self._passed.append(member)

    def take(self, parsed: Sequence[Entry]) -> None:
        """Store a batch."""
        batch = self._traces.placed(parsed)
        records = [entry for entry in batch if isinstance(entry, Parsed)]
        there = {str(s.id): s for s in self._memory.get_steps([str(r.step.id) for r in records])}
        stored = set(there)
        completed = iter(self._completed(records, there))
        waiting: list[Parsed] = []
        for entry in batch:
            if isinstance(entry, Skipped):
                self._skip(entry.line, entry.reason)
                continue
            if not isinstance(entry, Parsed):
                self._store(waiting)
                waiting = []
                if isinstance(entry, entries.ParsedMessages):
                    self._take_messages(entry)
                else:
                    self._take_score(entry)
                continue
            record = next(completed)
            step_id = str(record.step.id)
            if fresh := step_id not in stored:
                stored.add(step_id)
                self._unread.see(record.step, is_own=self._from["format"] in OWN_FORMATS)
                if record.embedder is not None:
                    fitting = self._vectors.fitting(record.step, record.embedder)
                    record = record._replace(step=fitting)
            else:
                self._meet(there[step_id], record)
            place = record.session
            if place is None:
                waiting += [record] * fresh
                continue
            self._store(waiting)
            waiting = []
            if place.begins:
                self._begin(entry, place, str(record.step.session_id))
            self._unit += [record] * fresh
            if place.messages:
                self._take_unit(record.line, place.messages)
        self._store(waiting)
        self._store_units()

    def _completed(self, records: list[Parsed], there: dict[str, AgentStep]) -> list[Parsed]:
        """Return records of a batch with their source, the caller's defaults and sound links.

        `there` are those of them that are stored already; the others are added.
        """
        sourced = [from_outside(record.step.metadata, self._from) for record in records]
        completed: list[Parsed] = []
        for record, metadata in zip(records, sourced, strict=True):
            step, defaults = record.step, self._defaults
            if record.session is not None:
                defaults = {"session_id": record.session.line or step.run_id, **defaults}
            known = {k: v for k, v in defaults.items() if v and getattr(step, k) is None}
            step = step.model_copy(update={"metadata": metadata, **known})
            completed.append(record._replace(step=step))
        sound = self._links.sound([record.step for record in completed], there)
        return [record._replace(step=step) for record, step in zip(completed, sound, strict=True)]

    def _meet(self, known: AgentStep, record: Parsed) -> None:
        """Count a step that is stored already; take what a tool has answered since."""
        if _says(record.step) == _says(known):
            self._already_there += 1
            return
        [step] = admitted([record.step], self._memory.redact)
        is_earlier = _waits(step) and _says(step)[:2] == _says(known)[:2]
        if _says(step) == _says(known) or is_earlier:
            self._already_there += 1
        elif _waits(known):
            self._memory.update(self._vectors.fitting(step, record.embedder))
            self._added += 1
        else:
            self._skip(record.line, f"step {step.id} is stored already and says something else")

    def _take_messages(self, record: entries.ParsedMessages) -> None:
        """Begin a session, or store messages of one."""
        if record.messages:
            self._take_unit(record.line, record.messages)
        else:
            self._end_unit()
            try:
                self._sessions.begin_own(record.session_id, record.shares, record.last_shared)
            except (InvalidStepError, MessageError) as error:
                self._skip(record.line, str(error))
                self._sessions.refuse_rest(str(error))

    def _take_score(self, entry: entries.ParsedScore) -> None:
        """Score a run, unless it has a score here."""
        self._store_units()
        if self._scores.of(entry.run_id) is not None:
            return
        try:
            self._memory.score(entry.run_id, entry.score, entry.feedback)
        except (InvalidStepError, UnknownRunError) as error:
            self._skip(entry.line, str(error))

    def _begin(self, record: Parsed, place: entries.SessionPlace, session_id: str) -> None:
        """Begin a conversation; in a session that the caller names others may stand before it."""
        self._end_unit()
        is_callers = record.step.session_id is None and "session_id" in self._defaults
        self._sessions.begin(
            place.line or session_id,
            anywhere=place.anywhere or is_callers,
            branch_of=session_id if place.line else None,
            title=place.title,
        )

    def report(self) -> ImportReport:
        self._end_unit()
        noting = (self._vectors, self._links, self._traces, self._sessions, self._unread)
        notes = [note for part in noting for note in part.notes()]
        return ImportReport(
            self._added + self._already_there + self._skipped_count,
            self._added,
            self._already_there,
            self._skipped,
            self._skipped_count,
            (*notes, *passed_over_notes(self._passed)),
            self._unread.understood,
            sum(bool(file.reason) for file in self._passed),
        )

    def _store(self, records: list[Parsed]) -> None:
        """Store all at once; when one of them is refused, one by one."""
        if not records:
            return
        try:
            self._memory.add([record.step for record in records])
        except (InvalidStepError, VectorError) as error:
            if len(records) > 1:
                for record in records:
                    self._store([record])
            elif isinstance(error, DuplicateStepError):
                self._already_there += 1
            else:
                self._skip(records[0].line, str(error))
            return
        self._added += len(records)

    def _take_unit(self, line: int, messages: Sequence[Step]) -> None:
        """Hold messages with the steps since the last ones until their session ends."""
        if len(self._units) >= BATCH:
            self._store_units()
        self._units.append(Unit(line, messages, self._unit))
        self._unit = []

    def _store_units(self) -> None:
        units, self._units = self._units, []
        messages = [message for unit in units for message in unit.messages]
        sourced = [from_outside(message.metadata, self._from) for message in messages]
        for message, metadata in zip(messages, sourced, strict=True):
            message.metadata = metadata
        if units:
            self._commit(units)

    def _commit(self, units: list[Unit]) -> None:
        """Store units at once; when something is refused, one by one, and steps alone."""
        if self._sessions.refused:
            rest = [record for unit in units for record in unit.records]
        else:
            try:
                rest = self._sessions.commit(units)
            except (InvalidStepError, MessageError, VectorError) as error:
                if len(units) > 1:
                    for unit in units:
                        self._commit([unit])
                    return
                why = str(error)
                if isinstance(error, DuplicateStepError) and not error.in_call:
                    why = "the session has lost messages since"
                self._skip(units[0].line, f"its messages from here on: {why}")
                self._sessions.refuse_rest(why)
                rest = units[0].records
        self._added += sum(len(unit.records) for unit in units) - len(rest)
        self._store(rest)

    def _end_unit(self) -> None:
        """Store what is held, and steps that no message follows; the line has ended."""
        self._store_units()
        unit, self._unit = self._unit, []
        self._store(unit)
        self._sessions.end()

    def _skip(self, line: int, reason: str) -> None:
        self._skipped_count += 1
        if len(self._skipped) < MAX_NAMED:
            named = f"{self._file}: {reason}" if self._file else reason
            self._skipped.append((line, named))
