"""Steps of plans as work in a queue: handed out, done and recorded elsewhere, and resumed by key.

A key belongs to one requirement, plan and workspace. A run that was cut short goes on in the round
it was in. One that failed or was cancelled is tried again in a round of its own: steps that had
succeeded are taken as they were, all others get new attempts. What was merged counts only until the
workspace is rolled back. Names cannot collide: their parts are joined by a letter that none of them
holds, and the second part says what is named. The queue keeps JSON texts; it lies in durable/ and
knows no plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
from anyio.to_thread import run_sync
from pydantic import TypeAdapter

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.planning.settings import Settings
from hybridagi_steps.planning.usage import Ledger, LMCall
from hybridagi_steps.planning.worker import Finished, Outcome, Problem, StepWorker, Work
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.workspace.changes import Change, Changes

if TYPE_CHECKING:
    from hybridagi_steps.durable.plan_steps import DurableQueue

_PATHS = TypeAdapter(dict[str, Change])


class Resuming:
    """Has the work of one run done, and finds what was done before; without a queue, nothing was.

    The queue hands work out, and keeps what is remembered under the key of the run.
    """

    def __init__(
        self, key: str, settings: Settings, queue: DurableQueue | None, priority: int = 0
    ) -> None:
        self.key, self.round, self._priority = key, 0, priority
        self._worker, self._queue, self._settings = StepWorker(settings), queue, settings
        self._before: dict[str, int] = {}
        self._succeeded: dict[str, int] = {}

    def do(self, work: Work) -> Awaitable[Outcome]:
        """Have an attempt done, here or by another process; not again if it was done before."""
        return self._worker.do(work) if self._queue is None else self._queued(self._queue, work)

    async def _queued(self, queue: DurableQueue, work: Work) -> Outcome:
        def find(names: list[str]) -> dict[str, bytes]:
            workspace = self._settings.workspace
            return {} if workspace is None else workspace.handed_on(work.run_id, names)

        text = await queue.do(work.key, work.model_dump_json(), self._priority)
        return await run_sync(read_outcome, text, find)

    async def remember(self, name: str, make: Callable[[], Awaitable[str]]) -> str:
        """Return what was remembered under a name; make and store it first if nothing was."""
        if self._queue is None:
            return await make()

        async def make_plain() -> str:
            text, redact = await make(), self._settings.redact
            return text if redact is None else _redacted_note(text, redact)

        return await self._queue.remember(self.named(name), make_plain)

    async def note(self, name: str, text: str) -> str:
        """Remember a text unless there is another one already; return what is remembered."""

        async def make() -> str:
            return text

        return await self.remember(name, make)

    async def known(self, name: str) -> str | None:
        """Return what was remembered under a name, None when nothing was."""
        return None if self._queue is None else await self._queue.known(self.named(name))

    def named(self, name: str) -> str:
        """Return the key under which the queue knows something of this run."""
        return f"{quote(self.key, safe='')}:{name}"

    async def claim(self, **about: str) -> None:
        """Bind the key to what the run is about."""
        known = json.loads(await self.note("about", json.dumps(about)))
        other = [name for name in about if known.get(name) != about[name]]
        if other:
            raise InvalidSettingError(
                f"the key {self.key!r} belongs to another run: it had another "
                f"{', '.join(other)}. Use another key; nothing was run."
            )

    async def open(self) -> None:
        """Find out which round this is, and what had succeeded before it."""
        while (ended := await self.known(f"round:{self.round}:ended")) is not None:
            self._before = json.loads(ended)
            self.round += 1

    async def end_round(self) -> None:
        """End a round that did not succeed, so that the same key begins another one."""
        await self.note(f"round:{self.round}:ended", json.dumps(self._succeeded))

    def round_of(self, work: str) -> int:
        """Return the round whose attempts of some work count."""
        return self._before.get(work, self.round)

    def succeeded(self, work: str, in_round: int) -> None:
        """Note that some work succeeded."""
        self._succeeded[work] = in_round


def digest(*parts: object) -> str:
    """Return a hash of values: what tells some work, or what was handed on, from any other."""
    text = orjson.dumps(json_value(list(parts), []), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()


class QueueWorker:
    """Does attempts from a queue, where nothing of the plan's own process is at hand."""

    def __init__(self, settings: Settings) -> None:
        self._worker, self._settings = StepWorker(settings), settings
        self.at_once = settings.max_parallel
        self.namespace = str(getattr(settings.memory, "namespace", "default"))

    def note_queue(self, address: str) -> None:
        """Let the memory know where to erase."""
        note = getattr(self._settings.memory, "note_queue", None)
        if note is not None:
            note(address)

    async def do(self, text: str) -> str:
        """Do an attempt, as JSON in and out."""
        work, workspace = Work.model_validate_json(text), self._settings.workspace

        def keep(contents: Mapping[str, bytes]) -> None:
            if workspace is not None:
                workspace.hand_on(work.run_id, contents)

        outcome = await self._recorded(work)
        return await run_sync(write_outcome, outcome, keep, self._settings.redact)

    async def _recorded(self, work: Work) -> Outcome:
        settings, ledger = self._settings, Ledger(work.tokens_left, work.cost_left)
        notes = {"plan_run": work.run_id, "plan_step": work.step.id, "attempt": work.attempt}
        with settings.recorded(ledger):
            told = FunctionStep(
                "program", "StepWorker", work.step.goal, own=settings.predictors, notes=notes
            )
            steps = RunSteps(settings.memory)
            with steps.step(told, {"step": work.step.id, "attempt": work.attempt}) as opened:
                outcome = await self._worker.do(work)
                opened.outcome = {"error": str(outcome.error)} if outcome.error else {}
        outcome.calls = ledger.calls
        return outcome


def _redacted_note(text: str, redact: Redact) -> str:
    """Return a note without what `redact` takes out; what was JSON is JSON still."""
    try:
        note = orjson.loads(text)
    except orjson.JSONDecodeError:
        note = text
    kept = redacted(note, redact)
    return kept if isinstance(kept, str) else orjson.dumps(kept).decode()


def write_outcome(
    outcome: Outcome,
    keep: Callable[[Mapping[str, bytes]], None],
    redact: Redact | None = None,
) -> str:
    """Return an outcome as JSON; contents of files go to `keep`, what is said through `redact`."""
    said: dict[str, Any] = {
        "finished": outcome.finished and outcome.finished.model_dump(mode="json"),
        "error": None if outcome.error is None else Problem.of(outcome.error).model_dump(),
        "problems": [problem.model_dump() for problem in outcome.problems],
        "calls": [call.model_dump(mode="json") for call in outcome.calls],
    }
    said = json_value(said, [])
    said = said if redact is None else redacted(said, redact)
    changes = None
    if outcome.changes is not None:
        keep(outcome.changes.contents)
        paths, contents = dict(outcome.changes.paths), sorted(outcome.changes.contents)
        changes = {"paths": paths, "contents": contents}
    return orjson.dumps({**said, "changes": json_value(changes, [])}).decode()


def read_outcome(text: str, find: Callable[[list[str]], dict[str, bytes]]) -> Outcome:
    """Return an outcome from its JSON."""
    data: dict[str, Any] = orjson.loads(text)
    finished, error, changes = data["finished"], data["error"], data["changes"]
    return Outcome(
        finished=None if finished is None else Finished.model_validate(finished),
        error=None if error is None else Problem.model_validate(error).error(),
        changes=changes
        and Changes(_PATHS.validate_python(changes["paths"]), find(changes["contents"])),
        problems=[Problem.model_validate(problem) for problem in data["problems"]],
        calls=[LMCall.model_validate(call) for call in data["calls"]],
    )
