"""The two compact texts under which a step is found, and the words in them.

Prompt templates are for prompts. For search a step has its *own* text (what was done and what came
of it) and a *window* text (the same after a glimpse of its parent): the meaning of `own` goes to
the vector index, the words of `window` to the lexical one. The lengths were measured; see the
decision record on hybrid retrieval. A third text, the *whole* one, is cut nowhere: it tells whether
two steps say the same, and the words that only it holds make a step findable without weighing on
its length.

What somebody said is a *spoken turn*: a message of a session, a call of an imported chat, an answer
without a tool. It is searched by another formula: by who speaks, how much is said, whether it asks,
and whether it says when. Time expressions are known in English only; elsewhere that part is absent.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Collection, Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple, cast

import orjson

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.records.agent_step import AgentStep

CHAT = "chat"
"""Name of the program that a conversation is, told as steps."""
SAID_BY = "said_by"
"""Metadata key of what a message tells: who spoke, as `{"purpose": name, "result": name}`."""

_PORTER_PACKAGE = "_porter_of_snowballstemmer"
_PURPOSE, _RESULT, _VALUE, _VALUES = 300, 150, 60, 8
_ASKED = 300
"""Characters of each input of a predictor: those tell its calls apart."""
_SPOKEN = 600
"""Characters of what somebody says in a conversation."""
_PARENT_PURPOSE, _PARENT_RESULT = 100, 80

_CAMEL = re.compile(r"[A-Z](?:(?<=[a-z].)|(?<=[A-Z].)(?=[a-z]))")
"""The first letter of a part of a camelCase word but for its first; nothing looks at small ones."""
_ASCII = bytes(range(128))
_WORDS = re.sub(rb"[^A-Za-z0-9]", b" ", _ASCII).ljust(256)
"""What stands for each byte of a text where only its words are wanted."""
_LOWER_WORDS = _WORDS.lower()
_LETTERS = re.sub(rb"[a-z]", b"a", re.sub(rb"[A-Z]", b"A", _WORDS))
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_])+")
_FOREIGN_WORD = re.compile(rf"[{_CJK}]|\w")
_LONGEST_WORD = 64
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_STEMMED_ENDS = frozenset("cdegilmnrstuy")
_SHORTEST_STEMMED, _MOST_STEMS = 2, 100_000

_ROLES = frozenset({"user", "assistant", "system", "tool", "developer", "function"})

_MONTH_NAMES = "|".join(month.lower() for month in _MONTHS if month != "May")
""""may" is a verb, too."""
_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_PERIODS = "week|weekend|month|year|summer|winter|spring|fall|autumn|night|morning"
_TIME = re.compile(
    r"\b(yesterday|today|tonight|tomorrow|ago|since|recently|months?|(19|20)\d\d"
    rf"|(last|next|this) ({_PERIODS}|{_DAYS}|{_MONTH_NAMES}|may)|{_MONTH_NAMES}|{_DAYS}"
    r"|(in|on|since|of|\d) may|may \d+)\b",
    re.IGNORECASE,
)
_ASKS_WHEN = re.compile(
    r"\s*(when|how long|((in|on|since|at) )?(what|which) (year|month|date|day|time))\b",
    re.IGNORECASE,
)

_NAMED = re.compile(r"(\([^()]{,40}\) )?(?P<name>(?![a-z])[^\W\d_][\w.'-]*( [\w.'-]+){,3}): ")
"""How a purpose begins that says who speaks: "Ann Lee: …", a date before it or not."""

_Cut = Callable[[Any, int], str]

STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from further had
    has have having he her here hers him his how i if in into is it its itself just me more most my
    no nor not now of off on once only or other our out over own same she should so some such than
    that the their them then there these they this those through to too under until up us very was
    we were what when where which while who whom why will with would you your aren couldn d didn
    doesn don hadn hasn haven isn ll m re s shouldn t ve wasn weren won wouldn""".split()  # noqa: SIM905 - a paragraph reads better than a hundred quotes
)
"""English function words: they say nothing about which step is meant."""


def cut(value: object, length: int) -> str:
    """Return `value` as text with white space collapsed, at most `length` characters."""
    text = value if isinstance(value, str) else _plain_text(value)
    return _collapsed(text[: length * 4])[:length]


def own_text(step: AgentStep) -> str:
    """Return what a step did and what came of it, in one line."""
    return _text(step, cut, _VALUES)


def whole_text(step: AgentStep) -> str:
    """Return the same as `own_text` with nothing cut: what two equal steps have in common."""
    return _text(step, _uncut, None)


def _text(step: AgentStep, cut: _Cut, values: int | None) -> str:
    kind = str(step.step_type)
    inputs, outputs = step.inputs or {}, step.outputs or {}
    if isinstance(speakers := (step.metadata or {}).get(SAID_BY), dict):
        return _dialogue(step, cast("dict[str, Any]", speakers), cut)
    spoken = step.program == CHAT or (kind == "Action" and not step.tool and not step.arguments)
    purpose = cut(step.purpose, _SPOKEN if spoken else _PURPOSE)
    outcome = _outcome(step, cut, _SPOKEN if spoken else _RESULT)
    given = _ASKED if step.predictor else _VALUE
    if tool := step.tool:
        called = f"{_words(tool)} ({_pairs(step.arguments, cut, _VALUE, values)})"
        return f"{purpose} | {called} -> {outcome}"
    if kind == "Decision":
        options, choice = cut(inputs.get("options", ""), _RESULT), outputs.get("choice")
        asked = f" ({_pairs(step.arguments, cut, given, values)})" if step.arguments else ""
        return f"{purpose} | {options}{asked} -> {cut(choice, _RESULT)}"
    if kind == "ProgramEnd" and spoken:
        return f"{purpose} -> {outcome}"
    if kind in ("ProgramCall", "ProgramEnd"):
        told, ends = _words(step.program or ""), kind == "ProgramEnd"
        if step.arguments or not ends:
            told += f" ({_pairs(step.arguments, cut, _PURPOSE, values)})"
        told += f" -> {outcome}" if ends else ""
        # A program's purpose is the same in every call: arguments, where there are any, tell more.
        # Only the whole text has both.
        told_by_arguments = step.arguments and values is not None
        return told if told_by_arguments or not purpose else f"{purpose} | {told}"
    return f"{purpose} | {_pairs(step.arguments, cut, given, values)} -> {outcome}"


def glimpse_text(parent: AgentStep | None) -> str:
    """Return what a window shows of a step's parent; nothing without one."""
    if parent is None:
        return ""
    done = _words(parent.tool or parent.program or "")
    outcome = cut(_outcome(parent, cut), _PARENT_RESULT)
    return f"{cut(parent.purpose, _PARENT_PURPOSE)} | {done} -> {outcome} || "


def tokens(text: str) -> list[str]:
    """Return the stems of the words in `text`, in order, without stop words.

    camelCase and snake_case are split, everything is lower case, Chinese, Japanese and Korean
    characters stand alone. Reference: Porter 1980, "An algorithm for suffix stripping".
    """
    return stems(lower_words(text))


def lower_words(text: str) -> list[str]:
    """Return the words in `text` in lower case, in order, as `tokens` finds them."""
    return _written(text, lower=True)


def stems(words: Iterable[str]) -> list[str]:
    """Return the stems of words in lower case, in order; stop words have none."""
    return [*filter(None, map(_stems.__getitem__, words))]


def written_words(text: str) -> dict[str, str]:
    """Return the stems of the words in `text`, each with the first word of it as it is written."""
    found: dict[str, str] = {}
    for word in _written(text, lower=False):
        for stem in stems((word.lower(),)) if word.isascii() else tokens(word):
            found.setdefault(stem, word)
    return found


def holds_word(text: str, word: str) -> bool:
    """Whether a word stands in a text as it is; a pattern made of it would take longer to make."""
    end = 0
    while (start := text.find(word, end)) >= 0:
        end = start + len(word)
        if not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum()):
            return True
    return False


def stems_held(text: str, stems: Collection[str]) -> set[str]:
    """Return those of `stems` that `tokens(text)` has; sooner, since it stems few words."""
    lower = _normal(text).lower()
    # A word begins with its stem, whose last letter alone may be another: "happi" of "happy".
    begin = tuple({stem[: max(1, len(stem) - 1)] for stem in stems if stem[:-1] in lower})
    if not begin:
        return set()
    words = {word for word in lower_words(text) if word.startswith(begin)}
    return {*map(_stems.__getitem__, words)} & set(stems)


def text_hash(text: str) -> int:
    """Return a signed 64-bit hash of `text`, blind to case and white space."""
    normal = _collapsed(_normal(text).lower())
    digest = hashlib.blake2b(normal.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _written(text: str, *, lower: bool) -> list[str]:
    """Return the words in a text as they are written, or in lower case."""
    if not text.isascii():
        text = ascii_words(_normal(text))
    if text.isascii():  # as nearly all are: found in a tenth of the time
        letters, first, parts = text.encode(), 0, list[bytes]()
        # As _CAMEL has it: a capital behind a small letter, or between a capital and a small one.
        kinds = letters.translate(_LETTERS).replace(b"AAa", b"A#a").replace(b"aA", b"a#")
        while (at := kinds.find(b"#", first + 1)) > 0:
            parts.append(letters[first:at])
            first = at
        letters = b" ".join((*parts, letters[first:])) if parts else letters
        return letters.translate(_LOWER_WORDS if lower else _WORDS).decode().split()
    text = _CAMEL.sub(r" \g<0>", text)
    return _WORD.findall(text.lower() if lower else text)


def ascii_words(text: str) -> str:
    """Return a text in ASCII that has the same words, if only what parts words is not."""
    foreign = text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    if _FOREIGN_WORD.search(foreign.decode("utf-8", "surrogatepass")):
        return text
    return text.encode("ascii", "replace").decode()


def _normal(text: str) -> str:
    """Return text in the one form in which equal characters are equal."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


class _Stems(dict[str, str]):
    """The stems of words, made when first asked for; a stop word has none.

    A dictionary is asked without a call, in half the time of `lru_cache`.
    """

    def __missing__(self, word: str) -> str:
        if len(self) >= _MOST_STEMS:
            self.clear()
        stem = self[word] = "" if word in STOP_WORDS else _stem(word[:_LONGEST_WORD])
        return stem


def _stem(word: str) -> str:
    # Porter leaves words of two letters alone, this implementation does not: `ls` is no plural.
    # No rule looks at words that end otherwise, as nearly all ids and numbers do.
    if len(word) <= _SHORTEST_STEMMED or word[-1] not in _STEMMED_ENDS:
        return word
    return _stemmers.porter.stemWord(word)  # "" of the "s" in "Ann's"


@cache
def _porter() -> Callable[[], Any]:
    """Return snowballstemmer's Porter alone: importing the package imports thirty languages."""
    spec = find_spec("snowballstemmer")
    package = ModuleType(_PORTER_PACKAGE)
    package.__path__ = (spec and spec.submodule_search_locations) or []
    sys.modules[_PORTER_PACKAGE] = package
    return import_module(f"{_PORTER_PACKAGE}.porter_stemmer").PorterStemmer


class _Stemmers(threading.local):
    """A stemmer for each thread: one holds the word it works on, and two would mix theirs."""

    @cached_property
    def porter(self) -> Any:
        return _porter()()


_stems, _stemmers = _Stems(), _Stemmers()


def _words(name: str) -> str:
    return cut(name.replace("_", " "), _PURPOSE)


def _pairs(values: dict[str, Any], cut: _Cut, length: int, most: int | None) -> str:
    first = list(values.items())[:most]
    return ", ".join(f"{key}={cut(value, length)}" for key, value in first)


def _outcome(step: AgentStep, cut: _Cut, length: int = _RESULT) -> str:
    outputs = step.outputs or {}
    if step.result is not None:
        return cut(step.result, length)
    if len(outputs) == 1:
        return cut(next(iter(outputs.values())), length)
    return cut(_pairs(outputs, cut, length, None), length)


def _dialogue(step: AgentStep, speakers: dict[str, Any], cut: _Cut) -> str:
    """Return what was said as a script has it, with the day: when is a question people ask."""
    made = step.created_at
    said = {"purpose": step.purpose, "result": step.result}
    lines = (
        f"{speakers[part]}: {cut(text, _SPOKEN)}"
        for part, text in said.items()
        if speakers.get(part) and text
    )
    return f"({made.day} {_MONTHS[made.month - 1]} {made.year}) {' '.join(lines)}"


def _uncut(value: object, _: int) -> str:
    return _collapsed(value if isinstance(value, str) else _plain_text(value))


def _collapsed(text: str) -> str:
    """Return text with one blank for all white space in a row; as nearly every text is already."""
    if "  " in text or not text.isprintable() or text[:1] == " " or text[-1:] == " ":
        return " ".join(text.split())
    return text


def _plain_text(value: object) -> str:
    if value is None:
        return ""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        return str(value)


class SpokenTurn(NamedTuple):
    """What counts of a spoken turn besides its words."""

    session: int
    """Hash of what it belongs to: its session, else its run."""
    length: int
    """Words."""
    asks: bool
    """Whether it ends in a question mark."""
    dated: bool
    """Whether it has an English time expression."""
    exchange: bool
    """Whether it is a question together with its answer: two turns in one."""
    speaker: str
    """Stems of the speakers' names, with blanks between; empty for mere roles."""

    def line(self) -> str:
        """Return it as a line that `of_line` reads."""
        flags = f"{'?' * self.asks}{'@' * self.dated}{'+' * self.exchange}" or "-"
        return f"{self.session} {self.length} {flags} {self.speaker}".rstrip()

    @classmethod
    def of_line(cls, line: str) -> SpokenTurn:
        """Read what `line` wrote."""
        session, length, flags, *speaker = line.split(" ", 3)
        known = ("?" in flags, "@" in flags, "+" in flags)
        return cls(int(session), int(length), *known, "".join(speaker))


def spoken_turn(step: AgentStep) -> SpokenTurn | None:
    """Return what counts of a step that is a spoken turn; None for any other."""
    metadata = step.metadata or {}
    speakers: Any = metadata.get(SAID_BY)
    if not isinstance(speakers, dict) and (step.tool or not _is_chat(step)):
        return None
    names: list[Any] = list(speakers.values()) if isinstance(speakers, dict) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not names and (named := _NAMED.match(step.purpose)) is not None:
        names = [named["name"]]
    answer = step.result if isinstance(step.result, str) else ""
    said = f"{step.purpose} {answer}" if SAID_BY in metadata else answer or step.purpose
    called = [name for name in names if isinstance(name, str) and name.lower() not in _ROLES]
    return SpokenTurn(
        session=text_hash(str(step.session_id or step.run_id or step.id)),
        length=len(said.split()),
        asks=said.rstrip().endswith("?"),
        dated=says_when(said),
        exchange=bool(step.purpose.strip() and answer),
        speaker=" ".join(dict.fromkeys(tokens(" ".join(called)))),
    )


def says_when(text: str) -> bool:
    """Whether an English text has a time expression."""
    return _TIME.search(text) is not None


def asks_when(text: str) -> bool:
    """Whether an English question asks for a time."""
    return _ASKS_WHEN.match(text) is not None


def _is_chat(step: AgentStep) -> bool:
    """Whether a step without a tool says something: in an imported chat, or as a plain answer."""
    kind = str(step.step_type)
    plain = kind == "Action" and not step.arguments and isinstance(step.result or "", str)
    return step.program == CHAT or (plain and bool(step.result or step.purpose))
