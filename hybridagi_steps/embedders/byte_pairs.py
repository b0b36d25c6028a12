"""Byte pair encoding as the file of a Llama tokenizer describes it, word by word.

The package `tokenizers` does the same, encodes a word in half the time, and takes three times as
long to read the file. So it is loaded after some thousand words, and for what this leaves to it:
marks such as `<s>`, very long words, files that ask for anything else.

Reference: Sennrich, Haddow and Birch 2016, "Neural Machine Translation of Rare Words with Subword
Units"; of the pairs side by side the one learned first is joined first, the leftmost of them.
"""

from __future__ import annotations

import re
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any

import orjson

from hybridagi_steps._concurrency import ForkSafeLock

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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
_MODEL = {
    "type": "BPE",
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "byte_fallback": True,
    "ignore_merges": False,
}


class BytePairs(dict[str, list[int]]):
    """The tokens of texts; of words that were met they stand here, without the space before them.

    Args:
        file: What stands in a `tokenizer.json`.
    """

    def __init__(self, file: bytes) -> None:
        told: dict[str, Any] = orjson.loads(file)
        model, merges = told["model"], told["model"]["merges"]
        known = (
            told["pre_tokenizer"] is None
            and told["normalizer"] == _NORMALIZER
            and {key: model.get(key) for key in _MODEL} == _MODEL
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
