"""The text of a recalled step in a prompt: what was asked or done, what came of it, when, how well.

One form for every prompt that quotes past steps: the recalled block of a context, `StepContext`,
the candidates of rerankers, MCP. It names the tool with its arguments, since an answer without its
call teaches nothing; it leaves out ids and what recorders keep for their own use. The same step
gives the same text. Who speaks stands at the beginning of a line, where nothing of what is said
does. Templates of `str(step)` are for code written against them, and
`records/step_text` is for the index.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from hybridagi_steps.display.titles import is_boilerplate
from hybridagi_steps.messages.agent_steps import error_text
from hybridagi_steps.messages.parts import (
    begins_a_turn,
    field_lines,
    hanging,
    json_text,
    speaker_label,
)
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.excerpts import excerpt
from hybridagi_steps.records.json_reading import JsonObject, as_object
from hybridagi_steps.records.message import in_utc
from hybridagi_steps.records.step_identity import names_steps
from hybridagi_steps.records.step_text import SAID_BY

_BOOKKEEPING = ("trajectory", "repairs")
"""Fields that recorders and agents keep for their own use."""
_REASONING = "reasoning"
_LEAST_SHARE = 3
"""A part of a step keeps a third of the room before the longer ones take it."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """A step's text in the parts that are shortened apart."""

    date: str
    purpose: str
    called: str
    """Name of the tool or program."""
    arguments: str
    outcome: str
    state: str
    speaker: str = ""
    """Who says the outcome, where it was said and not given back."""

    def text(self) -> str:
        call = f"{self.called}({self.arguments})" if self.called else self.arguments
        said = "\n".join(part for part in (self.purpose, call) if part)
        sign = f"{self.speaker}:" if self.speaker else "->"
        outcome = f"{sign} {self.outcome}" if self.outcome else ""
        joint = "\n" if call or self.speaker or "\n" in said else " "
        told = joint.join(part for part in (said, outcome) if part)
        return " ".join(part for part in (self.date, told, self.state) if part)

    def shortened(self, length: int, wanted: Collection[str]) -> _Parts:
        """Return parts whose text has at most so many characters, the frame left whole."""
        excess = len(self.text()) - length
        long = {"purpose": self.purpose, "arguments": self.arguments, "outcome": self.outcome}
        whole = sum(map(len, long.values()))
        shares = _shares([len(text) for text in long.values()], max(0, whole - excess))
        cut = {
            name: excerpt(text, share, wanted)
            for (name, text), share in zip(long.items(), shares, strict=True)
        }
        return replace(self, **cut)


def recalled_text(
    step: AgentStep,
    *,
    length: int | None = None,
    wanted: Collection[str] = (),
    dated: bool = True,
) -> str:
    """Return a step as it stands in a prompt that recalls it; nothing in it is made inert yet.

    Args:
        step: Any step.
        length: Most characters; purpose, arguments and outcome are shortened in proportion, each to
            the fragments that matter. None shows all.
        wanted: Words, as `excerpts.words` gives them, that make a fragment matter.
        dated: Whether its day, in UTC, stands before it.

    Example:
        >>> asked = {"purpose": "Find it", "tool": "find", "arguments": {"name": "Ana"}}
        >>> step = AgentStep(step_type="Action", inputs=asked, outputs={"result": "14C"})
        >>> print(recalled_text(step, dated=False))
        Find it
        find(name="Ana")
        -> 14C
    """
    parts = _parts(step, dated)
    text = parts.text()
    if length is None or len(text) <= length:
        return text
    return parts.shortened(length, wanted).text()[:length].rstrip()


def call_text(name: str, arguments: JsonObject) -> str:
    """Return a call as code writes it."""
    return f"{name}({_pairs(arguments)})"


def day(step: AgentStep) -> str:
    """Return the day on which a step was made, in UTC."""
    return f"{in_utc(step.created_at):%Y-%m-%d}"


def _parts(step: AgentStep, dated: bool) -> _Parts:
    kind = str(step.step_type)
    arguments = _told(step.arguments)
    purpose, called, outcome = step.purpose.strip(), step.tool or step.program or "", _outcome(step)
    asker, speaker = _speakers(step)
    if arguments and is_boilerplate(purpose):
        purpose = ""  # it names the fields, which stand below with their values
    if step.tool is None and kind == "ProgramCall" and purpose in arguments.values():
        asker = asker or "user"  # what a user said in a chat is purpose and argument
    if asker:
        purpose, called, arguments = f"{asker}: {purpose}", "", {}
    elif step.tool is None and kind == "ProgramCall" and arguments:
        purpose = ""  # a program's purpose is the same in every call
    if step.tool is None and kind == "ProgramEnd":  # nothing is called
        purpose, called = purpose or called, ""
    if not asker and begins_a_turn(purpose):
        purpose = f"purpose: {purpose}"
    options = (step.inputs or {}).get("options") if kind == "Decision" else None
    given = _options(options) if options else _pairs(arguments)
    text = bool(purpose or called or given or outcome)
    state = [] if step.status == "ok" or outcome.startswith("Error: ") else [step.status]
    state += [] if step.score is None else [f"score {step.score:g}"]
    return _Parts(
        f"({day(step)})" if dated else "",
        hanging(purpose) if text else kind,
        " ".join(called.split()),
        hanging(given),
        hanging(outcome),
        f"[{', '.join(state)}]" if state else "",
        speaker,
    )


def _outcome(step: AgentStep) -> str:
    outputs = _told(step.outputs or {})
    if error := outputs.get("error"):
        return f"Error: {error_text(error)}"
    result = outputs.get("result", outputs.get("observation"))
    if result is not None:
        return json_text(result).strip()
    spoken = {name: value for name, value in outputs.items() if name != _REASONING} or outputs
    return field_lines(spoken).strip() if spoken else ""


def _speakers(step: AgentStep) -> tuple[str, str]:
    """Return who asked and who answered, where that was said in a conversation."""
    said_by = as_object((step.metadata or {}).get(SAID_BY))
    asker, speaker = said_by.get("purpose"), said_by.get("result")
    labels = [
        speaker_label(str(name), role) if name else ""
        for name, role in ((asker, "user"), (speaker, "assistant"))
    ]
    if labels[0] and labels[0] == labels[1]:
        return f"{labels[0]} (user)", f"{labels[1]} (assistant)"
    return labels[0], labels[1]


def _told(values: JsonObject) -> JsonObject:
    """Return values without bookkeeping, and without those that only name steps by their ids."""
    return {
        name: value
        for name, value in values.items()
        if name not in _BOOKKEEPING and value is not None and not names_steps(value)
    }


def _pairs(values: JsonObject) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: object) -> str:
    """Return a value as JSON, a text of several lines as it is: escapes would hide its lines."""
    if isinstance(value, str) and "\n" not in value:
        return json.dumps(value, ensure_ascii=False)
    return json_text(value)


def _options(options: object) -> str:
    several = isinstance(options, list | tuple | dict)
    text = " | ".join(map(json_text, options)) if several else json_text(options)  # pyright: ignore[reportUnknownArgumentType]
    return f"options: {text}" if begins_a_turn(text) else text


def _shares(lengths: list[int], room: int) -> list[int]:
    """Return how much of a room each part gets: in proportion, a short one all that it has."""
    shares, left = [0] * len(lengths), sum(lengths)
    for place in sorted(range(len(lengths)), key=lambda n: lengths[n]):
        least = min(lengths[place], room // _LEAST_SHARE)
        shares[place] = max(least, lengths[place] * room // left) if left else 0
        room, left = room - shares[place], left - lengths[place]
    return shares
