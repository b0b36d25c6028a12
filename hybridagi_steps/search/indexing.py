"""Computes what is derived from steps, words and embeddings, and saves it behind the watermark.

An append stores one row and nothing else. What a search needs is made up for later, in batches, by
whoever searches or flushes; two processes doing so at once only do the same work twice. A kill in
the middle leaves the rest pending.

Only what is stored when somebody asks is looked at, each step once: it ends, however much others
store meanwhile. A search does not wait for them either: what it cannot save at once it holds, and
saves later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from hybridagi_steps._concurrency import cached_property, rest_first_at_fork
from hybridagi_steps.display.titles import json_text, title_of
from hybridagi_steps.display.view import outcome
from hybridagi_steps.embedders.vectors import embed_documents, shortened
from hybridagi_steps.errors import (
    DiskFullError,
    EmbedderMismatchError,
    MemoryClosedError,
    ReadOnlyStorageError,
    StepsError,
    StorageBusyError,
    StorageError,
)
from hybridagi_steps.protocols import Embedder, IndexedStore
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.step_identity import (
    answer_to,
    answered_hash,
    answers,
    asks,
    may_repeat_a_call,
    says,
)
from hybridagi_steps.records.step_text import (
    SpokenTurn,
    glimpse_text,
    holds_word,
    lower_words,
    own_text,
    spoken_turn,
    stems,
    stems_held,
    text_hash,
    whole_text,
)
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    Frontier,
    PendingText,
    TextRow,
    VectorRow,
)
from hybridagi_steps.stores.waiting import Patience, taken

BATCH = 500
"""Steps whose words and whose embeddings are made together, of one reading."""
SLICE = 100
"""The same in the background, while others wait for the interpreter, and to write."""
PATIENCE_SECONDS = 0.005
"""How long a search waits for other writers before it keeps a batch in memory."""
LONGEST_READ = 20_000
_ELSEWHERE = "its details"
"""Characters of a step whose words are indexed."""
NOT_FOUND = (0, 0)
"""The hashes of a row that no search finds: it says nothing of its own."""

log = logging.getLogger("hybridagi_steps")


@dataclass
class Held:
    """What is derived and not saved of a store that had come to `frontier`, by row."""

    frontier: Frontier
    vectors_wanted: bool
    texts: dict[int, TextRow] = field(default_factory=dict[int, TextRow])
    vectors: dict[int, VectorRow] = field(default_factory=dict[int, VectorRow])
    model_id: str | None = None
    """Whose vectors those are."""
    refused: bool = False
    """Whether the store refused some of it for now."""
    busy: bool = False
    """Whether that was because somebody else was writing."""
    settled: bool = False
    """Whether the store was found as it was when this was made."""

    @property
    def empty(self) -> bool:
        """Whether all could be saved."""
        return not (self.texts or self.vectors)

    def settled_rows(self) -> tuple[list[TextRow], list[VectorRow]]:
        """Return what may be saved: no row appears any more that it should have seen."""
        steps, messages = self.frontier.settled

        def settled(row: int) -> bool:
            return row <= (steps if row < MESSAGE_ROWS else messages)

        return (
            [text for row, text in self.texts.items() if settled(row)],
            [vector for row, vector in self.vectors.items() if settled(row)],
        )


@runtime_checkable
class MendableStore(Protocol):
    """What a store has besides that notices when what is derived from steps is damaged."""

    def mend(self, *, everything: bool = False) -> int:
        """Forget what is damaged and can be made again; return how many rows are pending by that.

        Args:
            everything: Compare all rows, not only forget those that this process came upon; forget
                those, too, whose embedder gave nothing that can be used.
        """
        ...


class Told:
    """A step as a search tells it, None where nothing is to be found, with its own text."""

    def __init__(self, step: AgentStep | None) -> None:
        self.step = step

    @cached_property
    def own(self) -> str:
        """What `own_text` says of it."""
        return "" if self.step is None else own_text(self.step)


class Deriver:
    """Computes what is pending in one store, by several threads at once if they ask."""

    def __init__(
        self, store: IndexedStore, embedder: Callable[[int | None], Embedder], patience: Patience
    ) -> None:
        """Derive from `store`; `embedder` is called when vectors are first needed.

        Args:
            store: What is derived from and saved to.
            embedder: Gives the embedder of an epoch, checked against the store's; None: by now.
            patience: How long one thread waits for the batches of others; `catch_up` takes what
                that took off it, until `shared` ends.
        """
        self._store, self._embedder, self._patience = store, embedder, patience
        self._turn = threading.Lock()
        self._last: Held | None = None
        self._last_with_vectors: Held | None = None

    def mend(self, *, everything: bool = False) -> None:
        """Have what is damaged made again; of `everything` nothing held is believed, either."""
        if everything:
            self._last = self._last_with_vectors = None
        if isinstance(self._store, MendableStore):
            self._store.mend(everything=everything)

    def save_all(
        self, *, vectors: bool, settle: Callable[[], object] | None = None, size: int = BATCH
    ) -> Iterator[int]:
        """Save what was pending at the call, `size` steps at a time; yield how many each had.

        Left out is what others keep unsettled who write just now, unless `settle` waits for them.
        """
        frontier = self._store.frontier()
        if settle is not None and frontier.unsettled is not None:
            with suppress(ReadOnlyStorageError):
                settle()
            frontier = self._store.frontier()
        yield from self._batches(frontier, None, vectors=vectors, size=size)

    def catch_up(self, *, vectors: bool) -> Held:
        """Derive what was pending at the call; save it, or return what cannot be saved now.

        What was held before and is pending still is not made again.
        """
        last = self._last  # read first: what others derive in between must not be taken for this
        frontier = self._store.frontier()
        if last and last.frontier == frontier and (last.vectors_wanted or not vectors):
            self._save_held(last)
            last.settled = True
            return last
        held = Held(frontier, vectors)
        with self._store.waiting(PATIENCE_SECONDS):
            for _ in self._batches(frontier, held, vectors=vectors):
                continue
        self._last = held
        if vectors:
            self._last_with_vectors = held
        return held

    def _save_held(self, held: Held) -> None:
        """Save what is held if nobody else writes just now; nothing new is made."""
        texts, vectors = held.settled_rows()
        if not (texts or vectors):
            return
        with self._store.waiting(0), suppress(StorageError):
            if vectors and self._embedder(None).model_id != held.model_id:
                vectors = []  # another thread has changed it since
            self._save(texts, vectors, held.model_id)

    def _batches(
        self, frontier: Frontier, held: Held | None, *, vectors: bool, size: int = BATCH
    ) -> Iterator[int]:
        stale = yield from self._walk(frontier, held, size, vectors=vectors)
        if stale:
            yield from self._walk(frontier, held, size, vectors=False)

    def _walk(
        self, frontier: Frontier, held: Held | None, size: int, *, vectors: bool
    ) -> Generator[int, None, int]:
        """Take each row pending at `frontier` once, so that it ends whoever else writes.

        Returned is how many windows went stale by what was saved: they show another step by now.
        """
        seconds, stale = self._patience.seconds, 0
        steps, messages = frontier.settled
        parts = [(0, steps, True), (MESSAGE_ROWS, messages, True)]
        if held is not None and frontier.unsettled is not None:
            parts += [(steps, frontier.row, False), (messages, frontier.message_row, False)]
        for first, through, may_save in parts:
            text_at, vector_at = first, first if vectors else through
            while text_at < through or vector_at < through:
                with taken(self._turn, seconds, "the indexing of new steps") as left:
                    texts, told, text_at = self._texts(text_at, through, frontier, size)
                    made, model_id, vector_at = self._vectors(
                        vector_at, through, frontier, told, size
                    )
                if held is not None:  # a search; who saves all waits for each batch anew
                    seconds = left
                if texts or made:
                    stale += self._saved(texts, made, model_id, held, may_save=may_save)
                    yield len(texts) + len(made)
        if held is not None:  # else the thread may be another when this goes on
            self._patience.seconds = seconds
        return stale

    def _texts(
        self, after: int, through: int, frontier: Frontier, size: int
    ) -> tuple[list[TextRow], dict[int, Told], int]:
        """Return the words of the next pending steps, those, and up to which row that is all."""
        if after >= through:
            return [], {}, through
        pending = self._store.pending_texts(size, after=after, through=through)
        last = self._last
        known = last.texts if last and _same_epoch(last, frontier) else {}
        told = {item.row: Told(item.step) for item in pending}
        texts = [_known_or_made(known.get(item.row), item, told[item.row]) for item in pending]
        return texts, told, texts[-1].row if len(texts) == size else through

    def _vectors(
        self, after: int, through: int, frontier: Frontier, told: Mapping[int, Told], size: int
    ) -> tuple[list[VectorRow], str | None, int]:
        """Return the embeddings of the next pending steps, whose they are, and up to which row.

        What the embedder gives for a step and cannot be used (NaN, Inf, zero) leaves that step
        found by words only.
        """
        if after >= through:
            return [], None, through
        steps = {row: item.step for row, item in told.items()}
        pending = self._store.pending_vectors(size, after=after, through=through, known=steps)
        if not pending:
            return [], None, through
        last = self._last_with_vectors
        embedder = self._embedder(frontier.position.epoch)
        model_id, known = embedder.model_id, dict[int, VectorRow]()
        if last and last.model_id == model_id and _same_epoch(last, frontier):
            known = last.vectors
        unknown = {row: told.get(row) or Told(step) for row, step in pending if row not in known}
        made = _vector_rows(unknown, embedder)
        fresh = {vector.row: vector for vector in made}
        vectors = [known.get(row) or fresh[row] for row, _ in pending]
        return vectors, model_id, pending[-1][0] if len(vectors) == size else through

    def _saved(
        self,
        texts: list[TextRow],
        vectors: list[VectorRow],
        model_id: str | None,
        held: Held | None,
        *,
        may_save: bool,
    ) -> int:
        """Save a batch, or hold it when that cannot be done now; return whose windows went stale.

        After the first batch that could not be saved no other is tried.
        """
        try:
            if held is None or (may_save and not held.refused):
                return self._save(texts, vectors, model_id)
        except EmbedderMismatchError:
            if self._embedder(None).model_id == model_id:
                raise
            # Another thread changed it meanwhile: these vectors are made anew.
            return self._saved(texts, [], None, held, may_save=may_save)
        except (ReadOnlyStorageError, DiskFullError, StorageBusyError) as error:
            if held is None:
                raise
            held.refused, held.busy = True, isinstance(error, StorageBusyError)
            log.log(
                logging.DEBUG if held.busy else logging.WARNING,
                "the index of new steps is kept in memory only: %s",
                error,
            )
        if vectors and model_id != held.model_id:
            held.vectors.clear()
            held.model_id = model_id
        held.texts.update((text.row, text) for text in texts)
        held.vectors.update((vector.row, vector) for vector in vectors)
        return 0

    def _save(self, texts: list[TextRow], vectors: list[VectorRow], model_id: str | None) -> int:
        return self._store.save_derived(texts, vectors, model_id=model_id if vectors else None)


def _vector_rows(pending: Mapping[int, Told], embedder: Embedder) -> list[VectorRow]:
    """Return the embeddings of steps as whole numbers; what is not to be found has none."""
    found = [(row, item.step, item.own) for row, item in pending.items() if item.step is not None]
    rows = [
        VectorRow(row, 0, None, scoped=False) for row, item in pending.items() if item.step is None
    ]
    if not found:
        return rows
    distinct = list(dict.fromkeys(text for *_, text in found))
    vectors, usable, refused = embed_documents(embedder, distinct)
    kept = np.zeros(vectors.shape, np.int16)
    kept[usable] = shortened(vectors[usable])
    place = {text: number for number, text in enumerate(distinct)}
    for row, step, text in found:
        number = place[text]
        vector = kept[number] if usable[number] else None
        rows.append(VectorRow(row, text_hash(text), vector, scoped=step.scope is not None))
        if number in refused:
            log.warning(
                "step %s is found by words alone: the embedder %s refuses its text (%.300s); "
                "`reembed` tries it again",
                *(step.id, embedder.model_id, refused[number]),
            )
    return rows


def _same_epoch(held: Held, frontier: Frontier) -> bool:
    """Tell whether rows are still those that were held, and the embedder, too."""
    return held.frontier.position.epoch == frontier.position.epoch


def _known_or_made(known: TextRow | None, item: PendingText, told: Told) -> TextRow:
    if known is not None and known.parent_row == item.parent_row:
        return known
    return _text_row(item, told.own)


def own_stems(step: AgentStep, words: Mapping[str, str]) -> set[str]:
    """Return which stems stand in the step itself, not only in the one before it."""
    return {*_places(_own_and_whole(step), words)}


def _own_and_whole(step: AgentStep) -> Iterator[tuple[str, str]]:
    yield "own", own_text(step)
    yield "whole", whole_text(step)[:LONGEST_READ]


def words_by_place(step: AgentStep, words: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return words by where their stems stand: "" is the row that shows the step, else a field."""
    places, found = _places(_shown_and_fields(step), words), dict[str, dict[str, str]]()
    for stem in sorted(words, key=lambda stem: places.get(stem, _ELSEWHERE) != ""):
        found.setdefault(places.get(stem, _ELSEWHERE), {})[stem] = words[stem]
    return found


def _shown_and_fields(step: AgentStep) -> Iterator[tuple[str, str]]:
    yield "", " ".join((*title_of(vars(step)), outcome(step.outputs or {})))
    for values in (step.outputs or {}, step.arguments):
        for name, value in values.items():
            text = value if isinstance(value, str) else json_text(value, indent=None)
            yield name, text[:LONGEST_READ]
    yield "purpose", step.purpose


def _places(texts: Iterable[tuple[str, str]], words: Mapping[str, str]) -> dict[str, str]:
    """Return the first place of each stem that some text holds.

    Each is given with a word of it: where that is found as it is, nothing is stemmed.
    """
    rest, found = dict(words), dict[str, str]()
    if not words:
        return found
    for place, text in texts:
        lower = text.lower()
        held = {stem for stem, word in rest.items() if holds_word(lower, word.lower())}
        if len(held) < len(rest):
            held |= stems_held(text, rest.keys() - held)
        for stem in held:
            found[stem] = place
            del rest[stem]
        if not rest:
            break
    return found


def _text_row(item: PendingText, own: str) -> TextRow:
    step = item.step
    if step is None:
        return TextRow(item.row, item.parent_row, "", *NOT_FOUND, scoped=False)
    whole = whole_text(step)
    said = text_hash(_identity(item, step, whole))
    return TextRow(
        row=item.row,
        parent_row=item.parent_row,
        tokens=_tokens(item, step, own, whole),
        text_hash=said,
        purpose_hash=_purpose_hash(item, step, said),
        scoped=step.scope is not None,
    )


def _identity(item: PendingText, step: AgentStep, whole: str) -> str:
    """Return what a row says, as others that say the same do."""
    if item.shown is not None:
        return says(item.shown, item.shown_in)
    return says(step, item.asked if may_repeat_a_call(step) else None, whole)


def _purpose_hash(item: PendingText, step: AgentStep, said: int) -> int:
    """Return the hash of a purpose, or what tells which row this one answers."""
    asked = item.asked
    if asked is not None and (not may_repeat_a_call(step) or answers(step, asked)):
        return answered_hash(asked)
    if (question := asks(step)) is not None:
        return answer_to(text_hash(question))
    purpose = text_hash(step.purpose) if step.purpose.strip() else 0
    return purpose if purpose != said else 0


def _tokens(item: PendingText, step: AgentStep, own: str, whole: str) -> str:
    """Return the words of the window and of a step's other texts, as `TextRow.tokens` says."""
    turn = spoken_turn(step)
    shown, said = lower_words(_glimpse(item, turn)), lower_words(own)
    before, words = stems(shown), stems(said)
    known, written = {*before, *words}, {*shown, *said}
    further = dict.fromkeys(lower_words(whole[:LONGEST_READ]) if whole != own else ())
    fresh = stems([word for word in further if word not in written])
    rest = [word for word in dict.fromkeys(fresh) if word not in known]
    lines = [
        f"{' '.join(before)}\t{' '.join(words)}",
        " ".join(rest),
        "" if turn is None else turn.line(),
    ]
    return "\n".join(lines).rstrip("\n")


def _glimpse(item: PendingText, turn: SpokenTurn | None) -> str:
    """Return what a window shows before the step's own text: of turns the previous one, whole."""
    parent = item.parent
    if parent is None or turn is None or spoken_turn(parent) is None:
        return glimpse_text(parent)
    return own_text(parent)


START_AT = 2_000
"""Steps appended from which it is worth a thread; fewer cost a search little."""


class BackgroundWork:
    """Calls `work` until nothing is left, in a thread that rests as long as each call took.

    It does one batch and returns whether there may be more.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._batch, self._turn = threading.Lock(), threading.Lock()
        self._again = False
        rest_first_at_fork(self)

    def start(self) -> None:
        """Begin; if it is going on already, it looks once more before it ends."""
        with self._turn:
            self._again = True
            # After a fork the child holds a thread that is not alive there, and starts its own.
            if self._thread is not None and self._thread.is_alive():
                return
            self._stopping.clear()
            # No daemon: Python kills those as it ends, in the middle of torch or FAISS itself too.
            self._thread = threading.Thread(target=self._run, name="hybridagi-steps")
            self._thread.start()

    def stop(self) -> None:
        """Wait for the batch at hand, and do no more."""
        with self._turn:
            self._stopping.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # another may have begun one by then, that goes on

    def before_fork(self) -> None:
        """Wait for the batch at hand: a child must not inherit half an import or a taken lock."""
        self._batch.acquire()
        self._turn.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._turn.release()
        self._batch.release()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and threading.main_thread().is_alive():
                with self._batch:
                    self._again, begun = False, time.perf_counter()
                    if not self._work() and self._ended():
                        return
                self._stopping.wait(time.perf_counter() - begun)
        except (StorageBusyError, MemoryClosedError) as error:
            log.debug("indexing in the background is left to others: %s", error)
        except StepsError as error:
            # The next search meets the same error and raises it where somebody sees it.
            log.warning("indexing in the background stopped: %s", error)

    def _ended(self) -> bool:
        """Take leave, so that who begins from now on begins a thread; not if somebody just did."""
        with self._turn:
            if not self._again:
                self._thread = None
            return not self._again
