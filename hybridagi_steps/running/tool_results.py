"""Results of tools that are declared cacheable: looked up among the steps that tell them.

There is no cache beside the memory: the step of an earlier call is the entry. So it is its user's
alone, is forgotten with its step, and is shared by processes, machines and sessions as steps are. A
call is found by its tool and a hash of its arguments, in canonical JSON. A step that was imported
or added over MCP is no call of ours, whatever it says, and never an entry.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Any, NamedTuple

import dspy
import orjson

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.json_values import is_json
from hybridagi_steps.records.message import Step, utc_now
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.redaction import redacted
from hybridagi_steps.validation import is_number

_KEY, _FROM = "cacheable", "cached_from"
"""Metadata keys: of a call that others may take their result from, and of one that did."""
_MAX_AGE = "cacheable_seconds"
_LOOKED_AT = 20
"""Steps of others, or from elsewhere, that a run may find before its own."""


class EarlierResult(NamedTuple):
    """What an earlier call of a tool gave."""

    value: Any
    step_id: str


class StoredResult(NamedTuple):
    """What a call of a turn gave before the turn was taken up."""

    tool: str
    arguments: dict[str, Any]
    value: Any


def stored_results(memory: StepMemory, turn: Sequence[Step]) -> list[StoredResult]:
    """Return what the calls of a turn gave, and of those that were denied that; may block.

    A tool that failed is none of them: it may be called again.
    """
    results = {message.agent_step_id: message for message in turn if message.is_tool_step()}
    steps = memory.get_steps([step_id for step_id in results if step_id is not None])
    found = {id_text(step.id): step for step in steps}
    return [
        StoredResult(step.tool, step.arguments, message.content if is_denied else step.result)
        for step_id, message in results.items()
        for is_denied in [bool((message.metadata or {}).get("denied"))]
        if (step := found.get(str(step_id))) is not None
        and step.tool is not None
        and (is_denied or step.status == "ok")
    ]


def take_result(
    results: list[StoredResult], tool: str, arguments: dict[str, Any]
) -> StoredResult | None:
    """Take the first result of a call with these arguments out of the list."""
    for found in results:
        if (found.tool, found.arguments) == (tool, arguments):
            results.remove(found)
            return found
    return None


def cacheable(max_age_seconds: float) -> Callable[[Any], Any]:
    """Declare that a tool gives the same for the same arguments, for some time.

    In a session, a call of the same user with equal arguments gets the earlier result: consent is
    asked, limits count, the step says which step it comes from (`metadata["cached_from"]`), and the
    tool does not run. Only JSON is taken over, and nothing that redaction changes. Works on
    functions and on `dspy.Tool` objects.

    Args:
        max_age_seconds: How old a result may be.

    Raises:
        InvalidSettingError: Not a positive number.
    """
    if not is_number(max_age_seconds) or not 0 < max_age_seconds < math.inf:
        raise InvalidSettingError(f"max_age_seconds is a positive number, not {max_age_seconds!r}.")

    def declared(tool: Any) -> Any:
        target = tool.func if isinstance(tool, dspy.Tool) else tool
        setattr(target, _MAX_AGE, float(max_age_seconds))
        return tool

    return declared


def is_cacheable(tool: dspy.Tool) -> bool:
    """Whether a tool was declared cacheable."""
    return hasattr(tool.func, _MAX_AGE)


def result_key(memory: StepMemory, tool: dspy.Tool, arguments: dict[str, Any]) -> str | None:
    """Return by what a call is found; None of one that is not to be."""
    if not _may_be_kept(memory, arguments):
        return None
    said = orjson.dumps([str(tool.name), arguments], option=orjson.OPT_SORT_KEYS)
    return blake2b(said, digest_size=16).hexdigest()


def earlier_result(
    memory: StepMemory, tool: dspy.Tool, key: str, user_id: str | None
) -> EarlierResult | None:
    """Return what the newest call gave that is found by this key; may block."""
    age = timedelta(seconds=getattr(tool.func, _MAX_AGE))
    where = {
        "tools": [str(tool.name)],
        "user_id": user_id,
        "status": "ok",
        "since": utc_now() - age,
        "metadata": {_KEY: key},
    }
    found = memory.find(where, limit=_LOOKED_AT, newest_first=True).steps
    recorded = (step for step in found if source_of(step.metadata) is None)
    own = next((step for step in recorded if step.user_id == user_id), None)
    return (
        None if own is None else EarlierResult((own.outputs or {}).get("result"), id_text(own.id))
    )


def mark_cacheable(step: AgentStep, key: str) -> None:
    """Let later calls take their result from a step, if its tool did not fail."""
    if step.status == "ok" and (step.outputs or {}).get("result") is not None:
        step.metadata = {**(step.metadata or {}), _KEY: key}


def looked_at(
    memory: StepMemory, function: Callable[..., Any], refuse: Callable[[], object]
) -> Callable[..., Any]:
    """Return a tool's function that says so when its result is not to be kept.

    Its step does not tell that: recorders repair and redact what they take.
    """

    def look(result: Any) -> Any:
        if not _may_be_kept(memory, result):
            refuse()
        return result

    async def run_async(**arguments: object) -> Any:
        return look(await function(**arguments))

    def run(**arguments: object) -> Any:
        return look(function(**arguments))

    return run_async if inspect.iscoroutinefunction(function) else run


def mark_cached(step: AgentStep, step_id: str) -> None:
    """Say from which step a result was taken."""
    step.metadata = {**(step.metadata or {}), _FROM: step_id}


def _may_be_kept(memory: StepMemory, value: Any) -> bool:
    redact = memory.redact
    return is_json(value) and (redact is None or redacted(value, redact) == value)
