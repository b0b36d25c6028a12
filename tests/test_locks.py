"""A lock taken by one thread while another forks is free in the child, and what it guards whole."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings

import pytest

from hybridagi_steps._concurrency import ForkSafeLock, cached_property

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@needs_fork
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


@needs_fork
def test_the_holder_itself_may_fork() -> None:
    lock = ForkSafeLock()
    with lock:
        assert _exit_code_of_a_child(lock, [1, 1]) == 0
    assert _exit_code_of_a_child(lock, [1, 1]) == 0


@needs_fork
def test_who_holds_a_lock_may_make_another_while_a_fork_waits_for_it() -> None:
    lock, held, done = ForkSafeLock(), threading.Event(), threading.Event()

    def make() -> None:
        with lock:
            held.set()
            done.wait(0.2)  # lets the fork begin to wait; it takes this long in any case
            with ForkSafeLock():
                done.set()

    thread = threading.Thread(target=make)
    thread.start()
    assert held.wait(10)
    assert _exit_code_of_a_child(lock, [1, 1]) == 0
    thread.join(10)
    assert done.is_set()


@needs_fork
def test_threads_may_fork_at_the_same_time() -> None:
    lock, codes = ForkSafeLock(), list[int]()

    def fork() -> None:
        codes.extend(_exit_code_of_a_child(lock, [1, 1]) for _ in range(10))

    threads = [threading.Thread(target=fork) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == [0] * 40


class _Told:
    """A text computed once, which takes as long as `going_on` is not set."""

    def __init__(self, begun: threading.Event, going_on: threading.Event) -> None:
        self._begun, self._going_on = begun, going_on

    @cached_property
    def text(self) -> str:
        self._begun.set()
        self._going_on.wait(60)
        return "told"


@needs_fork
def test_a_child_computes_a_property_that_its_parent_was_computing_of_another_object() -> None:
    begun, going_on, free = threading.Event(), threading.Event(), threading.Event()
    free.set()
    slow = _Told(begun, going_on)
    thread = threading.Thread(target=lambda: slow.text)
    thread.start()
    try:
        assert begun.wait(10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends a child that waits for ever
            os._exit(0 if _Told(free, free).text == "told" else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        going_on.set()
        thread.join()
    assert slow.text == "told"
    assert vars(slow)["text"] == "told"


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


@needs_fork
def test_a_thread_that_begins_during_a_fork_keeps_none_from_the_next() -> None:
    code = """
import os, threading
from weakref import WeakSet
from hybridagi_steps import _concurrency
class Resting:
    def before_fork(self): pass
    def after_fork(self): pass
class Threads(WeakSet):
    def __iter__(self):
        for one in super().__iter__():
            yield one
            beside = threading.Thread(target=begin)
            beside.start()
            beside.join(0.3)  # as long as it takes where nothing keeps it waiting
def begin():
    more.append(Resting())
    _concurrency.rest_first_at_fork(more[-1])
_concurrency._threads, more = Threads(), []
kept = [Resting(), Resting()]
for one in kept:
    _concurrency.rest_first_at_fork(one)
for _ in range(2):
    if not (child := os.fork()):
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
