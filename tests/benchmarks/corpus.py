"""Made-up steps for measuring sizes and speeds: any number, varied, the same on every machine.

They speak the words of the shipped runs: each made-up run takes half of its phrases from one real
run, so that there are topics, and the rest from all of them, so that words are as common as in real
life. A step's inputs and outputs are one KB of JSON. Quality is never measured on these.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import orjson

from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.messages.agent_steps import to_messages
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.records.step_text import cut

PAYLOAD_BYTES = 1024
"""Size of a step's inputs and outputs as JSON."""
USERS = 100
"""Whose steps they are, in equal shares: a filter by user leaves one in a hundred."""
STEPS_PER_RUN = 20
MESSAGE_BYTES = 266
"""Size of what a message of a made-up conversation says."""
MESSAGES_PER_CHAT = 20

_NUMBER_OR_NAME = re.compile(r"[0-9]{1,8}|\b[A-Z][a-z]{3,}\b")
_OTHER_NUMBERS, _OTHER_NAMES = 0.7, 0.15
_PHRASE_WORDS = 5
_LONGEST_WORD = 24
_CHARACTERS_READ = 2_000
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def made_steps(count: int, *, first: int = 0) -> Iterator[AgentStep]:
    """Yield made-up steps number `first`, `first` + 1, …; a number always gives the same step."""
    for number in range(first, first + count):
        yield made_step(number)


def made_step(number: int) -> AgentStep:
    """Return one made-up step."""
    run, hop = divmod(number, STEPS_PER_RUN)
    chance = random.Random(number)
    topic, everything = _topic(run), _all_phrases()
    tool = _tools()[(run * 7 + chance.randrange(6)) % len(_tools())]
    inputs: dict[str, Any] = {
        "purpose": _speech(chance, topic, everything, chance.randint(2, 5)),
        "tool": tool,
        "arguments": {
            "query": _speech(chance, topic, everything, 1),
            "reference": f"{chance.choice('ABCDEFGH')}{chance.randrange(10**6):06d}",
        },
    }
    room = PAYLOAD_BYTES - len(payload(inputs, {"result": ""}))
    result = _speech(chance, topic, everything, room // 15 + 10)[:room]
    return AgentStep(
        id=UUID(int=number + 1, version=4),
        parent_id=UUID(int=number, version=4) if hop else None,
        hop=hop,
        step_type=AgentStepType.Action,
        inputs=inputs,
        outputs={"result": result},
        created_at=_BEGIN + timedelta(seconds=number),
        run_id=f"run-{run}",
        user_id=f"user-{run % USERS}",
        session_id=f"session-{run // 3}",
        status="error" if chance.random() < 0.05 else "ok",
    )


def made_conversations(messages: int) -> Iterator[dict[str, Any]]:
    """Yield conversations in OpenAI's form, of 20 messages each (the last may be shorter)."""
    for first in range(0, messages, MESSAGES_PER_CHAT):
        topic, said = _topic(first), list[dict[str, str]]()
        for number in range(first, min(first + MESSAGES_PER_CHAT, messages)):
            text = _speech(random.Random(number), topic, _all_phrases(), MESSAGE_BYTES // 15 + 10)
            role = "assistant" if number % 2 else "user"
            said.append({"role": role, "content": text[:MESSAGE_BYTES]})
        yield {"messages": said}


def spoken(count: int) -> list[str]:
    """Return texts of the shipped runs, varied and numbered: nobody says one thing 900 times.

    Most numbers in them are others each time, and some of the names.
    """
    steps = to_messages(shipped_steps(), session_id="shipped", carry=False)
    texts = [message.content for message in steps if isinstance(message.content, str)]
    chance = random.Random(count)

    def other(found: re.Match[str]) -> str:
        word = found[0]
        if chance.random() >= (_OTHER_NUMBERS if word.isdecimal() else _OTHER_NAMES):
            return word
        letters = "0123456789" if word.isdecimal() else "abcdefghijklmnoprstuvw"
        return "".join(chance.choices(letters, k=len(word))).capitalize()

    return [f"{_NUMBER_OR_NAME.sub(other, texts[n % len(texts)])} ({n})" for n in range(count)]


def messages_of(session: str, said: Sequence[str]) -> list[Step]:
    """Return what a user and an assistant said in turn as messages of a session."""
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    return [
        Step(session_id=session, role=roles[n % 2], content=text) for n, text in enumerate(said)
    ]


def real_steps(count: int, *, first: int = 0, run_id: str | None = None) -> list[AgentStep]:
    """Return the shipped steps over and over, each time under new ids, in runs of 20 or in one."""
    real = shipped_steps()
    steps: list[AgentStep] = []
    for number in range(first, first + count):
        run, hop = divmod(number, STEPS_PER_RUN)
        steps.append(
            real[number % len(real)].model_copy(
                update={
                    "id": UUID(int=number + 1, version=4),
                    "parent_id": None,
                    "hop": hop if run_id is None else number - first,
                    "run_id": run_id or f"run-{run}",
                }
            )
        )
    return steps


def payload(inputs: dict[str, Any] | None, outputs: dict[str, Any] | None) -> bytes:
    """Return what a program handed over for a step, as JSON."""
    return orjson.dumps({"inputs": inputs, "outputs": outputs})


def made_queries(count: int) -> list[str]:
    """Return texts to search for, made of the same phrases in other company."""
    made: list[str] = []
    for number in range(count):
        chance = random.Random(-1 - number)
        topic = _topic(number)
        made.append(_speech(chance, topic, _all_phrases(), chance.randint(1, 3)))
    return made


def _speech(chance: random.Random, topic: list[str], everything: list[str], phrases: int) -> str:
    said = chance.choices(topic, k=(phrases + 1) // 2) + chance.choices(everything, k=phrases // 2)
    return " ".join(said)


def _topic(run: int) -> list[str]:
    phrases = _phrases_by_run()
    return phrases[run % len(phrases)]


@lru_cache(maxsize=1)
def _phrases_by_run() -> list[list[str]]:
    """Return what was said in each shipped run, cut into phrases of plain ASCII words."""
    words: dict[str, list[str]] = {}
    for real in shipped_steps():
        said = cut(real.inputs, _CHARACTERS_READ) + " " + cut(real.outputs, _CHARACTERS_READ)
        plain = "".join(c if c.isascii() and (c.isalnum() or c in ".-_ ") else " " for c in said)
        short = [word for word in plain.split() if len(word) <= _LONGEST_WORD]
        words.setdefault(str(real.run_id), []).extend(short)
    return [
        [" ".join(run[n : n + _PHRASE_WORDS]) for n in range(0, len(run), _PHRASE_WORDS)]
        for run in words.values()
    ]


@lru_cache(maxsize=1)
def _all_phrases() -> list[str]:
    return [phrase for run in _phrases_by_run() for phrase in run]


@lru_cache(maxsize=1)
def _tools() -> list[str]:
    return sorted({real.tool for real in shipped_steps() if real.tool})
