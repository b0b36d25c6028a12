"""Spoken turns: which steps are what somebody said, and what counts of them besides their words.

A turn is a message of a session, a call of an imported chat, or an answer without a tool. Dialogue
is searched by another formula than the steps of agents: by who speaks, how much is said, whether it
asks, and whether it says when. Time expressions are known in English only: in other languages that
part is simply absent.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.step_text import text_hash, tokens

_CHAT = "chat"
_SAID_BY = "said_by"
_ROLES = frozenset({"user", "assistant", "system", "tool", "developer", "function"})

_MONTHS = "january|february|march|april|june|july|august|september|october|november|december"
_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_PERIODS = "week|weekend|month|year|summer|winter|spring|fall|autumn|night|morning"
_TIME = re.compile(
    r"\b(yesterday|today|tonight|tomorrow|ago|since|recently|months?|(19|20)\d\d"
    rf"|(last|next|this) ({_PERIODS}|{_DAYS}|{_MONTHS}|may)|{_MONTHS}|{_DAYS}"
    r"|(in|on|since|of|\d) may|may \d+)\b",
    re.IGNORECASE,
)
_ASKS_WHEN = re.compile(
    r"\s*(when|how long|((in|on|since|at) )?(what|which) (year|month|date|day|time))\b",
    re.IGNORECASE,
)

_NAMED = re.compile(r"(\([^()]{,40}\) )?(?P<name>(?![a-z])[^\W\d_][\w.'-]*( [\w.'-]+){,3}): ")
"""How a purpose begins that says who speaks: "Ann Lee: …", a date before it or not."""


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
    speakers: Any = metadata.get(_SAID_BY)
    if not isinstance(speakers, dict) and (step.tool or not _is_chat(step)):
        return None
    names: list[Any] = list(speakers.values()) if isinstance(speakers, dict) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not names and (named := _NAMED.match(step.purpose)) is not None:
        names = [named["name"]]
    answer = step.result if isinstance(step.result, str) else ""
    said = f"{step.purpose} {answer}" if _SAID_BY in metadata else answer or step.purpose
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
    kind = str(getattr(step.step_type, "value", step.step_type))
    plain = kind == "Action" and not step.arguments and isinstance(step.result or "", str)
    return step.program == _CHAT or (plain and bool(step.result or step.purpose))
