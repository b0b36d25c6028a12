"""Out of a memory into a file, in one of several formats, all or nothing.

An export replaces its target only when it is complete. `jsonl` and `parquet` hold every step as it
is and come back unchanged, `jsonl` with the messages of sessions and the scores of runs; `otlp` and
`openai` are written for others, one run at a time, and hold in memory the ids of the runs and the
steps of one.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from hybridagi_steps.errors import DamagedFileError, ExchangeError, ForeignFileError, StorageError
from hybridagi_steps.exchange.formats import jsonl, openai_training, otlp_export, parquet
from hybridagi_steps.exchange.reader import file_path
from hybridagi_steps.exchange.records import RunScores, with_origin
from hybridagi_steps.outside_files import replacing
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import (
    ABANDONED,
    CLOSING,
    OWN_SCOPES,
    MessagePlace,
    SessionSummary,
)
from hybridagi_steps.stores import address_text, known_namespace
from hybridagi_steps.stores.address import is_server
from hybridagi_steps.stores.placement import DEFAULT_NAMESPACE, placed
from hybridagi_steps.validation import for_recall, in_every_scope, of_steps

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.stores.sql.salvage import Salvaged

BATCH = 500
"""Steps read at once."""
_REBUILD = "Restore a backup, or rebuild: `sqlite3 OLD .recover | sqlite3 NEW`, then salvage NEW."
_EVERYTHING = StepFilter(scope=EVERY_SCOPE)
_SUFFIXES = {**dict.fromkeys(("", ".jsonl", ".ndjson", ".json"), "jsonl"), ".parquet": "parquet"}
_BESIDE = ("-wal", "-shm", "-journal", ".lock", ".index")

LeftOut = Callable[[str], None]
"""Called with the id of a run that a format cannot hold."""


def export_file(
    memory: StepMemory,
    path: str | os.PathLike[str],
    *,
    format: str = "auto",  # noqa: A002 - the word people expect
    where: StepFilter | Mapping[str, Any] | None = None,
    vectors: bool = False,
    left_out: LeftOut | None = None,
) -> int:
    """Write steps to a file.

    Args:
        memory: Where they are stored.
        path: The file to write, replaced when the export is complete; "-" is standard output.
        format: `jsonl` (whole steps; without a `where`, or with a session only, the messages of
            sessions too), `parquet` (whole steps), `otlp` (spans with the GenAI names, one request
            per line), `openai` (fine-tuning examples, one run per line), or `auto`.
        where: Which steps; by default all, those of trial runs included. In `openai` what recall
            shows: no trial unless its scope is asked for ("*": all), nothing that was revoked or
            stands in no session any more, and never profiles, details of sessions or consents.
        vectors: Write their embeddings too, and who made them, in `jsonl` and `parquet`.
        left_out: Told of each run that is no example to learn from, in `openai`.

    Returns:
        The number of steps written; in `openai` that of runs.

    Raises:
        ExchangeError: The file cannot be written, or is the memory's own; what stood there before
            is untouched.
        InvalidFilterError: An unknown key in `where`.
        MissingExtraError: Parquet needs the extra `parquet`.
    """
    if format not in EXPORT_FORMATS:
        known = ", ".join(EXPORT_FORMATS)
        raise ExchangeError(f"unknown format {format!r}; known formats: {known}.")
    target = file_path(path)
    if format == "auto":
        format = _SUFFIXES.get(target.suffix, "auto")  # noqa: A001
    learned = format == "openai"
    asked = for_recall(where) if learned else in_every_scope(of_steps(where))
    job = _Job(memory, asked, memory.embedder.model_id if vectors else None, left_out, learned)
    if format == "parquet":
        parquet.required()
    return _write(job, _WRITERS.get(format, _refuse_ending), target, memory.whole_address)


def salvage_file(
    memory: StepMemory | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    damaged: Callable[[str], None],
    namespace: str = DEFAULT_NAMESPACE,
) -> int:
    """Write all that is whole of a damaged memory, as `jsonl`: steps, sessions, scores of runs.

    A session that lacks messages ends before them; what follows is a session of its own,
    `<id>~<sequence>`. Embeddings are left out.

    Args:
        memory: A StepMemory, or its address. One that lives in memory only is written like any
            other.
        path: The file to write, as for `export_file`.
        damaged: Told of each thing that is not whole, in one line.
        namespace: Which namespace at the address.

    Returns:
        The number of steps written.

    Raises:
        ExchangeError: The file cannot be written, or is the memory's own.
        StorageError: There is no memory at the address, or its file does not open.
    """
    if not isinstance(memory, str | os.PathLike):
        return _salvage(memory, memory.whole_address, path, damaged)
    address, name = placed(address_text(memory), namespace)
    if not is_server(address) and not Path(address).exists():
        raise StorageError(f"there is no memory file {address}.")
    from hybridagi_steps.memory import StepMemory as Memory

    try:
        opened = Memory(address, namespace=known_namespace(address, name))
    except (DamagedFileError, ForeignFileError) as error:
        if is_server(address):
            raise
        raise type(error)(
            f"{address} does not open: {error.__cause__ or error}. {_REBUILD}"
        ) from error
    with opened:
        return _salvage(opened, opened.whole_address, path, damaged)


def _salvage(
    memory: StepMemory, address: str, path: str | os.PathLike[str], damaged: Callable[[str], None]
) -> int:
    salvage = getattr(memory.repository().store, "salvage", None)
    whole = memory if salvage is None else salvage(damaged)
    return _write(_Job(whole, _EVERYTHING), _write_jsonl, file_path(path), address)


class _Job(NamedTuple):
    """What is to be written."""

    memory: StepMemory | Salvaged
    where: StepFilter
    embedder: str | None = None
    """Who made the vectors that are to be written; None when none are."""
    left_out: LeftOut | None = None
    learned: bool = False
    """Whether it is for learning: what recall shows, and nothing the library keeps for itself."""

    @property
    def vectors(self) -> bool:
        return self.embedder is not None

    def steps(self) -> Iterator[AgentStep]:
        """Yield the steps, with their vectors when they were asked for."""
        steps = self.memory.iter_steps(self.where)
        if not self.vectors:
            yield from steps
            return
        while batch := [id_text(step.id) for step in islice(steps, BATCH)]:
            yield from self.steps_with(batch)

    def steps_with(self, ids: Sequence[str]) -> list[AgentStep]:
        steps = self.memory.get_steps(ids, vectors=self.vectors)
        if self.embedder is None:
            return steps
        return [with_origin(step, self.embedder) for step in steps]

    def sessions(self) -> _SessionLines | None:
        """Return the sessions that go along: all, the one asked for, or None of a selection."""
        chosen = self.where.model_dump(exclude_defaults=True, exclude={"scope", "session_id"})
        if chosen or self.where.scope != EVERY_SCOPE:
            return None
        return _SessionLines(self, self.where.session_id)

    def chosen(self, **more: str) -> Iterator[AgentStep]:
        """Yield the steps that are written; of one run, say."""
        where = self.where.model_copy(update=more)
        if not self.learned:
            yield from self.memory.iter_steps(where)
            return
        store = self.memory.repository().store
        for scope in (None, CLOSING) if where.scope is None else (where.scope,):
            for step in store.iter_steps(where.model_copy(update={"scope": scope})):
                if step.scope not in OWN_SCOPES:
                    yield step

    def runs(self) -> Iterator[list[AgentStep]]:
        """Yield the steps of each run in their order; steps without a run come one by one."""
        runs: dict[str, None] = {}
        alone: list[str] = []
        for step in self.chosen():
            if step.run_id is None:
                alone.append(id_text(step.id))
            else:
                runs[step.run_id] = None
        for run_id in runs:
            yield sorted(self.chosen(run_id=run_id), key=lambda step: step.hop)
        for place in range(0, len(alone), BATCH):
            for step in self.memory.get_steps(alone[place : place + BATCH]):
                yield [step]


def _line_before(job: _Job, first: AgentStep) -> list[AgentStep]:
    """Return what a conversation's run goes on from in other runs, where it is that of a fork."""
    found: dict[str, AgentStep] = {}
    known: dict[str, AgentStep] = {}
    asked: set[str] = set()
    wanted = openai_training.links_up(first)
    while wanted:
        step_id = wanted.pop()
        if step_id not in known:
            known |= {id_text(step.id): step for step in job.memory.get_steps([step_id])}
            if (parent := known.get(step_id)) is None or parent.run_id is None:
                continue
            run = StepFilter(run_id=parent.run_id, scope=EVERY_SCOPE)
            known |= {id_text(step.id): step for step in job.memory.iter_steps(run)}
            asked |= {id_text(step.id) for step in job.chosen(run_id=parent.run_id)}
        if step_id not in found:
            found[step_id] = known[step_id]
            wanted += openai_training.links_up(known[step_id])
    before = [found[step_id] for step_id in asked & found.keys()]
    return sorted((s for s in before if s.run_id != first.run_id), key=lambda step: step.hop)


def _write_jsonl(job: _Job, file: BinaryIO) -> int:
    count = 0
    scores = RunScores(job.memory)

    def line(step: AgentStep) -> bytes:
        nonlocal count
        count += 1
        return jsonl.step_line(scores.with_score(step), vectors=job.vectors)

    sessions = job.sessions()
    elsewhere: set[str] = set()
    if sessions is not None:
        left = job.where.model_copy(update={"scope": ABANDONED})
        elsewhere = sessions.step_ids() | {id_text(s.id) for s in job.memory.iter_steps(left)}
    for step in job.steps():
        if id_text(step.id) not in elsewhere:
            file.write(line(step))
    if sessions is not None:
        file.writelines(sessions.lines(line))
    return count


def _refuse_ending(*_: object) -> int:
    known = ", ".join(filter(None, _SUFFIXES))
    raise ExchangeError(f"the file's ending names no format; end it in {known}, or name a format.")


def _write_otlp(job: _Job, file: BinaryIO) -> int:
    count = 0
    for steps in job.runs():
        file.writelines(otlp_export.request_lines(steps))
        count += len(steps)
    return count


def _write_openai(job: _Job, file: BinaryIO) -> int:
    count = 0
    for steps in job.runs():
        line = openai_training.example_line([*_line_before(job, steps[0]), *steps])
        if line is None:
            if job.left_out is not None:
                job.left_out(steps[0].run_id or id_text(steps[0].id))
            continue
        file.write(line)
        count += 1
    return count


class _SessionLines:
    """The lines of sessions: each message after the steps that are pinned to it.

    A fork is written as what it shares with a session before it, and its own messages.
    """

    def __init__(self, job: _Job, session_id: str | None) -> None:
        self._job, self._store = job, job.memory.repository().store
        known: list[SessionSummary] = []
        while page := self._store.sessions(limit=BATCH, offset=len(known)):
            known += page
        # What was forked comes before its forks; steps may name a session that has no messages.
        known.sort(key=lambda each: (each.created_at, each.forked_from or "", each.session_id))
        names = [each.session_id for each in known]
        self._sessions = [name for name in names if session_id in (None, name)]
        self._places: dict[str, MessagePlace] = {}
        self._written: set[str] = set()

    def step_ids(self) -> set[str]:
        pinned = map(self._store.pinned_steps, self._sessions)
        return {step_id for steps in pinned for _, step_id in steps}

    def lines(self, step_line: Callable[[AgentStep], bytes]) -> Iterator[bytes]:
        """Yield everything that belongs to the sessions."""
        for session_id in self._sessions:
            messages = self._store.messages(session_id)
            origin = self._origin(messages)
            shared = 0 if origin is None else origin.sequence
            if origin is None:
                yield jsonl.header_line(session_id)
            else:
                yield jsonl.header_line(session_id, origin.session_id, messages[shared - 1])
            own = deque(messages[shared:])
            self._places |= {m.id: MessagePlace(session_id, m.sequence) for m in own}
            for sequence, step in self._pinned(session_id):
                while own and own[0].sequence < sequence:
                    yield jsonl.message_line(own.popleft())
                yield step_line(step)
            yield from map(jsonl.message_line, own)

    def _pinned(self, session_id: str) -> Iterator[tuple[int, AgentStep]]:
        """Yield the steps that no session before has written, each with its message's sequence."""
        pinned = [p for p in self._store.pinned_steps(session_id) if p[1] not in self._written]
        self._written.update(step_id for _, step_id in pinned)
        for first in range(0, len(pinned), BATCH):
            page = pinned[first : first + BATCH]
            steps = self._job.steps_with([step_id for _, step_id in page])
            found = {id_text(step.id): step for step in steps}
            yield from ((place, found[name]) for place, name in page if name in found)

    def _origin(self, messages: Sequence[Step]) -> MessagePlace | None:
        """Return the last message that a session written before has, too.

        What stands before a message never changes, so everything before it is shared as well.
        """
        for message in reversed(messages):
            place = self._places.get(message.id)
            if place is not None and place.sequence == message.sequence:
                return place
        return None


_WRITERS: dict[str, Callable[[_Job, BinaryIO], int]] = {
    "jsonl": _write_jsonl,
    "openai": _write_openai,
    "otlp": _write_otlp,
    "parquet": lambda job, file: parquet.write(job.steps(), file, vectors=job.vectors),
}
EXPORT_FORMATS = ("auto", *_WRITERS)
"""Names to ask an export for; `auto` is parquet for a file that is called so, else jsonl."""


def _write(
    job: _Job, write: Callable[[_Job, BinaryIO], int], path: Path, address: str | None
) -> int:
    """Write to a file, or to standard output."""
    if str(path) == "-":
        return write(job, sys.stdout.buffer)
    with _target(path.resolve(), address) as file:
        return write(job, file)


def _target(path: Path, address: str | None) -> AbstractContextManager[BinaryIO]:
    """Give the file to write: a pipe or device as it is, anything else through a temporary one."""
    if address is not None and address != ":memory:":
        own = Path(address).resolve()
        # A step memory is its file and those beside it that carry its name.
        beside = path.name.removeprefix(own.name) if path.parent == own.parent else path.name
        if path == own or (beside != path.name and beside.endswith(_BESIDE)):
            raise ExchangeError(f"{path} belongs to the memory itself; name another file.")
    if path.exists() and not (path.is_file() or path.is_dir()):
        return path.open("wb")
    return _replacing(path)


@contextmanager
def _replacing(path: Path) -> Generator[BinaryIO]:
    """Give a file that takes the place of another, and its permissions, when all went well."""
    try:
        with replacing(path) as file:
            yield file
            if path.exists():
                Path(file.name).chmod(path.stat().st_mode & 0o777)
    except OSError as error:
        if type(error) in (FileNotFoundError, PermissionError, IsADirectoryError, OSError):
            raise ExchangeError(f"cannot write {path}: {error.strerror}.") from error
        raise
