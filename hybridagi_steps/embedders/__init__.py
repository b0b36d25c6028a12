"""How text becomes vectors. Each embedder is loaded on first use; this package imports none.

    WordLlamaEmbedder            static vectors from the package wordllama: no torch, no network
    SentenceTransformerEmbedder  transformer models (extra `sentence-transformers`)
    DspyEmbedder                 a dspy.Embedder (hosted models) or any callable
    HashingEmbedder              words and letters only, deterministic, for tests
    CachingEmbedder              wraps another and remembers its vectors

`resolve_embedder` turns a name such as "auto" or "hashing:64" into one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.embedders.caching import CachingEmbedder as CachingEmbedder
    from hybridagi_steps.embedders.dspy_embedder import DspyEmbedder as DspyEmbedder
    from hybridagi_steps.embedders.hashing import HashingEmbedder as HashingEmbedder
    from hybridagi_steps.embedders.resolution import embedder_for as embedder_for
    from hybridagi_steps.embedders.resolution import resolve_embedder as resolve_embedder
    from hybridagi_steps.embedders.sentence_transformer import (
        SentenceTransformerEmbedder as SentenceTransformerEmbedder,
    )
    from hybridagi_steps.embedders.vectors import CheckedVectors as CheckedVectors
    from hybridagi_steps.embedders.vectors import checked_vectors as checked_vectors
    from hybridagi_steps.embedders.wordllama import WordLlamaEmbedder as WordLlamaEmbedder


_NAMES = {
    "caching": "CachingEmbedder",
    "dspy_embedder": "DspyEmbedder",
    "hashing": "HashingEmbedder",
    "resolution": "embedder_for resolve_embedder",
    "sentence_transformer": "SentenceTransformerEmbedder",
    "vectors": "CheckedVectors checked_vectors",
    "wordllama": "WordLlamaEmbedder",
}


__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
