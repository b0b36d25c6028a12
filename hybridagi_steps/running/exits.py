"""What tries to end the process from inside a run ends that run instead.

An event loop lets `SystemExit` and `KeyboardInterrupt` of a task through and stops with them, and
so does the server around it. Both are turned where they arise, before a task can carry them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


class ProgramExitError(BaseException):
    """Code of a run tried to end the process.

    No Exception, as `RunStopped`: a program's own error handling does not take it for a failed
    tool.
    """

    def __init__(self, what: str, error: BaseException) -> None:
        said = str(error)
        kind = type(error).__name__
        super().__init__(f"{what} raised {kind}{f' ({said})' if said else ''}; the run ends here.")


def is_exit(error: BaseException) -> bool:
    """Whether an error would end the process: not when a user interrupts the main thread."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is not threading.main_thread()
    return isinstance(error, SystemExit)


@contextmanager
def no_exit(what: str) -> Generator[None]:
    """Let nothing in the block end the process.

    Args:
        what: Whose code runs in the block, for the message.

    Raises:
        ProgramExitError: In place of what would.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if not is_exit(error):
            raise
        raise ProgramExitError(what, error) from error


def without_exit(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does so, for the thread that it runs in."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with no_exit(what):
            return call(*args, **kwargs)

    return run
