"""The service as a process: its socket, its address for people, and an orderly end.

The socket is made here: its port is known before anyone asks, it is never shared, and the kernel
gives up readers that have stopped reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from asyncio import Task
from collections.abc import Callable
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.server.leaving import end_after, end_at_next_signal, main_thread_left
from hybridagi_steps.server.services import Services
from hybridagi_steps.server.settings import ServerSettings

BACKLOG = 1024
_SPARE_FILES = 256
_EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - named to be recognised
_GOODBYE_SECONDS = 2
_LONGEST_END_SECONDS = 10.0
"""When a program blocks the event loop itself, nothing is closed in order."""
_LAST_TASKS_SECONDS = 1.0


class StepServer(uvicorn.Server):
    """A server that ends its streams and runs before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services
        self.given_up: threading.Timer | None = None
        """What ends the process when it does not come to its end, once a signal asked for that."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Begin to end; a second signal ends the process at once."""
        self.should_exit = True
        end_at_next_signal()
        self.given_up = end_after(_LONGEST_END_SECONDS, 1, main_thread_left)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: take nothing more in, let go who waits, then the runs, then the connections."""
        for server in self.servers:
            server.close()
        self._services.work.close()
        await self._services.hub.close()
        await super().shutdown(sockets)


def bound(host: str, port: int, stall_seconds: float) -> socket.socket:
    """Return a listening socket.

    Raises:
        InvalidSettingError: The address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise InvalidSettingError(f"there is no address {host}:{port}: {error}.") from error
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_seconds * 1000))
    try:
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise InvalidSettingError(
            f"{host}:{port} cannot be listened on: {error.strerror}; name another --port."
        ) from error
    return made


def page_address(host: str, port: int, token: str) -> str:
    """Return the address of the page with the token, which no server ever sees in it."""
    name = "127.0.0.1" if host in _EVERY_ADDRESS else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/#token={quote(token, safe='')}"


def serve(app: FastAPI, listening: socket.socket, began: Callable[[], None]) -> set[Task[Any]]:
    """Serve until a signal asks to end; `began` is called once requests are answered.

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
        limit_concurrency=services.settings.max_streams + _SPARE_FILES,
        timeout_graceful_shutdown=_GOODBYE_SECONDS,
    )
    server = StepServer(config, services)

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        try:
            if not serving.done():
                began()
        except BaseException:
            server.should_exit = True
            raise
        finally:
            await serving

    loop = asyncio.new_event_loop()
    try:
        try:
            with contextlib.suppress(KeyboardInterrupt):
                loop.run_until_complete(run())
        finally:
            left = loop.run_until_complete(_cancelled(loop))
        return left
    finally:
        # Not as asyncio.run does: that waits for tasks and threads that may never end.
        loop.close()
        if server.given_up is not None:
            server.given_up.cancel()


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
    """Make room for as many connections as there may be streams."""
    wanted = settings.max_streams + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
