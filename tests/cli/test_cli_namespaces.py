"""Commands that look at a memory make nothing: no file, no schema, no namespace of a wrong name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.stores import known_namespace
from hybridagi_steps.stores.address import is_server

COMMANDS = [
    ["stats"],
    ["verify"],
    ["search", "refund"],
    ["runs"],
    ["show", "r"],
    ["sessions"],
    ["export"],
    ["purge", "--run", "r", "--yes"],
    ["retain", "--days", "1"],
    ["revoke", "--list"],
    ["vacuum"],
    ["reembed", "hashing"],
]


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where nothing is yet."""
    if request.param == "file":
        return str(tmp_path / "steps.db")
    return request.getfixturevalue("postgres_address")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_namespace_that_is_not_there_is_named_and_not_made(
    address: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with StepMemory(address, namespace="team", embedder="hashing") as memory:
        memory.add(AgentStep(step_type=AgentStepType.Action, run_id="r"))
    for namespace in ("tema", "default"):
        assert main([*command, "--db", address, "--namespace", namespace]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert f"no namespace '{namespace}'; it has 'team'." in said.err.replace("\n", " ")
    assert known_namespace(address, None) == "team"
    assert main(["stats", "--db", address, "--namespace", "team", "--json"]) == 0


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_empty_file_or_database_stays_empty(
    address: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_server(address):
        Path(address).touch()
    assert main([*command, "--db", address]) == 2
    assert "holds no step memory" in capsys.readouterr().err
    if is_server(address):
        import psycopg

        with psycopg.connect(address) as raw:
            made = raw.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'hybridagi%'")
            assert made.fetchall() == []
    else:
        assert [path.name for path in Path(address).parent.iterdir()] == ["steps.db"]
        assert Path(address).stat().st_size == 0


def test_a_backup_is_of_all_namespaces_whatever_they_are_called(tmp_path: Path) -> None:
    file, copy = tmp_path / "steps.db", tmp_path / "copy.db"
    StepMemory(file, namespace="team").close()
    assert main(["backup", str(copy), "--db", str(file)]) == 0
    assert known_namespace(str(copy), None) == "team"
    assert main(["stats", "--db", str(copy)]) == 2
