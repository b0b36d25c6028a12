"""Roles of a PostgreSQL memory: what each may do, and that none reaches another namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from conformance.samples import EVERYTHING, ids, message, step
from conformance.step_store import StepStoreContract, WholeContract

import hybridagi_steps as hs
from hybridagi_steps import stores
from hybridagi_steps.cli import main
from hybridagi_steps.errors import (
    InvalidSettingError,
    MissingGrantError,
    OlderSchemaError,
    ReadOnlyStorageError,
    StorageBusyError,
    UnsupportedAddressError,
)
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.records.prompts import LMCall

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from hybridagi_steps.stores.postgres import PostgresStepStore  # noqa: E402
from hybridagi_steps.stores.postgres import store as postgres_store  # noqa: E402
from hybridagi_steps.stores.postgres.live_runs import LiveRuns  # noqa: E402
from hybridagi_steps.stores.postgres.roles import grant  # noqa: E402

TABLES = """SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'hybridagi_steps' AND c.relkind IN ('r', 'p') ORDER BY 1"""
COLUMNS = """SELECT a.attname, a.attgenerated <> '' OR a.attidentity = 'a' FROM pg_attribute a
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""


def run_sql(address: str, *statements: str) -> list[Any]:
    """Run statements, each its own transaction; return the rows of the last."""
    rows: list[Any] = []
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SET search_path TO hybridagi_steps")
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


class Roles:
    """Makes roles of one database, the owner of the tables among them; none is a superuser."""

    def __init__(self, admin: str) -> None:
        self._admin, self._made = admin, list[str]()
        self.owner = self.login("owner")
        [[database]] = run_sql(admin, "SELECT current_database()")
        run_sql(admin, f"GRANT CREATE ON DATABASE {database} TO {self._made[0]}")

    def login(self, name: str) -> str:
        """Make a role, and return the address under which it connects."""
        self._made.append(f"{name}_{uuid4().hex[:12]}")
        run_sql(self._admin, f"CREATE ROLE {self._made[-1]} LOGIN")
        return self._admin.replace("postgres:@", f"{self._made[-1]}:@")

    def granted(self, rights: Any, *namespaces: str) -> str:
        """Make a role with rights in namespaces, and return its address."""
        address = self.login(rights)
        for namespace in namespaces:
            grant(self.owner, self._made[-1], rights, namespace=namespace)
        return address

    def drop(self) -> None:
        """Remove the roles with all they own."""
        for name in reversed(self._made):
            run_sql(self._admin, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


def name_of(address: str) -> str:
    return address.partition("//")[2].partition(":")[0]


@pytest.fixture
def new_roles(new_postgres_database: Callable[[], str]) -> Iterator[Callable[[], Roles]]:
    made: list[Roles] = []

    def make() -> Roles:
        made.append(Roles(new_postgres_database()))
        return made[-1]

    yield make
    for roles in made:
        roles.drop()


@pytest.fixture
def roles(new_roles: Callable[[], Roles]) -> Roles:
    return new_roles()


class TestOwner(StepStoreContract):
    """The set-up of one role: it needs nothing but to create its schema."""

    one_file = True

    @pytest.fixture
    def store(self, roles: Roles) -> Iterator[StepStore]:
        with closing(stores.open_store(roles.owner, durability="normal")) as store:
            yield store

    @pytest.fixture
    def other(self, roles: Roles) -> Iterator[StepStore]:
        address = roles.owner
        with closing(stores.open_store(address, namespace="other", durability="normal")) as store:
            yield store


class TestServer(WholeContract):
    """A role that row-level security holds does all that a store promises; its owner vacuums."""

    one_file = True

    @pytest.fixture
    def address(self, roles: Roles) -> str:
        return roles.granted("server", "default", "other")

    @pytest.fixture
    def store(self, roles: Roles, address: str) -> Iterator[StepStore]:
        opened: Any = stores.open_store(address, durability="normal")

        def compact() -> tuple[str, ...]:
            with pytest.raises(ReadOnlyStorageError, match="belong to another user"):
                PostgresStepStore.compact(opened)
            with closing(stores.open_store(roles.owner)) as owners:
                return owners.compact()

        opened.compact = compact
        with closing(opened):
            yield opened

    @pytest.fixture
    def other(self, address: str) -> Iterator[StepStore]:
        with closing(stores.open_store(address, namespace="other", durability="normal")) as store:
            yield store


def fill(address: str, namespace: str) -> None:
    """Put something into every table that a memory has."""
    with hs.StepMemory(address, embedder="hashing", namespace=namespace) as memory:
        store = memory.repository().store
        memory.add([step(id=f"{namespace} {n}", run_id="r", hop=n) for n in range(3)])
        store.commit("talk", [message("one"), message("two")], idempotency_key="k")
        store.fork("talk", 1, "fork")
        call = LMCall(lm="x", messages=[{"role": "user", "content": "y"}], completion=["z"])
        memory.keep_prompts({f"{namespace} 0": [call]})
        memory.score("r", 1.0)
        store.save_message_tokens(
            {each.id: 3 for each in store.messages("talk")}, counter_id="words"
        )
        memory.flush()
        memory.revoke({"run_id": "r"})
        memory.delete(f"{namespace} 2")
        store.note_place(f"/queues/{namespace}.db")
        memory.stats()


def test_no_statement_reaches_another_namespace(roles: Roles) -> None:
    fill(roles.owner, "a")
    fill(roles.owner, "b")
    address = roles.granted("server", "a")
    every = run_sql(roles.owner, TABLES)
    assert [name for name, forced in every if not forced] == []
    empty = {"stale_text", "tally"}  # may be
    with (
        psycopg.connect(address, autocommit=True) as mine,
        psycopg.connect(roles.owner, autocommit=True) as all_,
    ):
        for connection in (mine, all_):
            connection.execute("SET search_path TO hybridagi_steps")
        seen: dict[str, int] = {}
        for table, _ in every:
            [whole] = all_.execute(f"SELECT count(*) FROM {table}").fetchone()
            [own] = mine.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert whole > own or table in empty | {"access", "search_state", "stem_count"}, table
            assert own or table in empty | {"search_state", "stem_count"}, table
            seen[table] = own
            # Whatever it names, it changes and removes its own rows alone.
            everything = all_.execute(f"SELECT * FROM {table}").fetchall()
            columns = all_.execute(COLUMNS, [table]).fetchall()
            foreign = _foreign(all_, mine, table)
            if table != "access":
                _refuses_to_insert(mine, table, columns, foreign)
                mine.execute("BEGIN")
                free = next(name for name, fixed in columns if not fixed)
                changed = mine.execute(f"UPDATE {table} SET {free} = {free}").rowcount
                removed = mine.execute(f"DELETE FROM {table}").rowcount
                assert changed <= own, table
                assert removed <= own, table
                mine.execute("ROLLBACK")
            assert all_.execute(f"SELECT * FROM {table}").fetchall() == everything
        assert seen["agent_step"] == 2
        noted = "SELECT value FROM meta WHERE value LIKE '/queues/%'"
        assert mine.execute(noted).fetchall() == [("/queues/a.db",)]
        for key in ("place:/queues/mine.db", "place:2:/queues/mine.db"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                mine.execute("INSERT INTO meta VALUES (%s, '/queues/mine.db')", (key,))
        for view in ("step_view",):
            [own] = mine.execute(f"SELECT count(*) FROM {view}").fetchone()
            assert own == 2


def test_places_that_were_noted_for_everybody_are_each_namespaces_own(roles: Roles) -> None:
    """Of an earlier version, under whatever version the tables are."""
    for namespace in ("a", "b"):
        fill(roles.owner, namespace)
    run_sql(
        roles.owner,
        "DROP FUNCTION isolate()",
        "ALTER FUNCTION isolate_tables() RENAME TO isolate",
        "CREATE POLICY noted ON meta FOR SELECT USING (split_part(key, ':', 1) = 'place')",
        "DELETE FROM meta WHERE key LIKE 'place:%'",
        "INSERT INTO meta VALUES ('place:/old.db', '/old.db')",
        "UPDATE meta SET value = '12' WHERE key = 'schema_version'",
    )
    with hs.StepMemory(roles.owner, namespace="a") as memory:
        assert memory.repository().store.places() == ["/old.db"]
    found = run_sql(roles.granted("server", "b"), "SELECT key FROM meta WHERE value = '/old.db'")
    assert len(found) == 1


def _foreign(all_: Any, mine: Any, table: str) -> list[Any]:
    """Return a row of a table that the role may not see."""
    own = {repr(row) for row in mine.execute(f"SELECT * FROM {table}").fetchall()}
    rows = all_.execute(f"SELECT * FROM {table}").fetchall()
    return next(([*row] for row in rows if repr(row) not in own), list[Any]())


def _refuses_to_insert(mine: Any, table: str, columns: list[Any], row: list[Any]) -> None:
    """Try to put a row of another namespace in again, under any key it may have."""
    if not row:
        return
    names = ", ".join(name for name, _ in columns)
    marks = ", ".join(["%s"] * len(columns))
    insert = f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE VALUES ({marks})"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        mine.execute(insert, row)


def test_rows_cannot_be_handed_to_another_namespace(roles: Roles) -> None:
    fill(roles.owner, "a")
    fill(roles.owner, "b")
    address = roles.granted("server", "a")
    [[theirs]] = run_sql(roles.owner, "SELECT id FROM namespace WHERE name = 'b'")
    for table in ("agent_step", "message", "session", "embedding", "prompt_part"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            run_sql(address, f"UPDATE {table} SET namespace = {theirs}")
    for statement in (
        "UPDATE access SET namespace = namespace + 1",
        "INSERT INTO access VALUES (current_user, 2, 'server')",
        "SELECT admit(current_user, 'b', 'server')",
        "SELECT isolate()",
        "ALTER TABLE agent_step DISABLE ROW LEVEL SECURITY",
        "DROP POLICY mine ON agent_step",
        "TRUNCATE agent_step",
        "SELECT setval('step_row', 1)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run_sql(address, statement)
    run_sql(address, "UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    assert run_sql(roles.owner, "SELECT count(*) FROM meta WHERE value = '1'") == [(0,)]


def test_a_role_opens_no_namespace_but_its_own(roles: Roles) -> None:
    fill(roles.owner, "b")
    address = roles.granted("server", "a")
    for namespace in ("b", "new"):
        with pytest.raises(MissingGrantError, match="hybridagi-steps grant"):
            hs.StepMemory(address, namespace=namespace)
    with hs.StepMemory(address, embedder="hashing", namespace="a") as memory:
        memory.add(step(id="own"))
        assert [str(each.id) for each in memory.iter_steps()] == ["own"]
        assert memory.stats()["steps"] == 1
        assert memory.retain(1e-9).steps == 1


def test_a_purge_names_the_database_that_it_may_not_rewrite(roles: Roles) -> None:
    with hs.StepMemory(roles.granted("server", "a"), embedder="hashing", namespace="a") as memory:
        memory.add(step(id="one", user_id="u"))
        erased = memory.purge({"user_id": "u"})
        assert erased == 1
        assert erased.unreached == (memory.address,)
        again = memory.purge({"user_id": "u"})  # what it noted it does not see, but is told of
        assert again == 0
        assert again.unreached == (memory.address,)


def test_a_writer_adds_and_removes_nothing(roles: Roles) -> None:
    address = roles.granted("writer", "a")
    with hs.StepMemory(address, embedder="hashing", namespace="a") as memory:
        store = memory.repository().store
        with hs.record(memory, session_id="s"):
            memory.add(step(id="one", run_id="r"))
        store.commit("talk", [message("one"), message("two")])
        store.adopt("talk", store.branch_at("talk", 1))
        store.fork("talk", 1, "fork")
        memory.score("r", 1.0)
        assert memory.search("one")
        memory.flush()
        for remove in (
            lambda: memory.delete("one"),
            lambda: memory.update(step(id="one")),
            lambda: store.delete_session("talk"),
            lambda: memory.purge({"run_id": "r"}),
            memory.clear,
        ):
            with pytest.raises(MissingGrantError, match=r"server \(to .*permission denied for ta"):
                remove()
        assert "one" in ids(store.find(EVERYTHING, limit=9))
        assert memory.verify() == []


def test_a_reader_searches_and_stores_nothing(roles: Roles) -> None:
    with hs.StepMemory(roles.owner, embedder="hashing", namespace="a") as memory:
        memory.add([step(id=str(n), inputs={"purpose": f"refund {n}"}) for n in range(3)])
    address = roles.granted("reader", "a")
    with hs.StepMemory(address, embedder="hashing", namespace="a") as memory:
        assert len(memory.search("refund", k=9)) == 3
        assert memory.stats()["steps"] == 3
        with pytest.raises(MissingGrantError, match="permission denied"):
            memory.add(step(id="new"))


def test_rights_are_taken_back(roles: Roles, capsys: pytest.CaptureFixture[str]) -> None:
    address = roles.granted("server", "a")
    role = name_of(address)
    with hs.StepMemory(address, embedder="hashing", namespace="a") as memory:
        memory.add(step(id="one"))
        command = ["grant", role, "--db", roles.owner, "--namespace", "a", "--rights"]
        assert main([*command, "reader"]) == 0
        with pytest.raises(MissingGrantError):
            memory.add(step(id="two"))
        assert len(memory.find()) == 1
        assert main([*command, "none"]) == 0
        with pytest.raises(MissingGrantError):
            memory.find()
    with pytest.raises(MissingGrantError, match="SELECT on the table meta"):
        hs.StepMemory(address, namespace="a")
    assert main([*command, "king"]) == 2
    assert main(["grant", "nobody", "--db", roles.owner, "--rights", "reader"]) == 2
    assert main(["grant", role, "--db", address, "--rights", "server"]) == 2
    assert "CREATE ROLE" in capsys.readouterr().err


def test_a_role_that_nobody_admitted_is_told_what_it_lacks(roles: Roles) -> None:
    fill(roles.owner, "a")
    stranger = roles.login("stranger")
    with pytest.raises(MissingGrantError, match="USAGE on the schema hybridagi_steps"):
        hs.StepMemory(stranger, namespace="a")
    LiveRuns(roles.owner, "a").close()
    with pytest.raises(ReadOnlyStorageError, match="hybridagi-steps grant ROLE --rights writer"):
        LiveRuns(stranger, "a")


def test_a_placement_says_where_a_role_is_bound(roles: Roles, tmp_path: Path) -> None:
    stranger = roles.login("stranger")
    (tmp_path / "places.toml").write_text(f'[namespaces]\na = "{roles.owner}"\n')
    command = ["grant", name_of(stranger), "--rights", "writer"]
    assert main([*command, "--db", str(tmp_path / "places.toml#a")]) == 0
    with hs.StepMemory(stranger, embedder="hashing", namespace="a") as memory:
        memory.add(step(id="one"))


def test_bad_grants_are_refused(roles: Roles) -> None:
    with pytest.raises(InvalidSettingError, match="rights are one of"):
        grant(roles.owner, "x", "king")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedAddressError, match="chmod"):
        grant("steps.db", "x", "reader")
    other = roles.granted("server", "a")
    with pytest.raises(MissingGrantError):
        grant(other, name_of(other), "server", namespace="b")


def test_only_the_owner_migrates(roles: Roles) -> None:
    address = roles.granted("server", "a")
    run_sql(roles.owner, "UPDATE meta SET value = '9' WHERE key = 'schema_version'")
    with pytest.raises(OlderSchemaError, match=f"{name_of(roles.owner)}, who owns") as told:
        hs.StepMemory(address, namespace="a")
    assert told.value.owner == name_of(roles.owner)


def test_a_migration_lets_others_go_on_while_it_waits(
    roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(roles.owner, "a")
    run_sql(roles.owner, "UPDATE meta SET value = '11' WHERE key = 'schema_version'")
    for statement in (
        "DROP TABLE access CASCADE",
        "DROP POLICY owned ON agent_step",
        "DROP FUNCTION isolate, isolate_tables, grant_rights, admit, expel",
    ):
        run_sql(roles.owner, statement)
    waits: list[float] = []
    with psycopg.connect(roles.owner) as reader:
        reader.execute("SELECT count(*) FROM hybridagi_steps.agent_step")

        def pause(seconds: float) -> None:
            # The migration has given its place up: nobody stands behind it.
            run_sql(roles.owner, "SET lock_timeout TO '5s'", "SELECT count(*) FROM agent_step")
            waits.append(seconds)
            reader.rollback()

        monkeypatch.setattr("hybridagi_steps.stores.postgres.schema.time.sleep", pause)
        with hs.StepMemory(roles.owner, embedder="hashing", namespace="a") as memory:
            assert len(memory.find({"scope": "revoked"}).steps) == 2
    assert len(waits) == 1


def test_vectors_near_each_other_are_kept_apart_too(roles: Roles) -> None:
    address = roles.granted("server", "a")
    admin = roles.owner.replace(f"{name_of(roles.owner)}:", "postgres:")
    run_sql(admin, "CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    said = {"purpose": "refund the ticket"}
    for namespace in ("a", "b"):
        with hs.StepMemory(
            roles.owner, embedder="hashing", namespace=namespace, memory_budget=1
        ) as memory:
            memory.add([step(id=f"{namespace} {n}", inputs=said) for n in range(3)])
            assert memory.search("refund")
    assert run_sql(roles.owner, "SELECT count(*) FROM near") == [(6,)]
    assert run_sql(address, "SELECT count(*) FROM near") == [(3,)]
    with hs.StepMemory(address, embedder="hashing", namespace="a", memory_budget=1) as memory:
        memory.add(step(id="new", inputs=said))
        assert memory.search("refund")
        assert memory.delete("a 1") == 1
    assert run_sql(roles.owner, "SELECT count(*) FROM near") == [(6,)]
    assert run_sql(address, "SELECT count(*) FROM near") == [(3,)]


def test_a_statement_that_takes_too_long_is_given_up_and_maintenance_is_not(
    roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridagi_steps.stores.postgres.schema.LONGEST_STATEMENT", "50ms")
    store: Any = stores.open_store(roles.owner)
    with closing(store):
        with pytest.raises(StorageBusyError, match="took too long"), store._db.reading() as reader:
            reader.execute("SELECT pg_sleep(30)")
        with store._db.alone() as raw:
            assert raw.execute("SELECT pg_sleep(0.2) IS NOT NULL").fetchone() == (True,)
        with pytest.raises(StorageBusyError), store._db.asking() as reader:
            reader.execute("SELECT pg_sleep(30)")
        store.compact()
        slow = "SELECT 1 FROM (SELECT pg_sleep(0.2) IS NULL AS never) s WHERE never"
        monkeypatch.setitem(vars(postgres_store)["_INVARIANTS"], "slow", slow)
        assert store.verify() == []
        with store.snapshot() as source:  # of a copy, which has much to write in between
            shown = source.execute("SHOW idle_in_transaction_session_timeout").fetchone()
            assert shown == ("0",)
    role = name_of(roles.owner)
    run_sql(roles.owner, f"ALTER ROLE {role} SET statement_timeout TO '7s'")
    with closing(stores.open_store(roles.owner)) as store, store._db.asking() as reader:
        assert reader.execute("SHOW statement_timeout").fetchone() == ("7s",)


def test_a_backup_that_another_owner_restored_is_his(new_roles: Callable[[], Roles]) -> None:
    roles = new_roles()
    with hs.StepMemory(roles.owner, embedder="hashing") as memory:
        memory.add(step(id="kept"))
    heir = roles.login("heir")
    tables = [name for name, _ in run_sql(roles.owner, TABLES)]
    admin = roles.owner.replace(f"{name_of(roles.owner)}:", "postgres:")
    # What pg_restore --no-owner comes to: the tables are another's, the policies are not.
    views = [f"ALTER VIEW {view} OWNER TO {name_of(heir)}" for view in ("step_view", "next_write")]
    functions = run_sql(
        admin,
        """SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'hybridagi_steps'""",
    )
    run_sql(
        admin,
        f"ALTER SCHEMA hybridagi_steps OWNER TO {name_of(heir)}",
        *(f"ALTER TABLE {name} OWNER TO {name_of(heir)}" for name in tables),
        *(f"ALTER FUNCTION {each} OWNER TO {name_of(heir)}" for (each,) in functions),
        *views,
    )
    with hs.StepMemory(heir, embedder="hashing") as memory:
        assert [str(each.id) for each in memory.iter_steps()] == ["kept"]
        memory.add(step(id="more"))
