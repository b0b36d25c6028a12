"""`hybridagi-steps sessions` and `fork`: what they print, and what they refuse."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.samples import message, said

import hybridagi_steps as hs
from hybridagi_steps.cli import main
from hybridagi_steps.running.session_writer import SessionWriter


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "120")
    path = str(tmp_path / "steps.db")
    calls = [{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}]
    with hs.StepMemory(path, embedder="hashing") as memory:
        repo = memory.repository()
        asyncio.run(repo.append("chat", said(3)))
        asyncio.run(repo.append("hostile", message("\x1b[31mred\x1b[0m")))
        asyncio.run(
            repo.append("tools", [message("q"), message(None, "assistant", tool_calls=calls)])
        )
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_a_token_is_printed_once_and_kept_as_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fastapi", reason="the server needs the extra `server`")
    from hybridagi_steps.server.tokens import Caller, Tokens, TokenScope, read_tokens

    file = tmp_path / "tokens.txt"
    anns = printed(capsys, "token", "add", str(file), "--user", "ann", "--namespace", "a-b").strip()
    anybodys = printed(capsys, "token", "add", str(file), "--scope", "as-any-user").strip()
    assert file.stat().st_mode & 0o777 == 0o600
    kept = file.read_text()
    assert anns not in kept
    assert anybodys not in kept
    known = Tokens(read_tokens(kept))
    scopes = frozenset({TokenScope.READ, TokenScope.APPEND})
    assert known.caller(anns.encode()) == Caller(scopes, "ann", frozenset({"a-b"}))
    assert known.caller(anybodys.encode()) == Caller(frozenset({TokenScope.AS_ANY_USER}))
    assert main(["token", "add", str(file)]) == 2
    assert "as-any-user" in capsys.readouterr().err
    assert main(["token", "add", str(file), "--user", "ann", "--scope", "fly"]) == 2
    assert main(["token", "add", str(tmp_path / "no" / "file"), "--user", "ann"]) == 2
    assert file.read_text() == kept


def test_listing_and_reading(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = printed(capsys, "sessions", "--db", db)
    ids = [line.strip() for line in listed.splitlines()[3:]]
    assert [line for line in ids if line in ("tools", "hostile", "chat")] == [
        "tools",
        "hostile",
        "chat",
    ]
    assert "\x1b" not in listed
    read = printed(capsys, "sessions", "tools", "--db", db)
    assert "find({})" in read
    rows = json.loads(printed(capsys, "sessions", "chat", "--json", "--db", db))
    assert [(row["sequence"], row["role"], row["content"]) for row in rows] == [
        (1, "user", "1"),
        (2, "assistant", "2"),
        (3, "user", "3"),
    ]


def test_a_session_that_was_only_recorded_is_listed_and_read_as_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "steps.db")
    asked = {"purpose": "answer", "arguments": {"question": "Which gate?"}}
    with hs.StepMemory(file, embedder="hashing") as memory:
        memory.add(
            hs.AgentStep(
                step_type=hs.AgentStepType.Action, inputs=asked, run_id="r", session_id="notebook"
            )
        )
    assert "Which gate?" in printed(capsys, "sessions", "--db", file)
    [row] = json.loads(printed(capsys, "sessions", "--json", "--db", file))
    assert (row["session_id"], row["messages"], row["runs"]) == ("notebook", 0, 1)
    assert "completed" in printed(capsys, "sessions", "notebook", "--db", file)
    [run] = json.loads(printed(capsys, "sessions", "notebook", "--json", "--db", file))
    assert (run["run_id"], run["status"]) == ("r", "completed")
    assert main(["sessions", "nobody", "--db", file]) == 2


def test_pages(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--offset 2 shows more" in printed(capsys, "sessions", "--limit", "2", "--db", db)
    last = printed(capsys, "sessions", "--limit", "2", "--offset", "2", "--db", db)
    assert "chat" in last
    assert "shows more" not in last
    assert "--offset 1" in printed(capsys, "sessions", "chat", "--limit", "1", "--db", db)
    rows = json.loads(printed(capsys, "sessions", "--limit", "1", "--json", "--db", db))
    assert [row["session_id"] for row in rows] == ["tools"]
    assert printed(capsys, "sessions", "--offset", "9", "--db", db) == "no sessions.\n"
    assert printed(capsys, "sessions", "chat", "--offset", "9", "--db", db) == "no messages.\n"


def test_a_fork_is_a_session_of_its_own(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = printed(capsys, "fork", "chat", "2", "--db", db).strip()
    rows = json.loads(printed(capsys, "sessions", made, "--json", "--db", db))
    assert [row["content"] for row in rows] == ["1", "2"]
    assert "fork of chat at 2" in " ".join(printed(capsys, "sessions", "--db", db).split())
    answer = json.loads(printed(capsys, "fork", "tools", "2", "--as", "mine", "--json", "--db", db))
    assert answer == {"new_session_id": "mine", "sequence": 1}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sessions", "nobody"], "'nobody'"),
        (["fork", "nobody", "1"], "'nobody'"),
        (["fork", "chat", "9"], "1 to 3"),
        (["fork", "chat", "-1"], "-1"),
        (["fork", "chat", "x"], "sequence"),
        (["fork", "chat", "1", "--as", "tools"], "already"),
        (["sessions", "--limit", "0"], "--limit"),
    ],
)
def test_bad_input_is_one_plain_line(
    db: str, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main([*words, "--db", db]) == 2
    said_wrong = capsys.readouterr()
    assert says in said_wrong.err
    assert len(said_wrong.err.strip().splitlines()) == 1
    assert said_wrong.out == ""


@pytest.mark.parametrize("columns", ["60", "120"])
def test_a_hit_of_a_message_says_where_it_stands_and_its_id_is_one_to_copy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: str,
) -> None:
    db = str(tmp_path / "steps.db")
    monkeypatch.setenv("COLUMNS", columns)
    with hs.StepMemory(db, embedder="hashing") as memory:
        texts = ["Which hotel did Ann like, of all those she saw in her holiday?", "Ritz", "Where?"]
        roles = ["user", "assistant", "user"]
        talk = [message(text, role) for role, text in zip(roles, texts, strict=True)]
        [_, answer, last] = asyncio.run(memory.repository().append("trip\x1b[31m", talk))
    found = printed(capsys, "search", "Ritz", "--db", db)
    assert "message 2 of session trip" in found
    assert answer.id in found
    assert "\x1b" not in found
    shown = printed(capsys, "show", answer.id, "--db", db)
    assert "message 2 of session trip" in shown
    assert f"before {last.id}" in shown
    data = json.loads(printed(capsys, "show", answer.id, "--json", "--db", db))
    assert (data["kind"], data["sequence"]) == ("message", 2)
    assert [step["id"] for step in data["children"]] == [last.id]
    alike = json.loads(printed(capsys, "search", "--like", answer.id, "--json", "--db", db))
    assert [hit["sequence"] for hit in alike] == [3]
    assert main(["search", "--like", answer.id, "--user", "mallory", "--db", db]) == 2
    assert answer.id in capsys.readouterr().err


TILL = '''
import hybridagi_steps as hs

paid = []

def pay(amount: str) -> str:
    """Pay."""
    paid.append(amount)
    return "paid " + amount

def program(messages):
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    function = {"name": "pay", "arguments": \'{"amount": "5"}\'}
    call = {"id": "call-1", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}

def boomer(messages):
    if messages[-1]["role"] == "tool":
        raise ValueError("the till is\\nbroken")
    return program(messages)

def till(memory, program=program):
    config = hs.StepRunnerConfig(consent=lambda request: None)
    return hs.StepRunner(program, memory, tools=[pay], config=config)

def broken(memory):
    return till(memory, boomer)
'''


@pytest.fixture
def paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a memory where a run of the till waits for consent to `call-1`."""
    (tmp_path / "till_program.py").write_text(TILL)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "till_program", raising=False)
    till = importlib.import_module("till_program")
    db = str(tmp_path / "steps.db")
    with hs.StepMemory(db, embedder="hashing") as memory:
        assert asyncio.run(till.till(memory).run("chat", "Pay.")).status == "paused"
    return db


def test_a_run_that_fails_when_it_goes_on_says_why(
    paused: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["resume", "chat", "--allow", "call-1", "--program", "till_program:broken"]
    assert main([*words, "--db", paused]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "failed: ValueError: the till is broken" in said.err
    assert said.err.count("\n") == 1


def test_a_paused_run_goes_on_from_the_command_line(
    paused: str, capsys: pytest.CaptureFixture[str]
) -> None:
    till = sys.modules["till_program"]
    db, program = paused, ("--program", "till_program:till")
    assert "paused" in printed(capsys, "runs", "--db", db)
    assert printed(capsys, "resume", "chat", "--db", db) == (
        "call-1: consent of pay({'amount': '5'})\n"
    )
    [waits] = json.loads(printed(capsys, "resume", "chat", "--db", db, "--json"))
    assert (waits["call_id"], waits["waits_for"]) == ("call-1", "consent")
    allow = "--allow", "call-1"
    for wrong in (allow, ("--answer", "call-1", *program), ("--allow", "x", *program)):
        assert main(["resume", "chat", "--db", db, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert till.paid == []
    again = printed(capsys, "resume", "chat", "--db", db, *program)
    assert again.startswith("call-1: consent")
    done = printed(capsys, "resume", "chat", *allow, "--db", db, *program)
    assert (done, till.paid) == ("paid 5\n", ["5"])
    listed = printed(capsys, "runs", "--db", db)
    assert ("paused" in listed, "superseded" in listed) == (False, True)
    assert printed(capsys, "resume", "chat", "--db", db, *program) == (
        "nothing waits for an answer.\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--allow", "call-1", "--deny", "call-1"], "'call-1' takes one of --allow, --deny"),
        (["--deny", "call-1", "--answer", "call-1=paid"], "'call-1' takes one of"),
        (["--answer", "call-1=a", "--answer", "call-1=b"], "one text"),
        (["--allow", "nothing"], "those that do: call-1"),
    ],
)
def test_answers_that_contradict_each_other_are_refused(
    paused: str, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    program = ["--program", "till_program:till", "--db", paused]
    assert main(["resume", "chat", *words, *program]) == 2
    said = capsys.readouterr()
    assert (said.out, says in said.err, "()" in said.err) == ("", True, False)
    assert sys.modules["till_program"].paid == []
    assert main(["resume", "chat", "--allow", "call-1", "--allow", "call-1", *program]) == 0


def test_who_answers_after_somebody_else_hears_so_wherever_the_other_is(
    paused: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    till: Any = sys.modules["till_program"]
    words = ["resume", "chat", "--allow", "call-1", "--db", paused, "--program"]
    late: list[str] = []

    def answer_too() -> None:
        assert main([*words, "till_program:till"]) == 2
        late.append(capsys.readouterr().err)

    def pay(amount: str) -> str:
        """Pay."""
        answer_too()  # while the tool of the first runs
        return f"paid {amount}"

    monkeypatch.setattr(till, "pay", pay)
    assert main([*words, "till_program:till"]) == 0
    assert capsys.readouterr().out == "paid 5\n"
    answer_too()  # once it has ended
    assert len(late) == 2
    assert len(set(late)) == 1
    assert "somebody else has answered meanwhile" in late[0]


def test_a_run_that_loses_its_call_to_another_says_so(
    paused: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SessionWriter.store

    def store_after_another(line: SessionWriter, steps: Any) -> None:
        store(line, steps)  # what another process does that answers just before
        store(line, steps)

    monkeypatch.setattr(SessionWriter, "store", store_after_another)
    words = ["resume", "chat", "--allow", "call-1", "--db", paused]
    assert main([*words, "--program", "till_program:till"]) == 2
    said = capsys.readouterr()
    assert (said.out, "somebody else has answered meanwhile" in said.err) == ("", True)
