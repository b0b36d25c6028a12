"""Works off what a search would otherwise wait for, while nobody waits.

One thread per memory, started only when much is pending and ending when nothing is. It works in
batches, so that closing, forking, searching and the end of the program wait for one batch at most.
A thread that is killed with its process loses nothing: what is pending stays pending.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hybridagi_steps._concurrency import rest_first_at_fork
from hybridagi_steps.errors import StepsError, StorageBusyError

START_AT = 2_000
"""Steps appended from which it is worth a thread; fewer cost a search little."""

log = logging.getLogger("hybridagi_steps")


class BackgroundWork:
    """Calls `work` until it has nothing left, in a thread of its own.

    Args:
        work: Does one batch and returns whether there may be more.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._batch = threading.Lock()
        rest_first_at_fork(self)

    def start(self) -> None:
        """Begin, unless it is going on already."""
        # After a fork the child holds a thread that is not alive there, and starts its own.
        if self._thread is not None and self._thread.is_alive():
            return
        self._stopping.clear()
        # No daemon: Python kills those as it ends, and in the middle of torch or FAISS itself too.
        self._thread = threading.Thread(target=self._run, name="hybridagi-steps")
        self._thread.start()

    def stop(self) -> None:
        """Wait for the batch at hand, and do no more."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def before_fork(self) -> None:
        """Wait for the batch at hand: a child must not inherit half an import or a taken lock."""
        self._batch.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._batch.release()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and threading.main_thread().is_alive():
                with self._batch:
                    if not self._work():
                        return
        except StorageBusyError as error:
            log.debug("indexing in the background is left to others: %s", error)
        except StepsError as error:
            # The next search meets the same error and raises it where somebody sees it.
            log.warning("indexing in the background stopped: %s", error)
