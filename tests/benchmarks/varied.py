"""Varied steps for measuring what a real memory costs: any number, the same on every machine.

A made-up run follows one of the shipped runs. It says what that one said, whole, or sentences of it
among those of others, always with other numbers and other names in them: words are as common as in
real life, and there is no end of new ones. Few users have most of the runs (Zipf's law), and few
sessions; runs are short, but one in some thousands is very deep; one text in 5,000 is very long.
Metadata have keys of few values, of many, and rare ones. Quality is never measured on these.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_LENGTHS = (3, 5, 8, 8, 12, 24, 40)
"""Of the runs that a hundred steps belong to."""
_DEEP = range(5_000, 7_000)
"""Which of every 100,000 steps are one run."""
_LONG, _LONG_SENTENCES = 4_321, 1_500
"""Which of every 5,000 steps has a result of about 100 KB."""
_WHOLE = 0.7
"""Share of the results that say all that a real one says."""
_USERS, _PROGRAMS = 2_000, 7
_QUERY_WORDS = (1, 2, 3, 3, 5, 8, 12, 20)
_CHOICES = ("yes", "no", "later")
_SYLLABLES = [first + second for first in "bdklmnrstv" for second in "aeiou"]
_NUMBER, _NAME, _WORD = re.compile(r"\d+"), re.compile(r"\b[A-Z][a-z]{3,}\b"), re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?\n,;])\s+")


class _Said(NamedTuple):
    """What one step of a shipped run says."""

    tool: str
    result: str
    sentences: list[str]


class _RealRun(NamedTuple):
    domain: str
    steps: list[_Said]
    sentences: list[str]


class _Run(NamedTuple):
    """What all steps of a made-up run share."""

    first: int
    length: int
    user: str
    session: str
    program: str
    real: _RealRun
    scope: str | None


def varied_steps(count: int, *, first: int = 0) -> Iterator[AgentStep]:
    """Yield steps number `first`, `first` + 1, …; a number always gives the same step."""
    for number in range(first, first + count):
        yield varied_step(number)


def varied_step(number: int) -> AgentStep:
    """Return one step."""
    run, chance = _run(*_run_of(number)), random.Random(number)
    hop = number - run.first
    kind = _kind(hop, run.length, chance)
    said = run.real.steps[hop % len(run.real.steps)]
    inputs, outputs = _values(kind, run, said, chance)
    if number % 5_000 == _LONG and outputs is not None:
        outputs["result"] = _speech(chance, run.real, _LONG_SENTENCES)
    return AgentStep(
        id=_id(number),
        parent_id=_id(number - 1) if hop else None,
        hop=hop,
        step_type=kind,
        inputs=inputs,
        outputs=outputs,
        metadata=_metadata(run, chance),
        created_at=_BEGIN + timedelta(seconds=number * 20 + 1_000 * chance.random()),
        session_id=run.session,
        user_id=run.user,
        run_id=f"run-{run.first}",
        program_id=str(_id(run.first)) if hop else None,
        scope=run.scope,
        status=chance.choices(("ok", "error", "partial", "cancelled"), (90, 7, 2, 1))[0],
        score=round(chance.random(), 2) if chance.random() < 0.3 else None,
    )


def varied_queries() -> Iterator[str]:
    """Yield queries without end, none twice: words in a row, as steps say them."""
    chance, asked = random.Random("queries"), set[str]()
    while True:
        words = _WORD.findall(_varied(" ".join(chance.choices(_sentences(), k=4)), chance))
        begin = chance.randrange(len(words))
        query = " ".join(words[begin : begin + chance.choice(_QUERY_WORDS)])
        if query not in asked:
            asked.add(query)
            yield query


def _id(number: int) -> UUID:
    return UUID(int=number + 1, version=4)


def _run_of(number: int) -> tuple[int, int]:
    """Return the number with which its run begins, and the length of that."""
    if number % 100_000 in _DEEP:
        return number - number % 100_000 + _DEEP.start, len(_DEEP)
    first, lengths = number - number % 100, iter(_LENGTHS)
    while number >= first + (length := next(lengths)):
        first += length
    return first, length


@lru_cache(maxsize=100)
def _run(first: int, length: int) -> _Run:
    chance = random.Random(f"run {first}")
    user = f"user-{_zipf(_USERS, chance)}"
    return _Run(
        first=first,
        length=length,
        user=user,
        session=f"session-{_zipf(first // 50 + 10, chance)}-{user}",
        program=f"agent-{chance.randrange(_PROGRAMS)}",
        real=chance.choices(_real_runs(), [len(run.steps) for run in _real_runs()])[0],
        scope="evaluate:night" if chance.random() < 0.05 else None,
    )


def _zipf(count: int, chance: random.Random) -> int:
    """Return a number below `count`: the larger, the rarer."""
    return int(count ** chance.random()) - 1


def _kind(hop: int, length: int, chance: random.Random) -> AgentStepType:
    if hop == 0:
        return AgentStepType.ProgramCall
    if hop == length - 1:
        return AgentStepType.ProgramEnd
    return AgentStepType.Decision if chance.random() < 0.1 else AgentStepType.Action


def _values(
    kind: AgentStepType, run: _Run, said: _Said, chance: random.Random
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return inputs and outputs."""
    purpose = _speech(chance, run.real, chance.choice((1, 2, 3, 6)))
    if kind is AgentStepType.ProgramCall:
        asked = {"program": run.program, "purpose": purpose, "arguments": {"question": purpose}}
        return asked, None
    if chance.random() < _WHOLE:
        result = _varied(said.result, chance)
    else:
        result = _speech(chance, run.real, chance.choice((2, 4, 8, 16)))
    if kind is AgentStepType.ProgramEnd:
        return {"program": run.program}, {"answer": result}
    if kind is AgentStepType.Decision:
        offered: dict[str, Any] = {"purpose": purpose, "options": [*_CHOICES], "arguments": {}}
        return offered, {"choice": chance.choice(_CHOICES), "reasoning": result}
    query = _speech(chance, run.real, 1)[:60]
    return {"purpose": purpose, "tool": said.tool, "arguments": {"q": query}}, {"result": result}


def _metadata(run: _Run, chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        "domain": run.real.domain,
        "ticket": chance.randrange(5_000),
        "flag": chance.random() < 0.02,
        "weight": round(chance.random(), 3),
    }
    if chance.random() < 0.02:
        found["rare"] = f"value-{chance.randrange(20)}"
    if chance.random() < 0.3:
        where = {"city": chance.choice(("Rome", "Oslo", "Lima")), "floor": chance.randrange(40)}
        found |= {"where": where, "labels": [chance.choice("abcdef"), chance.choice("xyz")]}
    return found


def _speech(chance: random.Random, real: _RealRun, count: int) -> str:
    """Return sentences, half of them of one shipped run, the others of all."""
    said = [chance.choice(chance.choice((real.sentences, _sentences()))) for _ in range(count)]
    return _varied(" ".join(said), chance)


def _varied(text: str, chance: random.Random) -> str:
    """Return a text with other numbers of as many digits, and other names."""

    def number(found: re.Match[str]) -> str:
        digits = len(found[0])
        if digits > 8 or chance.random() > 0.7:
            return found[0]
        return str(chance.randrange(10 ** (digits - 1), 10**digits))

    def name(found: re.Match[str]) -> str:
        if chance.random() > 0.15:
            return found[0]
        return "".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4))).capitalize()

    return _NAME.sub(name, _NUMBER.sub(number, text))


@lru_cache(maxsize=1)
def _real_runs() -> list[_RealRun]:
    runs: dict[str, list[AgentStep]] = {}
    for step in shipped_steps():
        runs.setdefault(str(step.run_id), []).append(step)
    return [_real_run(steps) for steps in runs.values()]


def _real_run(steps: list[AgentStep]) -> _RealRun:
    said: list[_Said] = []
    for step in steps:
        result = str(step.result)
        parts = _SENTENCE_END.split(step.purpose or "") + _SENTENCE_END.split(result)
        sentences = [short for part in parts if 15 < len(short := part.strip()) < 400]
        said.append(_Said(step.tool or "submit", result, sentences))
    everything = [sentence for step in said for sentence in step.sentences]
    domain = str((steps[0].metadata or {}).get("domain"))
    return _RealRun(domain, said, everything or [steps[0].purpose or "done"])


@lru_cache(maxsize=1)
def _sentences() -> list[str]:
    return [sentence for run in _real_runs() for sentence in run.sentences]
