"""WordLlama's static token vectors, averaged: the embedder that needs no torch and no network.

It reads the tokenizer and the table from the files inside the installed package `wordllama` and
does the averaging itself; the package's own code is not imported. Importing that code configures
the root logger and loads an HTTP client, and its batches are padded to the longest text, which
takes gigabytes when one text is long. The vectors are the same.

Reference: https://github.com/dleemiller/WordLlama (MIT), model l2_supercat, 256 dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import EmbedderError
from hybridagi_steps.records.store_values import FloatMatrix

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HalfMatrix = npt.NDArray[np.float16]
MAX_CHARS = 32_768
"""What stands beyond is not read: an average over more tokens says nothing more."""
_MODEL = "l2_supercat_256"
_DIMENSION = 256
_FEW_TEXTS = 500
"""Texts from which on the whole table is worth making float32."""
_KINDS = {"F16": "<f2", "F32": "<f4"}
_SPACE = "\u2581"
_SPACED = re.compile(f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+")
_FEW_WORDS = 5_000
"""From so many different ones on the package is worth loading."""
_WORDS = 50_000
_LONGEST_REMEMBERED = 100
"""Characters of a word whose tokens are remembered; so they take no more than some megabytes."""
_LONGEST = 500
"""Characters of a word that is encoded here; what it takes grows with their square."""
_NEVER = 1 << 32
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": _SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
    ],
}
_PAIRS = {
    "type": "BPE",
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "byte_fallback": True,
    "ignore_merges": False,
}


class BytePairs(dict[str, list[int]]):
    """The tokens of texts; of words that were met they stand here, without the space before them.

    The package `tokenizers` does the same, encodes a word in half the time, and takes three times
    as long to read the file. So it is loaded after some thousand words, and for what this leaves to
    it: marks such as `<s>`, very long words, files that ask for anything else.

    Reference: Sennrich, Haddow and Birch 2016, "Neural Machine Translation of Rare Words with
    Subword Units"; of the pairs side by side the one learned first is joined first, the leftmost.

    Args:
        file: What stands in a `tokenizer.json`.
    """

    def __init__(self, file: bytes) -> None:
        told: dict[str, Any] = orjson.loads(file)
        model, merges = told["model"], told["model"]["merges"]
        known = (
            told["pre_tokenizer"] is None
            and told["normalizer"] == _NORMALIZER
            and {key: model.get(key) for key in _PAIRS} == _PAIRS
            and model["vocab"].keys() >= _BYTES
            and isinstance(merges[0], str)
        )
        self._file, self._lock = file, ForkSafeLock()
        self._tokenizer: Tokenizer | None = None
        self._marks: list[str] = [mark["content"] for mark in told["added_tokens"]]
        self._numbers: dict[str, int] = model["vocab"]
        self._ranks: dict[str, int] = {pair: n for n, pair in enumerate(merges)} if known else {}

    def of(self, text: str) -> list[int]:
        """Return the numbers of a text's tokens.

        No token has a space behind another character, so none reaches over the end of a word; but
        spaces side by side may join, and marks are no words.
        """
        if not self._ranks or any(mark in text for mark in self._marks):
            return self.of_package(text)
        words = text.split(" ")
        if not words[0] or "  " in text or _SPACE in text:
            spaced = _SPACED.findall(_SPACE + text.replace(" ", _SPACE)) if text else ()
            words = [word[1:] for word in spaced]
        if max(map(len, words), default=0) > _LONGEST:
            return self.of_package(text)
        return [*chain.from_iterable(map(self.__getitem__, words))]

    def of_package(self, text: str) -> list[int]:
        """Return what the package `tokenizers` gives, which is the same."""
        if self._tokenizer is None:
            with self._lock:  # a fork waits: a child could not end an import
                self._tokenizer = self._tokenizer or self._loaded()
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def __missing__(self, word: str) -> list[int]:
        """Encode a word."""
        if word and (self._tokenizer is not None or len(self) >= _FEW_WORDS):
            tokens = self.of_package(word)
        else:
            tokens = self._joined(_SPACE + word)
        if len(word) <= _LONGEST_REMEMBERED:
            if len(self) >= _WORDS:
                self.clear()
            self[word] = tokens
        return tokens

    def _joined(self, word: str) -> list[int]:
        numbers, rank = self._numbers, self._ranks.get
        parts = [part for char in word for part in ((char,) if char in numbers else _bytes(char))]
        ranks = [*map(rank, map(" ".join, pairwise(parts)), repeat(_NEVER))]
        while ranks and (first := min(ranks)) != _NEVER:
            place = ranks.index(first)
            joined = parts[place] = parts[place] + parts.pop(place + 1)
            del ranks[place]
            if place:
                ranks[place - 1] = rank(f"{parts[place - 1]} {joined}", _NEVER)
            if place < len(ranks):
                ranks[place] = rank(f"{joined} {parts[place + 1]}", _NEVER)
        return [numbers[part] for part in parts]

    def _loaded(self) -> Tokenizer:
        from tokenizers import Tokenizer

        made = Tokenizer.from_str(self._file.decode("utf-8"))
        made.no_padding()
        made.no_truncation()
        return made


def _bytes(char: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in char.encode("utf-8")]


class _Model(NamedTuple):
    model_id: str
    tokens: BytePairs
    half: HalfMatrix
    """One vector per token as the file has it, float16, shape (vocabulary, d)."""


class WordLlamaEmbedder:
    """Embeds a text as the average of its tokens' static vectors, 256 dimensions.

    The model is loaded on first use, once, also with several threads; it works in a forked child.
    Only the first 32,768 characters count. A text without tokens gives the zero vector.
    """

    def __init__(self) -> None:
        self._model: _Model | None = None
        self._table: FloatMatrix | None = None
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
        if self._table is None and self._embedded >= _FEW_TEXTS:
            self._table = self._loaded().half.astype(np.float32)
        return self.embed_queries(texts)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per query, the same as for a document."""
        model = self._loaded()
        table = model.half if self._table is None else self._table
        vectors = np.zeros((len(texts), _DIMENSION), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            # A lone surrogate cannot pass into the tokenizer; one text at a time starts no threads.
            readable = text[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8")
            if tokens := model.tokens.of(readable):
                rows = table.take(tokens, axis=0).astype(np.float32, copy=False)
                np.add.reduce(rows, axis=0, out=vector)
                vector /= len(tokens)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.divide(vectors, lengths, out=vectors, where=lengths > 0)

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the model: it is loaded again where it is needed."""
        return self.__dict__ | {"_model": None, "_table": None}

    def _loaded(self) -> _Model:
        if self._model is None:
            with self._lock:
                if self._model is None:
                    self._model = load_model()
        return self._model


def load_model() -> _Model:
    """Read the model's two files."""
    folder = package_folder()
    try:
        weights = np.fromfile(folder / "weights" / f"{_MODEL}.safetensors", np.uint8)
        vocabulary = (folder / "tokenizers" / "l2_supercat_tokenizer_config.json").read_bytes()
        half = _table(weights).astype(np.float16, copy=False)
        tokens = BytePairs(vocabulary)
    except Exception as error:
        raise EmbedderError(
            f"the WordLlama model in {folder} cannot be read ({error}). "
            "Reinstall it: pip install --force-reinstall --no-deps wordllama"
        ) from error
    digest = sha256(weights.data)
    digest.update(vocabulary)
    return _Model(f"wordllama/{_MODEL}@{digest.hexdigest()[:12]}", tokens, half)


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
