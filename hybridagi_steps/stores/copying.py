"""Copies: all that a memory holds at another address, taken while others write to it.

A copy is made in passes. Each compares the target with one state of the source, whatever is written
meanwhile, and writes what differs; so a copy that was killed goes on by being asked for again, and
what was erased from the source since is erased from it. It ends with a pass during which nobody
wrote to the source, one that had little left to write, or the fifth: the target is then compared
with that same state once more, row by row, and searches are answered by both. A finished copy can
be brought up to date in the same way as long as nobody has written to it.
"""

from __future__ import annotations

import os
import sqlite3
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable
from uuid import uuid4

import orjson

from hybridagi_steps.errors import (
    CopyDiffersError,
    CopyError,
    DiskFullError,
    EmbedderError,
    StorageError,
    UnsupportedAddressError,
)
from hybridagi_steps.outside_files import make_private
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.listings import StepHits
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.stores.address import is_server, lasting_address, shown_address
from hybridagi_steps.stores.listing import OnStore
from hybridagi_steps.stores.sql.copied_rows import Differences
from hybridagi_steps.stores.sql.copy_tables import Comparison, CopyTables

Progress = Callable[[int, int], None]

_FEW, _MOST_PASSES = 1_000, 5
_SEARCHES, _HITS, _LONGEST_QUERY = 12, 10, 200
_WORK = ("written", "removed")
_EVERYTHING = StepFilter(scope=EVERY_SCOPE)
_CONTENT = 3
"""Where in the state of a namespace the numbers begin that are nothing where it is empty."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy holds now, and what was done for it."""

    steps: int
    messages: int
    sessions: int
    written: int
    """Rows of all kinds that this call wrote."""
    removed: int
    """Rows of the copy that the source had no longer."""
    passes: int
    as_of: datetime
    """When the state was taken that the copy was found equal to."""
    searches: int
    """Searches that both answered alike; 0 when somebody wrote to the source meanwhile, or it has a
    `memory_budget`: then nothing of it is loaded for this."""
    unreached: tuple[str, ...]
    """Files that may still hold some of what was removed, as `purge` names them."""
    others: tuple[str, ...]
    """Other namespaces of the source that hold something; each is copied by itself."""


class Copying(OnStore):
    """What a memory does to be copied."""

    address: str
    whole_address: str
    namespace: str
    memory_budget: int | None

    @property
    @abstractmethod
    def _opening(self) -> Callable[..., AbstractContextManager[Copying]]:
        """Return what opens a memory like this one at another address."""

    @abstractmethod
    def flush(self, progress: Progress | None = None) -> None:
        """Index what is stored by now."""

    @abstractmethod
    def search(
        self,
        query: str,
        k: int = 5,
        *,
        where: StepFilter | None = None,
        mode: Literal["hybrid", "lexical"] = "hybrid",
    ) -> StepHits:
        """Find past steps by meaning and words."""

    @abstractmethod
    def _exactly(self) -> AbstractContextManager[None]:
        """Let searches look at every vector, inside a `with`."""

    @abstractmethod
    def _places_left(self) -> list[str]:
        """Overwrite what was deleted; return where it still is."""

    @abstractmethod
    def _forget_cache(self) -> None:
        """Forget what was read of the store."""

    def move_to(
        self, address: str | os.PathLike[str], progress: Progress | None = None
    ) -> CopyReport:
        """Copy this namespace to another address, and let nobody write it here any more.

        Others write meanwhile; who does so once it has moved gets MovedNamespaceError, whatever
        process or version. All that was acknowledged before is in the copy. Asked again after a
        kill, it goes on. `clear` gives the space back; what was cleared may be moved back to.

        Args:
            address: Where to, as of `copy_to`.
            progress: Called with (done, total) rows.

        Raises:
            CopyError: As of `copy_to`; it has not moved then.
            MissingGrantError: The role does not own the tables of this place; it has not moved.
        """
        source = tables_of(self._open_store)
        first = self.copy_to(address, progress)
        before = source.moved_to()
        source.refuse_writes(shown_address(lasting_address(os.fspath(address))))
        try:
            last = self.copy_to(address, progress)
            rows = {name: getattr(first, name) + getattr(last, name) for name in _WORK}
            return replace(last, **rows)
        except BaseException:
            source.refuse_writes(before)
            raise

    def copy_to(
        self, address: str | os.PathLike[str], progress: Progress | None = None
    ) -> CopyReport:
        """Copy this namespace to another address; asked for again, go on or bring it up to date.

        Steps with scores, embeddings and prompts, revocations and consents, sessions with their
        branches and idempotency keys, under the same ids and in the same order. Others may write
        to this memory meanwhile, and nobody to the copy. What is erased here is erased from the
        copy by the next call.

        Args:
            address: A file or postgresql://…; the namespace must be empty there, or be a copy of
                this very memory that nobody has written to.
            progress: Called with (done, total) rows.

        Raises:
            CopyError: The target holds something else, or this memory holds nothing.
            CopyDiffersError: The copy is not equal; it says what differs. Nothing is lost.
            UnsupportedAddressError: One of the two is no database that can be copied.
            StorageError: One of the two cannot be read or written.
        """
        place = os.fspath(address)
        if place == ":memory:":
            raise UnsupportedAddressError("a copy in memory is gone at once; name a file.")
        watch = _Watch(progress)
        with self._opening(place, memory_budget=None) as target:
            source, copy = (tables_of(one._open_store) for one in (self, target))  # noqa: SLF001 - one of us
            mark, finished = self._begin(target, source, copy)
            report, state = _made(source, copy, watch, unfinished=not finished)
            if copy.copy_note("removed"):
                report = replace(report, unreached=tuple(target._places_left()))  # noqa: SLF001
                target._forget_cache()  # noqa: SLF001
                copy.note_copy("removed", "1" if report.unreached else None)
            report = replace(
                report,
                searches=self._searched_alike(target, source, state, progress),
                others=tuple(name for name in source.namespaces() if name != self.namespace),
            )
            copy.note_copy("source", orjson.dumps([mark, copy.state_now()]).decode())
        return report

    def _begin(self, target: Copying, source: CopyTables, copy: CopyTables) -> tuple[str, bool]:
        """Refuse what must not be copied over.

        Returned is what the target notes of its source, and whether it was a finished copy of it.
        """
        ours, theirs = (store.identity().store_id for store in (source, copy))
        if ours == theirs and self.namespace == target.namespace:
            if self.whole_address == target.whole_address or is_server(self.whole_address):
                raise CopyError(f"{self.address} and {target.address} are the same memory.")
            raise CopyError(
                f"{target.address} has the identity of {self.address}: it is a backup of it, or "
                "its file was copied. Name a file that is not there yet, or open that one as it is."
            )
        mark, noted = f"{ours} {self.namespace}", copy.copy_note("source")
        state, ended = copy.state_now(), None
        if any(state[_CONTENT:]):
            where = f"the namespace {target.namespace!r} of {target.address}"
            known, ended = orjson.loads(noted) if noted else (None, None)
            if known != mark:
                raise CopyError(f"{where} holds something else than a copy of this; name another.")
            if ended not in (None, state):
                raise CopyError(
                    f"{where} was written to since it was copied; to copy anew, name an empty one."
                )
        elif not any(source.state_now()[_CONTENT:]):
            there_are = ", ".join(source.namespaces()) or "none"
            raise CopyError(
                f"the namespace {self.namespace!r} of {self.address} holds nothing; it has "
                f"{there_are}."
            )
        elif copy.moved_to() is not None:
            copy.refuse_writes(None)  # it moves back to where it was cleared
        copy.note_copy("source", orjson.dumps([mark, None]).decode())
        return mark, ended is not None

    def _searched_alike(
        self, target: Copying, source: CopyTables, state: list[int], progress: Progress | None
    ) -> int:
        """Ask both memories the same; return how often, 0 when the source is another by now.

        CopyDiffersError: they answer in different ways.
        """
        if self.memory_budget is not None:
            return 0
        try:
            source.mend()  # what was passed over is found in the copy
        except StorageError:
            return 0
        mode: Literal["hybrid", "lexical"] = "hybrid" if source.identity().embedder else "lexical"
        try:
            if mode == "hybrid":
                target.flush(progress)
        except EmbedderError:
            mode = "lexical"  # the embedder cannot be had here; words can
        rows = source.rows(_EVERYTHING)
        steps = source.read([int(row) for row in rows[:: -(-len(rows) // _SEARCHES) or 1]])
        queries = [text for step in steps.values() if (text := own_text(step)[:_LONGEST_QUERY])]
        differing = self._answered_otherwise(target, queries, mode)
        if differing:
            # Codes of vectors that were made at other times name other candidates now and then.
            with self._exactly(), target._exactly():
                differing = self._answered_otherwise(target, differing, mode)
        if source.state_now() != state:
            return 0
        if differing:
            raise CopyDiffersError(
                f"{target.address} answers {len(differing)} of {len(queries)} searches in another "
                f"way than {self.address}, such as {differing[0]!r}."
            )
        return len(queries)

    def _answered_otherwise(
        self, other: Copying, queries: list[str], mode: Literal["hybrid", "lexical"]
    ) -> list[str]:
        return [each for each in queries if self._answers(each, mode) != other._answers(each, mode)]

    def _answers(self, query: str, mode: Literal["hybrid", "lexical"]) -> list[tuple[str, float]]:
        hits = self.search(query, _HITS, where=_EVERYTHING, mode=mode)
        return [(str(hit.step.id), round(hit.score, 6)) for hit in hits]


class _Watch:
    """A bar over several comparisons, of which it is not known how many there will be."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._done, self._total = progress, 0, 0

    def expect(self, rows: int) -> None:
        """Begin a comparison, which may not be the last."""
        self._total = self._done + 2 * rows

    def advance(self, rows: int) -> None:
        """Tell that some rows were compared."""
        self._done += rows
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


def _made(
    source: CopyTables, copy: CopyTables, watch: _Watch, *, unfinished: bool
) -> tuple[CopyReport, list[int]]:
    """Make the copy equal to a state of its source; return that, too."""
    written = removed = passes = 0
    while True:
        passes, as_of = passes + 1, utc_now()
        with source.snapshot() as there:
            sizes, state = source.sizes(there), source.state(there)
            watch.expect(sum(sizes[:2]))
            done = copy.compare(
                Comparison(source, there, True, watch.advance, unfinished=unfinished)
            )
            removed += done.removed
            written += done.found.total - done.removed
            if source.state_now() == state or done.found.total <= _FEW or passes == _MOST_PASSES:
                left = done.found
                if left:  # a pass that found nothing has compared everything already
                    left = copy.compare(Comparison(source, there, False, watch.advance)).found
                with copy.snapshot() as here:
                    if left or copy.sizes(here) != sizes:
                        raise _different(left)
                copy.sync()
                return CopyReport(*sizes, written, removed, passes, as_of, 0, (), ()), state


def _different(found: Differences) -> CopyDiffersError:
    return CopyDiffersError(
        f"the copy is not equal to its source: {str(found) or 'other counts'}. Did somebody write "
        "to it? The same call repairs it.",
        found.counts,
    )


def tables_of(store: object) -> CopyTables:
    """Return a store as what can be copied; UnsupportedAddressError when it is none of ours."""
    if not isinstance(store, CopyTables):
        raise UnsupportedAddressError(
            f"{type(store).__name__} cannot be copied; export its steps and import them."
        )
    return store


@runtime_checkable
class BackedUp(Protocol):
    """What a store has besides whose database can be written into one file."""

    def write_into(self, path: Path) -> None:
        """Write the database as it is now, without what was deleted, into an empty file."""
        ...


def back_up(store: object, target: Path) -> int:
    """Write the database of a store into a new file, which only its owner can read.

    The file is there when all of it is on the disk, never half of it. It is a memory like any
    other: to restore, put it where the old one was.

    Returns:
        Its length in bytes.

    Raises:
        StorageError: The file is there, or cannot be written.
        UnsupportedAddressError: The database is on a server.
    """
    if not isinstance(store, BackedUp):
        raise UnsupportedAddressError(
            "a database server makes its own backups: use `pg_dump`, and `pg_restore` into a "
            "database of the same major version or a later one."
        )
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        make_private(part)
        store.write_into(part)
        with closing(sqlite3.connect(part)) as written:
            written.execute("PRAGMA journal_mode = WAL")  # as a memory's file has it
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.link(part, target)
        return target.stat().st_size
    except DiskFullError as error:
        raise DiskFullError(
            f"the backup {target} cannot grow: its disk is full, or this process may write no "
            "larger files (ulimit -f); name a file elsewhere, or free some space."
        ) from error
    except FileExistsError as error:
        raise StorageError(
            f"{target} is there; a backup replaces no file: name another."
        ) from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write the backup {target}: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
