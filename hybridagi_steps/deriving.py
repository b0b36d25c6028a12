"""Computes what is derived from steps, words and embeddings, and saves it behind the watermark.

An append stores one row and nothing else. What a search needs is made up for later, in batches, by
whoever searches or flushes; two processes doing so at once only do the same work twice. A kill in
the middle leaves the rest pending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hybridagi_steps.embedders import checked_vectors
from hybridagi_steps.errors import EmbedderError, StepsError
from hybridagi_steps.protocols import (
    DerivedStore,
    Embedder,
    FloatMatrix,
    PendingText,
    TextRow,
    VectorRow,
)
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.step_text import (
    holds_word,
    own_text,
    stems_held,
    text_hash,
    tokens,
    whole_text,
    window_text,
)

Progress = Callable[[int], None]
"""Told how many more steps are done."""

TEXT_BATCH = 1_000
VECTOR_BATCH = 500
_ALL = 2**31
LONGEST_READ = 20_000
"""Characters of a step whose words are indexed."""


def derive_texts(store: DerivedStore, progress: Progress | None = None) -> int:
    """Index the words of every pending step; return how many there were."""
    return _all_batches(lambda: derive_text_batch(store), progress)


def derive_vectors(
    store: DerivedStore, embedder: Embedder, progress: Progress | None = None
) -> int:
    """Embed every pending step; return how many there were; raise as `derive_vector_batch`."""
    return _all_batches(lambda: derive_vector_batch(store, embedder), progress)


def derive_text_batch(store: DerivedStore) -> int:
    """Index the words of the next pending steps; return how many there were."""
    pending = store.pending_texts(TEXT_BATCH)
    if pending:
        store.save_texts([_text_row(item) for item in pending])
    return len(pending)


def derive_vector_batch(store: DerivedStore, embedder: Embedder) -> int:
    """Embed the next pending steps; return how many there were.

    What the embedder gives for a step and cannot be used (NaN, Inf, zero) leaves that step found by
    words only.

    Raises:
        EmbedderError: The embedder raised; the steps stay pending.
        EmbedderMismatchError: The store was given to another embedder meanwhile.
        DimensionMismatchError: It gives vectors of another length than it says.
    """
    pending = store.pending_vectors(VECTOR_BATCH)
    if pending:
        store.save_vectors(_vector_rows(pending, embedder), model_id=embedder.model_id)
    return len(pending)


def derive_unsaved(
    store: DerivedStore, embedder: Embedder | None
) -> tuple[list[TextRow], list[VectorRow]]:
    """Return words, and embeddings if wanted, of all that is pending, and save nothing."""
    texts = [_text_row(item) for item in store.pending_texts(_ALL)]
    if embedder is None:
        return texts, []
    return texts, _vector_rows(store.pending_vectors(_ALL), embedder)


def _vector_rows(pending: Sequence[tuple[int, AgentStep]], embedder: Embedder) -> list[VectorRow]:
    if not pending:
        return []
    texts = [own_text(step) for _, step in pending]
    distinct = list(dict.fromkeys(texts))
    vectors, usable = embed_documents(embedder, distinct)
    place = {text: number for number, text in enumerate(distinct)}
    rows: list[VectorRow] = []
    for (row, step), text in zip(pending, texts, strict=True):
        number = place[text]
        vector = vectors[number] if usable[number] else None
        rows.append(VectorRow(row, text_hash(text), vector, scoped=step.scope is not None))
    return rows


def _all_batches(batch: Callable[[], int], progress: Progress | None) -> int:
    done = 0
    while count := batch():
        done += count
        if progress is not None:
            progress(count)
    return done


def embed_documents(
    embedder: Embedder, texts: Sequence[str]
) -> tuple[FloatMatrix, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return one vector per text, shape (n, d), and which of them can be used."""
    try:
        found = embedder.embed_documents(texts)
    except StepsError:
        raise
    except Exception as error:
        raise EmbedderError(
            f"embedder {embedder.model_id} failed on {len(texts)} texts: {error}. The steps are "
            'stored; search again once it works, or search with mode="lexical".'
        ) from error
    return checked_vectors(found, len(texts), embedder.dimension)


def own_stems(step: AgentStep, words: Mapping[str, str]) -> set[str]:
    """Return which stems stand in the step itself, not only in the one before it.

    Args:
        step: The step.
        words: Stems, each with a word of it: where that is found as it is, nothing is stemmed.
    """
    text = own_text(step)
    lower = text.lower()
    rest = {stem for stem, word in words.items() if not holds_word(lower, word.lower())}
    if rest:
        rest -= stems_held(text, rest)
    if rest:
        rest -= stems_held(whole_text(step)[:LONGEST_READ], rest)
    return words.keys() - rest


def _text_row(item: PendingText) -> TextRow:
    whole, purpose = whole_text(item.step), item.step.purpose
    return TextRow(
        row=item.row,
        parent_row=item.parent_row,
        tokens=_tokens(window_text(item.step, item.parent), whole),
        text_hash=text_hash(whole),
        purpose_hash=text_hash(purpose) if purpose.strip() else 0,
        scoped=item.step.scope is not None,
    )


def _tokens(window: str, whole: str) -> str:
    """Return the words of the window and, on a second line, those that only the whole text has."""
    words = tokens(window)
    known = set(words)
    rest = dict.fromkeys(word for word in tokens(whole[:LONGEST_READ]) if word not in known)
    return f"{' '.join(words)}\n{' '.join(rest)}" if rest else " ".join(words)
