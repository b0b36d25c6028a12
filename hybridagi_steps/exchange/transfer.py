"""Between files and a memory: import in batches, export through a temporary file.

An import may be interrupted and repeated at any time: batches are stored whole, and steps whose id
is stored already are counted and left as they are. A record that cannot be kept is named with its
line and the rest goes on. An export replaces its target only when it is complete.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from hybridagi_steps.errors import (
    DuplicateStepError,
    ExchangeError,
    InvalidStepError,
    VectorError,
)
from hybridagi_steps.exchange import jsonl
from hybridagi_steps.exchange.formats import FORMATS, parse_as
from hybridagi_steps.exchange.reading import opened
from hybridagi_steps.exchange.records import Parsed, Skipped
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter

BATCH = 500
"""Steps stored in one transaction."""
MAX_NAMED = 1_000
"""Skipped records named in a report; all are counted."""

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in the file)."""


class Memory(Protocol):
    """What is asked of a memory here; StepMemory has it."""

    def add(self, steps: AgentStep | Iterable[AgentStep]) -> None:
        """Store steps, all or nothing."""
        ...

    def get_steps(self, ids: Iterable[str], *, vectors: bool = False) -> list[AgentStep]:
        """Return the steps with these ids."""
        ...

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        """Yield all matching steps."""
        ...


class ImportReport(NamedTuple):
    """What an import did: `read` is the sum of the other counts."""

    read: int
    added: int
    already_there: int
    skipped: list[tuple[int, str]]
    """(line, reason) of the first `MAX_NAMED` records that were not imported."""
    skipped_count: int
    """All records that were not imported."""


def import_file(
    memory: Memory,
    path: str | os.PathLike[str],
    *,
    format: str = "auto",  # noqa: A002 - the word people expect
    session_id: str | None = None,
    user_id: str | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Store the steps of a file; importing it again changes nothing.

    Args:
        memory: Where to store.
        path: A JSON or JSONL file.
        format: `jsonl` (own), `openai` (chat messages), or `auto`: told by the content.
        session_id: The session of steps that name none.
        user_id: The user of steps that name none.
        progress: Called with (bytes read, bytes in the file) after each batch.

    Raises:
        ExchangeError: The file cannot be read as a whole; nothing was stored.
    """
    if format not in FORMATS:
        raise ExchangeError(f"unknown format {format!r}; known formats: {', '.join(FORMATS)}.")
    defaults = {"session_id": session_id, "user_id": user_id}
    importer = _Importer(memory, {key: value for key, value in defaults.items() if value})
    file = Path(path)
    with opened(file) as source:
        total = file.stat().st_size
        records = parse_as(format, source.records())
        while batch := list(islice(records, BATCH)):
            importer.take(batch)
            if progress is not None:
                progress(min(source.bytes_read, total), total)
    return importer.report()


def export_file(
    memory: Memory,
    path: str | os.PathLike[str],
    *,
    where: StepFilter | Mapping[str, Any] | None = None,
    vectors: bool = False,
) -> int:
    """Write steps as own JSONL and return how many.

    Args:
        memory: Where they are stored.
        path: The file to write, replaced when the export is complete; "-" is standard output.
        where: Which steps; by default all, those of trial runs included.
        vectors: Write their embeddings too.

    Raises:
        ExchangeError: The file cannot be written; what stood there before is untouched.
        InvalidFilterError: An unknown key in `where`.
    """
    asked = StepFilter.of(where)
    if asked.scope is None:
        asked = asked.model_copy(update={"scope": EVERY_SCOPE})
    steps = memory.iter_steps(asked)
    if vectors:
        steps = _with_vectors(memory, steps)
    if os.fspath(path) == "-":
        return _write(steps, sys.stdout.buffer, vectors=vectors)
    return _replace(Path(path), steps, vectors=vectors)


class _Importer:
    """Stores batches and keeps count."""

    def __init__(self, memory: Memory, defaults: dict[str, Any]) -> None:
        self._memory, self._defaults = memory, defaults
        self._added = self._already_there = self._skipped_count = 0
        self._skipped: list[tuple[int, str]] = []

    def take(self, batch: Sequence[Parsed | Skipped]) -> None:
        fresh: dict[str, Parsed] = {}
        for record in batch:
            if isinstance(record, Skipped):
                self._skip(record.line, record.reason)
            elif (step_id := id_text(record.step.id)) in fresh:
                self._already_there += 1
            else:
                fresh[step_id] = Parsed(record.line, self._completed(record.step))
        for step in self._memory.get_steps(list(fresh)):
            del fresh[id_text(step.id)]
            self._already_there += 1
        if fresh:
            self._store(list(fresh.values()))

    def report(self) -> ImportReport:
        read = self._added + self._already_there + self._skipped_count
        counts = (read, self._added, self._already_there)
        return ImportReport(*counts, skipped=self._skipped, skipped_count=self._skipped_count)

    def _store(self, records: list[Parsed]) -> None:
        """Store all at once; when one of them is refused, one by one."""
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

    def _completed(self, step: AgentStep) -> AgentStep:
        missing = {k: v for k, v in self._defaults.items() if getattr(step, k) is None}
        return step.model_copy(update=missing) if missing else step

    def _skip(self, line: int, reason: str) -> None:
        self._skipped_count += 1
        if len(self._skipped) < MAX_NAMED:
            self._skipped.append((line, reason))


def _with_vectors(memory: Memory, steps: Iterator[AgentStep]) -> Iterator[AgentStep]:
    while batch := [id_text(step.id) for step in islice(steps, BATCH)]:
        yield from memory.get_steps(batch, vectors=True)


def _replace(path: Path, steps: Iterator[AgentStep], *, vectors: bool) -> int:
    """Write to a temporary file in the same folder, then put it in place."""
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False
        ) as file:
            temporary = Path(file.name)
            count = _write(steps, cast("BinaryIO", file), vectors=vectors)
            file.flush()
            os.fsync(file.fileno())
        _take_mode(temporary, path)
        temporary.replace(path)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if type(error) in (FileNotFoundError, PermissionError, IsADirectoryError, OSError):
            raise ExchangeError(
                f"cannot write {path}: {cast('OSError', error).strerror}."
            ) from error
        raise
    return count


def _take_mode(temporary: Path, path: Path) -> None:
    """Give the new file the permissions of the one it replaces, else those of any new file."""
    if path.exists():
        mode = path.stat().st_mode
    else:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    temporary.chmod(mode & 0o777)


def _write(steps: Iterator[AgentStep], file: BinaryIO, *, vectors: bool) -> int:
    count = 0
    for step in steps:
        file.write(jsonl.step_line(step, vectors=vectors))
        count += 1
    return count
