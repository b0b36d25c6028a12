"""Ways to a PostgreSQL memory: through a pooler, under TLS, by an address of several servers."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from child_processes import piped
from conformance.samples import EVERYTHING, ids, message, step
from conformance.step_store import WholeContract

from hybridagi_steps import StepMemory
from hybridagi_steps.errors import StorageError
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.stores import open_store
from tests.cluster.pooler import pooled, pooler_binary
from tests.cluster.postgres import free_port

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from hybridagi_steps.stores.postgres import PostgresStepStore  # noqa: E402
from hybridagi_steps.stores.postgres.work_tables import schema_of_queue  # noqa: E402

pytestmark = pytest.mark.skipif(
    pooler_binary() is None, reason="PgBouncer, which the tests put before the server, is not here"
)
FORKED = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
POOL = 2
"""Connections of the server, fewer than writers."""
LEFT = """SELECT current_setting('search_path'), current_setting('lock_timeout'),
    current_setting('synchronous_commit'), (SELECT count(*) FROM pg_prepared_statements),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"""


@pytest.fixture(scope="module")
def pooler(postgres_server: Any) -> Iterator[str]:
    """The place of a pooler that lends connections for a transaction."""
    with pooled(str(postgres_server.pgdata), postgres_server.system_user, size=POOL) as place:
        yield place


@pytest.fixture
def address(pooler: str, postgres_address: str) -> str:
    """The address of an empty database through the pooler."""
    return through(pooler, postgres_address)


def through(place: str, address: str) -> str:
    """Return the address of a database as a pooler reaches it."""
    return f"postgresql://postgres@{place}/{address.partition('@/')[2].partition('?')[0]}"


class TestContract(WholeContract):
    """The whole contract of a store, through a pooler."""

    one_file = True

    @pytest.fixture
    def store(self, address: str) -> Iterator[StepStore]:
        with closing(open_store(address, durability="normal")) as store:
            yield store

    @pytest.fixture
    def other(self, address: str) -> Iterator[StepStore]:
        with closing(open_store(address, namespace="other", durability="normal")) as store:
            yield store


class TestPooler:
    """What a pooler gives away in between is missed by nobody."""

    @FORKED
    def test_more_writers_than_connections_lose_nothing_and_leave_nothing_behind(
        self, address: str
    ) -> None:
        def write(name: str, pipe: int) -> None:
            with StepMemory(address, embedder="hashing", durability="normal") as memory:
                store: Any = memory._open_store
                for n in range(15):
                    key = f"{name}.{n}"
                    for session in (name, "all"):
                        one = step(
                            id=f"{session} {key}", inputs={"purpose": f"refund {session} {key}"}
                        )
                        store.commit(session, [message(key)], [one], idempotency_key=key)
                    memory.add(step(id=key, inputs={"purpose": f"refund {key}"}))
                    assert memory.search("refund", k=3)
            os.write(pipe, b"done\n")

        PostgresStepStore(address).close()
        children = [piped(lambda pipe, name=name: write(name, pipe)) for name in "abcdef"]
        for process_id, pipe in children:
            assert os.waitpid(process_id, 0)[1] == 0
            os.close(pipe)
        with StepMemory(address, embedder="hashing") as memory:
            store: Any = memory._open_store
            together = [one.content for one in store.messages("all")]
            assert sorted(together) == sorted(f"{name}.{n}" for name in "abcdef" for n in range(15))
            for name in "abcdef":
                assert [one.content for one in store.messages(name)] == [
                    f"{name}.{n}" for n in range(15)
                ]
            found = {str(hit.step.id) for hit in memory.search("refund", k=9999)}
            assert found >= {str(one.id) for one in store.iter_steps(EVERYTHING)}
            assert memory.purge({"run_id": "none"}) == 0
            memory.vacuum()
            assert memory.verify() == []
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as stranger:
            assert stranger.execute(LEFT).fetchone() == ('"$user", public', "0", "on", 0, 0)

    def test_a_search_in_the_database(self, address: str) -> None:
        with StepMemory(address, embedder="hashing", memory_budget="1KB") as memory:
            memory.add([step(id=f"{n}", inputs={"purpose": f"refund {n}"}) for n in range(30)])
            assert len(memory.search("refund", k=99)) == 30
            memory.flush()
            memory.delete("7")
            assert len(memory.search("refund", k=99)) == 29
            assert memory.verify() == []

    def test_a_queue_says_what_it_needs_and_leaves_nothing(self, address: str) -> None:
        for _ in range(2):
            with pytest.raises(StorageError, match="keeps no prepared statements"):
                schema_of_queue(address, "runs")
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as stranger:
            assert stranger.execute(LEFT).fetchone() == ('"$user", public', "0", "on", 0, 0)

    def test_a_restart_of_the_server_behind_it_is_noticed(
        self, new_postgres_server: Callable[[], Any]
    ) -> None:
        server = new_postgres_server()
        with (
            pooled(str(server.pgdata), server.system_user) as place,
            closing(PostgresStepStore(f"postgresql://postgres@{place}/postgres")) as store,
        ):
            store.append([step(id="a")])
            before = store.frontier().position.epoch
            server.stop()
            server.start()
            with psycopg.connect(str(server.get_uri())):
                pass
            while _ended(store):
                pass
            assert store.frontier().position.epoch > before
            assert ids(store.find(EVERYTHING, limit=9)) == ["a"]

    def test_one_that_lends_for_a_statement_is_refused(
        self, postgres_server: Any, postgres_address: str
    ) -> None:
        folder, user = str(postgres_server.pgdata), postgres_server.system_user
        with (
            pooled(folder, user, mode="statement") as place,
            pytest.raises(StorageError, match="pool_mode"),
        ):
            PostgresStepStore(through(place, postgres_address))

    def test_one_that_has_no_connection_to_lend_is_told(
        self, postgres_server: Any, postgres_address: str
    ) -> None:
        folder, user = str(postgres_server.pgdata), postgres_server.system_user
        with (
            pooled(folder, user, size=1, more="query_wait_timeout = 1") as place,
            closing(PostgresStepStore(through(place, postgres_address))) as store,
            closing(PostgresStepStore(through(place, postgres_address))) as other,
        ):
            with store._db.writing(), pytest.raises(StorageError, match="ended the connection"):
                other.append([step(id="a")])
            other.append([step(id="a")])
            assert ids(store.find(EVERYTHING, limit=9)) == ["a"]


def _ended(store: PostgresStepStore) -> bool:
    try:
        store.frontier()
    except StorageError:
        return True
    return False


@pytest.fixture(scope="module")
def certificates() -> Iterator[Path]:
    """The certificates of two authorities, and a server's that the first one signed."""
    folder = Path(tempfile.mkdtemp(prefix="tls-"))
    folder.chmod(0o755)  # the pooler's user reads them
    new = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    for name in ("ca", "stranger"):
        _openssl(folder, f"{new} -x509 -keyout {name}.key -out {name}.crt -subj /CN={name}")
    _openssl(folder, f"{new} -keyout server.key -out server.csr -subj /CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    sign = "x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names"
    _openssl(folder, f"{sign} -in server.csr -out server.crt")
    (folder / "server.key").chmod(0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def tls_port(postgres_server: Any, certificates: Path) -> Iterator[str]:
    """The port of a pooler that speaks TLS alone."""
    tls = f"""client_tls_sslmode = require
client_tls_key_file = {certificates}/server.key
client_tls_cert_file = {certificates}/server.crt"""
    folder, user = str(postgres_server.pgdata), postgres_server.system_user
    with pooled(folder, user, more=tls) as place:
        yield place.rpartition(":")[2]


class TestTls:
    """A server shows a certificate; whose it is decides whether it is spoken to."""

    def test_a_server_that_proves_who_it_is(
        self, tls_port: str, certificates: Path, postgres_address: str
    ) -> None:
        address = through(f"localhost:{tls_port}", postgres_address)
        asked = f"?sslmode=verify-full&sslrootcert={certificates}/ca.crt"
        with closing(PostgresStepStore(address + asked)) as store:
            store.append([step(id="a")])
            assert ids(store.find(EVERYTHING, limit=9)) == ["a"]
            with store._db.outside() as connection:
                assert connection.raw.pgconn.ssl_in_use

    @pytest.mark.parametrize(
        ("host", "authority", "why"),
        [
            ("localhost", "stranger.crt", "certificate verify failed"),
            ("127.0.0.1", "ca.crt", "does not match host name"),
            ("localhost", "missing.crt", "does not exist"),
        ],
    )
    def test_one_that_does_not_is_not_spoken_to(
        self, tls_port: str, certificates: Path, host: str, authority: str, why: str
    ) -> None:
        asked = f"?sslmode=verify-full&sslrootcert={certificates}/{authority}"
        with pytest.raises(StorageError, match=rf"sslrootcert=FILE.*{why}"):
            PostgresStepStore(f"postgresql://postgres@{host}:{tls_port}/postgres{asked}")

    def test_one_without_tls_is_not_spoken_to(self, pooler: str) -> None:
        with pytest.raises(StorageError, match=r"under TLS.*does not support SSL"):
            PostgresStepStore(f"postgresql://postgres@{pooler}/postgres?sslmode=require")


def _openssl(folder: Path, words: str) -> None:
    command = ["openssl", *words.split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


class TestSeveralServers:
    """An address that names several; test_failover.py lets one take over from another."""

    def test_the_one_that_can_be_written_is_found(self, pooler: str, postgres_address: str) -> None:
        dead = f"127.0.0.1:{free_port()}"
        address = through(f"{dead},{pooler}", postgres_address) + "?target_session_attrs=read-write"
        with closing(PostgresStepStore(address)) as store:
            store.append([step(id="a")])
            assert ids(store.find(EVERYTHING, limit=9)) == ["a"]

    def test_none_that_can_be_written_is_said(
        self, pooler: str, postgres_address: str, postgres_server: Any
    ) -> None:
        name = postgres_address.partition("@/")[2].partition("?")[0]
        with psycopg.connect(str(postgres_server.get_uri()), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only TO on")
        address = through(f"{pooler},{pooler}", postgres_address)
        with pytest.raises(StorageError, match="read-only"):
            PostgresStepStore(address + "?target_session_attrs=read-write")
