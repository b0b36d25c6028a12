"""An option with one value that stands twice is refused, by every command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.cli.app import application


def options() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the options of every command that take one value."""
    group: Any = typer.main.get_command(application())
    waiting: list[tuple[tuple[str, ...], Any]] = [((), group)]
    while waiting:
        words, command = waiting.pop()
        for name, inside in getattr(command, "commands", {}).items():
            waiting.append(((*words, name), inside))
        for option in command.params if words else ():
            is_single = not option.multiple if option.param_type_name == "option" else False
            if is_single and not option.is_flag:
                yield words, option.opts[0]


def test_every_command_is_looked_at() -> None:
    found = [*options()]
    assert (("purge",), "--session") in found
    assert (("token", "add"), "--user") in found
    assert (("serve",), "--port") in found


@pytest.mark.parametrize(("words", "option"), [*options()])
def test_an_option_that_stands_twice_is_refused(
    words: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, option, "1", option, "2"]) == 2
    assert f"{option} takes one value" in capsys.readouterr().err


@pytest.mark.parametrize(
    "conditions",
    [
        ["--metadata", "draft=1", "--metadata", "draft=2"],
        ["--exclude", '{"run_id": "a", "run_id": "b"}'],
        ["--session", "a", "--session", "b"],
    ],
)
def test_nothing_is_erased_by_half_of_what_was_asked(conditions: list[str], tmp_path: Path) -> None:
    db = str(tmp_path / "steps.db")
    with StepMemory(db, embedder="hashing") as memory:
        for number in (1, 2):
            step = AgentStep(step_type=AgentStepType.Action, metadata={"draft": number})
            memory.add(step.model_copy(update={"session_id": "ab"[number - 1]}))
    assert main(["purge", *conditions, "--yes", "--db", db]) == 2
    with StepMemory(db) as memory:
        assert len([*memory.iter_steps()]) == 2


def test_several_users_are_all_erased(tmp_path: Path) -> None:
    db = str(tmp_path / "steps.db")
    with StepMemory(db, embedder="hashing") as memory:
        memory.add([AgentStep(step_type=AgentStepType.Action, user_id=user) for user in "abc"])
    assert main(["purge", "--user", "a", "--user", "b", "--yes", "--db", db]) == 0
    with StepMemory(db) as memory:
        assert [step.user_id for step in memory.iter_steps()] == ["c"]
