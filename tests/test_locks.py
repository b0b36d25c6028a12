"""A lock taken by one thread while another forks is free in the child, and what it guards whole."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import warnings

import pytest

from hybridagi_steps._concurrency import ForkSafeLock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_never_sees_half_a_change() -> None:
    lock, pair, stop = ForkSafeLock(), [0, 0], threading.Event()

    def change() -> None:
        while not stop.is_set():
            with lock:
                pair[0] += 1
                stop.wait(0.0005)  # lets the fork happen in the middle, if it could
                pair[1] += 1

    writers = [threading.Thread(target=change) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(20):
            assert _exit_code_of_a_child(lock, pair) == 0
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert pair[0] == pair[1] > 0


def _exit_code_of_a_child(lock: ForkSafeLock, pair: list[int]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks
        child = os.fork()
    if child == 0:
        with lock:
            os._exit(0 if pair[0] == pair[1] else 3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_the_holder_itself_may_fork() -> None:
    lock = ForkSafeLock()
    with lock:
        assert _exit_code_of_a_child(lock, [1, 1]) == 0
    assert _exit_code_of_a_child(lock, [1, 1]) == 0


def test_copies_are_locks_of_their_own() -> None:
    lock = ForkSafeLock()
    with lock:
        for other in (copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))):
            taken = threading.Event()
            thread = threading.Thread(target=_take, args=(other, taken))
            thread.start()
            assert taken.wait(10)
            thread.join()


def _take(lock: ForkSafeLock, taken: threading.Event) -> None:
    with lock:
        taken.set()
