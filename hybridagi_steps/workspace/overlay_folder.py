"""Temporary folders of overlays, which outlive no process for long.

A folder is locked as long as its process lives; whoever makes the next one removes those of this
user whose process is gone, however that ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PREFIX = "steps-overlay-"
_LOCK = "lock"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class OverlayFolder:
    """A new folder for temporary files; it goes with `close`, or when the next one is made."""

    def __init__(self) -> None:
        for left in _left_behind():
            shutil.rmtree(left, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        unnamed = self.path / f"{_LOCK}.new"
        self._descriptor = os.open(unnamed, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):  # no locks on this file system: nobody removes it but we
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _left_behind() -> Iterator[Path]:
    """Yield the folders of this user whose process is gone."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_free(entry):
                yield Path(entry.path)


def _is_free(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
        if not entry.is_dir(follow_symlinks=False) or status.st_uid != os.getuid():
            return False
        descriptor = os.open(Path(entry.path) / _LOCK, _OPEN)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
