"""Children of a test that acknowledge on a pipe what they have done, and may be killed."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from typing import Any


def fork(work: Callable[[], Any]) -> int:
    """Let a child work; return its process id. It ends with 0 if nothing was raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if process_id := os.fork():
            return process_id
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001, RUF100 - shown, since nobody else would
        traceback.print_exc()
    finally:
        os._exit(code)


def piped(work: Callable[[int], Any]) -> tuple[int, int]:
    """Let a child work; return its process id, and the end of the pipe that it acknowledges on."""
    reading, writing = os.pipe()

    def write() -> None:
        os.close(reading)
        work(writing)

    process_id = fork(write)
    os.close(writing)
    return process_id, reading
