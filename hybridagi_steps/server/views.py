"""What both servers say of steps and runs, as plain data: the calls behind search and run.

Knows no HTTP and no MCP. Vectors are left out everywhere: they are for machines only, and large.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hybridagi_steps.display.titles import title_of
from hybridagi_steps.errors import InvalidQueryError, UnknownStepError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.protocols import MessageIndex
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.run import run_metrics
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    SEVERAL_USERS,
    MessagePlace,
    RunSummary,
)
from hybridagi_steps.validation import Where

_JUDGED = 40
"""The last steps of a run whose outlook is asked: two searches each."""


def hits_for(
    memory: StepMemory,
    k: int,
    *,
    query: str | None = None,
    like: str | None = None,
    **options: Any,
) -> list[StepHit]:
    """Search by words, or `like` the step or message of an id, which is not among its own hits."""
    if (query is None) == (like is None):
        raise InvalidQueryError(
            "name what to look for: either words or the id of a step or message."
        )
    if like is None:
        return memory.search(query or "", k, **options)
    model = named(memory, like, options.get("where")).step
    own = id_text(model.id)
    hits = memory.search(model, k + 1, **options)
    return [hit for hit in hits if id_text(hit.step.id) != own][:k]


class Named(NamedTuple):
    """What an id names."""

    step: AgentStep
    """The stored step, or what the message tells."""
    place: MessagePlace | None = None
    """Where the message is read; None of a step."""
    row: int | None = None
    """The message's row in the store."""


def named(memory: StepMemory, step_id: str, where: Where = None) -> Named:
    """Return the step with an id, or the message of a session: a hit shows ids of both.

    Args:
        memory: Where it is.
        step_id: The whole id.
        where: A filter whose user has to be that of the step: what another user did is no answer,
            and neither is that it exists. Its other conditions do not count.
    """
    # Both are looked for, so that one that is another's takes what one that is not there does.
    stored, said = _stored(memory, step_id), _said(memory, step_id)
    found = stored or said
    if found is None or not _may_know(found.step, StepFilter.of(where)):
        raise UnknownStepError(step_id)
    return found


def prompt_for(memory: StepMemory, step_id: str) -> list[LMCall]:
    """Return what the model saw for a step; a message has nothing of it."""
    return memory.prompt_of(step_id) if named(memory, step_id).place is None else []


def _stored(memory: StepMemory, step_id: str) -> Named | None:
    steps = memory.get_steps([step_id])
    return Named(steps[0]) if steps else None


def _said(memory: StepMemory, message_id: str) -> Named | None:
    store = memory.repository().store
    if not isinstance(store, MessageIndex):
        return None
    for row in store.rows_of_messages([message_id]).values() or [MESSAGE_ROWS]:  # that is none's
        step, place = store.read([row]).get(row), store.message_places([row]).get(row)
        if step is not None and place is not None:
            return Named(step, place, row)
    return None


def _may_know(step: AgentStep, where: StepFilter) -> bool:
    users = where.only_users
    return users is None or (step.user_id in users and step.user_id != SEVERAL_USERS)


def run_data(memory: StepMemory, run_id: str) -> dict[str, Any] | None:
    """Return a run, its steps by hop with their titles, and what they cost; None: it is unknown.

    One in flight may have no steps yet.
    """
    summary = next(iter(memory.runs(limit=1, scope="*", where={"run_id": run_id})), None)
    steps = memory.run_steps(run_id)
    if summary is None:
        return None
    return {
        "run": listed_run(summary),
        "steps": without_vectors(steps),
        "titles": titles(steps),
        "metrics": run_metrics(steps).model_dump(mode="json", exclude_none=True),
    }


def judged_run(memory: StepMemory, run_id: str, whose: str | None) -> dict[str, Any] | None:
    """Return how the like of a run's last steps ended before; None: it has no steps.

    `whose` is the user whose past may be seen; None: everybody's.
    """
    # Loaded when first asked for: they load DSPy.
    from hybridagi_steps.optimize.feedback import first_trouble
    from hybridagi_steps.optimize.outlook import outlook
    from hybridagi_steps.optimize.patterns import find_loops
    from hybridagi_steps.optimize.stored_runs import run_in_order

    steps = run_in_order(memory, run_id)
    if not steps:
        return None
    found = outlook(memory, steps[-_JUDGED:], where=filled(user_id=whose))
    trouble = first_trouble(steps)
    return filled(
        run_id=run_id,
        chance=found.chance,
        agreement=found.agreement,
        lowest=[
            filled(
                step_id=id_text(each.step.id),
                hop=each.step.hop,
                **{name: getattr(each, name) for name in ("action", "chance", "well", "scored")},
            )
            for each in found.lowest
        ],
        first_trouble=trouble
        and {"step_id": id_text(trouble[0].id), "hop": trouble[0].hop, "said": trouble[1]},
        loops=[str(loop) for loop in find_loops(steps)],
    )


def listed_run(summary: RunSummary) -> dict[str, Any]:
    """Return a run as listings show it."""
    values = summary._asdict()
    return filled(**values, begins=values.pop("title"))


def work_data(
    processes: Iterable[Sequence[Any]],
    queues: Iterable[Sequence[Any]],
    runs: Iterable[Sequence[Any]],
) -> dict[str, Any]:
    """Return who works, what waits and what goes on, from rows of each."""
    kinds: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for name, host, process, seen in processes:
        about = {"name": name, "host": host, "process": process, "seen_seconds": seen}
        kinds[name.startswith("server-")].append(about)
    waiting = [
        filled(
            name=name,
            queued=queued,
            running=running,
            failed=failed,
            oldest_wait_seconds=since and max(0.0, time.time() - since / 1000),
        )
        for name, queued, running, failed, since in queues
    ]
    in_flight = [
        filled(run_id=run, session_id=session, user_id=user, server=server)
        for run, session, user, server in runs
    ]
    return {"servers": kinds[True], "workers": kinds[False], "queues": waiting, "runs": in_flight}


def hit_data(hit: StepHit) -> dict[str, Any]:
    """Return one hit."""
    left_out: dict[str, Any] = {"step": {"vector"}, "context": {"__all__": {"vector"}}}
    left_out |= {"feedback": True} | ({} if hit.parts else {"parts": True})
    return hit.model_dump(mode="json", exclude=left_out, exclude_none=True)


def titles(steps: Iterable[AgentStep]) -> dict[str, str]:
    """Return by id what each step is called and is about, in a line."""
    return {id_text(step.id): str(title_of(vars(step))) for step in steps}


def without_vectors(steps: Sequence[AgentStep]) -> list[dict[str, Any]]:
    """Return steps without their vectors and without members that have no value."""
    return [step.model_dump(mode="json", exclude={"vector"}, exclude_none=True) for step in steps]


def filled(**members: object) -> dict[str, Any]:
    """Return an object without the members that have no value."""
    return {key: value for key, value in members.items() if value is not None}
