"""The command that carries out durable runs: one process of as many as one likes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from hybridagi_steps.cli.options import DEFAULT_DB, Db, Namespace, Redact, opened

if TYPE_CHECKING:
    from types import FrameType


def worker(
    program: Annotated[
        str, typer.Option("--program", help="The program to run.", metavar="MODULE:NAME")
    ],
    db: Db = DEFAULT_DB,
    queue: Annotated[
        str | None,
        typer.Option("--queue", help="The queue's file; FILE.runs by default.", metavar="FILE"),
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Most runs at a time.")] = 8,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds that runs get to end when stopped.")
    ] = 10.0,
    namespace: Namespace = "default",
    redact: Redact = None,
) -> None:
    """Carry out runs from a queue, also those that a killed worker left; stop with Ctrl-C."""
    from hybridagi_steps.durable.session_runs import DurableRunner
    from hybridagi_steps.server.program_loading import load_runner

    stop = threading.Event()
    with (
        opened(db, namespace, redact) as memory,
        DurableRunner(load_runner(program, memory), database=queue) as durable,
    ):
        _end_when_told(stop)
        typer.echo(f"worker: {program} takes runs from {durable.database}; stop with Ctrl-C.")
        ended = durable.run_worker(stop, at_once=at_once, grace_seconds=grace)
        if not ended:
            typer.echo("worker: runs are left to the next worker.")
            sys.stdout.flush()
            # Nothing stops the thread of a tool, and the process would wait for it.
            os._exit(0)


def _end_when_told(stop: threading.Event) -> None:
    """Let the first Ctrl-C or SIGTERM end the worker, and a second one end it at once."""

    def told(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)
