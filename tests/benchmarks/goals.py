"""The goals of "fast at a million steps, cheap per turn": what each was, and where it stands.

Everything is read from the JSON that the measurements returned; nothing is measured here. A goal
has one or several figures, and is reached when all of them are. Times are wall times at the median
unless something else is said. What was not measured, or not reached, says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.peers import OURS, OURS_AWAITED, TALKERS
from tests.benchmarks.scaling_process import (
    ADD_AND_SEARCH,
    ANOTHER,
    BESIDE,
    CONTEXT,
    EIGHT,
    FIRST_BY,
    IN_TURN,
    RECALL,
    SEARCH,
)
from tests.benchmarks.scaling_tables import BYTES, NO_CACHE, TURN, WHOLE
from tests.benchmarks.tables import markdown, number

Results = Mapping[str, Any]
Read = Callable[[Results], float | None]

_HUNDRED, _MILLION = "100000", "1000000"
_QDRANT = ("search", "peers", "sizes", _HUNDRED, "peers", "Qdrant Edge", "filtered_in_turn")
_OURS = (*_QDRANT[:-2], OURS, _QDRANT[-1])


@dataclass(frozen=True)
class Figure:
    """One number that was to be reached."""

    limit: float
    read: Read
    unit: str = "ms"
    at_least: bool = False
    digits: int = 1
    named: Callable[[Results], str] | None = None
    """Says what it is that was measured, where that is one of several."""

    def goal(self) -> str:
        """Return what was to be reached, in words."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:,g} {self.unit}"

    def shown(self, results: Results) -> str:
        """Return what was measured, in words."""
        value = self.read(results)
        if value is None:
            return "not measured"
        which = f" ({self.named(results)})" if self.named else ""
        return f"{number(value, self.digits)} {self.unit}{which}"

    def reached(self, results: Results) -> bool | None:
        """Return whether it was reached; None if it was not measured."""
        if (value := self.read(results)) is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Goal:
    """Something that was to be reached, and the command that measures it."""

    what: str
    command: str
    figures: Sequence[Figure]

    def row(self, results: Results) -> list[str]:
        """Return what, goal, measured, whether it was reached, and the command."""
        each = [figure.reached(results) for figure in self.figures]
        missed = len([one for one in each if one is False])
        every = f"**no**: {missed} of {len(each)}" if len(each) > 1 else "**no**"
        return [
            self.what,
            "; ".join(figure.goal() for figure in self.figures),
            "; ".join(figure.shown(results) for figure in self.figures),
            every if missed else "-" if None in each else "yes",
            f"`{self.command}`",
        ]


def at(*path: str, times: float = 1.0) -> Read:
    """Return a reader of one number, which is None where a step of the path is missing."""

    def read(results: Results) -> float | None:
        value: Any = results
        for key in path:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]  # pyright: ignore[reportUnknownVariableType]
        return None if value is None else float(value) * times  # pyright: ignore[reportUnknownArgumentType]

    return read


def _of(first: Read, *others: Read, by: Callable[[list[float]], float]) -> Read:
    """Return a reader of several numbers as one, which is None where one is missing."""

    def read(results: Results) -> float | None:
        found = [each(results) for each in (first, *others)]
        known = [value for value in found if value is not None]
        return by(known) if len(known) == len(found) else None

    return read


def _share(first: Read, second: Read) -> Read:
    return _of(first, second, by=lambda found: found[0] / found[1])


def _step(size: str, what: str, key: str = "p50_ms") -> Read:
    return at("scaling", "steps", size, what, key)


def _slowest(results: Results, size: str, what: str) -> tuple[float, str] | None:
    """Return the median of the slowest of the rows that are called so but for a name, and it."""
    begin, _, end = what.partition("{}")
    rows = results.get("scaling", {}).get("steps", {}).get(size, {})
    named = [name for name in rows if name.startswith(begin) and name.endswith(end)]
    each = [(rows[row]["p50_ms"], row.removeprefix(begin).removesuffix(end)) for row in named]
    return max(each, default=None)


def _slowest_filter(limit: float, what: str) -> Figure:
    def read(results: Results) -> float | None:
        found = _slowest(results, _MILLION, what)
        return found and found[0]

    def named(results: Results) -> str:
        found = _slowest(results, _MILLION, what)
        return found[1] if found else ""

    return Figure(limit, read, named=named)


def _words(size: str) -> Goal:
    ours, theirs = (("scaling", "words", size, name) for name in ("ours", "tantivy"))
    return Goal(
        f"words, the best 50 of {int(size):,}, beside tantivy: time, memory after 200 searches",
        "scaling",
        (
            Figure(1.5, _share(at(*ours, "ms"), at(*theirs, "ms")), "x", digits=2),
            Figure(3, _share(at(*ours, "resident_mb"), at(*theirs, "resident_mb")), "x", digits=2),
        ),
    )


def _turn(length: str, limit: float) -> Goal:
    def beside(name: str) -> Read:
        return at("scaling", "turns", length, name, "cpu_ratio")

    return Goal(
        f"message through StepRunner at {int(length):,} messages, plain callable, CPU; "
        "others, in units of ours",
        "scaling",
        (
            Figure(limit, at("scaling", "messages", length, TURN, "cpu_ms"), digits=2),
            *(
                Figure(1, beside(peer.name), f"x ({peer.name})", at_least=True, digits=2)
                for peer in TALKERS
                if not peer.name.startswith(OURS)
            ),
        ),
    )


def _awaited_turn() -> Goal:
    def took(name: str) -> Read:
        return at("scaling", "turns", "2", name, "cpu_ms")

    theirs = "OpenAI Agents SQLiteSession"
    beside = _share(took(theirs), took(OURS_AWAITED))
    return Goal(
        "the same at 2 messages with a coroutine function, as a model is there",
        "scaling",
        (Figure(1, beside, f"x ({theirs})", at_least=True, digits=2),),
    )


def _served(kind: str, rate: float, delay: float) -> Goal:
    return Goal(
        f"HTTP, 8 clients: {kind}, and p99",
        "http",
        (
            Figure(rate, at("http", kind, "ours", "per_second"), "/s", at_least=True, digits=0),
            Figure(delay, at("http", kind, "ours", "p99_ms"), digits=0),
        ),
    )


def _context(size: str, limit: float) -> Goal:
    what = f"context of {int(size):,} messages, with what is recalled"
    return Goal(
        what, "scaling", (Figure(limit, at("scaling", "messages", size, RECALL, "p50_ms")),)
    )


def _in_turn(size: str, limit: float, one: str, eight: str) -> Goal:
    share = _share(
        at("scaling", "messages", size, eight, "cpu_ms"),
        at("scaling", "messages", size, one, "cpu_ms"),
    )
    recalled = " with what is recalled" if one == BESIDE else ""
    what = f"contexts of {int(size):,} messages{recalled}, eight sessions in turn beside one, CPU"
    return Goal(what, "scaling", (Figure(limit, share, "x", digits=2),))


def _hybrid(size: str, p50: float, p99: float) -> Goal:
    return Goal(
        f"hybrid search of {int(size):,} steps, p50 and p99",
        "scaling",
        (
            Figure(p50, _step(size, "search, hybrid")),
            Figure(p99, _step(size, "search, hybrid", "p99_ms")),
        ),
    )


def _served_at(size: str) -> Read:
    return at("postgres_scaling", "steps", size, ADD_AND_SEARCH, "p50_ms")


def _streaming() -> Goal:
    found = ("scaling", "streaming")
    piece, bare = (
        at(*found, "piece_us", name) for name in ("message through StepRunner", "called alone")
    )
    return Goal(
        "streaming Predict through StepRunner, 55 pieces, CPU above the bare call; a piece more",
        "scaling",
        (
            Figure(5, at(*found, "over_bare", "55", "cpu_us", times=1e-3)),
            Figure(30, _of(piece, bare, by=lambda each: each[0] - each[1]), "µs"),
        ),
    )


GOALS = (
    _hybrid(_HUNDRED, 5, 12),
    _hybrid(_MILLION, 20, 60),
    _words(_HUNDRED),
    _words(_MILLION),
    Goal(
        "the slowest single filter at 1,000,000, and the first of a process",
        "scaling",
        (_slowest_filter(75, ANOTHER), _slowest_filter(100, FIRST_BY)),
    ),
    Goal(
        "another 1 % with each query at 100,000: Qdrant Edge in units of ours, and our recall",
        "search",
        (
            Figure(1, at(*_QDRANT, "wall_ratio"), "x", at_least=True, digits=2),
            Figure(0.9995, at(*_OURS, "recall"), "recall", at_least=True, digits=4),
        ),
    ),
    Goal(
        "delete one, then search, at 1,000,000, beside the search alone, CPU",
        "scaling",
        (
            Figure(
                1.3,
                _share(
                    _step(_MILLION, "search after a delete", "cpu_ms"),
                    _step(_MILLION, "search, hybrid", "cpu_ms"),
                ),
                "x",
                digits=2,
            ),
        ),
    ),
    Goal(
        "first search after the first add of a process at 100,000, beside the next seven, CPU",
        "scaling",
        (
            Figure(
                1.5,
                _share(
                    _step(_HUNDRED, "search after the first add", "cpu_ms"),
                    _step(_HUNDRED, "search after the first add", "later_cpu_ms"),
                ),
                "x",
                digits=2,
            ),
        ),
    ),
    Goal(
        "`hybridagi-steps search`, whole process, at 100,000 and 1,000,000",
        "scaling",
        (
            Figure(
                0.5, at("scaling", "steps", _HUNDRED, WHOLE, "p50_ms", times=1e-3), "s", digits=2
            ),
            Figure(1, at("scaling", "steps", _MILLION, WHOLE, "p50_ms", times=1e-3), "s", digits=2),
        ),
    ),
    Goal(
        "open and first search at 1,000,000; without a cache at 100,000, and resident",
        "scaling",
        (
            Figure(
                0.6, at("scaling", "steps", _MILLION, SEARCH, "p50_ms", times=1e-3), "s", digits=2
            ),
            Figure(3, at("scaling", "steps", _HUNDRED, NO_CACHE, "p50_ms", times=1e-3), "s"),
            Figure(300, _step(_HUNDRED, NO_CACHE, "rss_mb"), "MB", digits=0),
        ),
    ),
    Goal(
        "`stats()`, and `flush()` with nothing pending, at 100,000",
        "scaling",
        (
            Figure(2, _step(_HUNDRED, "`stats()`"), digits=2),
            Figure(2, _step(_HUNDRED, "`flush()`, nothing pending"), digits=2),
        ),
    ),
    Goal(
        "indexing a step: words and embedding, CPU",
        "write",
        (
            Figure(
                250,
                _of(
                    at("write", "drain", "words", "cpu_us"),
                    at("write", "drain", "embeddings", "cpu_us"),
                    by=sum,
                ),
                "µs",
                digits=0,
            ),
        ),
    ),
    Goal(
        "disk per byte of payload: 100,000 steps with index; an imported chat of 2,000 messages",
        "scaling",
        (
            Figure(4, _step(_HUNDRED, BYTES, "times"), "x", digits=2),
            Figure(8, at("scaling", "imported", "2000", "times"), "x", digits=2),
        ),
    ),
    _turn("2", 3),
    _turn("100", 4),
    _turn("1000", 8),
    _awaited_turn(),
    _streaming(),
    _context("1000", 5),
    _context("10000", 20),
    _in_turn("1000", 1.2, CONTEXT, EIGHT),
    _in_turn("10000", 1.3, BESIDE, IN_TURN),
    _served("search", 300, 40),
    _served("chat", 100, 120),
    Goal(
        "PostgreSQL at 100,000: add one and search, beside 10,000; open with a local cache",
        "postgres_scaling",
        (
            Figure(20, _served_at(_HUNDRED)),
            Figure(1.5, _share(_served_at(_HUNDRED), _served_at("10000")), "x", digits=2),
            Figure(
                1,
                at("postgres_scaling", "steps", _HUNDRED, SEARCH, "p50_ms", times=1e-3),
                "s",
                digits=2,
            ),
        ),
    ),
    Goal(
        "batch of 1,000 beside sqlite3 by hand, CPU: of ready text; with its JSON made, ids unique",
        "write",
        (
            Figure(1.5, at("write", "batch", "cpu_ratio"), "x", digits=2),
            Figure(1.5, at("write", "batch_encoded", "cpu_ratio"), "x", digits=2),
        ),
    ),
)
"""What was to be reached, in the order in which it was written down."""


def goals(results: Results) -> str:
    """Return the table of goals beside what was measured, as Markdown."""
    heads = ["what", "goal", "measured", "reached", "`python -m tests.benchmarks …`"]
    return markdown(heads, [goal.row(results) for goal in GOALS])
