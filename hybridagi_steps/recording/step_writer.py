"""From a finished call to a stored step: cleaned, redacted, numbered, linked, handed to the memory.

Everything that can go wrong on the way ends here: it is noted without the values it happened on,
logged once per kind and run, and never reaches the program that is being recorded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from uuid import UUID

from hybridagi_steps.errors import InvalidMemoryError, RecordingError, StepsError
from hybridagi_steps.recording.call_tree import Call, Maker, Run, Tail, Tails, parent_and_joins
from hybridagi_steps.recording.values import fitted, plain_fields, without_texts
from hybridagi_steps.recording_hooks import Recalled
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus, repaired
from hybridagi_steps.records.json_values import unvalidated
from hybridagi_steps.records.message import StepMetrics, utc_now
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.provenance import RECALLED, RECALLED_MORE, WITHIN
from hybridagi_steps.records.redaction import Redact, redacted_fields

_log = logging.getLogger("hybridagi_steps")
_PROBLEMS_KEPT = 1000
MOST_RECALLED = 64
"""Ids in `metadata.recalled` of one step, at most; `recalled_more` counts what is not listed."""
_UNCHANGING = (str, int, float, bool, type(None))


class Memory(Protocol):
    """What recording needs of a memory."""

    def add(self, step_or_steps: AgentStep, /) -> Any:
        """Store one step durably."""
        ...

    def run(self, run_id: str, /) -> Any:
        """Return the steps of a run in order."""
        ...


KeepPrompts = Callable[[Mapping[UUID, Sequence[LMCall]]], Any]
"""Takes what models were asked, by the ids of stored steps."""


def check_memory(memory: Memory, *, keep_prompts: bool = False) -> Memory:
    """Return `memory` if steps can be recorded into it, with their prompts if these are wanted."""
    asked = ["add", "run", *(["keep_prompts"] if keep_prompts else [])]
    able = all(callable(getattr(memory, name, None)) for name in asked)
    if isinstance(memory, type) or not able:
        raise InvalidMemoryError(memory, *(f"{name}()" for name in asked))
    return memory


def _no_prompts(_: Mapping[UUID, Sequence[LMCall]]) -> None:
    """Take the place of what a memory lacks that was never asked to keep prompts."""


class _OfThread(threading.local):
    busy = False
    """Whether this thread is writing: what runs now is the memory's own work."""


class StepWriter:
    """Writes the steps of calls into one memory, whose `redact`, if it has one, is applied before.

    `keep` takes each step in place of the memory, and says False if it did not; `keep_prompts`
    takes what models were asked for a step, likewise.
    """

    def __init__(
        self,
        memory: Memory,
        keep: Callable[[AgentStep], Any] | None = None,
        keep_prompts: KeepPrompts | None = None,
    ) -> None:
        self.memory = memory
        self._keep = keep or memory.add
        self._keep_prompts: KeepPrompts = keep_prompts or getattr(
            memory, "keep_prompts", _no_prompts
        )
        self.thread = _OfThread()

    def copy_inputs(self, call: Call) -> None:
        """Keep what a call was given as it is now: what is called may change it."""
        if all(type(value) in _UNCHANGING for value in call.inputs.values()):
            return
        keep_bytes = getattr(self.memory, "redact", None) is None
        seen: dict[str, str | None] = {}
        copied, _ = plain_fields(
            {"inputs": call.inputs}, call.cuts, keep_bytes=keep_bytes, seen=seen
        )
        call.inputs = copied["inputs"]
        call.note_recalled(seen)

    def write(
        self,
        call: Call,
        step_type: AgentStepType,
        inputs: dict[str, Any],
        outputs: dict[str, Any] | None,
        *,
        follows: Tails,
        status: StepStatus = "ok",
        metrics: StepMetrics | None = None,
        maker: Maker | None = None,
        notes: Mapping[str, Any] | None = None,
        stored: bool = True,
    ) -> Tail | None:
        """Store one step of `call`, or only show it to its watcher; return it if it was stored."""
        if (run := call.run) is None:
            return None
        self.thread.busy = True
        written: AgentStep | None = None
        tail: Tail | None = None
        try:
            parent_id, joins = parent_and_joins(follows)
            metadata = _metadata(call, run, joins, notes)
            values = {"inputs": inputs, "outputs": outputs, "metadata": metadata}
            fields, recalled = self._clean(run, step_type, values, call, follows)

            def store(hop: int, step_id: UUID) -> Any:
                nonlocal written
                values: dict[str, Any] = {  # they are clean: nothing is validated again
                    "id": step_id,
                    "parent_id": parent_id,
                    "hop": hop,
                    "step_type": step_type,
                    **fields,
                    "vector": None,
                    "created_at": utc_now(),
                    "session_id": call.labels.session_id,
                    "user_id": call.labels.user_id,
                    "run_id": run.id,
                    "program_id": call.program_id,
                    **(maker or call.maker)._asdict(),
                    "scope": call.scope,
                    "status": status,
                    "score": None,
                    "metrics": metrics,
                }
                written = unvalidated(AgentStep, values, {})
                return self._keep(written) if stored else False

            shown = run.commit(store, call.step_id)._replace(recalled=tuple(recalled))
            tail = shown if stored else None
            if call.attempt is not None and tail is not None:
                call.attempt.append(written)
        except Exception as error:
            note_problem(run.problems, f"the {step_type.value} was not stored", error)
        finally:
            self.thread.busy = False
            if call.watch is not None and written is not None:
                call.watch(written, tail is not None)
        return tail

    def write_prompts(self, call: Call, tail: Tail, prompts: Sequence[LMCall]) -> None:
        """Keep what models were asked for a step of `call` that was stored."""
        if call.run is None:
            return
        self.thread.busy = True
        try:
            self._keep_prompts({tail.step_id: prompts})
        except Exception as error:
            note_problem(call.run.problems, "a prompt was not kept", error)
        finally:
            self.thread.busy = False

    def set_apart(self, run: Run, steps: Sequence[AgentStep], scope: str) -> None:
        """Move stored steps to a scope, and those that their keeper still holds."""
        ids = [step.id for step in steps]
        self.thread.busy = True
        try:
            for step in steps:
                step.scope = scope
            read, update = (getattr(self.memory, name, None) for name in ("get_steps", "update"))
            if read is not None and update is not None:
                stored: list[AgentStep] = read(ids)
                for step in stored:
                    step.scope = scope
                update(stored)
        except Exception as error:
            note_problem(run.problems, "attempts that lost were not set apart", error)
        finally:
            self.thread.busy = False

    def _clean(
        self,
        run: Run,
        step_type: AgentStepType,
        values: dict[str, Any],
        call: Call,
        follows: Tails,
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the three JSON fields: detached, redacted, repaired and small enough.

        With them comes what the step recalled.
        """
        cuts, seen = list(call.cuts), dict[str, str | None]()
        redact: Redact | None = getattr(self.memory, "redact", None)
        fields, small = plain_fields(values, cuts, keep_bytes=redact is None, seen=seen)
        if recalled := recalled_so_far(call, run, follows, seen):
            if len(recalled) > MOST_RECALLED:
                fields["metadata"][RECALLED_MORE] = len(recalled) - MOST_RECALLED
                del recalled[MOST_RECALLED:]
            fields["metadata"][RECALLED] = recalled
        fields = repaired(fields)  # before, since keys that are no text hide from redaction
        if redact is not None:
            try:
                fields = redacted_fields(fields, redact)
            except Exception as error:
                note_problem(run.problems, f"redacting the {step_type.value} failed", error)
                fields = _without_texts(fields, redact)
            fields = repaired(fields)  # and after, for what redaction itself gave
        if not small or redact is not None:
            fields = fitted(fields, cuts)
        if cuts:
            fields["metadata"] = {**(fields["metadata"] or {}), "truncated": cuts}
        fields["metadata"] = fields["metadata"] or None
        return fields, recalled


def recalled_so_far(call: Call, run: Run, follows: Tails, seen: Recalled) -> list[str]:
    """Return the ids of what may stand in the prompt of a step of a call.

    That is what the step was given or gives back (`seen`, by id with its run), what was handed to
    the calls around it, and what the steps it follows had recalled: what a program does with a text
    nobody can see, so it counts as handed on. Steps of its own run are not recalled. When it gets
    long, steps before stand for what they had recalled themselves.
    """
    above: Call | None = call
    fresh = dict(run.recalled)
    while above is not None:
        fresh |= above.recalled
        above = above.parent
    for name, run_id in seen.items():
        if run_id is None or run_id != run.id:
            fresh[name] = None
    carried: dict[str, None] = {}
    for tail in follows:
        carried |= dict.fromkeys(tail.recalled)
    if not fresh and not carried:
        return []
    ids = [*carried, *(name for name in fresh if name not in carried)]
    if len(ids) > MOST_RECALLED:
        named = (str(tail.step_id) for tail in follows if tail.recalled)
        ids = list({**dict.fromkeys(named), **fresh})
    return ids


def note_problem(problems: list[RecordingError], what: str, error: BaseException) -> None:
    """Keep and log what recording failed at, without the values it failed on."""
    problem = RecordingError(what, error)
    kind = (problem.what, problem.error_type)
    seen = any(kind == (known.what, known.error_type) for known in problems)
    if len(problems) < _PROBLEMS_KEPT:
        problems.append(problem)
    if not seen:
        _log.warning("recording: %s; the program goes on.", problem)


def note_late_call(problems: list[RecordingError]) -> None:
    """Note, once in a run, that a call began after its block had been left."""
    what = "calls were not recorded"
    if not any(known.what == what for known in problems):
        late = StepsError("they began after the block had been left; make them inside the block.")
        note_problem(problems, what, late)


def _without_texts(fields: dict[str, Any], redact: Redact) -> dict[str, Any]:
    """Return `fields` with every text replaced; without any when even that cannot be redacted.

    The memory redacts once more and refuses what it cannot redact.
    """
    try:
        return redacted_fields(without_texts(fields), redact)
    except Exception:
        _log.debug("recording: redact fails on its own replacement text", exc_info=False)
        return {"inputs": None, "outputs": None, "metadata": {"redaction_failed": True}}


def _metadata(
    call: Call, run: Run, joins: list[str], notes: Mapping[str, Any] | None
) -> dict[str, Any]:
    metadata = {**call.labels.tags, **run.notes, **call.notes, **(notes or {})}
    if call.within is not None:
        metadata[WITHIN] = call.within
    if joins:
        metadata["joins"] = joins
    return metadata


_ANNOUNCED: ContextVar[UUID | None] = ContextVar("hybridagi_steps_announced", default=None)


@contextmanager
def announcing(step_id: UUID) -> Generator[None]:
    """Let the next tool that begins inside the block leave a step with this id."""
    token = _ANNOUNCED.set(step_id)
    try:
        yield
    finally:
        _ANNOUNCED.reset(token)


def taken_step_id() -> UUID | None:
    """Return the id announced here and forget it; None when there is none."""
    announced = _ANNOUNCED.get()
    if announced is not None:
        _ANNOUNCED.set(None)
    return announced
