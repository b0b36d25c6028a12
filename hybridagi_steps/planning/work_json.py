"""Work and outcomes as JSON text, for queues and databases.

Reading never makes anything but the values of this library: an error comes back as one of our own,
whatever it was.
"""

from __future__ import annotations

import base64
from typing import Any

import orjson

from hybridagi_steps.planning.accounting import LMCall
from hybridagi_steps.planning.changes import Change, Changes
from hybridagi_steps.planning.snapshot import Entry
from hybridagi_steps.planning.work import Finished, Outcome, Problem
from hybridagi_steps.records.json_values import json_value


def write_outcome(outcome: Outcome) -> str:
    """Return an outcome as JSON."""
    data: dict[str, Any] = {
        "finished": outcome.finished and outcome.finished.model_dump(mode="json"),
        "error": None if outcome.error is None else Problem.of(outcome.error).model_dump(),
        "changes": None if outcome.changes is None else _changes(outcome.changes),
        "problems": [problem.model_dump() for problem in outcome.problems],
        "calls": [call.model_dump(mode="json") for call in outcome.calls],
    }
    return orjson.dumps(json_value(data, [])).decode()


def read_outcome(text: str) -> Outcome:
    """Return an outcome from its JSON.

    Raises:
        ValueError: It is none.
    """
    data: dict[str, Any] = orjson.loads(text)
    finished, error, changes = data["finished"], data["error"], data["changes"]
    return Outcome(
        finished=None if finished is None else Finished.model_validate(finished),
        error=None if error is None else Problem.model_validate(error).error(),
        changes=None if changes is None else _read_changes(changes),
        problems=[Problem.model_validate(problem) for problem in data["problems"]],
        calls=[LMCall.model_validate(call) for call in data["calls"]],
    )


def _changes(changes: Changes) -> dict[str, Any]:
    return {
        "paths": {path: [change.before, change.after] for path, change in changes.paths.items()},
        "contents": {
            name: base64.b64encode(content).decode() for name, content in changes.contents.items()
        },
    }


def _read_changes(data: dict[str, Any]) -> Changes:
    paths: dict[str, Any] = data["paths"]
    contents: dict[str, str] = data["contents"]
    return Changes(
        {path: Change(_entry(before), _entry(after)) for path, (before, after) in paths.items()},
        {name: base64.b64decode(content) for name, content in contents.items()},
    )


def _entry(data: Any) -> Entry | None:
    return None if data is None else Entry(*data)
