"""WordLlama's static token vectors, averaged: the embedder that needs no torch and no network.

It reads the tokenizer and the table from the files inside the installed package `wordllama` and
does the averaging itself; the package's own code is not imported. Importing that code configures
the root logger and loads an HTTP client, and its batches are padded to the longest text, which
takes gigabytes when one text is long. The vectors are the same.

Reference: https://github.com/dleemiller/WordLlama (MIT), model l2_supercat, 256 dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from hybridagi_steps._concurrency import ForkSafeLock, cached_property
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.records.store_values import FloatMatrix

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HalfMatrix = npt.NDArray[np.float16]
_loading = ForkSafeLock()
MAX_CHARS = 32_768
"""What stands beyond is not read: an average over more tokens says nothing more."""
_MODEL = "l2_supercat_256"
_TOKENIZER = "l2_supercat_tokenizer_config.json"
_SPACE = "\u2581"
_JOINING = ("  ", _SPACE, "<s>", "</s>", "<unk>")
_WORDS = 50_000
_LONGEST_WORD = 100
"""Characters of a word whose tokens are remembered; so they take no more than some megabytes."""
_DIMENSION = 256
_FEW_TEXTS = 500
"""Texts from which on the whole table is worth making float32."""
_KINDS = {"F16": "<f2", "F32": "<f4"}


class _Tokens(dict[str, list[int]]):
    """The tokens of words, made when first asked for; asked without a call."""

    def __init__(self, made: Callable[[str], list[int]]) -> None:
        self._made = made

    def __missing__(self, word: str) -> list[int]:
        if len(self) >= _WORDS:
            self.clear()
        tokens = self[word] = self._made(word)
        return tokens


@dataclass(frozen=True)
class _Model:
    """A model in memory: one a process, which all embedders share."""

    model_id: str
    tokenizer: Tokenizer
    half: HalfMatrix
    """One vector per token as the file has it, float16, shape (vocabulary, d)."""
    of_words: _Tokens
    """The tokens of words that were met."""
    last_space: list[int]
    """What a space at the end of a text becomes."""

    @cached_property
    def table(self) -> FloatMatrix:
        """The vectors as float32, shape (vocabulary, d): twice the memory, and sums are quicker."""
        return self.half.astype(np.float32)

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text as the tokenizer does, word by word where that is the same.

        No token has a space behind another character, so none reaches over the end of a word; but
        spaces side by side may join, and marks of the tokenizer's own are no words.
        """
        words = text.split(" ")
        if not words[0] or any(part in text for part in _JOINING) or _is_long(words):
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        found = [*chain.from_iterable(map(self.of_words.__getitem__, words))]
        return found if words[-1] else found + self.last_space


class WordLlamaEmbedder:
    """Embeds a text as the average of its tokens' static vectors, 256 dimensions.

    The model is loaded on first use, once a process, also with several threads; it works in a
    forked child.
    Only the first 32,768 characters count. A text without tokens gives the zero vector.
    """

    def __init__(self) -> None:
        self._model: _Model | None = None
        self._embedded = 0
        self._lock = ForkSafeLock()

    @property
    def model_id(self) -> str:
        """Names the model and the content of its files, so that other weights differ."""
        return self._loaded().model_id

    @property
    def dimension(self) -> int:
        """Length of every vector: 256."""
        return _DIMENSION

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per text, shape (n, d), of length one or zero."""
        self._embedded += len(texts)
        return self.embed_queries(texts)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per query, the same as for a document."""
        model = self._loaded()
        table = model.half if self._embedded < _FEW_TEXTS else model.table
        vectors = np.zeros((len(texts), _DIMENSION), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            # A lone surrogate cannot pass into the tokenizer; one text at a time starts no threads.
            readable = text[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8")
            if tokens := model.tokens(readable):
                rows = table.take(tokens, axis=0).astype(np.float32, copy=False)
                np.add.reduce(rows, axis=0, out=vector)
                vector /= len(tokens)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.divide(vectors, lengths, out=vectors, where=lengths > 0)

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the model: it is loaded again where it is needed."""
        return self.__dict__ | {"_model": None}

    def _loaded(self) -> _Model:
        if self._model is None:
            with self._lock:
                if self._model is None:
                    self._model = load_model()
        return self._model


def load_model() -> _Model:
    """Return the model of the installed package, read once for a process while its files stay."""
    folder = package_folder()
    files = (folder / "weights" / f"{_MODEL}.safetensors", folder / "tokenizers" / _TOKENIZER)
    try:
        stamps = [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, files)]
    except OSError:
        stamps = []  # reading says what is wrong
    with _loading:
        return _read(files, tuple(stamps))


@lru_cache(maxsize=1)
def _read(files: tuple[Path, Path], stamps: object) -> _Model:  # noqa: ARG001 - of the key
    """Read the model's two files; `stamps` tell them from others of the same name."""
    from tokenizers import Tokenizer

    try:
        weights = np.fromfile(files[0], np.uint8)
        vocabulary = files[1].read_bytes()
        half = _table(weights).astype(np.float16, copy=False)
        tokenizer = Tokenizer.from_str(vocabulary.decode("utf-8"))
    except Exception as error:
        raise EmbedderError(
            f"the WordLlama model in {files[0].parent.parent} cannot be read ({error}). "
            "Reinstall it: pip install --force-reinstall --no-deps wordllama"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    digest = sha256(weights.data)
    digest.update(vocabulary)
    name = f"wordllama/{_MODEL}@{digest.hexdigest()[:12]}"

    def tokens(word: str) -> list[int]:
        return tokenizer.encode(word, add_special_tokens=False).ids

    return _Model(name, tokenizer, half, _Tokens(tokens), tokens("a ")[1:])


def _is_long(words: Sequence[str]) -> bool:
    return max(map(len, words)) > _LONGEST_WORD


def _table(file: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating[Any]]:
    """Return the table in a safetensors file without copying it, as that package's reader does."""
    start = 8 + int(file[:8].view("<u8")[0])
    described = orjson.loads(file[8:start].tobytes())["embedding.weight"]
    begin, end = described["data_offsets"]
    values = file[start + begin : start + end].view(_KINDS[described["dtype"]])
    return values.reshape(described["shape"])


def package_folder() -> Path:
    """Return where the package's files lie, without importing it."""
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderError("the package wordllama is not installed: pip install wordllama")
    return Path(spec.submodule_search_locations[0])
