"""Commands that serve a memory: over HTTP with a page, to MCP clients; workers of a queue."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from html import escape
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from hybridagi_steps.cli.options import (
    DEFAULT_DB,
    Db,
    EmbedderName,
    MemoryBudget,
    Namespace,
    Redact,
    check_there,
    opened,
)
from hybridagi_steps.server.settings import CONCURRENCY, LOOPBACK_NAMES, ServerSettings

if TYPE_CHECKING:
    from types import FrameType

    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.running.runner import StepRunner
    from hybridagi_steps.server.tokens import Tokens

TOKEN_VARIABLE = "HYBRIDAGI_STEPS_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_PORT = 8377
_INTERRUPTED = 130
_NEEDED = ("fastapi", "uvicorn", "prometheus_client")

Program = Annotated[
    str | None,
    typer.Option(
        "--program", help="The program to talk to; reading works without.", metavar="MODULE:NAME"
    ),
]

Otlp = Annotated[
    str | None,
    typer.Option(
        "--otlp",
        envvar="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        help="Send runs that end to this OpenTelemetry collector.",
        metavar="URL",
    ),
]
MaxUserRuns = Annotated[
    int | None, typer.Option("--max-user-runs", min=1, help="Most runs of a user at a time.")
]
RequestsPerMinute = Annotated[
    int | None,
    typer.Option("--requests-per-minute", min=1, max=1_000_000, help="Most requests of a user."),
]
MaxConcurrency = Annotated[
    int, typer.Option("--max-concurrency", min=1, help="Most searches and readings at a time.")
]


def serve(
    db: Db = DEFAULT_DB,
    program: Program = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = DEFAULT_PORT,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", help="More tokens, as `token add` writes them.", metavar="FILE"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name this server goes by; repeatable."),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask the reader before each tool.")] = False,
    otlp: Otlp = None,
    max_streams: Annotated[
        int, typer.Option("--max-streams", min=1, help="Most event streams at a time.")
    ] = 2000,
    max_runs: Annotated[int, typer.Option("--max-runs", min=1, help="Most runs at a time.")] = 64,
    max_user_runs: MaxUserRuns = None,
    requests_per_minute: RequestsPerMinute = None,
    max_concurrency: MaxConcurrency = CONCURRENCY,
    max_queue: Annotated[
        int, typer.Option("--max-queue", min=0, help="Most of them that wait for their turn.")
    ] = 16,
    drain: Annotated[
        float, typer.Option("--drain", min=0, help="Seconds that runs get to end when stopped.")
    ] = 0.0,
    embedder: EmbedderName = "auto",
    memory_budget: MemoryBudget = None,
    namespace: Namespace = "default",
    redact: Redact = None,
) -> None:
    """Serve sessions, runs and search over HTTP, with a page; prints its address and new token."""
    _check_installed(*_NEEDED, what="The server", extra="server")
    from hybridagi_steps.server.program_loading import load_runner

    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    known = _known_tokens(token, tokens)
    settings = ServerSettings(
        allowed_hosts=(*LOOPBACK_NAMES, host, *(allow_host or ())),
        max_streams=max_streams,
        max_runs=max_runs,
        max_user_runs=max_user_runs,
        requests_per_minute=requests_per_minute,
        max_concurrency=max_concurrency,
        max_queue=max_queue,
        drain_seconds=drain,
    )
    with ExitStack() as stack:
        memory = stack.enter_context(opened(db, namespace, redact, embedder, memory_budget))
        _load_embedder(memory, embedder)
        runner = None if program is None else load_runner(program, memory, ask_consent=ask)
        stack.enter_context(_exported(memory, runner, otlp))
        say = partial(_say, token, tokens, has_program=runner is not None)
        _serve(stack, memory, known, (host, port, token), say, settings, runner)


def open_page(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The memory to look at.")],
    embedder: EmbedderName = "auto",
    namespace: Namespace = "default",
) -> None:
    """Open the page of a memory in the browser; it is there until Ctrl-C."""
    _check_installed(*_NEEDED, what="The page", extra="server")
    check_there(file, namespace)
    from hybridagi_steps.server.settings import ServerSettings

    token = secrets.token_urlsafe(24)

    def show(address: str) -> None:
        # A file of the user's own, since everybody may read the command lines of processes.
        page = stack.enter_context(
            NamedTemporaryFile("w", suffix=".html", encoding="utf-8")  # noqa: SIM115 - the stack's
        )
        page.write(f'<meta http-equiv="refresh" content="0; url={escape(address)}">')
        page.flush()
        # Some browsers are waited for, and meanwhile want an answer.
        threading.Thread(target=webbrowser.open, args=(Path(page.name).as_uri(),)).start()
        typer.echo(f"page:  {address}\nStop with Ctrl-C.")

    with ExitStack() as stack:
        memory = stack.enter_context(opened(file, namespace, embedder=embedder))
        _load_embedder(memory, embedder)
        known = _known_tokens(token, None)
        _serve(stack, memory, known, ("127.0.0.1", 0, token), show, ServerSettings(), None)


def _serve(
    stack: ExitStack,
    memory: StepMemory,
    known: Tokens,
    place: tuple[str, int, str],
    say: Callable[[str], None],
    settings: ServerSettings,
    runner: StepRunner | None,
) -> None:
    """Serve a memory until a signal; `stack`, which has opened it, is closed then."""
    from hybridagi_steps.server import process
    from hybridagi_steps.server.app import create_app

    host, port, token = place
    app = create_app(memory, known, runner=runner, settings=settings)
    listening = process.listening_socket(host, port, settings.stall_seconds)
    address = process.page_address(host, listening.getsockname()[1], _new_token(token))
    left = process.serve(app, listening, partial(say, address))
    stack.close()
    # Only now: everything is stored and closed, and programs may have left threads behind.
    process.leave_soon(app.state.services.hub.cut_off, at_once=bool(left))


def _load_embedder(memory: StepMemory, asked: str) -> None:
    """Load the embedder now, which the first search would wait for; without one words are found."""
    from hybridagi_steps.errors import StepsError

    try:
        memory.embedder.embed_queries(["ready"])
    except StepsError as error:
        if asked != "auto":
            raise
        typer.echo(f"warning: searches by meaning fail: {error}", err=True)


def mcp(
    db: Db = DEFAULT_DB,
    user: Annotated[
        str | None, typer.Option("--user", help="Whose steps; everybody's by default.")
    ] = None,
    embedder: EmbedderName = "auto",
    namespace: Namespace = "default",
    redact: Redact = None,
) -> None:
    """Serve a memory to an MCP client over standard input and output."""
    _check_installed("mcp", what="The MCP server", extra="mcp")
    from hybridagi_steps.server.mcp_server import access_line, serve_stdio
    from hybridagi_steps.server.process import leave_now

    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started it may ignore it
    try:
        with opened(db, namespace, redact, embedder) as memory:
            # Behind the greeting: a client waits for that, and a memory without words by meaning
            # still finds steps.
            load = partial(_load_embedder, memory, "auto")
            threading.Thread(target=load, name="embedder", daemon=True).start()
            typer.echo(f"access: {access_line(user)}", err=True)
            serve_stdio(memory, user)
    except KeyboardInterrupt:
        # The memory is closed; the thread that waits for standard input does not end by itself.
        leave_now(_INTERRUPTED)


@contextmanager
def _exported(
    memory: StepMemory, runner: StepRunner | None, endpoint: str | None
) -> Generator[None]:
    """Send the runs of a runner to a collector for the length of the block."""
    if endpoint is None or runner is None:
        yield
        return
    _check_installed("httpx", what="Exporting spans", extra="otel")
    from hybridagi_steps.server.span_export import SpanExport

    export = SpanExport(memory, endpoint)
    runner.hooks = (*runner.hooks, export)
    try:
        yield
    finally:
        export.close()


def _known_tokens(token: str, file: str | None) -> Tokens:
    from hybridagi_steps.cli.token import warn_if_open
    from hybridagi_steps.server.tokens import Caller, TokenFile, Tokens, TokenScope, read_tokens

    admin = {token: Caller(frozenset({TokenScope.ADMIN}))}
    if file is None:
        return Tokens(admin)
    try:
        known = read_tokens(Path(file).read_text("utf-8"))
        warn_if_open(file)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--tokens {file} cannot be read: {error}.") from error
    if known and Tokens(known).caller(token.encode()) is not None:
        raise typer.BadParameter(
            f"--tokens {file} has the token of {TOKEN_VARIABLE}, an admin's; take its line "
            "out, or set another one."
        )
    return TokenFile(Path(file), admin)


def _new_token(token: str) -> str | None:
    """Return a token that was made here; one from the environment is not printed."""
    return None if token == os.environ.get(TOKEN_VARIABLE) else token


def _say(token: str, file: str | None, address: str, /, *, has_program: bool) -> None:
    new = _new_token(token)
    if new is not None:
        typer.echo(f"token: {new}")
    typer.echo(f"page:  {address}")
    whose = f"the token of {TOKEN_VARIABLE}" if new is None else "this token"
    others = "no other token is known" if file is None else f"other tokens do what {file} says"
    typer.echo(f"access: {whose} reads, writes and erases everybody's steps; {others}.")
    if not has_program:
        typer.echo("No --program: everything can be read; chat and retry cannot.")
    typer.echo("Stop with Ctrl-C.")


def _check_installed(*modules: str, what: str, extra: str) -> None:
    from hybridagi_steps.errors import MissingExtraError

    if any(find_spec(module) is None for module in modules):
        raise MissingExtraError(what, extra)


def worker(
    program: Annotated[
        str | None,
        typer.Option("--program", help="What to run; else only jobs.", metavar="MODULE:NAME"),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option("--jobs", help="Kinds of jobs, by name in a dict.", metavar="MODULE:NAME"),
    ] = None,
    db: Db = DEFAULT_DB,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", help="The queue's file or address; by default the memory's.", metavar="DB"
        ),
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Most runs at a time.")] = 8,
    max_runs_per_user: Annotated[
        int | None,
        typer.Option("--max-runs-per-user", min=1, help="Most of one user's at a time, anywhere."),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds that runs get to end when stopped.")
    ] = 10.0,
    namespace: Namespace = "default",
    redact: Redact = None,
) -> None:
    """Carry out runs and jobs, also those that a killed worker left; stop with Ctrl-C."""
    from hybridagi_steps.durable.session_runs import DurableRunner
    from hybridagi_steps.server.program_loading import load_jobs, load_runner

    stop = threading.Event()
    with ExitStack() as stack:
        memory = stack.enter_context(opened(db, namespace, redact))
        runner = None if program is None else load_runner(program, memory)
        kinds = None if jobs is None else load_jobs(jobs)
        durable = stack.enter_context(DurableRunner(runner, memory, database=queue, jobs=kinds))
        _stop_on_signal(stop)
        takes = "takes jobs" if program is None else f"{program} takes runs"
        typer.echo(f"worker: {takes} from {durable.database}; stop with Ctrl-C.")
        ended = durable.run_worker(
            stop, at_once=at_once, max_runs_per_user=max_runs_per_user, grace_seconds=grace
        )
        if not ended:
            typer.echo("worker: runs are left to the next worker.")
            sys.stdout.flush()
            # Nothing stops the thread of a tool, and the process would wait for it.
            os._exit(0)


def _stop_on_signal(stop: threading.Event) -> None:
    """Let the first Ctrl-C or SIGTERM end the worker, and a second one end it at once."""

    def stopped(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped)
