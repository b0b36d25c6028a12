"""Trajectory feedback: what can be seen of a run without a model, as a text for an optimiser.

It tells where trouble first showed, what was repeated, which steps seldom ended well elsewhere, and
how the run ended. None of it says which step was the decisive mistake: against the labels of
Who&When no such rule is better than chance on long runs, so the text ends by saying what it is not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from hybridagi_steps.errors import UnknownRunError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.optimize.outlook import Outlook, outlook
from hybridagi_steps.optimize.patterns import call_text, called, find_loops
from hybridagi_steps.optimize.stored_runs import check_memory, run_in_order, steps_given
from hybridagi_steps.recording.trajectories import run_of_open_memory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.json_reading import as_object, json_or_text
from hybridagi_steps.records.step_text import cut
from hybridagi_steps.validation import Steps, whole_number

_CAUTION = "These are observations; the decisive mistake may be another step."
_ERROR_TEXT = re.compile(
    r"\s*(?:Traceback \(most recent|(?:\w+\.)*\w*(?:Error|Exception)\b|"
    r"(?:error|failed|failure|invalid|cannot|could not|no such|not found|unknown)\b)",
    re.IGNORECASE,
)
_LOW, _LONG, _MOST_STEPS = 0.4, 160, 40


def trajectory_feedback(
    run: str | Steps,
    *,
    max_chars: int = 1500,
    memory: StepMemory | None = None,
    waiting: Collection[str] = (),
) -> str:
    """Tell in words what can be seen of a run, for GEPA's metric or a person.

    Args:
        run: A run's id, or its steps.
        max_chars: Longest text; lines that do not fit are left out, the last ones first.
        memory: Where the run is, and the past that its steps are compared with; None: the open
            memory that has the run, and for steps no comparison.
        waiting: Tools that poll, as `find_loops` takes them.

    Returns:
        Lines with the first trouble (an error, or a text that begins like one), loops, steps the
        like of which seldom ended well, and how the run ended; no line twice. It does not claim to
        find the decisive mistake, and says so. Texts of the run are quoted: redact before storing.

    Raises:
        UnknownRunError: No open memory has the run.
        InvalidSettingError: `max_chars` is below 200.
    """
    whole_number("max_chars", max_chars, 200)
    if memory is not None:
        check_memory(memory)
    if isinstance(run, str):
        if memory is None:
            memory, stored = run_of_open_memory(run) or (None, [])
        else:
            stored = memory.run_steps(run)
        if memory is None or not stored:
            told = f"no open memory has the run {run!r}; give its memory, or its steps."
            raise UnknownRunError(run, told)
        steps = run_in_order(memory, run)
    else:
        steps = steps_given(run)
    lines = dict.fromkeys(_lines(steps, memory, waiting))
    return _within(list(lines), max_chars)


def trouble_of(step: AgentStep) -> str | None:
    """Return what went wrong in a step: its error, or a result that begins like one; None: nothing.

    A result that is a JSON object tells by its key `error`.
    """
    outputs = step.outputs or {}
    error: Any = outputs.get("error")
    if known := as_object(error):
        error = f"{known.get('type', 'error')}: {known.get('message', '')}"
    if step.status == "error" or error:
        return cut(error or step.result or "error", _LONG)
    result: Any = step.result
    if told := as_object(json_or_text(result)):
        return cut(said, _LONG) if (said := told.get("error")) else None
    return cut(result, _LONG) if isinstance(result, str) and _ERROR_TEXT.match(result) else None


def first_trouble(steps: Sequence[AgentStep]) -> tuple[AgentStep, str] | None:
    """Return the first step in which something went wrong, with what it was."""
    return next(((step, said) for step in steps if (said := trouble_of(step))), None)


def _lines(
    steps: Sequence[AgentStep], memory: StepMemory | None, waiting: Collection[str]
) -> Iterator[str]:
    yield _ending(steps, memory)
    if (trouble := first_trouble(steps)) is not None:
        step, said = trouble
        yield f"First trouble: step {step.hop}, {call_text(step)}: {said}"
    for loop in find_loops(steps, waiting=waiting):
        yield f"Repeated: {loop}."
    if memory is not None:
        acting = [step for step in steps if called(step)][-_MOST_STEPS:]
        yield from _low(outlook(memory, acting))


def _ending(steps: Sequence[AgentStep], memory: StepMemory | None) -> str:
    if not steps:
        return "The run has no steps."
    last = steps[-1]
    found = memory.run_scores([last.run_id]) if memory is not None and last.run_id else {}
    score = found.get(str(last.run_id), last.score)
    scored = "not scored" if score is None else f"score {score:g}"
    return f"The run ended {last.status} after {len(steps)} steps, {scored}."


def _low(found: Outlook) -> Iterator[str]:
    for each in found.lowest:
        if each.chance is not None and each.chance <= _LOW:
            usual = ", ".join(name for name in [*each.agreement][:2] if name != each.action)
            yield (
                f"Seldom ended well: step {each.step.hop}, {call_text(each.step)}: {each.well} of "
                f"{each.scored} similar steps were in runs that ended well"
                + (f"; done in like states: {usual}." if usual else ".")
            )


def _within(lines: Sequence[str], max_chars: int) -> str:
    kept, room = list[str](), max_chars - len(_CAUTION)
    for told in lines:
        line = inert("".join(filter(str.isprintable, told)))  # texts of tools go to a model here
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([*kept, _CAUTION])
