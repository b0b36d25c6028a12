"""A write that the server has committed, and whose answer is lost with the connection."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from conformance.samples import EVERYTHING, ids, message, step

from hybridagi_steps.errors import ConnectionLostError, DuplicateStepError
from hybridagi_steps.stores.postgres import PostgresStepStore

DONE = b"COMMIT\0"
"""How PostgreSQL says that a transaction was committed."""
ONE = b" 1\0"
"""How it says that a statement that is a transaction of its own has written, and returned a row."""


class Way:
    """A way to a server on which one answer can be lost, and with it the connection."""

    def __init__(self, folder: Path) -> None:
        self._server = str(next(folder.glob(".s.PGSQL.*[0-9]")))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.loses: bytes | None = None
        """The next answer with this in it is lost."""
        self._threads: list[threading.Thread] = []
        self._begin(self._listen)

    def _begin(self, work: Callable[..., None], *values: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=values, daemon=True))
        self._threads[-1].start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._begin(self._carry, client, server, False)
                self._begin(self._carry, server, client, True)

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while said := source.recv(2**16):
                if answers and self.loses is not None and self.loses in said:
                    self.loses = None
                    break
                target.sendall(said)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        """Take no more connections, and wait for the end of those there are."""
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()


@pytest.fixture
def way(postgres_server: Any) -> Iterator[Way]:
    with closing(Way(Path(postgres_server.pgdata))) as made:
        yield made


@pytest.fixture
def stores(
    way: Way, postgres_address: str
) -> Iterator[tuple[PostgresStepStore, PostgresStepStore]]:
    """One store behind the way, and one on the same database that looks at what is stored."""
    database = postgres_address.partition("@/")[2].partition("?")[0]
    behind = f"postgresql://postgres@127.0.0.1:{way.port}/{database}"
    with (
        closing(PostgresStepStore(behind)) as own,
        closing(PostgresStepStore(postgres_address)) as o,
    ):
        yield own, o


@pytest.mark.parametrize(("session", "lost"), [("known", ONE), ("new", DONE)])
def test_a_commit_is_there_and_its_key_says_so(
    way: Way, stores: tuple[PostgresStepStore, PostgresStepStore], session: str, lost: bytes
) -> None:
    store, other = stores
    store.commit("known", [message("first")])
    before = [one.content for one in other.messages("known")] if session == "known" else []

    def commit() -> list[int]:
        made = store.commit(session, [message("late")], [step(id="late")], idempotency_key="k")
        return [one.sequence for one in made]

    way.loses = lost
    with pytest.raises(ConnectionLostError, match="not known"):
        commit()
    assert way.loses is None
    assert [one.content for one in other.messages(session)] == [*before, "late"]
    assert commit() == [len(before) + 1]
    assert [one.content for one in other.messages(session)] == [*before, "late"]
    assert other.verify() == []


@pytest.mark.parametrize(("steps", "lost"), [(1, ONE), (600, DONE)])
def test_steps_are_there_and_their_ids_say_so(
    way: Way, stores: tuple[PostgresStepStore, PostgresStepStore], steps: int, lost: bytes
) -> None:
    store, other = stores
    store.append([step(id="before")])
    new = [step(id=str(n)) for n in range(steps)]
    way.loses = lost
    with pytest.raises(ConnectionLostError, match="not known"):
        store.append(new)
    assert way.loses is None
    assert len(other.find(EVERYTHING, limit=999)) == steps + 1
    with pytest.raises(DuplicateStepError):
        store.append(new)
    assert len(ids(store.find(EVERYTHING, limit=999))) == steps + 1


def _delete(store: PostgresStepStore) -> None:
    store.delete(["a"])


def _fork(store: PostgresStepStore) -> None:
    store.fork("s", 1, "fork")


@pytest.mark.parametrize(("change", "left"), [(_delete, 0), (_fork, 1)])
def test_what_else_changes_is_told_to_be_unknown(
    way: Way,
    stores: tuple[PostgresStepStore, PostgresStepStore],
    change: Callable[[PostgresStepStore], None],
    left: int,
) -> None:
    store, other = stores
    store.append([step(id="a")])
    store.commit("s", [message("first")])
    way.loses = DONE
    with pytest.raises(ConnectionLostError, match="not known"):
        change(store)
    assert len(other.get(["a"])) == left
    assert len(other.sessions(limit=9)) == 1 + left
    assert store.verify() == []
