"""The command line: `hybridagi-steps`.

This module only starts it and turns what goes wrong into one plain line and an exit code; every
command loads what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer

BAD_INPUT, BROKEN, INTERRUPTED = 2, 1, 130
"""Exit codes: what was asked cannot be done; a fault of ours; the user stopped it."""

_UNWRITABLE = (errno.EBADF, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)
"""What writing to standard output fails with, besides a reader that has gone."""

_OBJECTS_UNTIL_COLLECTED = 50_000
"""What imports make stays: at the usual 700, looking for garbage takes a tenth of a search."""
_LONG_LIVED = {"open", "serve", "mcp", "worker"}
"""Commands whose garbage is looked for as usual."""

DEBUG_VARIABLE = "HYBRIDAGI_STEPS_DEBUG"
"""Set it to see the traceback of a fault."""


def main(arguments: Sequence[str] | None = None, app: Typer | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        arguments: What stands after the program's name; by default the process's own.
        app: Another typer application than `hybridagi-steps`, to end and fail as this one does.
    """
    own = arguments is None and app is None
    if own and not _LONG_LIVED.intersection(sys.argv[1:2]):
        gc.set_threshold(_OBJECTS_UNTIL_COLLECTED)
    _replace_closed_streams()
    codecs.register_error("hybridagi_steps", _ascii_fallback)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="hybridagi_steps")
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments), app)
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def _ascii_fallback(error: UnicodeError) -> tuple[str, int]:
    from hybridagi_steps.display.terminal import ascii_fallback  # what draws is loaded if needed

    return ascii_fallback(error)


def _run(arguments: list[str], other: Typer | None) -> int:
    from hybridagi_steps.cli.app import application
    from hybridagi_steps.errors import StepsError

    try:
        code = (other or application(arguments[0] if arguments else None))(
            arguments,
            standalone_mode=False,
            prog_name=other.info.name if other else "hybridagi-steps",
        )
        sys.stdout.flush()
    except StepsError as error:
        return _say(str(error), BAD_INPUT)
    except SystemExit as error:
        # typer's answer to a broken pipe; no command of ours ends the process itself.
        raise BrokenPipeError from error
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001, RUF100 - the last place to turn a fault into a line
        # typer's own errors are click's, which newer versions of it carry inside.
        if message := getattr(error, "format_message", None):
            return _say(message().removeprefix("Invalid value: "), BAD_INPUT)
        if type(error).__name__ == "Abort":
            return _say("stopped.", INTERRUPTED)
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            _silence_stdout()
            return _say(f"the output cannot be written: {error.strerror}.", BAD_INPUT)
        if os.environ.get(DEBUG_VARIABLE):
            raise
        detail = f"{type(error).__name__}: {error}"
        return _say(f"unexpected {detail} (set {DEBUG_VARIABLE}=1 to see where).", BROKEN)
    return code if isinstance(code, int) else 0


def _replace_closed_streams() -> None:
    """Stand in for standard streams that the caller closed.

    Else a database would be opened under their numbers, and whatever is printed end up in it. What
    is read is empty, messages vanish, and output fails as it does on any closed file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor < 2 else os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - likewise
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - likewise


def _say(message: str, code: int) -> int:
    """Write one line to standard error, harmless to a terminal, and return `code`."""
    words = " ".join(message.split())
    line = "".join(c if c.isprintable() else "\ufffd" for c in words)
    with contextlib.suppress(BrokenPipeError):
        print(f"hybridagi-steps: {line}", file=sys.stderr)
    return code


def _silence_stdout() -> None:
    """Keep Python from complaining at exit about a reader that has gone."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
