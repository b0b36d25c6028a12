"""A placement says where namespaces are; one is moved while others work."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance.samples import said
from copied_memories import everything, fill, some_steps, store_of

from hybridagi_steps import StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.errors import (
    InvalidSettingError,
    PlacementError,
)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a placement and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "placement.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def _memory(place: object, **options: str) -> StepMemory:
    return StepMemory(str(place), embedder="hashing", **options)  # pyright: ignore[reportArgumentType] - of texts


def test_a_namespace_is_opened_where_the_file_says(
    written: Callable[[str], Path], tmp_path: Path, postgres_address: str
) -> None:
    path = written(
        f'default = "rest.db"\n[namespaces]\nteam-a = "{postgres_address}"\n"team b" = "b.db"\n'
    )
    for name, address in (
        ("team-a", postgres_address),
        ("team b", tmp_path / "b.db"),
        ("team c", tmp_path / "rest.db"),
    ):
        with _memory(f"{path}#{name}") as memory:
            memory.add(some_steps(name, 2))
            assert memory.namespace == name
        with _memory(address, namespace=name) as same:
            assert [step.run_id for step in same.iter_steps()] == [f"{name}-0"] * 2
        with _memory(address) as other:
            assert list(other.iter_steps()) == []
    with _memory(f"{path}#team b") as memory, pickle.loads(pickle.dumps(memory)) as again:
        assert again.namespace == "team b"
        assert len(list(again.iter_steps())) == 2


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[namespaces]\na = "a.db"\na = "b.db"\n', None, "line 3"),
        ('default = "a.db\n', None, "line 1"),
        ('[namespaces]\na = "mysql://there"\n', 2, "no store serves"),
        ('[namespaces]\na = "b.db"\nb = 3\n', 3, "names no address"),
        ('default = ""\n', 1, "names no address"),
        ('default = ":memory:"\n', 1, "names no address"),
        ('default = "other.toml#a"\n', 1, "another placement"),
        ('# teams\ndefaults = "a.db"\n', 2, "no key of a placement"),
        ('namespaces = "a.db"\n', 1, "no table"),
        ('[namespaces]\nb = "b.db"\n', None, "write a = "),
        ("", None, "write a = "),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    written: Callable[[str], Path], text: str, line: int | None, said: str
) -> None:
    path = written(text)
    with pytest.raises(PlacementError, match=said) as told:
        _memory(f"{path}#a")
    assert told.value.line == line
    assert line is None or f"line {line}:" in str(told.value)
    assert str(path) in str(told.value)


def test_passwords_are_in_no_message(written: Callable[[str], Path]) -> None:
    path = written('[namespaces]\na = "mysql://me:secret@there/x"\n')
    with pytest.raises(PlacementError) as told:
        _memory(f"{path}#a")
    assert "secret" not in str(told.value)


def test_a_placement_is_asked_for_one_namespace(written: Callable[[str], Path]) -> None:
    path = written('[namespaces]\na = "a.db"\nb = "b.db"\n')
    for address in (path, f"{path}#"):
        with pytest.raises(PlacementError, match="it has a, b"):
            _memory(address)
    with pytest.raises(InvalidSettingError, match="name one"):
        _memory(f"{path}#a", namespace="b")
    with pytest.raises(PlacementError, match="cannot be read"):
        _memory(path.with_name("none.toml#a"))


def test_a_namespace_moves_to_another_database_while_others_work(
    written: Callable[[str], Path],
    new_postgres_database: Callable[[], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two, three = (new_postgres_database() for _ in range(3))
    text = (
        f'default = "{three}"\n[namespaces]\nteam-a = "{one}"\nteam-b = "{one}"\nteam-c = "{two}"\n'
    )
    path = written(text)
    done = threading.Event()
    commits: dict[str, int] = {"team-b": 0, "team-c": 0, "anybody": 0}

    def work(name: str) -> None:
        with _memory(f"{path}#{name}") as mine:
            while not done.is_set():
                store_of(mine).commit("talk", said(1), some_steps(name, 1))
                commits[name] += 1

    with _memory(f"{path}#team-a") as memory:
        fill(memory)
        before = everything(memory)
    workers = [threading.Thread(target=work, args=(name,)) for name in commits]
    for worker in workers:
        worker.start()
    try:
        assert main(["copy", f"{path}#team-a", two]) == 0
        assert main(["stats", "--db", f"{path}#team-a", "--json"]) == 0
        path.write_text(text.replace(f'team-a = "{one}"', f'team-a = "{two}"'), "utf-8")
        with _memory(f"{path}#team-a") as moved:
            assert everything(moved) == before
            moved.add(some_steps("after", 1))
    finally:
        done.set()
        for worker in workers:
            worker.join()
    assert "5 sessions of" in capsys.readouterr().out
    with _memory(one, namespace="team-a") as old:
        assert old.run_steps("after-0") == []
    for name, count in commits.items():
        with _memory(f"{path}#{name}") as mine:
            assert count > 0
            assert store_of(mine).session_end("talk").sequence == count
            assert mine.verify() == []


def test_the_command_line_says_what_is_wrong_in_one_line(
    written: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written('[namespaces]\na = "mysql://there"\n')
    for command in (["stats", "--db", f"{path}#a"], ["copy", f"{path}#a", "b.db"]):
        assert main(command) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert "line 2" in shown.err
