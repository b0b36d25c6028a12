"""The demo: everything it prints is true, it finds what it says, and it may be run again."""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hybridagi_steps import StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.cli.demo import REPLAYED, SESSION

COMMAND = re.compile(r"^ +(hybridagi-steps .+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a first run of the demo says, and where its memory is."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "hybridagi_steps", "demo"]
    before = cpu_seconds_of_children()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert cpu_seconds_of_children() - before < 10
    return done.stdout, folder / "steps-demo.db"


def cpu_seconds_of_children() -> float:
    """Return how long the processes that this one started and waited for have worked."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def searches(said: str) -> list[list[str]]:
    words = [shlex.split(line)[1:] for line in COMMAND.findall(said)]
    return [command for command in words if command[0] == "search" and "-k" in command]


def hits(
    command: list[str], db: Path, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, object]]:
    assert main([*command[:-1], str(db), "--json"]) == 0
    return [hit["step"] for hit in json.loads(capsys.readouterr().out)]


def test_it_loads_the_real_runs_but_the_one_it_replays(told: tuple[str, Path]) -> None:
    said, db = told
    with StepMemory(db) as memory:
        past = [step for step in memory.iter_steps() if step.session_id != SESSION]
        assert memory.verify() == []
    assert f"{len(past)} real steps of {len({step.run_id for step in past})} runs" in said
    assert (len(past), REPLAYED in {step.run_id for step in past}) == (838, False)


def test_the_agent_is_recorded_as_it_was(told: tuple[str, Path]) -> None:
    _, db = told
    with StepMemory(db) as memory:
        fresh = list(memory.iter_steps({"session_id": SESSION}))
        summary = next(run for run in memory.runs() if run.run_id == fresh[0].run_id)
    assert [str(step.step_type) for step in fresh][:2] == ["ProgramCall", "ProgramCall"]
    tools = [step.tool for step in fresh if step.tool]
    assert tools[:6] == [
        "respond",
        "get_user_details",
        "get_reservation_details",
        "respond",
        "think",
        "send_certificate",
    ]
    assert {step.status for step in fresh} == {"ok"}
    assert summary.score == 1.0


def test_its_three_searches_find_the_right_steps(
    told: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    said, db = told
    by_meaning, by_words, alike = [hits(command, db, capsys) for command in searches(said)]
    assert {step["run_id"] for step in by_meaning} == {"tau-airline-44-0"}
    assert not [step for step in by_meaning if "luggage" in json.dumps(step["inputs"])]
    assert [step["run_id"] for step in by_words][:2] == ["tau-airline-49-0"] * 2
    assert alike[0]["run_id"] == "tau-airline-40-0"
    for step in [*by_meaning, *by_words, *alike]:
        assert str(step["id"]) in said


def test_what_to_type_next_works(
    told: tuple[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said, db = told
    monkeypatch.chdir(db.parent)
    assert str(db) in said
    commands = COMMAND.findall(said)
    assert len(commands) == 7
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
        assert len(capsys.readouterr().out) > 100


def test_running_it_again_replaces_only_its_own_run(
    told: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    db = tmp_path / "again.db"
    counts: list[dict[str, int]] = []
    for _ in range(2):
        assert main(["demo", "--db", str(db)]) == 0
        with StepMemory(db) as memory:
            stats = memory.stats()
        counts.append({key: stats[key] for key in ("steps", "runs", "embedded")})
    assert counts[0] == counts[1]
    said = " ".join(capsys.readouterr().out.split())  # a long path breaks its line elsewhere
    assert "0 of them new here" in said


def test_a_foreign_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.db").write_text("my notes\n" * 500)
    assert main(["demo", "--db", str(tmp_path / "notes.db")]) == 2
    assert "is not a step memory" in capsys.readouterr().err
    assert (tmp_path / "notes.db").read_text() == "my notes\n" * 500


def test_it_asks_no_embedder_that_an_extra_brings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--db", str(tmp_path / "demo.db")]) == 0
    assert "embedded with wordllama" in " ".join(capsys.readouterr().out.split())
