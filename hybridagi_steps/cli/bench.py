"""`hybridagi-steps bench …`: the measurements behind every number we print.

Each command is one module of `hybridagi_steps.bench` with two functions: the parameters of
`measure` are the command's options, `report(json_output, **options)` prints what it returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer

from hybridagi_steps.cli.options import AsJson

app = typer.Typer(help="Measure quality and speed on this machine.", rich_markup_mode=None)

_ANY_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


_QUESTIONS = {
    "quality": "How well search finds the right steps in the real runs that come with the package.",
    "write": "What storing a step costs, beside a bare SQLite insert and others that keep steps.",
    "search": "How fast search is, with and without filters, beside a scan and other indexes.",
    "lexical": "How fast words are matched, beside SQLite's full-text index.",
    "embed": "How many real step texts a second each embedder turns into vectors.",
    "recorder": "What recording adds to a DSPy program's own time, beside MLflow's autolog.",
    "interpreter": "What a graph program costs above its language model calls.",
    "context": "What a context saves beside what it must hold, and how fast it is built.",
    "sessions": "How sessions take many writers, forks and retries, beside others that keep them.",
    "plans": "What plans of small steps save beside a full history, and whether the work is done.",
    "streams": "How many readers one run can have, and what each costs the server.",
    "readme": "Measure everything and write the numbers into the README of the checkout here.",
}
"""The commands, which are modules of `hybridagi_steps.bench`."""


def _command(name: str) -> Callable[[typer.Context, bool], None]:
    def ask(context: typer.Context, as_json: AsJson = False) -> None:
        module = import_module(f"hybridagi_steps.bench.{name}")
        module.report(json_output=as_json, **options_for(module.measure, context.args))

    return ask


for _name, _told in _QUESTIONS.items():
    app.command(_name, help=_told, context_settings=_ANY_OPTIONS)(_command(_name))


def options_for(measure: Callable[..., Any], extra: list[str]) -> dict[str, Any]:
    """Read `--name value` and `--flag` as the arguments of `measure`, in the types it names.

    Raises:
        typer.BadParameter: An option that `measure` does not have, or a value it cannot hold.
    """
    kinds = get_type_hints(measure)
    known = {name: kinds.get(name, str) for name in inspect.signature(measure).parameters}
    options: dict[str, Any] = {}
    words = iter(extra)
    for word in words:
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or name not in known:
            offered = ", ".join(f"--{key.replace('_', '-')}" for key in known) or "none"
            raise typer.BadParameter(f"unknown option {option}; this measurement has: {offered}.")
        if known[name] is bool:
            options[name] = True
            continue
        text = value if equals else next(words, None)
        if text is None:
            raise typer.BadParameter(f"{option} needs a value.")
        options[name] = _value(option, text, known[name])
    return options


def _value(option: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal and text not in get_args(kind):
        raise typer.BadParameter(f"{option}: {text!r} is none of {', '.join(get_args(kind))}.")
    read = kind if kind in (int, float) else str
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {text!r} is no {read.__name__}.") from error
