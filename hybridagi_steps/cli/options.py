"""Options that several commands share, and what they mean: a memory to open, a filter to apply.

A command that only reads refuses a file that is not there instead of creating an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.filters import StepFilter

DEFAULT_DB = "steps.db"

Db = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="HYBRIDAGI_STEPS_DB",
        help="The memory: a file, or postgresql://…",
        metavar="FILE",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", help="Whose memory inside the file.")]
Redact = Annotated[
    str | None,
    typer.Option(
        "--redact",
        help="Called with every text before it is stored; what it returns is kept.",
        metavar="MODULE:NAME",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Run = Annotated[str | None, typer.Option("--run", help="Only steps of this run.", metavar="ID")]
Session = Annotated[
    str | None, typer.Option("--session", help="Only steps of this session.", metavar="ID")
]
User = Annotated[str | None, typer.Option("--user", help="Only steps of this user.", metavar="ID")]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only Action, Decision, ProgramCall or ProgramEnd; repeatable."),
]
Tools = Annotated[
    list[str] | None, typer.Option("--tool", help="Only uses of this tool; repeatable.")
]
Status = Annotated[
    list[str] | None,
    typer.Option("--status", help="Only ok, error, partial or cancelled; repeatable."),
]
Since = Annotated[
    str | None, typer.Option("--since", help="Only steps made at or after it.", metavar="DATE")
]
Until = Annotated[
    str | None, typer.Option("--until", help="Only steps made before it.", metavar="DATE")
]
Scope = Annotated[
    str | None, typer.Option("--scope", help="Trial runs of this scope; * shows everything.")
]
Rated = Annotated[
    float | None,
    typer.Option("--rated", help="Only steps with at least this score, their own or their run's."),
]
NotRun = Annotated[
    list[str] | None,
    typer.Option("--not-run", help="Not steps of this run; repeatable.", metavar="ID"),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", help="Only with this value; repeatable.", metavar="KEY=VALUE"),
]

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source", help="Only what came from this file, or mcp; repeatable.", metavar="NAME"
    ),
]
Trust = Annotated[
    str | None,
    typer.Option(
        "--trust", help="Only own (recorded here by --user), team (by anybody) or imported (all)."
    ),
]


def existing(db: str, namespace: str) -> AbstractContextManager[StepMemory]:
    """Open the memory in a file that is there, or on a server."""
    from hybridagi_steps.stores.address import is_server

    if not is_server(db) and not Path(db).exists():
        raise typer.BadParameter(
            f"there is no memory file {db}; import something into it, or name another with --db."
        )
    return opened(db, namespace)


def opened(
    db: str, namespace: str, redact: str | None = None
) -> AbstractContextManager[StepMemory]:
    """Open the memory in a file, making the file if it is not there.

    Args:
        db: The file, or a server's address.
        namespace: Whose memory in it.
        redact: Where the function is that redacts what is stored, as `package.module:name`.
    """
    if db in ("", ":memory:"):
        raise typer.BadParameter(f"--db needs a file; {db!r} would be gone with this command.")
    from hybridagi_steps.memory import StepMemory

    if redact is None:
        return StepMemory(db, namespace=namespace)
    from hybridagi_steps.server.program_loading import load_redact

    return StepMemory(db, namespace=namespace, redact=load_redact(redact))


def named(db: str) -> str:
    """Return the name of a memory as it may be printed: without a password."""
    from hybridagi_steps.stores.address import shown_address

    return shown_address(db)


def step_filter(
    *,
    since: str | None = None,
    until: str | None = None,
    metadata: Sequence[str] | None = None,
    **conditions: Any,
) -> StepFilter:
    """Return the filter that options ask for; absent ones add no condition."""
    from hybridagi_steps.records.filters import StepFilter

    asked = {
        **conditions,
        "since": _date("--since", since),
        "until": _date("--until", until),
        "metadata": dict(_pair(text) for text in metadata) if metadata else None,
    }
    return StepFilter.of({key: value for key, value in asked.items() if value not in (None, [])})


def _date(option: str, text: str | None) -> datetime | None:
    try:
        read = datetime.fromisoformat(text) if text is not None else None
        return read.astimezone(UTC) if read is not None and read.tzinfo is not None else read
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{option}: {text!r} is no date; write 2026-01-31 or 2026-01-31T10:00 (UTC)."
        ) from error


_PYTHONS_OWN = {"True": True, "False": False, "None": None}


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _pair(text: str) -> tuple[str, Any]:
    """Read KEY=VALUE; numbers, true, false and null (or as Python writes them), else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"--metadata: {text!r} is not KEY=VALUE.")
    if value in _PYTHONS_OWN:
        return key, _PYTHONS_OWN[value]
    try:
        read = json.loads(value, parse_constant=_no_number)
    except ValueError:
        return key, value
    return key, value if isinstance(read, dict | list) else read
