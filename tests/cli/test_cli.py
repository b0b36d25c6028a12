"""The command line as its users meet it: output, exit codes, one plain line for every mistake."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import pytest
from exchange_shelf import unsourced

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.cli.render import plain
from hybridagi_steps.records.filter_fields import FILTER_FIELDS
from hybridagi_steps.records.message import utc_now

DATA = str(files("hybridagi_steps.data") / "steps.jsonl")
REFUND = "compensation for a canceled flight"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def running(*arguments: str) -> Answer:
        code = main(arguments)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return running


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A memory file with the real airline runs, one of them scored."""
    path = tmp_path_factory.mktemp("filled") / "filled.db"
    lines = Path(DATA).read_text(encoding="utf-8").splitlines()
    steps = [AgentStep.model_validate_json(line) for line in lines if '"tau-airline' in line[:20]]
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(steps)
        memory.score("tau-airline-40-0", 1.0)
        memory.flush()
    return str(path)


def refused(answer: Answer, *words: str) -> None:
    """Assert that a command refused its input as promised."""
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("hybridagi-steps: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err


def test_help_version_and_nothing_at_all(run: Run) -> None:
    assert run("--version").out.startswith("hybridagi-steps ")
    for arguments in ((), ("--help",)):
        answer = run(*arguments)
        assert answer.code == 0
        for command in ("demo", "import", "search", "show", "runs", "export", "stats", "verify"):
            assert command in answer.out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from hybridagi_steps.cli import main; main(['--help']); "
        "heavy = {'dspy', 'faiss', 'numpy', 'pydantic', 'rich.table'} & set(sys.modules); "
        "sys.exit(','.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_searching_for_a_program_reads_no_source_and_draws_no_table(filled: str) -> None:
    code = (
        "import sys, linecache; from hybridagi_steps.cli import main; "
        f"main(['search', 'refund', '--json', '--db', {filled!r}]); "
        f"main(['stats', '--json', '--db', {filled!r}]); "
        "spare = {'rich', 'tokenizers', 'tomllib', 'hybridagi_steps.server'} & set(sys.modules); "
        "sys.exit(','.join(sorted(spare | linecache.cache.keys())) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_searching_and_showing_load_what_they_use(filled: str) -> None:
    code = (
        "import sys; from hybridagi_steps.cli import main; "
        f"main(['search', 'refund', '--db', {filled!r}]); "
        f"main(['show', 'tau-airline-40-0:3', '--db', {filled!r}]); "
        "spare = {'dspy', 'hybridagi_steps.planning', 'hybridagi_steps.cli.serve'}; "
        "sys.exit(','.join(sorted(spare & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_says_what_it_did_and_twice_is_harmless(run: Run) -> None:
    assert run("import", DATA).out == "848 steps added to steps.db.\n"
    assert run("import", DATA).out == "0 steps added to steps.db, 848 were there already.\n"
    report = json.loads(run("import", DATA, "--json").out)
    assert report["already_there"] == report["read"] == 848


def test_a_file_that_cannot_be_read_leaves_no_memory_behind(run: Run, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x00\x00")
    refused(run("import", "picture.png"), "picture.png is not text")
    assert not (tmp_path / "steps.db").exists()


def test_import_names_bad_lines_and_keeps_the_good_ones(run: Run, tmp_path: Path) -> None:
    good = AgentStep.model_validate({"step_type": "Action"}).model_dump_json()
    bad = "\n".join(["{broken"] * 12)
    (tmp_path / "mixed.jsonl").write_text(f"{good}\n{bad}\n")
    answer = run("import", "mixed.jsonl")
    assert answer.code == 0
    assert answer.out.startswith("1 steps added")
    assert "line 2 skipped: not JSON" in answer.err
    assert "and 2 more records skipped" in answer.err
    (tmp_path / "bad.jsonl").write_text(bad)
    answer = run("import", "bad.jsonl")
    assert answer.code == 2
    assert "not one of 12 records" in answer.err


def test_search_finds_the_step_and_says_why(run: Run, filled: str) -> None:
    answer = run("search", REFUND, "--db", filled, "-k", "3")
    assert answer.code == 0
    assert "tau-airline-40-0:" in answer.out
    assert "words: " in answer.out
    hits = json.loads(run("search", REFUND, "--db", filled, "-k", "3", "--json").out)
    assert len(hits) == 3
    assert hits[0]["score"] >= hits[1]["score"] >= hits[2]["score"]
    assert set(hits[0]) >= {"step", "score", "why", "context"}


def test_a_search_may_have_an_aim(run: Run, filled: str) -> None:
    after = ("search", "--like", "tau-airline-40-0:3", "--db", filled, "--json")
    hits = json.loads(run(*after, "--aim", "next").out)
    assert "state_words" in hits[0]["parts"]
    assert "state_words" not in json.loads(run(*after).out)[0]["parts"]
    for odd in ("best", "next"):
        refused = run("search", REFUND, "--db", filled, "--aim", odd)
        assert refused.code == 2
        assert "aim" in refused.err


@pytest.mark.parametrize(
    ("option", "value", "path"),
    [
        ("--run", "tau-airline-40-0", ["run_id"]),
        ("--tool", "get_user_details", ["inputs", "tool"]),
        ("--type", "Action", ["step_type"]),
        ("--metadata", "task_id=41", ["metadata", "task_id"]),
        ("--status", "ok", ["status"]),
    ],
)
def test_filters_hold(run: Run, filled: str, option: str, value: str, path: list[str]) -> None:
    hits = json.loads(run("search", "reservation", "--db", filled, "--json", option, value).out)
    assert hits
    for hit in hits:
        found = hit["step"]
        for key in path:
            found = found[key]
        assert str(found) == value.removeprefix("task_id=")


def test_dates_bound_a_search(run: Run, filled: str) -> None:
    assert run("search", REFUND, "--db", filled, "--until", "2020-01-01").out == "no steps found.\n"
    assert "tau-airline" in run("search", REFUND, "--db", filled, "--since", "2020-01-01").out


def test_a_date_without_a_zone_is_utc_wherever_it_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(AgentStep(id="noon", step_type="Action", created_at="2026-01-31T12:00Z"))  # pyright: ignore[reportArgumentType]
    here = {**os.environ, "TZ": "Asia/Tokyo"}
    asked = ["export", "--db", str(path), "--since", "2026-01-31T11:59", "--until", "2026-01-31T13"]
    command = [sys.executable, "-m", "hybridagi_steps", *asked]
    done = subprocess.run(command, env=here, capture_output=True, text=True, check=True)
    assert '"id":"noon"' in done.stdout


@pytest.mark.parametrize("command", ["search", "export", "purge", "retain", "revoke"])
def test_every_filter_has_its_option(run: Run, command: str) -> None:
    offered = run(command, "--help").out
    assert [field.option for field in FILTER_FIELDS if f"{field.option} " not in offered] == []


def test_exclude_is_one_condition_or_several_as_json(run: Run, filled: str) -> None:
    def ids(*more: str) -> set[str]:
        asked = ("search", "refund", "--db", filled, "-k", "30", "--json", *more)
        return {hit["step"]["id"] for hit in json.loads(run(*asked).out)}

    first = "tau-airline-40-0"
    both = json.dumps({"run_id": first, "tools": "get_user_details"})
    assert ids("--run", first, "--exclude", f"run_id={first}") == set()
    looked_up = ids("--run", first, "--tool", "get_user_details")
    assert looked_up
    assert ids("--run", first, "--exclude", both) == ids("--run", first) - looked_up
    assert ids("--run", first, "--exclude", both, "--exclude", "step_types=Action") == set()
    assert ids("--any-of", f"run_id={first}") == ids("--run", first)
    none = ids("--run", first, "--any-of", "run_id=none", "--any-of", '{"user_id": ["x", "y"]}')
    assert none == set()
    refused(run("search", "refund", "--db", filled, "--exclude", "{no"), "no JSON object")
    refused(run("search", "refund", "--db", filled, "--exclude", "colour=red"), "colour")


def test_steps_like_one_leave_that_one_out(run: Run, filled: str) -> None:
    given = "tau-airline-40-0:3"
    hits = json.loads(run("search", "--like", given, "--db", filled, "-k", "2", "--json").out)
    assert len(hits) == 2
    assert given not in [hit["step"]["id"] for hit in hits]
    assert hits[0]["step"]["inputs"]["tool"] == "get_reservation_details"


def test_expand_brings_the_steps_before(run: Run, filled: str) -> None:
    options = ["--db", filled, "-k", "1", "--expand", "parents"]
    hit = json.loads(run("search", REFUND, *options, "--json").out)[0]
    assert [step["id"] for step in hit["context"]][:1] == [hit["step"]["parent_id"]]
    assert "↳" in run("search", REFUND, *options).out


def test_show_gives_a_step_its_parents_and_children(run: Run, filled: str) -> None:
    shown = run("show", "tau-airline-40-0:2", "--db", filled)
    assert shown.code == 0
    for part in ("get_user_details", "sophia_silva_7557", "after tau-airline-40-0:1"):
        assert part in shown.out
    assert "before tau-airline-40-0:3" in shown.out
    data = json.loads(run("show", "tau-airline-40-0:3", "--db", filled, "--json").out)
    assert [s["id"] for s in data["parents"]] == ["tau-airline-40-0:2", "tau-airline-40-0:1"]
    assert [s["id"] for s in data["children"]] == ["tau-airline-40-0:4"]


def test_show_gives_a_run_as_a_tree(run: Run, filled: str) -> None:
    shown = run("show", "tau-airline-40-0", "--db", filled).out
    assert shown.startswith("run tau-airline-40-0  10 steps")
    assert "transfer_to_human_agents" in shown.splitlines()[10]
    data = json.loads(run("show", "tau-airline-40-0", "--db", filled, "--json").out)
    assert [step["hop"] for step in data] == list(range(1, 11))


def test_show_takes_the_beginning_of_an_id(run: Run, tmp_path: Path) -> None:
    steps = [
        AgentStep.model_validate({"id": name, "step_type": "Action", "run_id": "nightly-run"})
        for name in ("abcdef-1", "abcdef-2", "uvwxyz-1")
    ]
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(steps)
    assert "uvwxyz-1" in run("show", "uvwxyz").out
    assert run("show", "nightly").out.startswith("run nightly-run  3 steps")
    refused(run("show", "abcdef"), "2 ids begin with", "abcdef-1, abcdef-2")
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        same = {"step_type": "Action", "run_id": "hundred"}
        memory.add(AgentStep.model_validate({"id": f"hundred-{n}", **same}) for n in range(100))
    assert run("show", "hundred-9").code == 0
    refused(run("show", "hundred-"), "more than 99 ids begin with", "hundred-0, hundred-1, ")
    refused(run("show", "uvwxy"), "no step")
    refused(run("show", "uvwxyz-11"), "no step")


def test_a_step_outside_any_run_has_its_kin_too(run: Run, tmp_path: Path) -> None:
    links = [("loner-1", None), ("loner-2", "loner-1"), ("loner-3", "loner-2")]
    fields = [{"id": a, "parent_id": b, "step_type": "Action"} for a, b in links]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, fields)))
    run("import", "s.jsonl")
    shown = run("show", "loner-2").out
    assert "after loner-1" in shown
    assert "before loner-3" in shown


def test_a_very_long_run_is_cut_and_says_so(run: Run, tmp_path: Path) -> None:
    fields = [{"step_type": "Action", "run_id": "marathon", "hop": n} for n in range(1_300)]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, fields)))
    run("import", "s.jsonl")
    assert "… and 300 more; --json shows all" in run("show", "marathon").out
    assert len(json.loads(run("show", "marathon", "--json").out)) == 1_300


def test_runs_lists_newest_first_with_scores(run: Run, filled: str) -> None:
    listed = json.loads(run("runs", "--db", filled, "--json").out)
    assert len(listed) == 10
    scores = {entry["run_id"]: entry["score"] for entry in listed}
    assert scores["tau-airline-40-0"] == 1.0
    shown = run("runs", "--db", filled, "--limit", "4").out
    assert "4 runs; --offset 4 shows more." in shown


def test_stats_and_verify(run: Run, filled: str) -> None:
    stats = json.loads(run("stats", "--db", filled, "--json").out)
    assert stats["steps"] == 71
    assert "71" in run("stats", "--db", filled).out
    assert run("verify", "--db", filled).out.startswith("all well: 71 steps")
    assert json.loads(run("verify", "--db", filled, "--json").out) == {"steps": 71, "problems": []}


def test_export_and_import_give_the_same_memory(run: Run, filled: str, tmp_path: Path) -> None:
    assert run("export", "out.jsonl", "--db", filled).err == "71 steps written to out.jsonl.\n"
    run("import", "out.jsonl", "--db", "copy.db")
    run("export", "again.jsonl", "--db", "copy.db")
    told = [
        [unsourced(json.loads(line)) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("again.jsonl", "out.jsonl")
    ]
    assert told[0] == told[1]


def test_export_obeys_filters(run: Run, filled: str, tmp_path: Path) -> None:
    run("export", "one.jsonl", "--db", filled, "--run", "tau-airline-40-0")
    lines = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    assert {line["run_id"] for line in lines} == {"tau-airline-40-0"}
    assert [line.get("record") for line in lines] == [None] * 10


def test_reembed_changes_the_embedder(run: Run) -> None:
    run("import", DATA)
    assert "848 steps embedded with hashing" in run("reembed", "hashing").out
    assert "hashing" in json.loads(run("stats", "--json").out)["embedder"]
    refused(run("reembed", "nonsense"), "nonsense")


def test_purge_needs_a_filter_and_a_yes(run: Run) -> None:
    run("import", DATA)
    refused(run("purge", "--yes"), "needs a filter")
    refused(run("purge", "--yes", "--exclude", "until=1970-01-01"), "needs a filter")
    refused(run("purge", "--run", "tau-airline-40-0"), "10 steps would be erased", "--yes")
    assert json.loads(run("stats", "--json").out)["steps"] == 848
    assert run("purge", "--run", "tau-airline-40-0", "--yes").out.startswith(
        "10 steps and messages erased"
    )
    assert json.loads(run("stats", "--json").out)["steps"] == 838
    assert "bytes before" in run("vacuum").out
    assert "bytes, all namespaces of steps.db" in run("backup", "copy.db").out
    assert json.loads(run("stats", "--db", "copy.db", "--json").out)["steps"] == 838
    refused(run("backup", "copy.db"), "copy.db is there")
    vacuumed, copied = (
        json.loads(run(*words, "--json").out) for words in (["vacuum"], ["backup", "c"])
    )
    assert vacuumed["bytes"] <= vacuumed["bytes_before"]
    assert copied == {"path": "c", "bytes": Path("c").stat().st_size}


def test_retain_removes_what_is_old_and_says_how_much(run: Run) -> None:
    with StepMemory("steps.db", embedder="hashing") as memory:
        old = datetime(2020, 1, 1, tzinfo=UTC)
        for name, at in (("old", old), ("new", utc_now())):
            memory.add(AgentStep(step_type=AgentStepType.Action, run_id=name, created_at=at))
    assert "would go: 1 steps" in run("retain", "--days", "90", "--dry-run").out
    assert json.loads(run("stats", "--json").out)["steps"] == 2
    assert json.loads(run("retain", "--days", "90", "--run", "new", "--json").out)["steps"] == 0
    told = json.loads(run("retain", "--days", "90", "--json").out)
    assert (told["steps"], told["runs"], told["dry_run"]) == (1, 1, False)
    assert json.loads(run("stats", "--json").out)["steps"] == 1
    refused(run("retain", "--days", "0"), "days is a number above 0")
    refused(run("retain"), "--days")


def test_purge_of_a_durable_run_counts_the_steps_it_would_erase(run: Run) -> None:
    with StepMemory("steps.db") as memory:
        said = {"id": "handed-out", "role": "user", "content": "Hi", "run_id": "in-memory"}
        asyncio.run(memory.repository().append("chat", said))
        memory.add(AgentStep(step_type=AgentStepType.Action, run_id="in-memory"))
    refused(run("purge", "--run", "handed-out"), "1 steps would be erased", "--yes")
    assert run("purge", "--run", "handed-out", "--yes").out.startswith("1 steps and messages")


def test_namespaces_do_not_see_each_other(run: Run) -> None:
    run("import", DATA, "--namespace", "mine")
    refused(run("stats", "--namespace", "other"), "no namespace 'other'; it has 'mine'")
    assert json.loads(run("stats", "--json", "--namespace", "mine").out)["steps"] == 848


def test_the_environment_names_the_file(
    run: Run, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRIDAGI_STEPS_DB", filled)
    assert json.loads(run("stats", "--json").out)["steps"] == 71


READING = ("search x", "show abcdef", "runs", "export", "stats", "verify", "vacuum", "reembed")


@pytest.mark.parametrize("command", [*READING, "purge --run x --yes"])
def test_a_reading_command_does_not_make_a_file(run: Run, command: str, tmp_path: Path) -> None:
    refused(run(*command.split()), "there is no memory file steps.db")
    Path("steps.db").touch()
    refused(run(*command.split()), "holds no step memory")
    assert Path("steps.db").stat().st_size == 0
    Path("steps.db").unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search", ""], "empty"),
        (["search"], "either TEXT or --like"),
        (["search", "x", "--like", "y"], "either TEXT or --like"),
        (["search", "x", "-k", "0"], "at least 1"),
        (["search", "--like", "tau-airline-40-0:3", "-k", "0"], "at least 1"),
        (["search", "--like", "tau-airline-40-0"], "is a run"),
        (["search", "x", "-k", "many"], "-k"),
        (["search", "x", "--mode", "magic"], "magic"),
        (["search", "x", "--expand", "all"], "all"),
        (["search", "x", "--type", "Dance"], "--type: Input should be 'Action'"),
        (["search", "x", "--status", "fine"], "status"),
        (["search", "x", "--since", "yesterday"], "yesterday"),
        (["search", "x", "--until", "0001-01-01T00:00+14:00"], "--until"),
        (["search", "x", "--metadata", "novalue"], "KEY=VALUE"),
        (["search", "x", "--metadata", "price>=3"], "a range is price="),
        (["search", "x", "--metadata", 'price={"gte": 3'], "is no JSON"),
        (["search", "x", "--colour", "red"], "--colour"),
        (["show", "nothing-here"], "nothing-here"),
        (["show"], "ID"),
        (["runs", "--limit", "0"], "--limit"),
        (["frobnicate"], "frobnicate"),
        (["import"], "FILE"),
        (["import", "nowhere.jsonl"], "nowhere.jsonl"),
        (["import", DATA, "--db", ":memory:"], "needs a file"),
        (["import", DATA, "--format", "xml"], "xml"),
        (["export", "no/such/folder.jsonl"], "cannot write"),
    ],
)
def test_bad_input_gets_one_line(
    run: Run, filled: str, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRIDAGI_STEPS_DB", filled)
    refused(run(*arguments), said)


def test_foreign_and_damaged_files_are_refused_and_untouched(run: Run, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    foreign.write_text("a shopping list\n" * 400)
    for command in (["runs"], ["search", "x"], ["import", DATA]):
        refused(run(*command, "--db", "foreign.db"), "foreign.db")
    assert foreign.read_text() == "a shopping list\n" * 400
    refused(run("runs", "--db", str(tmp_path)), str(tmp_path))


def test_terminal_escapes_in_a_step_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 \u202eevil [bold red]markup[/] \x9b31m"
    fields = {"id": evil, "step_type": "Action", "inputs": {"purpose": evil, "tool": evil}}
    (tmp_path / "evil.jsonl").write_text(json.dumps({**fields, "outputs": {"result": evil}}))
    run("import", "evil.jsonl")
    step_id = json.loads(run("search", "evil", "--json").out)[0]["step"]["id"]
    refused(run("search", "x", "--mode", evil), "evil")
    for command in (["search", "evil"], ["show", step_id], ["stats"], ["runs"]):
        shown = run(*command).out
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
    assert "[bold red]markup[/]" in run("search", "evil").out


@pytest.mark.parametrize("text", ["日本語のテキスト", "emoji 👩‍👩‍👧 🙂", "Ünïcödé مرحبا"])
def test_wide_text_survives_import_search_and_export(run: Run, tmp_path: Path, text: str) -> None:
    step = AgentStep.model_validate({"step_type": "Action", "inputs": {"purpose": text}})
    (tmp_path / "wide.jsonl").write_text(step.model_dump_json(), encoding="utf-8")
    run("import", "wide.jsonl")
    assert text in run("search", text).out
    run("export", "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))["inputs"] == step.inputs


@pytest.mark.parametrize("columns", ["80", "120"])
def test_tables_fit_the_terminal(
    run: Run, filled: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in (
        ["search", REFUND, "--expand", "parents"],
        ["runs"],
        ["show", "tau-airline-40-0"],
    ):
        for line in run(*command, "--db", filled).out.splitlines():
            assert len(line) <= int(columns)


def test_plain_keeps_what_is_harmless() -> None:
    assert plain("a\nb\tc 👩‍👧 é") == "a\nb\tc 👩‍👧 é"
    assert plain("\x00\x1b\x7f\u2028\u2066") == "\ufffd" * 5


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1.5"])
def test_a_least_score_is_within_the_scale(run: Run, filled: str, value: str) -> None:
    refused(run("search", "refund", "--min-score", value, "--db", filled), "--min-score")


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("b=true", "yes"),
        ("b=True", "yes"),
        ("b=False", "no"),
        ("b=None", "null"),
        ("n=1", "yes"),
        ("n=NaN", "no"),
        ('b=["text", "other"]', "text"),
        ('n={"gte": 1, "lt": 2}', "yes"),
        ('b={"prefix": "te"}', "text"),
        ("n=[NaN]", None),
    ],
)
def test_metadata_is_written_as_json_or_as_python(
    run: Run, tmp_path: Path, condition: str, found: str | None
) -> None:
    tagged = {
        "yes": {"b": True, "n": 1},
        "no": {"b": False, "n": "NaN"},
        "null": {"b": None},
        "text": {"b": "text"},
    }
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(
            AgentStep.model_validate({"id": name, "step_type": "Action", "metadata": metadata})
            for name, metadata in tagged.items()
        )
    said = run("export", "-", "--metadata", condition).out
    assert [json.loads(line)["id"] for line in said.splitlines()] == ([found] if found else [])
    refused(run("export", "-", "--metadata", 'n={"over": 1}'), "unknown operator 'over'")
    refused(run("export", "-", "--metadata", 'n={"gt": 1, "gt": 2}'), "stands there twice")


def test_a_search_that_has_much_to_index_first_shows_how_far_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    @contextmanager
    def watched(label: str) -> Generator[Callable[[int, int], None]]:
        assert label == "indexing"
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr("hybridagi_steps.cli.render.progress", watched)
    steps = [
        AgentStep.model_validate({"step_type": "Action", "inputs": {"purpose": f"refund {n}"}})
        for n in range(1_500)
    ]
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(steps)
        assert memory.stats()["pending_texts"] == 1_500
    answer = run("search", "refund 7", "-k", "1", "--json")
    assert json.loads(answer.out)[0]["step"]["inputs"] == {"purpose": "refund 7"}
    assert len(seen) > 2
    assert seen[-1] == (3_000, 3_000)
    assert run("search", "refund 7").code == 0
    assert seen[-1] == (3_000, 3_000), "nothing is pending any more"
