"""One command in a directory: no shell, a short environment, a time limit, a cap on its output.

What ends with the time limit is the whole process group, background children included. This is not
a sandbox: a program that may run can do what its user can; the list of what may run is the fence.
Only a process that leaves its group (`setsid`) outlives its command.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hybridagi_steps.errors import CommandNotAllowedError, WorkspaceError

_SHELL_WORDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "<<"})
_CHUNK = 65_536
_GRACE_SECONDS = 0.5


class CommandResult(NamedTuple):
    """What a command did."""

    argv: tuple[str, ...]
    exit_code: int | None
    """None when it was stopped at its time limit; negative when a signal ended it."""
    output: str
    """Both streams as they came; the middle is left out when they are long, and that is said."""
    timed_out: bool
    truncated: bool
    duration_ms: float

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.exit_code == 0


class AllowedCommands:
    """The commands that may run, each as the beginning of an argument list.

    Args:
        commands: Such as `"python -m unittest"` or `"ls"`. The words stand for themselves: what is
            run must begin with them. `python` is the interpreter that runs this library.
    """

    def __init__(self, commands: Iterable[str] | str = ()) -> None:
        listed = [commands] if isinstance(commands, str) else commands
        self._beginnings = [_words(command) for command in listed]
        if not all(self._beginnings):
            raise CommandNotAllowedError("an allowed command needs at least one word")

    def __str__(self) -> str:
        """The list as people read it."""
        return ", ".join(map(shlex.join, self._beginnings)) or "none"

    @property
    def listed(self) -> list[str]:
        """The commands as they were given."""
        return [shlex.join(words) for words in self._beginnings]

    def checked(self, argv: Sequence[str], root: Path) -> list[str]:
        """Return the argument list to run, its program as an absolute path."""
        words = list(argv)
        if not any(tuple(words[: len(begin)]) == begin for begin in self._beginnings):
            raise CommandNotAllowedError(f"{shlex.join(words)!r} is not allowed; allowed: {self}")
        for word in words[1:]:
            if word in _SHELL_WORDS:
                raise CommandNotAllowedError(f"there is no shell here: {word!r} has no meaning")
            if "\0" in word or _leaves(word, root):
                raise CommandNotAllowedError(f"the argument {word!r} reaches out of the workspace")
        return [_program(words[0]), *words[1:]]


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise CommandNotAllowedError(f"{command!r} cannot be read as a command: {error}") from error


def run_command(
    argv: Sequence[str], directory: Path, *, timeout_seconds: float, output_bytes: int
) -> CommandResult:
    """Run a command and wait for it.

    Args:
        argv: Program and arguments, checked.
        directory: Where it runs.
        timeout_seconds: When it and its children are killed.
        output_bytes: How much of its output is kept: the first and the last half of so much.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="steps-home-", ignore_cleanup_errors=True) as home:
        try:
            process = subprocess.Popen(  # noqa: S603 - no shell, the program is on the list
                list(argv),
                cwd=directory,
                env=_environment(home),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise WorkspaceError(f"{argv[0]} cannot be started: {error.strerror}") from error
        kept = _Output(output_bytes)
        try:
            in_time = _drain(process, kept, started + timeout_seconds)
        finally:
            _end_group(process)
    return CommandResult(
        argv=tuple(argv),
        exit_code=process.returncode if in_time else None,
        output=kept.text(),
        timed_out=not in_time,
        truncated=kept.dropped > 0,
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )


class _Output:
    """The beginning and the end of a stream of any length."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._first, self._last = bytearray(), bytearray()
        self.dropped = 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._first)
        self._first += chunk[:room] if room > 0 else b""
        self._last += chunk[max(0, room) :]
        over = len(self._last) - self._half
        if over > 0:
            self.dropped += over
            del self._last[:over]

    def text(self) -> str:
        first, last = (bytes(part).decode("utf-8", "replace") for part in (self._first, self._last))
        if self.dropped:
            return f"{first}\n… {self.dropped:,} bytes left out …\n{last}"
        return bytes(self._first + self._last).decode("utf-8", "replace")


def _drain(process: subprocess.Popen[bytes], kept: _Output, deadline: float) -> bool:
    """Read until the command has ended; return whether it did so before the deadline."""
    stream = process.stdout
    assert stream is not None  # noqa: S101 - for the type checker: PIPE was asked for
    os.set_blocking(stream.fileno(), False)
    with selectors.DefaultSelector() as selector, stream:
        selector.register(stream, selectors.EVENT_READ)
        ended_at: float | None = None
        while True:
            now = time.monotonic()
            if ended_at is None and _has_ended(process):
                ended_at = now
            # A child left behind may hold the pipe open: wait for it only a moment.
            until = deadline if ended_at is None else min(deadline, ended_at + _GRACE_SECONDS)
            if now >= until:
                return ended_at is not None
            if not selector.select(min(until - now, 0.05)):
                continue
            chunk = stream.read(_CHUNK)
            if chunk:
                kept.add(chunk)
            elif chunk == b"":
                return _wait(process, deadline)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the command has ended; it is not reaped, so its group keeps its number."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return process.poll() is not None
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return ended is not None


def _wait(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for a command that has closed its output; return whether it ended in time."""
    pause = 0.0005
    while not _has_ended(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the command's process group, then reap the command."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(home: str) -> dict[str, str]:
    """Return a short environment: no keys and tokens of the user, no caches beside sources."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", os.defpath]),
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }


def _program(name: str) -> str:
    if name in {"python", "python3"}:
        return sys.executable
    found = shutil.which(name)
    if found is None:
        raise CommandNotAllowedError(f"the program {name!r} is allowed but not installed")
    return str(Path(found).absolute())


def _leaves(word: str, root: Path) -> bool:
    """Whether an argument is a path out of the workspace, bare or behind `--option=`."""
    if any(letter.isspace() for letter in word):
        return False  # code or prose, not a path
    path = word.partition("=")[2] if word.startswith("-") else word
    if path.startswith("~"):
        return True
    if ".." in path.split("/"):
        return True
    try:
        return not (root / path).resolve().is_relative_to(root)  # a link may lead out
    except (OSError, RuntimeError, ValueError):
        return True
