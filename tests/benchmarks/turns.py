"""What a turn of a conversation costs: one message to its answer, and an answer in pieces.

Turns: a function stands in a model's place, ours and others' beside it in turns, at the same
settings of SQLite. A plain one runs in a thread; one that is awaited, as the model of OpenAI Agents
is, needs none. Each length is measured in sessions that have so many messages when they begin;
the first turn of a session, which reads it all, is told apart from the few that follow. Others send
all of a session to a model, ours what fits into 8,000 tokens unless told otherwise: both are there.
Streams: a scripted model speaks in pieces through `dspy.Predict`, called alone, called as
`dspy.streamify` does, and as a message of StepRunner. No network is asked.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import dspy
import numpy as np

import hybridagi_steps as hs
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.testing import scripted_lm
from tests.benchmarks.conditions import conditions, counts
from tests.benchmarks.corpus import spoken
from tests.benchmarks.peers import (
    NOT_INSTALLED,
    OURS,
    OURS_AWAITED,
    TALKERS,
    Peer,
    Talker,
    answered,
    check_names,
    chosen,
)
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import Sample, Samples, excess, interleaved, ratio, typical

LENGTHS = "2,100,1000"
PIECES, MORE_PIECES = 55, 550
BARE, STREAMED, RUN = "called alone", "called as a stream", "message through StepRunner"
_TURNS, _GROWTH = 5, 100
"""A session has a few turns after its first, or one for so many messages: it hardly grows."""
_MESSAGE = "And the next one?"
_QA = "question -> answer"
_PIECE = 6
"""Characters of a piece of a scripted model."""
_MARKS = len("[[ ## answer ## ]]\n") + len("\n\n[[ ## completed ## ]]\n")


def report(json_output: bool = False, **options: Any) -> None:
    """Print what a turn costs; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(tables(result), result)


def measure(lengths: str = LENGTHS, rounds: int = 60, peers: str = "all") -> dict[str, Any]:
    """Return milliseconds of a message at each length of its session, and of a stream's pieces.

    Args:
        lengths: Numbers of messages a session has before, with commas between them.
        rounds: How often each is measured.
        peers: Whom to measure beside us: all, none, or how their names begin.
    """
    check_names(peers)
    who = chosen(TALKERS, peers)
    return {
        **conditions(lengths=lengths, rounds=rounds, peers=peers),
        "talkers": {peer.name: peer.version() for peer in who},
        "turns": {str(length): turns(length, rounds, who) for length in counts(lengths)},
        "streaming": streaming(rounds),
    }


def turns(length: int, rounds: int, peers: Sequence[Peer]) -> dict[str, Any]:
    """Return what a turn takes of each in a session of so many messages."""
    found: dict[str, Any] = {
        peer.name: {"missing": NOT_INSTALLED} for peer in peers if peer.load() is None
    }
    said = spoken(length)
    with _opened(peers) as opened:
        samples: Samples = {name: [] for name in opened}
        firsts: Samples = {name: [] for name in opened}
        each = min(max(_TURNS, length // _GROWTH), rounds)
        for session in (f"session-{n}" for n in range(-(-rounds // each))):
            for talker in opened.values():
                talker.begin(session, said)
            answers: dict[str, list[str]] = {name: [] for name in opened}
            rivals: dict[str, Callable[[], object]] = {
                name: partial(_turn, talker, session, answers[name])
                for name, talker in opened.items()
            }
            for name, taken in interleaved(rivals, 1 + each, warm_up=0).items():
                firsts[name] += taken[:1]
                samples[name] += taken[1:]
                _check(answers[name], length, whole=name not in (OURS, OURS_AWAITED))
        settings = {name: talker.settings for name, talker in opened.items()}
    for name, taken in samples.items():
        found[name] = {
            **_times(taken),
            "first_cpu_ms": typical(firsts[name], "cpu") / 1e3,
            "cpu_ratio": ratio(taken, samples[OURS], "cpu"),
            "settings": settings[name],
        }
    return {peer.name: found[peer.name] for peer in peers}


@contextmanager
def _opened(peers: Sequence[Peer]) -> Generator[dict[str, Talker]]:
    with ExitStack() as stack:
        opened: dict[str, Talker] = {}
        for peer in peers:
            if (adapter := peer.load()) is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                opened[peer.name] = adapter(folder)
                stack.callback(opened[peer.name].close)
        yield opened


def _turn(talker: Talker, session: str, answers: list[str]) -> None:
    answers.append(talker.turn(session, _MESSAGE))


def _check(answers: Sequence[str], length: int, *, whole: bool) -> None:
    """See that what was said before was sent with each message: all, or what there was room for."""
    told = [answered(most) for most in range(length + 2 * len(answers))]
    wanted = told[length + 1 :: 2]
    assert list(answers) == wanted if whole else set(answers) <= {*told}, answers


def _times(samples: Sequence[Sample]) -> dict[str, float]:
    walls = [sample.wall * 1e3 for sample in samples]
    return {
        "p50_ms": float(np.median(walls)),
        "p99_ms": float(np.percentile(walls, 99)),
        "cpu_ms": typical([*samples], "cpu") / 1e3,
    }


def streaming(rounds: int) -> dict[str, Any]:
    """Return what a message takes whose answer comes in pieces, beside the calls below it."""
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as loop:
        memory = StepMemory(Path(name) / "steps.db", embedder="hashing", durability="normal")
        with memory:
            predict = dspy.Predict(_QA)
            runner, sessions = hs.StepRunner(predict, memory), count()
            rivals: dict[str, Callable[[], object]] = {}
            for pieces in (PIECES, MORE_PIECES):
                lm = scripted_lm({"answer": _said(pieces)})

                def asked(call: Callable[[], Any], lm: Any = lm) -> Callable[[], object]:
                    async def within() -> None:
                        with dspy.context(lm=lm):
                            await call()

                    return lambda: loop.run(within())

                rivals[f"{BARE} {pieces}"] = asked(lambda: predict.acall(question=_MESSAGE))
                rivals[f"{STREAMED} {pieces}"] = asked(lambda p=pieces: _streamed(predict, p))
                rivals[f"{RUN} {pieces}"] = asked(
                    lambda p=pieces: _run(runner, f"session-{next(sessions)}", p)
                )
            samples = interleaved(rivals, rounds, warm_up=2)
    return {
        "pieces": PIECES,
        "more_pieces": MORE_PIECES,
        "times": {name: _times(taken) for name, taken in samples.items()},
        **{
            f"over_{key}": {
                str(pieces): excess(samples[f"{RUN} {pieces}"], samples[f"{name} {pieces}"])
                for pieces in (PIECES, MORE_PIECES)
            }
            for key, name in (("bare", BARE), ("streamed", STREAMED))
        },
        "piece_us": {
            name: _per_piece(samples[f"{name} {PIECES}"], samples[f"{name} {MORE_PIECES}"])
            for name in (BARE, STREAMED, RUN)
        },
    }


def _per_piece(few: list[Sample], many: list[Sample]) -> float:
    """Return the CPU of one more piece, in microseconds."""
    return excess(many, few, per=MORE_PIECES - PIECES)["cpu_us"]


def _said(pieces: int) -> str:
    """Return an answer that makes, with the marks around it, so many pieces."""
    return ("to be, or not; " * pieces)[: pieces * _PIECE - _MARKS]


async def _streamed(predict: Any, pieces: int) -> None:
    chunks = 0
    async for chunk in dspy.streamify(predict, is_async_program=True)(question=_MESSAGE):
        chunks += not isinstance(chunk, dspy.Prediction)
    assert chunks >= pieces


async def _run(runner: hs.StepRunner, session: str, pieces: int) -> None:
    said = 0
    async for event in runner.run_stream(session, _MESSAGE):
        if event.type is StepEventType.STEP_DELTA and event.delta is not None:
            said += len(event.delta.content or "")
    assert said == len(_said(pieces))


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Return a table of turns, and one of streams."""
    rows = [
        [f"{int(length):,} messages", name, *_cells(row)]
        for length, found in result["turns"].items()
        for name, row in found.items()
    ]
    settings = {
        name: row["settings"]
        for found in result["turns"].values()
        for name, row in found.items()
        if "settings" in row
    }
    heads = ["", "", "CPU ms", "CPU x ours", "p50 ms", "p99 ms", "first turn, CPU ms"]
    notes = [f"{name}: {words}" for name, words in settings.items()]
    notes.append(", ".join(dict.fromkeys(result["talkers"].values())))
    title = "one message in a session of so many, a function in a model's place"
    return [Table(title, heads, rows, notes), _streams(result["streaming"])]


def _cells(row: dict[str, Any]) -> list[str]:
    if "missing" in row:
        return [str(row["missing"]), *[""] * 4]
    keys = ("cpu_ms", "cpu_ratio", "p50_ms", "p99_ms", "first_cpu_ms")
    return [number(row[key], 2) for key in keys]


def _streams(found: dict[str, Any]) -> Table:
    rows = [
        [
            what,
            *(number(found["times"][f"{what} {found[n]}"]["cpu_ms"], 2) for n in _COLUMNS),
            number(found["piece_us"][what], 1),
        ]
        for what in (BARE, STREAMED, RUN)
    ]
    for key, what in (("bare", "the call alone"), ("streamed", "the call as a stream")):
        above = [found[f"over_{key}"][str(found[n])]["cpu_us"] / 1e3 for n in _COLUMNS]
        piece = found["piece_us"][RUN] - found["piece_us"][BARE if key == "bare" else STREAMED]
        rows.append([f"above {what}", *(number(each, 2) for each in above), number(piece, 1)])
    heads = ["", *(f"{found[n]} pieces, CPU ms" for n in _COLUMNS), "a piece more, CPU µs"]
    return Table("streaming `dspy.Predict`, an answer of so many pieces", heads, rows)


_COLUMNS = ("pieces", "more_pieces")
