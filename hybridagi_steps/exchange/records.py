"""What parsers yield: steps and what could not be read, each with its line.

Parsers are generators over numbered lines of bytes; they know nothing of files or memories, so
each can be tried on a literal. A bad record never stops the ones after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import ValidationError

from hybridagi_steps.records.agent_step import AgentStep

Lines = Iterable[tuple[int, bytes]]
"""Lines with their numbers, counted from 1."""


class Parsed(NamedTuple):
    """A step, and the line on which its record began."""

    line: int
    step: AgentStep


class Skipped(NamedTuple):
    """A record that was not imported."""

    line: int
    reason: str


class BadRecordError(ValueError):
    """A record cannot be read; the message says why. Never leaves this package."""


def json_record(line: bytes) -> Any:
    """Return the JSON value on a line.

    Python's own parser is used for its exactness: long integers and lone surrogates arrive as
    they were written, so that a step can repair them and say so.

    Raises:
        BadRecordError: The line is not JSON.
    """
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRecordError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise BadRecordError(f"not JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error
    except ValueError as error:
        raise BadRecordError(f"not JSON: {error}") from error


def agent_step(fields: dict[str, Any]) -> AgentStep:
    """Return the step with these fields.

    Raises:
        BadRecordError: A field is missing or of the wrong kind; the message names it.
    """
    try:
        return AgentStep.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "step"
        raise BadRecordError(f"{field}: {first['msg']}") from error
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error
    except OverflowError as error:
        raise BadRecordError(f"a time out of range: {error}") from error
