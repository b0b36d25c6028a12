"""A thread of its own in which codes are built while searches go on without them.

It works in pieces and rests between them for a fork; a child has no such thread and starts its own.
Apart from the codes themselves, so that an index that builds none does not load FAISS.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridagi_steps._concurrency import rest_first_at_fork

if TYPE_CHECKING:
    from hybridagi_steps.search.quantized_codes import Building, ScanCodes

log = logging.getLogger("hybridagi_steps")


class CodeBuild:
    """Drives a build to its end.

    Args:
        pieces: The build.
        adopt: Called with the codes when they are ready, unless the build was abandoned before.
    """

    def __init__(self, pieces: Building, adopt: Callable[[ScanCodes, CodeBuild], None]) -> None:
        self._pieces, self._adopt = pieces, adopt
        self._abandoned = threading.Event()
        self._piece = threading.Lock()
        self.failed = False
        rest_first_at_fork(self)
        # No daemon: a thread that is in the middle of foreign code when Python ends may crash it.
        self._thread = threading.Thread(target=self._run, name="hybridagi-steps-index")
        self._thread.start()

    @property
    def going_on(self) -> bool:
        """Whether there is still something to wait for in this process."""
        return self._thread.is_alive() and not self._abandoned.is_set()

    def abandon(self) -> None:
        """Let it end after the piece at hand; nothing is adopted any more."""
        self._abandoned.set()

    def wait(self) -> None:
        """Wait for its end. The caller must hold no lock that `adopt` takes."""
        self._thread.join()

    def before_fork(self) -> None:
        """Wait for the piece at hand."""
        self._piece.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._piece.release()

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set() and threading.main_thread().is_alive():
                with self._piece:
                    try:
                        next(self._pieces)
                    except StopIteration as end:
                        self._adopt(end.value, self)
                        return
        except (RuntimeError, MemoryError) as error:  # FAISS raises no others
            self.failed = True
            log.warning("codes were not built, searches stay exact but slower: %s", error)
