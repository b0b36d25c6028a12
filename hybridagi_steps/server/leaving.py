"""The end of the process: for sure, and soon, whatever a program still does.

Nothing stops a thread in Python, and the interpreter waits for each one before it ends. By then
everything is stored and closed, so what a program's thread still does is lost anyway.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from hybridagi_steps.running.threads import run_of_thread

log = logging.getLogger("hybridagi_steps.server")

WAIT_SECONDS = 1.5
"""How long threads may take to end by themselves."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def leave_soon(cut_off: Sequence[str] = (), *, at_once: bool = False) -> None:
    """Let the process end by itself, or end it: call it when all else is done.

    Args:
        cut_off: Runs that were in flight at the end.
        at_once: Whether something is left for which there is no waiting.
    """
    end_at_next_signal()
    if at_once:
        what = _perhaps(cut_off)
        log.warning("%s did not let itself be cancelled; it ends with the process.", what)
        leave_now(0)
    end_after(WAIT_SECONDS, 0, lambda: threads_left(cut_off))


def end_at_next_signal() -> None:
    """Let one more Ctrl-C or SIGTERM end the process at once."""
    for number in ENDING_SIGNALS:
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
    where = _place_of(threading.main_thread())
    return [f"the server does not come to its end: it is at {where}; it is ended as it is."]


def threads_left(cut_off: Sequence[str] = ()) -> list[str]:
    """Return for each thread that the interpreter would wait for where it is, and whose it is."""
    lines: list[str] = []
    for thread in threading.enumerate():
        if thread.daemon or thread.ident is None or thread is threading.main_thread():
            continue
        run_id = run_of_thread(thread.ident)
        whose = _perhaps(cut_off) if run_id is None else f"run {run_id}"
        where = _place_of(thread)
        lines.append(f"{whose} has left thread {thread.name} at {where}; it ends with the process.")
    return lines


def _place_of(thread: threading.Thread) -> str:
    # The documented way to see other threads.
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if (frame := frames.get(thread.ident or 0)) is None:
        return "its end"
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


def _perhaps(runs: Sequence[str]) -> str:
    return f"some code, perhaps of run {' or '.join(runs)}," if runs else "some code"
