"""What people have on their disks: exports in a zip, folders of session logs, SQLite files."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import StepMemory
from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange import import_file

ZSTANDARD = 93
CHAT = {
    "uuid": "u1",
    "name": "Trip",
    "created_at": "2025-03-01T10:00:00Z",
    "chat_messages": [
        {"sender": "human", "text": "Rain in Oslo?", "created_at": "2025-03-01T10:00:01Z"},
        {"sender": "assistant", "text": "Sunny.", "created_at": "2025-03-01T10:00:05Z"},
    ],
}


def memory() -> StepMemory:
    return StepMemory(":memory:", embedder="hashing:2")


def test_a_zip_as_downloaded_gives_sessions_with_titles_and_is_never_doubled(
    tmp_path: Path,
) -> None:
    file = tmp_path / "export.zip"
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("conversations.json", json.dumps([CHAT]))
        packed.writestr("users.json", json.dumps([{"uuid": "x"}]))
    steps = memory()
    report = import_file(steps, file)
    assert (report.added, report.skipped) == (3, [])
    assert "users.json" in report.notes[0]
    assert import_file(steps, file).added == 0
    (session,) = steps.sessions()
    assert session.title == "Trip"


def test_chats_are_listed_by_their_own_times_until_somebody_goes_on(tmp_path: Path) -> None:
    file, steps = tmp_path / "conversations.json", memory()
    chats = [{**CHAT, "uuid": f"u{n}", "chat_messages": _dated(n)} for n in (3, 1, 2)]
    file.write_text(json.dumps(chats))
    asyncio.run(steps.repository().append("live", {"role": "user", "content": "Hello"}))
    for _ in range(2):
        import_file(steps, file)
        assert [one.session_id for one in steps.sessions()] == ["live", "u3", "u2", "u1"]
        newest = steps.sessions()[1]
        assert newest.created_at == "2025-03-03T10:00:01+00:00"
        assert newest.updated_at == "2025-03-03T10:00:05+00:00"
    asyncio.run(steps.repository().append("u1", {"role": "user", "content": "And Bergen?"}))
    assert [one.session_id for one in steps.sessions()] == ["u1", "live", "u3", "u2"]
    assert steps.sessions()[0].updated_at > "2026"


def _dated(day: int) -> list[dict[str, Any]]:
    times = (f"2025-03-0{day}T10:00:0{second}Z" for second in (1, 5))
    return [
        {"sender": who, "text": f"Rain on {day}?", "created_at": time}
        for who, time in zip(("human", "assistant"), times, strict=True)
    ]


def test_a_damaged_zip_is_refused_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "export.zip"
    file.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ExchangeError, match="cannot be unpacked"):
        import_file(memory(), file)


def test_a_folder_of_session_logs_comes_in_whole(tmp_path: Path) -> None:
    for name in ("one", "two"):
        line: dict[str, Any] = {"sessionId": name, "timestamp": "2026-01-01T10:00:00Z"}
        lines = [
            {**line, "type": "user", "uuid": "a", "message": {"role": "user", "content": name}},
            {**line, "type": "assistant", "uuid": "b", "message": {"id": "m", "content": "Yes."}},
        ]
        (tmp_path / name).mkdir()
        text = "\n".join(map(json.dumps, lines))
        (tmp_path / name / "log.jsonl").write_text(text)
    steps = memory()
    assert import_file(steps, tmp_path).skipped == []
    assert {session.session_id for session in steps.sessions()} == {"one", "two"}


def test_a_foreign_database_is_refused_by_its_tables(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE birds (name TEXT)")
    with pytest.raises(ExchangeError, match="birds"):
        import_file(memory(), file)


def log_line(uuid: str, parent: str | None, text: object, *, kind: str = "user") -> dict[str, Any]:
    message: dict[str, Any] = {"role": kind, "content": text}
    message |= {"id": f"m-{uuid}"} if kind == "assistant" else {}
    about = {"uuid": uuid, "parentUuid": parent, "sessionId": "s", "type": kind}
    return {**about, "timestamp": f"2026-01-01T10:00:{uuid.zfill(2)}Z", "message": message}


def imported_log(lines: list[dict[str, Any]], folder: Path) -> StepMemory:
    file, steps = folder / "log.jsonl", memory()
    file.write_text("\n".join(map(json.dumps, lines)))
    assert import_file(steps, file).skipped == []
    assert import_file(steps, file).added == 0
    return steps


def talk(steps: StepMemory, session_id: str) -> list[object]:
    repository = steps.repository()
    return [message.content for message in asyncio.run(repository.get_steps(session_id))]


@pytest.mark.parametrize("back_to", ["2", None])
def test_what_a_rewind_of_claude_code_left_is_a_fork(back_to: str | None, tmp_path: Path) -> None:
    lines = [
        log_line("1", None, "first"),
        log_line("2", "1", "answer", kind="assistant"),
        log_line("3", "2", "left"),
        log_line("4", "3", "left answer", kind="assistant"),
        log_line("5", back_to, "instead"),
        log_line("6", "5", "other answer", kind="assistant"),
    ]
    steps = imported_log(lines, tmp_path)
    shared = ["first", "answer"]
    sessions = {session.session_id for session in steps.sessions()}
    assert sessions == {"s", "s@4"}
    assert talk(steps, "s") == [*(shared if back_to else []), "instead", "other answer"]
    assert talk(steps, "s@4") == [*shared, "left", "left answer"]


def test_calls_of_claude_code_at_the_same_time_are_no_fork(tmp_path: Path) -> None:
    def call(name: str) -> list[object]:
        return [{"type": "tool_use", "id": name, "name": "look", "input": {}}]

    def answer(name: str) -> list[object]:
        return [{"type": "tool_result", "tool_use_id": name, "content": f"of {name}"}]

    first, second = log_line("2", "1", call("a")), log_line("3", "2", call("b"))
    for line in (first, second):
        line |= {"type": "assistant", "message": {**line["message"], "id": "m"}}
    lines = [
        log_line("1", None, "look twice"),
        first,
        second,
        log_line("4", "2", answer("a")),
        log_line("5", "3", answer("b")),
        log_line("6", "5", "done", kind="assistant"),
        log_line("7", "6", "and now?"),
    ]
    steps = imported_log(lines, tmp_path)
    assert [session.session_id for session in steps.sessions()] == ["s"]
    assert {step.result for step in steps.iter_steps({"tools": ["look"]})} == {"of a", "of b"}


SAMPLE = {
    "id": 1,
    "epoch": 1,
    "uuid": "sample-1",
    "input": "q",
    "target": "a",
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    "scores": {"match": {"value": "C"}},
}
"""A sample as inspect_ai writes it."""


def write_eval(file: Path, compression: int) -> None:
    """Write a log as inspect_ai lays one out."""
    header = {"version": 2, "status": "success", "eval": {"task": "t", "model": "m"}}
    summary = {key: SAMPLE[key] for key in ("id", "epoch", "input", "target")}
    with zipfile.ZipFile(file, "w", compression) as packed:
        packed.writestr("_journal/start.json", json.dumps(header))
        packed.writestr("samples/1_epoch_1.json", json.dumps(SAMPLE))
        packed.writestr("summaries.json", json.dumps([summary]))
        packed.writestr("header.json", json.dumps(header))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, ZSTANDARD])
def test_an_eval_log_gives_a_session_a_sample_with_its_score(
    compression: int, tmp_path: Path
) -> None:
    if compression == ZSTANDARD:
        pytest.importorskip("zipfile_zstd", reason="the writer of Zstandard is not installed")
    file, steps = tmp_path / "log.eval", memory()
    write_eval(file, compression)
    assert import_file(steps, file).skipped == []
    assert [session.session_id for session in steps.sessions()] == ["sample-1"]
    scores = steps.repository().store.run_scores(["sample-1"])
    assert scores == {"sample-1": (1.0, "match")}


def test_a_folder_holds_agent_files_eval_logs_and_tables(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    agent = {"agents": [{"id": "agent-1", "name": "Sam", "messages": chat}], "blocks": []}
    (tmp_path / "agent.af").write_text(json.dumps(agent))
    (tmp_path / "notes.json").write_text('{"kind": "of nothing"}')
    (tmp_path / "damaged.eval").write_bytes(b"PK\x03\x04 cut off")
    write_eval(tmp_path / "log.eval", zipfile.ZIP_DEFLATED)
    row = {"session_id": "row-1", "messages": chat}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "chats.parquet")
    steps = memory()
    report = import_file(steps, tmp_path)
    assert report.skipped == []
    assert {s.session_id for s in steps.sessions()} == {"agent-1", "sample-1", "row-1"}
    (note,) = report.notes
    assert "notes.json" in note
    assert "damaged.eval (" in note
