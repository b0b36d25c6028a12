"""The harness of tests/faults fails when it should: each promise is broken once, and reported."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults import __main__ as command
from faults import bit_flips, copy_kills, expected
from faults.harness import FORBIDDEN, Ledger, Opener, Setting, Tally, opened
from faults.operations import EVERY, Lane, Writer
from faults.processes import Shim, ask, ended_within, fork

from hybridagi_steps import StepMemory, erasure
from hybridagi_steps.records.listings import StepHits
from hybridagi_steps.stores.sql.copied_rows import CopiedTables

ROOT = Path(__file__).parents[2]


class Losing(StepMemory):
    """Acknowledges batches of several steps and stores nothing of them."""

    def add(self, steps: Any) -> None:
        if len(steps) == 1:
            super().add(steps)


class Halving(StepMemory):
    """Is killed when half of a batch is stored."""

    def add(self, steps: Any) -> None:
        super().add(steps[: len(steps) // 2 or 1])
        if len(steps) > 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Changing(StepMemory):
    """Stores another text than it was given."""

    def add(self, steps: Any) -> None:
        for step in steps:
            step.outputs = {"text": str(step.outputs["text"]).replace("w1", "w2")}
        super().add(steps)


class Keeping(StepMemory):
    """Leaves a copy of its file behind before it purges."""

    def purge(self, where: Any, *, by: str | None = None) -> Any:
        path = Path(self.address)
        self.vacuum()  # so that what is purged is in the file itself
        path.with_name("copy").write_bytes(path.read_bytes())
        return super().purge(where, by=by)


def nothing(*_: object) -> None:
    """Do nothing."""


class Recalling(StepMemory):
    """Keeps the prompts of steps that recalled what it purges."""

    def purge(self, where: Any, *, by: str | None = None) -> Any:
        setattr(erasure, "forget_prompts_beyond", nothing)  # noqa: B010 - in its writer's process
        return super().purge(where, by=by)


class Raising(StepMemory):
    """Raises what is no error of the library."""

    def add(self, steps: Any) -> None:
        raise KeyError("row")


class Unsearchable(StepMemory):
    """Finds nothing."""

    def search(self, *_: Any, **__: Any) -> StepHits:
        return StepHits()


def opener(kind: type[StepMemory]) -> Opener:
    """Return what opens memories of this kind."""
    return lambda address, namespace, embedder: kind(
        address, namespace=namespace, embedder=embedder, durability="normal"
    )


def counted(folder: Path, open_memory: Opener, focus: str = "batch") -> Tally:
    """Let one writer do some operations; return what the audit counts."""
    tally = Tally()
    setting = Setting(folder, seconds=60, seed=7)
    ledger = Ledger(setting, tally, {"a": "default"}, open_memory)

    def work(writer: Writer) -> None:
        writer.go_on(itertools.islice(writer.lane.endless(focus), 60))

    ended_within(ledger.start("a", work=work), 60)
    ledger.check("a test")
    return tally


def test_a_memory_that_keeps_its_promises_is_not_blamed(tmp_path: Path) -> None:
    tally = counted(tmp_path, opener(StepMemory))
    assert tally.defects == []
    assert not tally.broken
    assert tally.checked == 60


@pytest.mark.parametrize(
    ("kind", "focus", "count"),
    [
        (Losing, "batch", "lost"),
        (Halving, "batch", "half_written"),
        (Changing, "batch", "silently_changed"),
        (Keeping, "purge_run", "leaked"),
        (Recalling, "keep_prompts", "leaked"),
        (Raising, "add", "untyped_errors"),
        (Unsearchable, "add", "lost"),
    ],
)
def test_a_broken_promise_is_counted_as_what_it_is(
    tmp_path: Path, kind: type[StepMemory], focus: str, count: str
) -> None:
    tally = counted(tmp_path, opener(kind), focus)
    assert getattr(tally, count) > 0, tally.defects
    assert tally.broken
    assert any(defect.startswith(f"{count}: ") for defect in tally.defects)


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("DELETE FROM message WHERE sequence = 1", "half_written"),
        ("DELETE FROM message WHERE sequence = 3", "lost"),
        ("UPDATE message SET said = 'x' WHERE sequence = 1", "silently_changed"),
        ("DELETE FROM agent_step WHERE id = 'a.1'", "lost"),
        ("UPDATE run SET score = 0.75", "lost"),
    ],
)
def test_what_happens_to_a_file_is_seen(tmp_path: Path, statement: str, count: str) -> None:
    tally = Tally()
    ledger = Ledger(Setting(tmp_path, 60, 7), tally, {"a": "default"})

    def work(writer: Writer) -> None:
        for operation in (
            {"do": "batch", "steps": [["a.1", "one x", "a.r"], ["a.2", "two x", "a.r"]]},
            {"do": "score", "run": "a.r", "value": 0.5},
            {"do": "append", "session": "a.s", "contents": ["first x", "second x", "third x"]},
        ):
            writer.attempt(operation)

    assert ended_within(ledger.start("a", work=work), 60) == 0
    with closing(sqlite3.connect(ledger.address)) as connection, connection:
        assert connection.execute(statement).rowcount == 1
    ledger.check("a test")
    assert getattr(tally, count) or tally.typed_errors, tally.defects
    assert tally.broken


def test_a_copy_that_leaves_something_out_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopiedTables, "ordered_rows_after", nothing)
    setting = Setting(tmp_path, 1, 7)
    tally = copy_kills.attack(setting)
    assert tally.lost > 0
    assert tally.trials > 0


def test_an_operation_that_was_cut_short_may_be_there_or_not_but_not_half() -> None:
    batch = {"do": "batch", "steps": [["a.1", "one", "r"], ["a.2", "two", "r"]]}
    right = expected.right_states(expected.empty(), [expected.Entry(batch, False, "", True)])

    def found(**steps: str) -> list[str]:
        actual: expected.Actual = {
            "pinned": [],
            "steps": {f"a.{name[1:]}": text for name, text in steps.items()},
            "scores": {},
            "sessions": {},
        }
        return [one.kind for one in expected.nearest(right, actual)[1]]

    assert found() == []
    assert found(s1="one", s2="two") == []
    assert found(s1="one") != []
    assert found(s1="one", s2="other") == ["silently_changed"]


def test_every_operation_is_carried_out_by_some_lane(tmp_path: Path) -> None:
    lane = Lane("a", expected.empty(), Setting(tmp_path, 60, 3).chance, alone=True)
    with opened(str(tmp_path / "steps.db"), "alone", "hashing") as memory:
        writer = Writer(memory, lane, tmp_path / "notes")
        for name in [*EVERY, *EVERY]:
            assert writer.attempt(lane.made(name) or {"do": "nothing"}) == ""
    entries = expected.noted(tmp_path / "notes")
    assert {entry.operation["do"] for entry in entries} >= set(EVERY)
    assert all(entry.acknowledged for entry in entries)


def test_who_does_not_answer_is_counted_as_hung_and_ended(tmp_path: Path) -> None:
    tally = Tally()
    assert not tally.outcome(ask(lambda: time.sleep(60), 0.2), "a question")
    assert ended_within(fork(lambda: time.sleep(60)), 0.2) is None
    assert (tally.hung, tally.broken) == (1, True)


def test_a_bit_that_alters_an_answer_is_reported(tmp_path: Path) -> None:
    def flipped(found: dict[str, Any]) -> int:
        tally = Tally()
        whole: dict[str, Any] = {"steps": ["a"], "runs": [], "sessions": [], "hits": ["a"]}
        answers: dict[str, Any] = {**whole, **found, "verify": []}
        bit_flips.compare(tally, whole, answers, "a flip", "a text", Counter())
        return tally.silently_changed

    assert flipped({}) == flipped({"steps": None}) == 0, "the same, or an error of the library"
    assert flipped({"steps": ["b"]}) == flipped({"hits": ["b", "a"]}) == 1


@pytest.mark.parametrize(
    ("verify", "lost"),
    [([], 1), (["keys without a step"], 1), (["s.db-wal is damaged: …"], 0)],
)
def test_steps_of_a_damaged_log_are_lost_unless_it_is_named(verify: list[str], lost: int) -> None:
    tally = Tally()
    whole: dict[str, Any] = {"steps": ["a", "b"], "runs": [], "sessions": [], "hits": ["a"]}
    found = {**whole, "steps": ["a"], "verify": verify}
    bit_flips.compare(tally, whole, found, "a flip", "write-ahead log", Counter())
    assert tally.lost == lost


def runs(line: Tally) -> Callable[..., command.Line]:
    """Return what stands for running an attack."""

    def run(name: str, database: str, *_: Any) -> command.Line:
        return command.Line(name, database, 1.0, line)

    return run


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_the_command_fails_when_a_count_is_not_zero(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally(trials=3)
    monkeypatch.setattr(command, "run_alone", runs(tally))
    words = ["--only", "forks", "--no-postgres", "--seed", "1"]
    assert command.main(words) == 0
    tally.found(kind, "something that was promised")
    assert command.main(words) == 1
    assert f"forks/sqlite: {kind}: something that was promised" in capsys.readouterr().out


def test_the_page_gets_the_table_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- faults -->\nold\n<!-- /faults -->\nafter\n", "utf-8")
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "run_alone", runs(Tally(trials=12_345, figures={"kills": 7})))
    words = ["--only", "forks", "--seed", "99", "--write-docs", "--json", str(tmp_path / "j")]
    assert command.main(words) == 0
    written = page.read_text("utf-8")
    assert written.startswith("before\n<!-- faults -->\n`python -m tests.faults --minutes 10 ")
    assert "--seed 99`" in written
    assert "| forks | sqlite | 12,345 | 0 |" in written
    assert written.endswith("<!-- /faults -->\nafter\n")
    assert "old" not in written
    assert json.loads((tmp_path / "j").read_bytes())["seed"] == 99
    assert "<!-- faults -->" in (ROOT / ".github/docs/guarantees.md").read_text("utf-8")


def test_every_attack_is_a_module_with_a_sentence_about_itself() -> None:
    folder = Path(command.__file__).parent
    shared = {"__init__", "__main__", "harness", "operations", "expected", "processes"}
    modules = {path.stem for path in folder.glob("*.py")} - shared
    assert modules <= {attack.name for attack in command.ATTACKS}
    for path in folder.glob("*.py"):
        source = path.read_text("utf-8")
        assert source.startswith('"""'), path
        assert len(source.splitlines()) <= 400, path


@pytest.mark.slow
def test_the_command_attacks_and_clears_away(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    words = ["--minutes", "0.02", "--seed", "5", "--only", "migrations", "io_faults"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words, "--json", str(result)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "seed 5" in done.stdout
    lines = {line["attack"]: line["tally"] for line in json.loads(result.read_bytes())["lines"]}
    assert lines["migrations"]["trials"] >= 3
    assert lines["migrations"]["figures"]["kills"] >= 1
    assert lines["io_faults"]["trials"] >= 1 or lines["io_faults"]["skipped"]
    assert not any(line["hung"] or line["lost"] for line in lines.values()), done.stdout
    assert not Shim().there, "the shim is loaded into attacks only"


def test_the_threat_model_names_tests_and_attacks_that_exist() -> None:
    page = (ROOT / ".github/docs/threat_model.md").read_text("utf-8")
    shown = [line.split("|")[-2] for line in page.splitlines() if line.startswith("| ")][2:]
    names = [name for cell in shown for name in re.findall(r"`([^`]+)`", cell)]
    attacks = {attack.name for attack in command.ATTACKS}
    assert attacks <= set(names), "each attack stands against somebody"
    for name in set(names) - attacks:
        file, _, test = name.partition("::")
        found = ROOT / file if file.startswith("hybridagi_steps/") else ROOT / "tests" / file
        assert f"def {test}" in found.read_text("utf-8"), name
    assert all(re.search(r"`", cell) for cell in shown), "each promise is shown by something"
