"""What a script learns from a command: its exit code when nothing, or not everything, was done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from conformance.samples import said

import hybridagi_steps as hs
from hybridagi_steps.cli import main
from hybridagi_steps.exchange.formats import FORMATS

SKIPPED = ["{broken", "[1, 2]", '{"step_type": "Dance"}']


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A memory with a session of messages, and a step of a trial that names another one."""
    path = str(tmp_path / "steps.db")
    step = {"id": "a", "step_type": "Action", "session_id": "trial", "scope": "t"}
    with hs.StepMemory(path, embedder="hashing") as memory:
        asyncio.run(memory.repository().append("chat", said(3)))
        memory.add(hs.AgentStep.model_validate(step))
    return path


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_strict_import_ends_with_1_when_it_skipped_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    good = hs.AgentStep.model_validate({"step_type": "Action"}).model_dump_json()
    file, whole = tmp_path / "mixed.jsonl", tmp_path / "whole.jsonl"
    file.write_text("\n".join([good, *SKIPPED]))
    whole.write_text(good)
    db = str(tmp_path / "steps.db")
    assert main(["import", str(file), "--db", db, *form]) == 0
    told = capsys.readouterr()
    assert main(["import", str(file), "--db", str(tmp_path / "b.db"), "--strict", *form]) == 1
    strict = capsys.readouterr()
    assert strict.out == told.out.replace(db, str(tmp_path / "b.db"))
    assert strict.err == told.err
    if form:
        assert json.loads(strict.out)["skipped_count"] == len(SKIPPED)
    else:
        assert strict.err.count(" skipped: ") == len(SKIPPED)
    assert main(["import", str(whole), "--db", db, "--strict", *form]) == 0


def test_a_strict_import_ends_with_1_when_a_log_of_the_folder_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    good = hs.AgentStep.model_validate({"step_type": "Action"}).model_dump_json()
    (folder / "a.jsonl").write_text(good)
    (folder / "settings.json").write_text('{"theme": "dark"}')
    command = ["import", str(folder), "--db", str(tmp_path / "steps.db"), "--strict"]
    assert main(command) == 0
    assert "files of no known format passed over: settings.json\n" in capsys.readouterr().err
    (folder / "b.jsonl").write_text('{"type": "user", "uuid": "a\n')
    assert main(command) == 1
    assert "passed over: b.jsonl (line 1: not JSON: " in capsys.readouterr().err


def test_a_session_that_is_not_there_is_not_exported(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.jsonl"
    assert main(["export", str(file), "--session", "nobody", "--db", db]) == 2
    assert capsys.readouterr().err == "hybridagi-steps: no session has the id 'nobody'.\n"
    assert not file.exists()
    for known in ("chat", "trial"):
        assert main(["export", str(file), "--session", known, "--db", db]) == 0
        assert file.read_text()


def test_runs_say_how_they_ended_and_what_they_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "steps.db")
    spent = hs.StepMetrics(total_tokens=1_234, cost=0.0125)
    call, act, end = (
        hs.AgentStepType.ProgramCall,
        hs.AgentStepType.Action,
        hs.AgentStepType.ProgramEnd,
    )
    agent = {"program": "Agent"}
    with hs.StepMemory(path, embedder="hashing") as memory:
        for run, kinds in (("done", (call, act, end)), ("cut", (call, act))):
            for hop, kind in enumerate(kinds):
                failed = kind == end
                memory.add(
                    hs.AgentStep(
                        run_id=run,
                        hop=hop,
                        step_type=kind,
                        inputs={"purpose": "refund"} if kind == act else agent,
                        status="error" if failed else "ok",
                        metrics=spent if kind == act else None,
                    )
                )
    assert main(["runs", "--db", path, "--json"]) == 0
    told = {run["run_id"]: run for run in json.loads(capsys.readouterr().out)}
    assert [told[run]["status"] for run in ("done", "cut")] == ["failed", "interrupted"]
    assert {(run["tokens"], run["cost"]) for run in told.values()} == {(1_234, 0.0125)}
    assert main(["runs", "--db", path]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("interrupted", "1,234", "$0.0125"))


@pytest.mark.parametrize("condition", [["--session", "nobody"], ["--run", "nobody"]])
def test_a_purge_that_matches_nothing_says_so(
    db: str, capsys: pytest.CaptureFixture[str], condition: list[str]
) -> None:
    purge = ["purge", *condition, "--yes", "--db", db]
    assert main(purge) == 0
    said = "nothing matched (runs in queues are not counted): 0 steps and messages erased from"
    assert capsys.readouterr().out == f"{said} {db}.\n"
    assert main(["purge", "--session", "chat", "--yes", "--db", db]) == 0
    assert "nothing matched" not in capsys.readouterr().out


def test_a_purge_says_which_messages_it_would_erase(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["purge", "--session", "chat", "--db", db]) == 2
    assert "0 steps and all messages of 1 sessions would be erased" in capsys.readouterr().err
    assert main(["purge", "--session", "chat", "--yes", "--db", db]) == 0
    assert capsys.readouterr().out == f"3 steps and messages erased from {db}.\n"


def test_an_import_tells_what_it_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "circle.jsonl"
    file.write_text('{"id": "a", "parent_id": "a", "step_type": "Action"}')
    assert main(["import", str(file), "--db", str(tmp_path / "steps.db")]) == 0
    assert "they led in a circle: 1" in capsys.readouterr().err


def test_a_purge_names_what_it_did_not_reach(
    db: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    away = str(tmp_path / "away.runs")
    with hs.StepMemory(db) as memory:
        memory.note_queue(away)
    purge = ["purge", "--session", "chat", "--yes", "--db", db]
    assert main([*purge, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["erased"], told["unreached"], told["messages_left"]) == (3, [away], 0)
    assert main(purge) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("nothing matched")
    assert away in shown.err


def test_undoing_says_what_is_visible_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "steps.db")
    with hs.StepMemory(db, embedder="hashing") as memory:
        owned = [{"user_id": "u"}, {"user_id": "u", "run_id": "r"}, {"run_id": "r"}]
        memory.add([hs.AgentStep.model_validate({"step_type": "Action", **each}) for each in owned])
        one = memory.revoke({"user_id": "u"}).id
        two = memory.revoke({"run_id": "r"}).id

    def undone(revocation: str | None) -> str:
        assert main(["revoke", "--undo", str(revocation), "--db", db]) == 0
        return capsys.readouterr().out

    said = undone(one)
    assert said.startswith("1 steps are back")
    assert "1 stay hidden" in said
    for _ in range(2):
        assert undone(one).startswith(f"{one} was undone before")
    assert undone(two) == f"2 steps are back in {db}.\n"


@pytest.mark.parametrize("where", [["--trust", "imported"], ["--scope", "*"]])
@pytest.mark.parametrize("command", [["purge", "--yes"], ["revoke"]])
def test_a_filter_that_everything_passes_is_refused(
    db: str, command: list[str], where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *where, "--db", db]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    with hs.StepMemory(db) as memory:
        assert memory.exist("a")
        assert memory.revocations() == []


def test_revoke_says_how_many_messages_it_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "steps.db")
    with hs.StepMemory(db, embedder="hashing") as memory:
        asyncio.run(memory.repository().append("chat", [{"role": "user", "content": "hello"}]))
    assert main(["revoke", "--session", "chat", "--dry-run", "--db", db]) == 0
    assert ", and 1 messages of sessions, would be hidden" in capsys.readouterr().out
    assert main(["revoke", "--session", "chat", "--json", "--db", db]) == 0
    [done] = json.loads(capsys.readouterr().out)
    assert (done["matched"], done["messages"], len(done["message_ids"])) == (0, 1, 1)
    assert main(["revoke", "--list", "--db", db]) == 0
    assert "messages" in capsys.readouterr().out
    assert main(["revoke", "--undo", done["id"], "--db", db]) == 0
    assert "and 1 messages of sessions, are back" in capsys.readouterr().out


def test_purge_says_which_messages_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "steps.db")
    said = [{"role": "user", "content": text, "run_id": "r"} for text in ("hello", "again")]
    with hs.StepMemory(db, embedder="hashing") as memory:
        memory.add(hs.AgentStep(step_type=hs.AgentStepType.Action, run_id="r"))
        asyncio.run(memory.repository().append("chat", said))
    assert main(["purge", "--run", "r", "--yes", "--json", "--db", db]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "erased": 1,
        "unreached": [],
        "messages_left": 2,
        "sessions_left": ["chat"],
    }
    assert main(["purge", "--run", "r", "--yes", "--db", db]) == 0
    told = capsys.readouterr()
    assert "2 matching messages stay in the sessions chat: purge --session ID" in told.err


@pytest.mark.parametrize("columns", ["80", "120"])
def test_an_id_that_the_next_command_needs_is_never_cut(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    db = str(tmp_path / "steps.db")
    inputs = {"tool": "look_for_the_lamp", "purpose": "lamp " * 40}
    step = {"step_type": "Action", "inputs": inputs, "user_id": "somebody with a long name"}
    with hs.StepMemory(db, embedder="hashing") as memory:
        memory.add(hs.AgentStep.model_validate(step))
        stored = str(memory.find().steps[0].id)
    assert main(["search", "lamp", "--db", db]) == 0
    assert stored in capsys.readouterr().out
    with hs.StepMemory(db, embedder="hashing") as memory:
        hidden = memory.revoke({"user_id": step["user_id"]}, reason="a reason " * 9).id
    assert main(["revoke", "--list", "--db", db]) == 0
    assert str(hidden) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("revoke --undo nope", "--list"),
        ("search x --type Act", "--type"),
        ("search x --aim next", "--like ID"),
    ],
)
def test_mistakes_are_told_in_options(
    db: str, capsys: pytest.CaptureFixture[str], line: str, option: str
) -> None:
    assert main([*line.split(), "--db", db]) == 2
    told = capsys.readouterr().err
    assert option in told
    assert "memory." not in told
    assert "filter key" not in told


def test_a_file_of_which_nothing_was_understood_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    span = {"traceId": "a" * 32, "spanId": f"{1:016x}", "name": "s"}
    file, db = tmp_path / "spans.json", str(tmp_path / "steps.db")
    file.write_text(json.dumps({**span, "attributes": {"acme.input": "Weather in Oslo?"}}))
    assert main(["import", str(file), "--db", db]) == 3
    assert "1 span without a known attribute was not understood" in capsys.readouterr().err
    assert main(["import", str(file), "--db", db]) == 0  # there already: nothing was lost now
    file.write_text(json.dumps({**span, "attributes": {"input.value": "Weather in Oslo?"}}))
    assert main(["import", str(file), "--db", str(tmp_path / "b.db")]) == 0


@pytest.mark.parametrize(
    ("options", "looks"),
    [([], "JSON objects with the keys bar, foo"), (["--format", "openai"], "keys bar, foo")],
)
def test_a_refusal_says_once_what_the_file_looks_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], looks: str
) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text('{"foo": 1, "bar": 2}\n' * 5)
    assert main(["import", str(file), "--db", str(tmp_path / "steps.db"), *options]) == 2
    err = capsys.readouterr().err
    assert err.count(looks) == 1
    assert err.count(" skipped: ") == 1
    assert "import --help" in err


def test_a_wrong_format_is_answered_with_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps({"resourceSpans": []}))
    assert main(["import", str(file), "--db", str(tmp_path / "a.db"), "--format", "openai"]) == 2
    assert "looks like a file of format otlp" in capsys.readouterr().err


def test_every_format_stands_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--help"]) == 0
    shown = "".join(capsys.readouterr().out.replace("│", " ").split())
    for name in FORMATS:
        assert name in shown


def test_an_import_that_finds_no_record_of_a_format_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "roles.jsonl"
    file.write_text('[{"id": "a"}]')
    command = ["import", str(file), "--db", str(tmp_path / "s.db"), "--format", "langfuse"]
    assert main(command) == 2
    assert "no record of the format langfuse was found in it" in capsys.readouterr().err
