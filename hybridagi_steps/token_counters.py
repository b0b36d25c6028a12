"""How many tokens a text or a message has: exact where a tokenizer is at hand, else an estimate.

A counter's id names its tokenizer, or begins with `estimate:`, and goes wherever its counts go, so
nobody takes an estimate for a count. Nothing is downloaded unless a tokenizer is asked for by
name. What a provider adds around each message is counted as OpenAI documents it; pictures and
other media count a flat figure, which is an estimate with every counter.
"""

from __future__ import annotations

import hashlib
import operator
import os
import re
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, cast

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import InvalidSettingError, MissingExtraError
from hybridagi_steps.protocols import TokenCounter

CounterChoice: TypeAlias = "str | os.PathLike[str] | TokenCounter | Callable[[str], int]"
"""What a token counter may be chosen by; see `token_counter`."""

ESTIMATE = "estimate:"
"""What the id of every counter begins with that does not know."""
MESSAGE_TOKENS = 3
"""What a provider adds to each message.

Reference: OpenAI cookbook, "How to count tokens with tiktoken"."""
_NAME_TOKENS, _CALL_TOKENS = 1, 4
_MEDIA_TOKENS = 1_000
_TEXT_KEYS = ("text", "refusal", "thinking")

_O200K, _CL100K = "o200k_base", "cl100k_base"
_TIKTOKEN_URL = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
_FOLDER = "TIKTOKEN_CACHE_DIR"
_REMEMBERED = 20_000

_EVERY_BYTE = bytes(range(256))
_LETTERS = bytes(b for b in _EVERY_BYTE if chr(b).isalpha() and b < 128)
_DIGITS, _SPACES = b"0123456789", b" \t\r\n"
_ASCII = _EVERY_BYTE[:128]


def _all_but(kept: bytes) -> bytes:
    return bytes(b for b in _EVERY_BYTE if b not in kept)


_WEIGHTS: tuple[tuple[bytes, float], ...] = (
    (_all_but(_LETTERS), 0.27),
    (_all_but(_DIGITS), 0.45),
    (_all_but(_SPACES), 0.30),
    (_ASCII, 0.50),
)
_MARK_WEIGHT = 0.57
_KINDS = bytes(
    68 if 48 <= b < 58 else 76 if 97 <= b < 123 else 85 if 65 <= b < 91 else 32 for b in range(256)
)
"""Of each byte its kind: D a digit, L a small letter, U a capital, a blank anything else."""
_DIGIT_SWITCH, _CAMEL, _CAPITALS, _EMOJI = 0.65, 1.4, 0.45, 0.7
"""What no vocabulary has words for: ids and hashes switch between kinds of letters; emoji."""
_EMOJI_BYTES = re.compile(rb"[\xf0-\xf4]|\xe2[\x98-\x9e]|\xef\xb8\x8f")
"""What U+10000 and all beyond, U+2600 to U+27BF, and U+FE0F begin with, or are."""


def _oddities(data: bytes) -> float:
    """Return the tokens that switches between kinds of letters, capitals and emoji add."""
    kinds = data.translate(_KINDS)
    camel = kinds.count(b"LU")
    switches = sum(map(kinds.count, (b"DL", b"DU", b"LD", b"UD")))
    # Capitals but for the first of each run of them.
    runs = camel + kinds.count(b"DU") + kinds.count(b" U") + kinds.startswith(b"U")
    emoji = len(_EMOJI_BYTES.findall(data.translate(None, _ASCII)))
    capitals = kinds.count(b"U") - runs
    return _DIGIT_SWITCH * switches + _CAMEL * camel + _CAPITALS * capitals + _EMOJI * emoji


class EstimatingCounter:
    """Estimates tokens from the kinds of characters, from above, without any tokenizer.

    Of any thousand tokens (cl100k_base) of the shipped runs it counts at least as many, less 1
    percent, and mostly a fifth more: a budget is kept, though not filled. A single message may be
    off by a third. Ids, hashes, base64 and emoji weigh more.
    """

    counter_id = ESTIMATE + "characters-3"

    def count(self, text: str) -> int:
        """Return about how many tokens a text has; 0 only when it is empty."""
        data = text.encode("utf-8", "replace")
        marks, tokens = len(data), 0.0
        for others, weight in _WEIGHTS:
            found = len(data.translate(None, others))
            marks -= found
            tokens += weight * found
        tokens += _oddities(data)
        return max(1, round(tokens + _MARK_WEIGHT * marks)) if data else 0


class CallableCounter:
    """Any function from a text to its number of tokens."""

    def __init__(self, function: Callable[[str], int], name: str | None = None) -> None:
        """Wrap a function.

        Args:
            function: Returns the number of tokens in a text.
            name: Names the tokenizer and its version; stored counts are told apart by it.
        """
        self._function = function
        self.counter_id = f"callable:{name or getattr(function, '__qualname__', 'unnamed')}"

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        return _checked(self._function(text), self.counter_id)


class TiktokenCounter:
    """OpenAI's own tokenizers, from the package `tiktoken`."""

    def __init__(
        self, encoding: str = _O200K, folder: str | os.PathLike[str] | None = None
    ) -> None:
        """Load an encoding; `tiktoken` downloads it once if it is not on this machine.

        Args:
            encoding: The name of the encoding.
            folder: Where its vocabulary is, which is loaded when something is counted; without it
                now, from wherever tiktoken keeps it.

        Raises:
            MissingExtraError: tiktoken is not installed.
            InvalidSettingError: There is no such encoding, or it cannot be loaded.
        """
        self.counter_id = f"tiktoken:{encoding}"
        self._name, self._folder, self._encoding = encoding, folder, None
        if folder is None:
            self._encoding = self._load()

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        if self._encoding is None:
            self._encoding = self._load()
        return len(self._encoding.encode_ordinary(text))

    def _load(self) -> Any:
        try:
            import tiktoken
        except ImportError as error:
            raise MissingExtraError("Counting tokens with tiktoken", "tiktoken") from error
        try:
            with _cache_folder(self._folder):
                return tiktoken.get_encoding(self._name)
        except (ValueError, OSError) as error:
            raise InvalidSettingError(
                f"tiktoken cannot load the encoding {self._name!r}: {error}. Name a known one, or "
                "set TIKTOKEN_CACHE_DIR to a folder that holds it."
            ) from error


_env_lock = ForkSafeLock()


@contextmanager
def _cache_folder(folder: str | os.PathLike[str] | None) -> Generator[None]:
    """Let tiktoken, which reads it from the environment, look into a folder."""
    if folder is None:
        yield
        return
    with _env_lock:
        before = os.environ.get(_FOLDER)
        os.environ[_FOLDER] = os.fspath(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_FOLDER]
            else:
                os.environ[_FOLDER] = before


class TokenizerFileCounter:
    """A `tokenizer.json` as Hugging Face publishes one with every open model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Load a tokenizer.

        Raises:
            InvalidSettingError: The file is missing, or no tokenizer.
        """
        from tokenizers import Tokenizer

        try:
            data = Path(path).read_bytes()
            self._tokenizer: Any = Tokenizer.from_buffer(data)  # pyright: ignore[reportUnknownMemberType]
        except Exception as error:  # the library raises bare Exceptions
            raise InvalidSettingError(f"{path} is no tokenizer file: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.counter_id = f"tokenizer:{hashlib.sha256(data).hexdigest()[:16]}"

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def token_counter(counter: CounterChoice = "auto") -> TokenCounter:
    """Return a counter.

    Args:
        counter: A counter or a function from text to a number; `estimate`; `tiktoken` or
            `tiktoken:ENCODING`; the path of a `tokenizer.json`; or `auto`: tiktoken if it and its
            vocabulary are on this machine already, as litellm brings them with DSPy, else the
            estimate from above; chosen once a process.

    Raises:
        InvalidSettingError: None of these.
        MissingExtraError: The library it needs is not installed.
    """
    if hasattr(counter, "count") and hasattr(counter, "counter_id"):
        return cast("TokenCounter", counter)
    if callable(counter):
        return CallableCounter(counter)
    if not isinstance(counter, str | os.PathLike):
        raise InvalidSettingError(f"{counter!r} is no token counter.")
    name = os.fspath(counter)
    if name == "auto":
        return process_counter()
    if name == "estimate":
        return EstimatingCounter()
    kind, _, encoding = name.partition(":")
    if kind == "tiktoken":
        return TiktokenCounter(encoding or _O200K)
    return TokenizerFileCounter(name)


def is_estimate(counter: TokenCounter) -> bool:
    """Whether a counter says that it estimates."""
    return counter.counter_id.startswith(ESTIMATE)


class MessageCounter:
    """Counts messages in OpenAI's form, and remembers the texts it has counted."""

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self._known: OrderedDict[bytes, int] = OrderedDict()

    def text(self, text: str) -> int:
        """Return the number of tokens in a text."""
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._known.get(key)
        if known is None:
            counted = self.counter.count(text)
            known = self._known[key] = _checked(counted, self.counter.counter_id)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def message(self, message: dict[str, Any]) -> int:
        """Return the number of tokens in a message, with what a provider adds around it."""
        tokens = MESSAGE_TOKENS + self.content(message.get("content"))
        if name := message.get("name"):
            tokens += _NAME_TOKENS + self.text(str(name))
        for call in message.get("tool_calls") or ():
            function: dict[str, Any] = call.get("function") or {}
            name, arguments = function.get("name"), function.get("arguments")
            tokens += _CALL_TOKENS + self.text(str(name)) + self.text(str(arguments))
        return tokens

    def content(self, content: object) -> int:
        """Return the number of tokens in a message's content: a text, or a list of parts."""
        if isinstance(content, str):
            return self.text(content)
        parts = cast("list[dict[str, Any]]", content or [])
        return sum(self._part(part) for part in parts)

    def _part(self, part: dict[str, Any]) -> int:
        texts = [part[key] for key in _TEXT_KEYS if isinstance(part.get(key), str)]
        return sum(map(self.text, texts)) if texts else _MEDIA_TOKENS


def _checked(counted: Any, counter_id: str) -> int:
    """Return a count as a whole number that is not negative, or refuse it."""
    try:
        number = operator.index(counted)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidSettingError(
            f"the token counter {counter_id} returned {counted!r:.60}; it returns a whole number, "
            "at least 0, such as lambda text: len(text.split())."
        )
    return number


@cache
def process_counter() -> TokenCounter:
    """Choose once: counts of before and after somebody fetched a vocabulary must compare."""
    return _local_tiktoken() or EstimatingCounter()


def _local_tiktoken() -> TokenCounter | None:
    """Return a tiktoken counter whose vocabulary needs no download, not loaded yet.

    cl100k_base counts what newer ones do, or more: so a budget holds for either.
    """
    if find_spec("tiktoken") is None:
        return None
    for encoding in (_CL100K, _O200K):
        url = _TIKTOKEN_URL.format(encoding).encode()
        name = hashlib.sha1(url, usedforsecurity=False).hexdigest()
        for folder in _vocabulary_folders():
            if (folder / name).is_file():
                return TiktokenCounter(encoding, folder)
    return None


def _vocabulary_folders() -> list[Path]:
    """Return where vocabularies may be: tiktoken's own cache, and what litellm ships.

    litellm, which comes with DSPy, is looked for and not imported: that would take seconds.
    """
    own = os.environ.get(_FOLDER) or os.environ.get("DATA_GYM_CACHE_DIR")
    found = [Path(own) if own else Path(tempfile.gettempdir()) / "data-gym-cache"]
    litellm = find_spec("litellm")
    shipped = (litellm.submodule_search_locations if litellm is not None else None) or ()
    return [*found, *(Path(each, "litellm_core_utils", "tokenizers") for each in shipped)]
