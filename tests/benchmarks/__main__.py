"""`python -m tests.benchmarks …` in a checkout: the measurements behind every number we print.

Each command is one module of `tests.benchmarks` with two functions: the parameters of
`measure` are the command's options, explained by its docstring; `report(json_output, **options)`
prints what it returns. A module is imported when its command, or the help of it, is asked for.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from hybridagi_steps.cli import main
from hybridagi_steps.cli.options import AsJson

_QUESTIONS = {
    "learning": "What learning from steps is worth: recall, outlook, agreement, loops.",
    "experience": "What good runs in memory are worth to a small model over HTTP, five ways.",
    "quality": "How well search finds the right steps in the real runs that come with the package.",
    "write": "What storing a step costs, beside a bare SQLite insert and others that keep steps.",
    "search": "How fast search is, with and without filters, beside a scan and other indexes.",
    "scaling": "How what each operation costs grows with the memory, and with a session.",
    "lexical": "How fast words are matched, and in what memory, beside SQLite FTS5 and tantivy.",
    "turns": "What a message costs in a session, and in pieces, beside others that keep sessions.",
    "embed": "How many real step texts a second each embedder turns into vectors.",
    "recorder": "What recording adds to a DSPy program's own time, beside MLflow's autolog.",
    "interpreter": "What a graph program costs above its language model calls.",
    "context": "What a context saves beside what it must hold, and how fast it is built.",
    "sessions": "How sessions take many writers, forks and retries, beside others that keep them.",
    "plans": "What plans of small steps save beside a full history, and whether the work is done.",
    "spans": "Where each span of MLflow's autolog stands in a memory, on the same runs.",
    "streams": "How many readers one run can have, and what each costs the server.",
    "http": "What a server answers a second over HTTP, beside a bare app that returns the same.",
    "walks": "How many files and calls of the package one thing enters.",
    "copying": "What copying a memory costs, from files and PostgreSQL to either.",
    "capacity": "What a step costs a database, and a year of many namespaces takes of many.",
    "postgres_peers": "What steps take on one PostgreSQL server, beside others that use it.",
    "postgres_scaling": "How opening, and adding with a search, grow with a memory in PostgreSQL.",
    "install": "What `pip install .` brings, how heavy it is, and which dependency brings it.",
    "readme": "Measure everything and write the numbers into README and documentation here.",
}
"""The commands, which are modules of `tests.benchmarks`."""

_ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""One argument and its explanation in the Args of a docstring."""


class _Measurements(TyperGroup):
    """Makes a command when it is asked for."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a measurement, with its options; None: there is none."""
        if cmd_name not in _QUESTIONS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"tests.benchmarks.{cmd_name}")
        made = typer.Typer(rich_markup_mode=None, add_completion=False)
        made.command(cmd_name, help=_QUESTIONS[cmd_name])(asking(module.measure, module.report))
        return typer.main.get_command(made)


app = typer.Typer(
    name="python -m tests.benchmarks",
    help="Measure quality and speed on this machine.",
    add_completion=False,
    rich_markup_mode=None,
    cls=_Measurements,
)


def asking(measure: Callable[..., Any], report: Callable[..., None]) -> Callable[..., None]:
    """Return a command that calls `report`; its options are the parameters of `measure`."""

    def ask(as_json: bool = False, **options: Any) -> None:
        report(json_output=as_json, **options)

    explained = dict(_ARGUMENT.findall(inspect.getdoc(measure) or ""))
    kinds = get_type_hints(measure)
    options = {
        name: parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[kinds[name], _option(name, kinds[name], explained)],
        )
        for name, parameter in inspect.signature(measure).parameters.items()
    }
    as_json = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
    )
    ask.__signature__ = inspect.Signature([*options.values(), as_json])  # pyright: ignore[reportFunctionMemberAccess]
    ask.__annotations__ = {name: option.annotation for name, option in options.items()}
    ask.__annotations__["as_json"] = AsJson
    return ask


def _option(name: str, kind: Any, explained: dict[str, str]) -> Any:
    words = [f"--{name.replace('_', '-')}"] if kind is bool else []
    least = 1 if kind is int else None
    return typer.Option(*words, min=least, help=" ".join(explained.get(name, "").split()))


for _name, _told in _QUESTIONS.items():
    app.command(_name, short_help=_told)(lambda: None)

if __name__ == "__main__":
    sys.exit(main(app=app))
