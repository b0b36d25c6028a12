"""Work and outcomes as JSON text, for queues and databases.

Reading never makes anything but the values of this library: an error comes back as one of our own,
whatever it was.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from hybridagi_steps.planning.changes import Change, Changes
from hybridagi_steps.planning.usage import LMCall
from hybridagi_steps.planning.work import Finished, Outcome, Problem
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.validation import Redact, redacted
from hybridagi_steps.workspace.snapshot import Entry


def write_outcome(
    outcome: Outcome,
    keep: Callable[[Mapping[str, bytes]], None],
    redact: Redact | None = None,
) -> str:
    """Return an outcome as JSON, without the contents of files.

    Args:
        outcome: What became of an attempt.
        keep: Keeps the contents of new files, by their hash, elsewhere.
        redact: What is said of it goes through this; names of files do not.
    """
    if outcome.changes is not None:
        keep(outcome.changes.contents)
    said: dict[str, Any] = {
        "finished": outcome.finished and outcome.finished.model_dump(mode="json"),
        "error": None if outcome.error is None else Problem.of(outcome.error).model_dump(),
        "problems": [problem.model_dump() for problem in outcome.problems],
        "calls": [call.model_dump(mode="json") for call in outcome.calls],
    }
    said = json_value(said, [])
    said = said if redact is None else redacted(said, redact)
    changes = None if outcome.changes is None else json_value(_changes(outcome.changes), [])
    return orjson.dumps({**said, "changes": changes}).decode()


def read_outcome(text: str, find: Callable[[list[str]], dict[str, bytes]]) -> Outcome:
    """Return an outcome from its JSON.

    Args:
        text: What `write_outcome` gave.
        find: Returns the contents that it kept.

    Raises:
        ValueError: It is none.
    """
    data: dict[str, Any] = orjson.loads(text)
    finished, error, changes = data["finished"], data["error"], data["changes"]
    return Outcome(
        finished=None if finished is None else Finished.model_validate(finished),
        error=None if error is None else Problem.model_validate(error).error(),
        changes=None if changes is None else _read_changes(changes, find),
        problems=[Problem.model_validate(problem) for problem in data["problems"]],
        calls=[LMCall.model_validate(call) for call in data["calls"]],
    )


def _changes(changes: Changes) -> dict[str, Any]:
    return {
        "paths": {path: [change.before, change.after] for path, change in changes.paths.items()},
        "contents": sorted(changes.contents),
    }


def _read_changes(data: dict[str, Any], find: Callable[[list[str]], dict[str, bytes]]) -> Changes:
    paths: dict[str, Any] = data["paths"]
    kept: dict[str, str] | list[str] = data["contents"]
    if isinstance(kept, dict):  # as earlier versions wrote it
        contents = {name: base64.b64decode(content) for name, content in kept.items()}
    else:
        contents = find(kept)
    return Changes(
        {path: Change(_entry(before), _entry(after)) for path, (before, after) in paths.items()},
        contents,
    )


def _entry(data: Any) -> Entry | None:
    return None if data is None else Entry(*data)
