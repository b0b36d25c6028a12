"""Receipts: what was recalled for a call, and the warning that like attempts failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, cast

import dspy

from hybridagi_steps.messages.fences import inert
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.token_counters import token_counter

_LIKE, _ATTEMPTS, _FEWEST = 0.5, 4, 3
"""Attempts are told of that score at least this share of the best one; so many; not of fewer."""
_FEEDBACK, _FAILED = 80, 0.5
_MARKS = re.compile(r"\[\[ ?## ?|## ?\]\]")


class RecalledDemo(NamedTuple):
    """One step that stood in a prompt as a demonstration."""

    step_id: str
    run_id: str | None
    predictor: str
    """The predictor that was shown it, as steps name it."""
    score: float
    """What it was ranked by."""
    reason: str
    """Why it was found, in words."""
    tokens: int
    run_status: str = ""
    """How its run ended: completed, failed, cancelled or interrupted; "" of a step without one."""
    run_score: float | None = None
    """How good its run was found; None: nobody said."""

    @property
    def ending(self) -> str:
        """How its run ended, in a word or two."""
        scored = "" if self.run_score is None else f", scored {self.run_score:g}"
        return f"{self.run_status or 'no run'}{scored}"


class Receipt(list[RecalledDemo]):
    """What was recalled for one call of a program, of each predictor the best last.

    Attributes:
        warnings: Lines that its instructions were given.
        over_budget: Ids of steps that would have been shown, had there been room.
    """

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self.over_budget: list[str] = []

    @property
    def ids(self) -> list[str]:
        """The steps' ids."""
        return [demo.step_id for demo in self]

    def __str__(self) -> str:
        lines = [
            f"{each.predictor} {each.score:.2f} {each.step_id} ({each.ending}): {each.reason}"
            for each in self
        ]
        return "\n".join([*lines, *self.warnings]) or "nothing was recalled"


class FailureWarning(NamedTuple):
    """A line for a prompt, and the steps that it is about."""

    line: str
    told_of: list[AgentStep]


def failure_warning(hits: Sequence[StepHit]) -> FailureWarning | None:
    """Return a line on like attempts, the nearest first, if at least half of them failed."""
    best = max((hit.score for hit in hits), default=0.0)
    like = [hit for hit in hits if hit.score >= _LIKE * best][:_ATTEMPTS]
    failed = [hit for hit in like if _has_failed(hit.step)]
    if len(like) < _FEWEST or 2 * len(failed) < len(like):
        return None
    said = next((text for hit in failed if (text := _said_of(hit))), "")
    told = f"{len(failed)} of {len(like)} similar attempts failed here"
    line = f'{told}: "{said}"' if said else f"{told}."
    return FailureWarning(line, [hit.step for hit in like])


def _has_failed(step: AgentStep) -> bool:
    return step.status == "error" or (step.score is not None and step.score < _FAILED)


def _said_of(hit: StepHit) -> str:
    error = (hit.step.outputs or {}).get("error")
    message = cast("Mapping[str, object]", error).get("message") if isinstance(error, dict) else ""
    return _quotable(str(hit.feedback or message or ""))


def _quotable(text: str) -> str:
    """Return a text as one short line for use between quotation marks, unable to act."""
    seen = "".join(filter(str.isprintable, " ".join(text.split())))
    line = " ".join(_MARKS.sub(" ", seen).split())
    return inert(line[:_FEEDBACK].replace('"', "'"))


@cache
def _counter() -> TokenCounter:
    return token_counter()  # which looks for a vocabulary each time


def tokens_of(demo: dspy.Example) -> int:
    """Return about how many tokens a demonstration takes in a prompt."""
    shown = "\n".join(f"{key}: {value}" for key, value in demo.items())
    return _counter().count(shown)
