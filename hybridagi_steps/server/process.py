"""The service as a process: its socket, its address for people, and an orderly end.

The socket is made here: its port is known before anyone asks, it is never shared, and the kernel
gives up readers that have stopped reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from asyncio import Task
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.running.stopping import run_of_thread
from hybridagi_steps.server.services import Services
from hybridagi_steps.server.settings import ServerSettings

log = logging.getLogger("hybridagi_steps.server")

BACKLOG = 1024
_SPARE_FILES = 256
_FEWEST_HEADLESS = 64
_EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - named to be recognised
_GOODBYE_SECONDS = 2
_LONGEST_END_SECONDS = 10.0
"""When a program blocks the event loop itself, nothing is closed in order."""
_LAST_TASKS_SECONDS = 1.0
_LAST_THREADS_SECONDS = 1.5
"""How long threads may take to end by themselves."""
_TICKS_A_SWEEP = 6_000
"""Of uvicorn's, ten a second."""
_OLDEST = 2
"""The generation of the garbage collector that has survived all others."""
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StepServer(uvicorn.Server):
    """A server that ends its streams and runs before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services
        spare = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - services.settings.max_streams
        self._most_headless = min(BACKLOG, max(_FEWEST_HEADLESS, spare - _SPARE_FILES))
        self._headless: dict[Any, tuple[object, float]] = {}
        """Of connections without a whole head: their last request, and since when they are."""
        self._end_by: float | None = None
        """When it ends, once a signal asked for that, though runs are still in flight."""
        self.given_up: threading.Timer | None = None
        """What ends the process when it does not come to its end, once a signal asked for that."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Begin to end; a second signal ends the process at once."""
        self._end_by = time.monotonic() + self._services.settings.drain_seconds
        self._services.hub.drain()
        end_at_next_signal()
        self._end_when_idle()

    async def on_tick(self, counter: int) -> bool:
        """Look whether it is time to end."""
        self._end_when_idle()
        self._drop_headless()
        if counter and counter % _TICKS_A_SWEEP == 0:
            gc.unfreeze()  # once in a while all is looked at: what stayed may be garbage by now
            gc.collect()
        return await super().on_tick(counter)

    def _drop_headless(self) -> None:
        """Close connections that sent no whole head in time, and of too many the oldest.

        Nobody knows whose they are, so they take no place of those who sent a token.
        """
        now, waiting = time.monotonic(), dict[Any, tuple[object, float]]()
        connections: set[Any] = {*self.server_state.connections}  # of HTTP: there is no other here
        for connection in connections:
            if (last := connection.cycle) is None or last.response_complete:
                before, since = self._headless.get(connection, (last, now))
                waiting[connection] = last, since if before is last else now
        self._headless = waiting
        by_age = sorted(waiting.items(), key=lambda each: each[1][1], reverse=True)
        for number, (connection, (_, since)) in enumerate(by_age):
            if number >= self._most_headless or now - since >= self._services.settings.head_seconds:
                connection.transport.close()

    def _end_when_idle(self) -> None:
        """End once a signal asked for that, and no run is in flight or the time is over."""
        if self._end_by is None or self.should_exit:
            return
        if not self._services.hub.in_flight or time.monotonic() >= self._end_by:
            self.should_exit = True
            self.given_up = end_after(_LONGEST_END_SECONDS, 1, main_thread_left)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: take nothing more in, let go who waits, then the runs, then the connections."""
        for server in self.servers:
            server.close()
        self._services.work.close()
        await self._services.hub.close()
        await super().shutdown(sockets)


def listening_socket(host: str, port: int, stall_seconds: float) -> socket.socket:
    """Return a listening socket."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise InvalidSettingError(f"there is no address {host}:{port}: {error}.") from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a body waits for an ACK
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stall_ms = int(stall_seconds * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise InvalidSettingError(
            f"{host}:{port} cannot be listened on: {error.strerror}; name another --port."
        ) from error
    return listening


def page_address(host: str, port: int, token: str | None) -> str:
    """Return the address of the page, with a token if there is one, which no server sees in it."""
    name = "127.0.0.1" if host in _EVERY_ADDRESS else host
    shown = f"[{name}]" if ":" in name else name
    fragment = "" if token is None else f"#token={quote(token, safe='')}"
    return f"http://{shown}:{port}/{fragment}"


def serve(app: FastAPI, listening: socket.socket, on_ready: Callable[[], None]) -> set[Task[Any]]:
    """Serve until a signal asks to end; `on_ready` is called once requests are answered.

    What ends it politely ends it in order: the memory is closed by whoever opened it.

    Returns:
        Tasks that did not let themselves be cancelled; they do not go on.
    """
    services: Services = app.state.services
    _raise_file_limit(services.settings)
    config = uvicorn.Config(
        app,
        log_level="error",  # what it warns of is all done by clients, as often as they like
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        backlog=BACKLOG,
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
    )
    server = StepServer(config, services)

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        try:
            if not serving.done():
                on_ready()
        except BaseException:
            server.should_exit = True
            raise
        finally:
            await serving
            end_at_next_signal()  # uvicorn has put back the handlers that it found

    loop = asyncio.new_event_loop()
    gc.freeze()  # what is loaded stays: collections that looked at it held answers up for .1 s
    gc.callbacks.append(_keep_old)
    try:
        try:
            with contextlib.suppress(KeyboardInterrupt):
                loop.run_until_complete(run())
        finally:
            left = loop.run_until_complete(_cancelled(loop))
        return left
    finally:
        gc.callbacks.remove(_keep_old)
        gc.unfreeze()
        # Not as asyncio.run does: that waits for tasks and threads that may never end.
        loop.close()
        if server.given_up is not None:
            server.given_up.cancel()


def _keep_old(phase: str, info: dict[str, int]) -> None:
    """Let the next collection look at nothing that this one has found to stay."""
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()


async def _cancelled(loop: asyncio.AbstractEventLoop) -> set[Task[Any]]:
    """Cancel what is left on an event loop; wait for it a little; return what goes on."""
    left: set[Task[Any]] = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=_LAST_TASKS_SECONDS)
    if not left:
        await loop.shutdown_asyncgens()
    return left


def _raise_file_limit(settings: ServerSettings) -> None:
    """Make room for as many connections as there may be streams, and for those without a head."""
    wanted = settings.max_streams + BACKLOG + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def leave_soon(cut_off: Sequence[str] = (), *, at_once: bool = False) -> None:
    """Let the process end by itself, or end it: call it when all else is done.

    Args:
        cut_off: Runs that were in flight at the end.
        at_once: Whether something is left for which there is no waiting.
    """
    end_at_next_signal()
    if at_once:
        what = _culprit(cut_off)
        log.warning("%s did not let itself be cancelled; it ends with the process.", what)
        leave_now(0)
    end_after(_LAST_THREADS_SECONDS, 0, lambda: threads_left(cut_off))


def end_at_next_signal() -> None:
    """Let one more Ctrl-C or SIGTERM end the process at once."""
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def end_after(seconds: float, code: int, why: Callable[[], list[str]]) -> threading.Timer:
    """End the process after some time, unless that is called off; say why before."""

    def end() -> None:
        for line in why():
            log.warning("%s", line)
        leave_now(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True  # it holds up nothing itself
    timer.start()
    return timer


def leave_now(code: int) -> NoReturn:
    """End the process, whatever its threads do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def main_thread_left() -> list[str]:
    """Return where the main thread is, which is to end and does not."""
    where = _place_in_code(threading.main_thread())
    return [f"the server does not come to its end: it is at {where}; it is ended as it is."]


def threads_left(cut_off: Sequence[str] = ()) -> list[str]:
    """Return for each thread that the interpreter would wait for where it is, and whose it is."""
    lines: list[str] = []
    for thread in threading.enumerate():
        if thread.daemon or thread.ident is None or thread is threading.main_thread():
            continue
        run_id = run_of_thread(thread.ident)
        whose = _culprit(cut_off) if run_id is None else f"run {run_id}"
        where = _place_in_code(thread)
        lines.append(f"{whose} has left thread {thread.name} at {where}; it ends with the process.")
    return lines


def _place_in_code(thread: threading.Thread) -> str:
    # The documented way to see other threads.
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if (frame := frames.get(thread.ident or 0)) is None:
        return "its end"
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


def _culprit(runs: Sequence[str]) -> str:
    return f"some code, perhaps of run {' or '.join(runs)}," if runs else "some code"
