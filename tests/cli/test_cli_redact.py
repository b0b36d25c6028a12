"""Commands that store something redact it as the Python program does which stores beside them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import StepMemory
from hybridagi_steps.cli import main

SECRET, HIDDEN = "sk-7f3whisper", "[hidden]"
HIDING = ("--redact", "test_cli_redact:hide")
NO_FUNCTION = 5


def hide(text: str) -> str:
    """Take the secret out."""
    return text.replace(SECRET, HIDDEN)


async def echo(messages: list[dict[str, Any]]) -> str:
    """Say again what was said."""
    return str(messages[-1]["content"])


@contextmanager
def command(folder: Path, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Run a command whose modules are the tests; end it with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hybridagi_steps", *arguments, "--db", str(folder / "steps.db")],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DSPY_CACHEDIR": str(folder / "cache")},
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()


def check_hidden(folder: Path, texts: list[str]) -> None:
    """Check that no file holds the secret, and that what was told stands there without it."""
    files = [path.read_bytes() for path in folder.glob("steps.db*") if path.is_file()]
    assert files
    assert not any(SECRET.encode() in held for held in files)
    assert texts
    assert all(HIDDEN in text for text in texts)


def told(folder: Path) -> list[str]:
    """What the AgentSteps say."""
    with StepMemory(folder / "steps.db") as memory:
        return [step.model_dump_json() for step in memory.iter_steps()]


def said(folder: Path, session_id: str) -> list[str]:
    """What the messages of a session say."""
    with StepMemory(folder / "steps.db") as memory:
        return [str(each.content) for each in memory.repository().store.messages(session_id)]


def test_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = {"step_type": "Action", "inputs": {"purpose": f"say {SECRET}"}}
    Path("in.jsonl").write_text(json.dumps(step))
    assert main(["import", "in.jsonl", "--db", "steps.db", *HIDING]) == 0
    check_hidden(tmp_path, told(tmp_path))


def test_mcp(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")
    hello: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello["clientInfo"] = {"name": "test", "version": "1"}
    step = {"step_type": "Action", "inputs": {"purpose": f"say {SECRET}"}}
    with command(tmp_path, "mcp", *HIDING) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": "add_step", "arguments": step}},
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
            if "id" in message:
                assert json.loads(process.stdout.readline())["id"] == message["id"]
    check_hidden(tmp_path, told(tmp_path))


def test_serve(tmp_path: Path) -> None:
    for module in ("fastapi", "uvicorn"):
        pytest.importorskip(module, reason="the server needs the extra `server`")
    import httpx

    program = ("--program", "test_cli_redact:echo")
    with command(tmp_path, "serve", "--port", "0", *program, *HIDING) as process:
        assert process.stdout is not None
        token, page = (process.stdout.readline().split()[-1] for _ in range(2))
        answer = httpx.post(
            page.partition("/#")[0] + "/chat/stream/v2",
            headers={"Authorization": f"Bearer {token}"},
            json={"session_id": "chat", "message": SECRET},
            timeout=30,
        )
        assert "run_completed" in answer.text
        assert SECRET not in answer.text
    check_hidden(tmp_path, said(tmp_path, "chat"))


def test_worker(tmp_path: Path) -> None:
    pytest.importorskip("dbos", reason="needs the extra `durable`")
    from hybridagi_steps.durable.session_runs import DurableRunner

    async def done(durable: DurableRunner) -> None:
        run_id = await durable.submit("chat", "what is it?")
        await asyncio.wait_for(durable.result(run_id), 60)

    with (
        command(tmp_path, "worker", "--program", "test_cli_redact:tell", *HIDING),
        DurableRunner(memory=str(tmp_path / "steps.db"), poll_seconds=0.05) as durable,
    ):
        asyncio.run(done(durable))
    check_hidden(tmp_path, said(tmp_path, "chat")[1:])


async def tell(messages: list[dict[str, Any]]) -> str:
    """Say the secret."""
    return f"it is {SECRET}"


@pytest.mark.parametrize("name", ["hide", "test_cli_redact:none", "test_cli_redact:NO_FUNCTION"])
@pytest.mark.parametrize(
    "words", ["import in.jsonl", "mcp", "serve --port 0", "worker --program test_cli_redact:echo"]
)
def test_what_cannot_redact_is_refused_before_anything_is_stored(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    name: str,
) -> None:
    if words == "mcp":
        pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"step_type": "Action", "inputs": {}}')
    assert main([*words.split(), "--db", "steps.db", "--redact", name]) == 2
    assert capsys.readouterr().err.startswith("hybridagi-steps: --redact ")
    assert not Path("steps.db").exists()
