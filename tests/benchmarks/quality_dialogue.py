"""How well turns of conversations are found: as steps, as an imported chat, as session messages.

The same turns go into a memory in the three ways in which people bring them, and the same questions
are asked of each. What counts is turns: a hit stands for every turn whose whole text is in it. Of
the shipped runs Who&When and tau-bench hold conversations. A question there is a sentence of a
later turn with a value in it (an id, a number) blotted out; the earlier turns that name the value
answer it; the turn that asks is left out of the answer.

`mixed_memory` asks once more where one memory holds tools' steps and turns, beside what is found
when each kind has a memory of its own: a turn and a step must compare.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from hybridagi_steps.exchange.importer import import_file
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.parts import json_text
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.excerpts import identifiers
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.records.step_text import text_hash
from tests.benchmarks.quality_evidence import BLOT, plain
from tests.benchmarks.ranking import Values, interval, interval_text, paired
from tests.benchmarks.retrieval_tasks import Half, half_of_runs
from tests.benchmarks.tables import Table, number

CUT = 10
"""Hits that are looked at."""
AS_STEPS, IMPORTED, MESSAGES = "as steps", "as an imported chat", "as session messages"

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_LEAST_VALUE, _LEAST_WORDS, _MOST_CHARACTERS = 4, 4, 300
_DIALOGUES = ("whowhen", "tau")


@dataclass(frozen=True)
class Turn:
    """What somebody said at one place of a conversation."""

    session_id: str
    speaker: str
    text: str
    role: MessageRole
    created_at: datetime

    @property
    def key(self) -> int:
        """What tells turns apart: of equal texts one counts."""
        return text_hash(self.text)

    @property
    def line(self) -> str:
        """The turn as a script has it."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


@dataclass(frozen=True)
class TurnQuestion:
    """A question about conversations whose answer is known."""

    text: str
    session_id: str
    wanted: frozenset[int]
    """Keys of the turns that answer it."""
    asking: int | None = None
    """The turn that asks, which is no answer."""
    kind: str = ""


Kept = Callable[[StepMemory], None]
"""Brings turns into a memory."""


def shipped_turns(steps: Iterable[AgentStep]) -> list[Turn]:
    """Return the conversations in the shipped runs, session by session."""
    turns: list[Turn] = []
    before = ""
    for step in steps:
        source = str(step.run_id).partition("-")[0]
        if source not in _DIALOGUES or (source == "tau" and step.tool != "respond"):
            continue
        asked = (step.metadata or {}).get("last_user") if source == "tau" else None
        first = not turns or turns[-1].session_id != step.run_id
        if source == "whowhen" and first:
            asked = step.purpose
        if isinstance(asked, str) and asked and (first or asked != before):
            before = asked
            turns.append(_turn(turns, step, "user", asked, MessageRole.USER))
        speaker = "agent" if source == "tau" else (step.tool or "agent")
        said = json_text(step.result)
        turns.append(_turn(turns, step, speaker, said, MessageRole.ASSISTANT))
    return [turn for turn in turns if turn.text.strip()]


def _turn(turns: list[Turn], step: AgentStep, speaker: str, text: str, role: MessageRole) -> Turn:
    at = _BEGIN + len(turns) * _MINUTE
    return Turn(str(step.run_id), speaker, text, role, at)


def turn_questions(turns: Iterable[Turn], half: Half) -> list[TurnQuestion]:
    """Return what later turns ask of earlier ones, of the conversations of one half."""
    sessions = _by_session(turns)
    asking = half_of_runs(sessions, half)
    return [
        question
        for session_id, line in sessions.items()
        if session_id in asking
        for question in _asked(session_id, line)
    ]


def _asked(session_id: str, line: Sequence[Turn]) -> Iterator[TurnQuestion]:
    said = [plain(turn.text) for turn in line]
    for place, turn in enumerate(line):
        known: set[frozenset[int]] = set()
        for sentence in _SENTENCE.split(turn.text):
            for value in identifiers(sentence):
                text = _blotted(sentence, value)
                wanted = frozenset(line[n].key for n in range(place) if plain(value) in said[n]) - {
                    turn.key
                }
                enough = len(value) >= _LEAST_VALUE and len(plain(text).split()) >= _LEAST_WORDS
                if enough and wanted and wanted not in known:
                    known.add(wanted)
                    yield TurnQuestion(text, session_id, wanted, turn.key)


def _blotted(sentence: str, value: str) -> str:
    return sentence.replace(value, BLOT)[:_MOST_CHARACTERS]


def _by_session(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    sessions: dict[str, list[Turn]] = {}
    for turn in turns:
        sessions.setdefault(turn.session_id, []).append(turn)
    return sessions


def as_steps(turns: Sequence[Turn]) -> list[AgentStep]:
    """Return turns as steps without a tool, each after the one before it in its session."""
    steps: list[AgentStep] = []
    for session_id, line in _by_session(turns).items():
        ids = [uuid5(NAMESPACE_URL, f"{session_id}#{place}") for place in range(len(line))]
        steps += [
            AgentStep(
                id=ids[place],
                parent_id=ids[place - 1] if place else None,
                hop=place,
                step_type=AgentStepType.Action,
                inputs={"purpose": turn.line},
                created_at=turn.created_at,
                session_id=session_id,
                run_id=session_id,
            )
            for place, turn in enumerate(line)
        ]
    return steps


def ways(turns: Sequence[Turn], chat_file: Path) -> dict[str, Kept]:
    """Return how turns come into a memory; `chat_file` holds them as a chat to import."""

    def imported(memory: StepMemory) -> None:
        import_file(memory, chat_file)

    def appended(memory: StepMemory) -> None:
        for session_id, line in _by_session(turns).items():
            asyncio.run(memory.repository().append(session_id, list(map(_message, line))))

    return {
        AS_STEPS: lambda memory: memory.add(as_steps(turns)),
        IMPORTED: imported,
        MESSAGES: appended,
    }


def _message(turn: Turn) -> Step:
    return Step(
        session_id=turn.session_id,
        role=turn.role,
        name=turn.speaker or None,
        content=turn.text,
        created_at=turn.created_at,
    )


@contextmanager
def chat_file(turns: Sequence[Turn]) -> Generator[Path]:
    """Give a file with the turns as chats in OpenAI's form, one a line."""
    lines = [
        orjson.dumps({"id": session_id, "messages": [_chat_message(turn) for turn in line]})
        for session_id, line in _by_session(turns).items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chats.jsonl"
        file.write_bytes(b"\n".join(lines))
        yield file


def _chat_message(turn: Turn) -> dict[str, str | int]:
    made = int(turn.created_at.timestamp())
    named = {"name": turn.speaker} if turn.speaker else {}
    return {"role": turn.role.value, **named, "content": turn.text, "created_at": made}


def turns_found(
    memory: StepMemory, turns: Iterable[Turn], questions: Iterable[TurnQuestion]
) -> dict[str, Any]:
    """Return recall@10 and the mean reciprocal rank of one way, and turns per ten hits.

    The keys of `values` hold both by session, for whoever compares.
    """
    known = known_turns(turns)
    recalls: Values = {}
    ranks: Values = {}
    kinds: dict[str, Values] = {}
    shown: list[int] = []
    for question in questions:
        found = _turns_by_hit(memory, known, question)
        distinct = list(dict.fromkeys(key for keys in found for key in keys))
        # A hit may stand for several turns: rank by hits, count the turns they show.
        first = next((n for n, keys in enumerate(found) if question.wanted & set(keys)), None)
        value = len(question.wanted.intersection(distinct)) / len(question.wanted)
        recalls.setdefault(question.session_id, []).append(value)
        ranks.setdefault(question.session_id, []).append(0.0 if first is None else 1 / (first + 1))
        shown.append(len(distinct))
        if question.kind:
            kind = kinds.setdefault(question.kind, {})
            kind.setdefault(question.session_id, []).append(value)
    return {
        "recall": interval(recalls)._asdict(),
        "mrr": interval(ranks)._asdict(),
        "turns_in_ten_hits": fmean(shown),
        "kinds": {name: interval(values)._asdict() for name, values in kinds.items()},
        "values": recalls,
    }


def known_turns(turns: Iterable[Turn]) -> dict[int, int]:
    """Return the key of each turn by the hashes of the texts under which a hit may show it."""
    return {text_hash(text): turn.key for turn in turns for text in (turn.text, turn.line)}


def keys_shown(hit: StepHit, known: Mapping[int, int]) -> list[int]:
    """Return the keys of the turns whose whole text a hit shows."""
    texts = (hit.step.purpose, json_text(hit.step.result or ""))
    return [known[key] for text in texts if (key := text_hash(text)) in known]


def _turns_by_hit(
    memory: StepMemory, known: Mapping[int, int], question: TurnQuestion
) -> list[list[int]]:
    """Return the turns that each of the best ten hits shows, the asking one left out."""
    found: list[list[int]] = []
    for hit in memory.search(question.text, CUT + 2):
        keys = keys_shown(hit, known)
        if keys != [question.asking]:
            found.append([key for key in keys if key != question.asking])
    return found[:CUT]


def dialogue_quality(
    embedder: str, turns: Sequence[Turn], questions: Sequence[TurnQuestion], file: Path
) -> dict[str, Any]:
    """Return how well the turns are found in each of the ways in which they can be kept."""
    found: dict[str, Any] = {}
    for name, keep in ways(turns, file).items():
        with StepMemory(":memory:", embedder=embedder) as memory:
            keep(memory)
            memory.flush()
            found[name] = turns_found(memory, turns, questions)
    sessions = {question.session_id for question in questions}
    return {"questions": len(questions), "sessions": len(sessions), "ways": found}


ToolsFound = Callable[[StepMemory], Values]
"""Asks a memory about the steps of tools; returns the nDCG of each question, by run."""


def mixed_memory(
    embedder: str,
    tools: Sequence[AgentStep],
    ask_tools: ToolsFound,
    turns: Sequence[Turn],
    questions: Sequence[TurnQuestion],
) -> dict[str, Any]:
    """Return what is found of tools' steps and of turns, each kind alone and both together."""
    spoken = as_steps(turns)
    of_tools: dict[str, Values] = {}
    of_turns: dict[str, Values] = {}
    for name, steps in (("alone", tools), ("together", [*tools, *spoken])):
        with StepMemory(":memory:", embedder=embedder) as memory:
            memory.add(steps)
            of_tools[name] = ask_tools(memory)
            if name == "together":
                of_turns[name] = turns_found(memory, turns, questions)["values"]
    with StepMemory(":memory:", embedder=embedder) as memory:
        memory.add(spoken)
        of_turns["alone"] = turns_found(memory, turns, questions)["values"]
    return {
        what: {
            **{name: interval(values[name])._asdict() for name in ("alone", "together")},
            "change": interval(paired(values["together"], values["alone"]))._asdict(),
            "questions": sum(map(len, values["alone"].values())),
        }
        for what, values in (("steps of tools, nDCG@10", of_tools), ("turns, recall@10", of_turns))
    }


def dialogue_table(title: str, found: dict[str, Any]) -> Table:
    """Return how well turns are found, a row for each way and kind of question."""
    rows: list[list[str]] = []
    for name, way in found["ways"].items():
        shown = number(way["turns_in_ten_hits"], 1)
        rows.append([name, interval_text(way["recall"]), interval_text(way["mrr"]), shown])
        rows += [[f"  {kind}", interval_text(each), "", ""] for kind, each in way["kinds"].items()]
    about = f"{found['questions']} questions, {found['sessions']} conversations"
    columns = ["", f"recall@{CUT} [95 %]", "MRR [95 %]", f"turns in {CUT} hits"]
    return Table(f"{title}: {about}", columns, rows)


def mixed_table(found: dict[str, Any]) -> Table:
    """Return what a memory of both kinds finds of each."""
    rows = [
        [
            f"{what} ({each['questions']})",
            *(interval_text(each[name]) for name in ("alone", "together")),
            interval_text(each["change"], signed=True),
        ]
        for what, each in found.items()
    ]
    columns = ["", "alone [95 %]", "both in one memory [95 %]", "change [95 %]"]
    return Table("a memory of tools' steps and turns", columns, rows)
