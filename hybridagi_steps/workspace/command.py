"""One command in a directory: no shell, a short environment, a time limit, a cap on its output.

The list says which programs start. What they do is confined where the system has bubblewrap: system
programs to read, one directory to write, no network, no other processes, made of namespaces of
Linux, so it holds for whatever a program makes of its arguments and for code that it runs. Where it
is not, commands have the rights of this process, and `UNCONFINED` says what that does not hold.
Memory and processor are not limited. What ends with the time limit is the whole process group, and
in a sandbox every process; without one, a process that leaves its group (`setsid`) lives on.

Reference: https://github.com/containers/bubblewrap.
"""

from __future__ import annotations

import logging
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from hybridagi_steps.errors import CommandNotAllowedError, InvalidSettingError, WorkspaceError

Confine = Callable[[Sequence[str], Path], list[str]]
"""Puts a command, with a home of its own, into a sandbox."""

Sandboxing = Literal["auto", "required", "off"]
"""Whether commands are confined: where the system can, always, or never."""

_log = logging.getLogger(__name__)

_SHELL_WORDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "<<"})
_CHUNK = 65_536
_GRACE_SECONDS = 0.5


UNCONFINED = (
    "commands are not confined here ({why}): the list says which programs start, not what they do. "
    "Arguments may lead anywhere, and find -exec, sed's e and w, tar --checkpoint-action and any "
    "test runner are arbitrary code with your rights. Install bubblewrap (Linux), or allow no "
    "command that you would not let the model have a shell for."
)

_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "opt", "nix/store", "gnu/store")
_SETTINGS = (  # of /etc: what programs need to start, and no secrets
    "alternatives",
    "ca-certificates",
    "fonts",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "passwd",
    "ssl",
)
_SYSTEM = (*(f"/{path}" for path in _PROGRAMS), *(f"/etc/{path}" for path in _SETTINGS))
_ISOLATED = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL")
_OWN = ("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")  # noqa: S108 - the command's own
_SETTINGS_OF_KERNEL = Path("/proc/sys")
"""Which root may write, in a sandbox, too."""
_PROBE_SECONDS = 20.0


class CommandResult(NamedTuple):
    """What a command did."""

    argv: tuple[str, ...]
    exit_code: int | None
    """None when it was stopped at its time limit; negative when a signal ended it, and 128 and the
    signal's number in a sandbox."""
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
    """The commands that may run, each as the beginning of an argument list, and how they run.

    Args:
        commands: Such as `"python -m unittest"` or `"ls"`. The words stand for themselves: what is
            run must begin with them. `python` is the interpreter that runs this library.
        sandbox: Whether they are confined.
        readable: What they may read in a sandbox, beside the system's programs and this Python.
    """

    def __init__(
        self,
        commands: Iterable[str] | str = (),
        *,
        sandbox: Sandboxing = "off",
        readable: Iterable[Path | str] = (),
    ) -> None:
        listed = [commands] if isinstance(commands, str) else commands
        self._beginnings = [_words(command) for command in listed]
        if not all(self._beginnings):
            raise CommandNotAllowedError("an allowed command needs at least one word")
        self._readable = [_existing(path) for path in readable]
        self.confined = _is_confined(sandbox, self.listed)

    def __str__(self) -> str:
        """The list as people read it."""
        return ", ".join(map(shlex.join, self._beginnings)) or "none"

    @property
    def listed(self) -> list[str]:
        """The commands as they were given."""
        return [shlex.join(words) for words in self._beginnings]

    def checked(self, argv: Sequence[str]) -> list[str]:
        """Return the argument list to run, its program as an absolute path."""
        words = list(argv)
        if not any(tuple(words[: len(begin)]) == begin for begin in self._beginnings):
            raise CommandNotAllowedError(f"{shlex.join(words)!r} is not allowed; allowed: {self}")
        for word in words[1:]:
            if word in _SHELL_WORDS:
                raise CommandNotAllowedError(f"there is no shell here: {word!r} has no meaning")
            if "\0" in word:
                raise CommandNotAllowedError(f"the argument {word!r:.80} holds a NUL")
        return [_program(words[0]), *words[1:]]

    def sandbox(self, directory: Path, protected: Iterable[str] = ()) -> Confine | None:
        """Return what confines commands to a directory, of which some paths can only be read."""
        if not self.confined:
            return None
        kept = [directory / path for path in protected]
        return partial(sandboxed, directory=directory, readable=self._readable, protected=kept)


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise CommandNotAllowedError(f"{command!r} cannot be read as a command: {error}") from error


def _is_confined(wanted: Sandboxing, commands: Sequence[str]) -> bool:
    """Whether commands run in a sandbox; say so where they cannot."""
    if wanted not in get_args(Sandboxing):
        raise InvalidSettingError(f"sandbox is 'auto', 'required' or 'off', not {wanted!r:.80}.")
    if wanted == "off" or not commands:
        return False
    if not (why := refusal()):
        return True
    if wanted == "required":
        raise WorkspaceError(
            f"{why}: install bubblewrap, or say sandbox='off' and read what that does not hold."
        )
    _log.warning(UNCONFINED.format(why=why))
    return False


def _existing(path: Path | str) -> Path:
    found = Path(path).resolve()
    if not found.exists():
        raise WorkspaceError(f"readable={str(path)!r} is not there.")
    return found


def sandboxed(
    argv: Sequence[str],
    home: Path,
    *,
    directory: Path,
    readable: Iterable[Path],
    protected: Sequence[Path],
) -> list[str]:
    """Return the argument list that runs a command confined; its program is an absolute path.

    It may write to its home and its directory but for what is protected there, and read what is
    readable, the system's programs and this Python.
    """
    seen = [*map(Path, (*_SYSTEM, sys.base_prefix, sys.prefix)), *readable]
    program = Path(argv[0])
    for path in (program, program.resolve()):
        if not any(path.is_relative_to(other) for other in (*seen, directory)):
            seen.append(path)
    mounts = [("--ro-bind-try", path) for path in seen]
    mounts += [("--bind", directory), ("--bind", home)]
    # What is mounted cannot be moved away, with what stands in it.
    around = {
        parent for path in protected for parent in path.parents if directory in parent.parents
    }
    mounts += [("--bind", path) for path in sorted(around)]
    mounts += [("--ro-bind", path) for path in (*protected, _SETTINGS_OF_KERNEL)]
    placed = [str(word) for kind, path in mounts for word in (kind, path, path)]
    inside = ["--remount-ro", "/", "--chdir", str(directory), "--", *argv]
    return [_bwrap(), *_ISOLATED, *_OWN, *placed, *inside]


@cache
def refusal() -> str:
    """Return why commands cannot be confined on this machine; empty when they can."""
    if not _bwrap():
        return "bubblewrap, bwrap, is not installed"
    probe = [_bwrap(), *_ISOLATED, *_OWN, "--ro-bind", "/", "/", "--", "/bin/sh", "-c", ":"]
    try:
        tried = subprocess.run(  # noqa: S603 - no word of it comes from outside
            probe, capture_output=True, check=False, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap cannot be run: {error}"
    said = tried.stderr.decode("utf-8", "replace").strip()
    return f"bwrap fails: {said[:200] or tried.returncode}" if tried.returncode else ""


def _bwrap() -> str:
    return shutil.which("bwrap") or ""


def run_command(
    argv: Sequence[str],
    directory: Path,
    *,
    timeout_seconds: float,
    output_bytes: int,
    confine: Confine | None = None,
) -> CommandResult:
    """Run a command and wait for it.

    Args:
        argv: Program and arguments, checked.
        directory: Where it runs.
        timeout_seconds: When it and its children are killed.
        output_bytes: How much of its output is kept: the first and the last half of so much.
        confine: Returns the command in a sandbox that may write below the directory, and below
            the home that it is given.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="steps-home-", ignore_cleanup_errors=True) as home:
        try:
            process = subprocess.Popen(  # noqa: S603 - no shell, the program is on the list
                list(argv) if confine is None else confine(argv, Path(home)),
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
