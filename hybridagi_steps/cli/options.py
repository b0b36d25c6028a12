"""Options that several commands share, and what they mean: a memory, a filter, JSON to print.

A command that only reads refuses a file that is not there instead of creating an empty one.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridagi_steps.records.filter_fields import FILTER_FIELDS, FilterField

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.agent_step import AgentStep

DEFAULT_DB = "steps.db"

Db = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="HYBRIDAGI_STEPS_DB",
        help="The memory: a file, postgresql://…, or placement.toml#NAMESPACE",
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
EmbedderName = Annotated[
    str,
    typer.Option(
        "--embedder",
        help="auto (the file's own), wordllama, hashing, or sentence-transformers with its model.",
    ),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        "--memory-budget",
        help="What the search index of a memory in PostgreSQL may take here; a larger one is "
        "searched there.",
        metavar="256MB",
    ),
]
Background = Annotated[
    bool,
    typer.Option("--background", help="Hand it to a `worker` of this memory; see `jobs`."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(value: object) -> None:
    """Print a value as JSON, indented, as it is; what draws tables is not loaded for it."""
    whole = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    json.dump(value, sys.stdout, indent=2, ensure_ascii=not whole, default=str)
    sys.stdout.write("\n")


def step_data(step: AgentStep) -> dict[str, Any]:
    """Return a step as JSON data, without its vector."""
    return step.model_dump(mode="json", exclude={"vector"})


def existing(db: str, namespace: str | None) -> AbstractContextManager[StepMemory]:
    """Open a namespace that is there, in a file or on a server; None: any, for what is of all."""
    if "numpy" not in sys.modules:  # whose threads are started with it, and here have no work
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return opened(db, check_there(db, namespace))


def check_there(db: str, namespace: str | None) -> str:
    """Refuse a file or a namespace that is not there; return the namespace."""
    from hybridagi_steps.stores import known_namespace
    from hybridagi_steps.stores.address import is_server
    from hybridagi_steps.stores.placement import DEFAULT_NAMESPACE, placed

    address, name = placed(db, namespace or DEFAULT_NAMESPACE)
    if not is_server(address) and not Path(address).exists():
        raise typer.BadParameter(
            f"there is no memory file {address}; import something into it, or name another with "
            "--db."
        )
    return known_namespace(address, None if namespace is None and address == db else name)


def opened(
    db: str,
    namespace: str,
    redact: str | None = None,
    embedder: str = "auto",
    memory_budget: str | None = None,
) -> AbstractContextManager[StepMemory]:
    """Open the memory in a file, or at a server's address, making the file if it is not there.

    What is stored is redacted by the function that `redact` names, as `package.module:name`.
    """
    if db in ("", ":memory:"):
        raise typer.BadParameter(f"--db needs a file; {db!r} would be gone with this command.")
    from hybridagi_steps.memory import StepMemory

    how: dict[str, Any] = {"embedder": embedder, "memory_budget": memory_budget}
    if redact is None:
        return StepMemory(db, namespace=namespace, **how)
    from hybridagi_steps.server.program_loading import load_redact

    return StepMemory(db, namespace=namespace, redact=load_redact(redact), **how)


def handed_out(memory: StepMemory, kind: str, **arguments: object) -> None:
    """Hand a bulk job out, and say how it is called."""
    from hybridagi_steps.durable.session_runs import DurableRunner

    with DurableRunner(memory=memory) as durable:
        job_id = durable.jobs.submit(kind, **arguments)
    typer.echo(f"{job_id}: `hybridagi-steps worker` does it, `hybridagi-steps jobs` shows it.")


def named(db: str) -> str:
    """Return the name of a memory as it may be printed: without a password."""
    from hybridagi_steps.stores.address import shown_address

    return shown_address(db)


def with_filter(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of a filter, which it is called with as `where`."""
    names = {**command.__globals__, "StepFilter": object}  # loaded when a command runs
    own = inspect.signature(command, eval_str=True, globals=names).parameters
    parameters = [own[name] for name in own if name != "where"] + list(_FILTER_OPTIONS.values())

    def run(**options: object) -> None:
        from hybridagi_steps.errors import InvalidFilterError
        from hybridagi_steps.records.filters import StepFilter

        asked = {name: options.pop(option.name) for name, option in _FILTER_OPTIONS.items()}
        try:
            where = StepFilter.of(_conditions(asked))
        except InvalidFilterError as error:
            field = next((field for field in FILTER_FIELDS if field.name == error.key), None)
            if field is None:
                raise
            said = str(error).replace(f"filter key {field.name!r}", field.option)
            raise typer.BadParameter(said) from error
        command(where, **options)

    run.__doc__, run.__annotations__ = command.__doc__, {p.name: p.annotation for p in parameters}
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return run


_REPEATABLE = ("texts", "choices", "json", "filters")


def _option(field: FilterField) -> inspect.Parameter:
    """Return the option of a field as a command's parameter."""
    text = field.help.replace("`", "")
    if text.startswith(("Steps", "Actions")):
        text = f"Only {text[0].lower()}{text[1:]}"
    kind: Any = float | None if field.kind == "number" else str | None
    if field.kind in _REPEATABLE:
        kind, text = list[str] | None, f"{text.removesuffix('.')}; repeatable."
    option = typer.Option(field.option, help=text, metavar=field.metavar)
    name = f"where_{field.name}"  # a command may have a parameter of the field's name
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


_FILTER_OPTIONS = {field.name: _option(field) for field in FILTER_FIELDS}


def _conditions(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options ask for as a filter takes it; absent ones add no condition."""
    read: dict[str, Any] = {}
    for field in FILTER_FIELDS:
        if (value := asked[field.name]) is None or value == []:
            continue
        if field.kind == "json":
            value = _object(field.option, [_pair(field.option, text) for text in value])
        elif field.kind == "filters":
            value = [_filter(field.option, text) for text in value]
        read[field.name] = value
    return read


def _filter(option: str, text: str) -> dict[str, Any]:
    """Read a filter: KEY=VALUE, or several conditions as a JSON object."""
    if not text.lstrip().startswith("{"):
        return dict([_pair(option, text)])
    try:
        unique = partial(_object, option)
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=unique)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {text!r} is no JSON object.") from error


def _object(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs as an object; of two values under a key one would count for nothing."""
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise typer.BadParameter(f"{option}: {key!r} stands there twice.")
    return dict(pairs)


_PYTHONS_OWN = {"True": True, "False": False, "None": None}


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _pair(option: str, text: str) -> tuple[str, Any]:
    """Read KEY=VALUE; the value is JSON (or True, False, None as Python has them), else text."""
    key, equals, value = text.partition("=")
    if not equals or not key or key[-1] in "<>!":
        raise typer.BadParameter(
            f'{option}: {text!r} is not KEY=VALUE; a range is price={{"gte": 3, "lt": 9}}.'
        )
    if value in _PYTHONS_OWN:
        return key, _PYTHONS_OWN[value]
    unique = partial(_object, option)
    try:
        return key, json.loads(value, parse_constant=_no_number, object_pairs_hook=unique)
    except ValueError as error:
        if value[:1] in ("{", "["):
            raise typer.BadParameter(f"{option}: {value!r} is no JSON ({error}).") from error
        return key, value
