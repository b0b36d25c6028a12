"""Settings of a server or role that change how values are read: a memory sets its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hybridagi_steps import AgentStep, AgentStepType, StepMemory

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

pytestmark = pytest.mark.slow

SETTINGS = (
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = 'sql_standard'",
    "TimeZone = 'Asia/Kathmandu'",
    "extra_float_digits = -15",
    "bytea_output = 'escape'",
    "standard_conforming_strings = off",
    "client_encoding = 'LATIN1'",
    "search_path = 'elsewhere'",
    "array_nulls = off",
    "transform_null_equals = on",
)


def altered(make: Callable[[], str], *settings: str) -> str:
    """Return the address of a new database with settings of its own."""
    address = make()
    with psycopg.connect(address, autocommit=True) as raw:
        for setting in settings:
            raw.execute(f'ALTER DATABASE "{raw.info.dbname}" SET {setting}'.encode())
    return address


@pytest.mark.parametrize("settings", [*((each,) for each in SETTINGS), SETTINGS])
def test_a_memory_reads_what_it_wrote_whatever_the_database_sets(
    new_postgres_database: Callable[[], str], settings: tuple[str, ...]
) -> None:
    address = altered(new_postgres_database, *settings)
    text = "é \\ ' 漢 ?"
    step = AgentStep(step_type=AgentStepType.Action, inputs={"purpose": text, "number": 0.1 + 0.2})
    with StepMemory(address, embedder="hashing") as memory:
        memory.add(step)
        [hit] = memory.search("é")
        assert hit.step.purpose == text
    with StepMemory(address, embedder="hashing") as memory:
        [read] = memory.iter_steps()
        assert read.inputs == {"purpose": text, "number": 0.1 + 0.2}
        assert memory.verify() == []
