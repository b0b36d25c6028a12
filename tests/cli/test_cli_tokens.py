"""`token add`, and what `serve` makes of its file: whole lines, one for each token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")

from typer.testing import CliRunner, Result

from hybridagi_steps.cli.app import application
from hybridagi_steps.server.tokens import Caller, TokenFile, Tokens, TokenScope, read_tokens


def command(*words: str, token: str | None = None) -> Result:
    """Run a command, with a token in the environment if one is given."""
    return CliRunner().invoke(application(), [*words], env={"HYBRIDAGI_STEPS_TOKEN": token})


def add(file: Path, *words: str) -> Result:
    """Add a token."""
    return command("token", "add", str(file), *words)


@pytest.mark.parametrize(
    "user", ["", " ", "a b", "ann\n", "ann\tx", "a\x00", "a\u2028b", "a\x1b[0m"]
)
def test_a_user_that_no_line_can_hold_is_refused_before_anything_is_written(
    tmp_path: Path, user: str
) -> None:
    file = tmp_path / "tokens.txt"
    for words in (("--user", user), ("--user", "ann", "--namespace", user)):
        refused = add(file, *words)
        assert refused.exit_code != 0
        assert not file.exists()


@pytest.mark.parametrize(
    "before", ["", "# readers", "# readers\n", "abcdefghijklmnop read user=bob"]
)
def test_a_line_that_has_no_end_gets_one_first(tmp_path: Path, before: str) -> None:
    file = tmp_path / "tokens.txt"
    file.write_text(before)
    file.chmod(0o600)
    made = add(file, "--user", "ann").stdout.strip()
    caller = Tokens(read_tokens(file.read_text())).caller(made.encode())
    assert caller is not None
    assert caller.user_id == "ann"
    assert file.read_text().startswith(before)
    assert "\n\n" not in file.read_text()


def test_the_token_of_the_environment_stands_in_no_line(tmp_path: Path) -> None:
    file = tmp_path / "tokens.txt"
    made = add(file, "--user", "ann").stdout.strip()
    refused = command("serve", "--db", ":memory:", "--tokens", str(file), token=made)
    assert refused.exit_code != 0
    assert "HYBRIDAGI_STEPS_TOKEN" in refused.output
    assert made not in refused.output


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o644, True)])
def test_that_others_can_read_the_file_is_a_warning(
    tmp_path: Path, mode: int, warned: bool
) -> None:
    file = tmp_path / "tokens.txt"
    file.touch()
    file.chmod(mode)
    added = add(file, "--user", "ann")
    assert added.exit_code == 0
    assert ("chmod 600" in added.stderr) is warned
    # It is said before anything can stop the start.
    served = command("serve", "--db", ":memory:", "--tokens", str(file), token=added.stdout.strip())
    assert ("chmod 600" in served.stderr) is warned


def test_a_token_is_known_as_long_as_its_line_stands_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever takes a line out locks its bearer out at once, without a restart."""
    file, admin = tmp_path / "tokens.txt", Caller(frozenset({TokenScope.ADMIN}))
    first = add(file, "--user", "ann").stdout.strip().encode()
    known = TokenFile(file, {"the-token-of-the-operator": admin})

    def user(token: bytes) -> str | None:
        caller = known.caller(token)
        return caller and caller.user_id

    assert user(first) == "ann"
    second = add(file, "--user", "bob").stdout.strip().encode()
    assert (user(first), user(second)) == ("ann", "bob")
    file.write_text(file.read_text().splitlines()[1] + "\n")
    assert (user(first), user(second)) == (None, "bob")
    for broken in ("neither token nor scope\n", None):
        file.write_text(broken) if broken else file.unlink()
        assert user(second) is None
        assert known.caller(b"the-token-of-the-operator") == admin
    assert caplog.text.count("until it is mended") == 2
    assert "line 1" in caplog.text
    third = add(file, "--user", "eve").stdout.strip().encode()
    assert user(third) == "eve"


def test_a_file_that_was_written_is_read_again_though_its_time_was_put_back(tmp_path: Path) -> None:
    file, admin = tmp_path / "tokens.txt", Caller(frozenset({TokenScope.ADMIN}))
    file.write_text("abcdefghijklmnop read user=ann\n")
    known, before = TokenFile(file, {"the-token-of-the-operator": admin}), file.stat()
    assert known.caller(b"abcdefghijklmnop")
    file.write_text("qrstuvwxyzabcdef read user=ann\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known.caller(b"abcdefghijklmnop") is None


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_line_ends_where_editors_end_it(end: str) -> None:
    read = read_tokens(f"abcdefghijklmnop read user=ann # was{end}qrstuvwxyzabcdef admin\r\n")
    assert list(read) == ["abcdefghijklmnop"]


def served_lines(tmp_path: Path, **variables: str) -> tuple[str, str]:
    """Return what a server says once it is there, and what its MCP server says."""
    words = [sys.executable, "-m", "hybridagi_steps"]
    db = ["--db", str(tmp_path / "steps.db"), "--embedder", "hashing"]
    environment = {**os.environ, "DSPY_CACHEDIR": str(tmp_path), **variables}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    serving = subprocess.Popen([*words, "serve", "--port", "0", *db], text=True, **pipes)
    assert serving.stdout is not None
    lines = list[str]()
    while not lines or not lines[-1].startswith("Stop with"):
        lines.append(serving.stdout.readline())
        assert lines[-1], serving.communicate()
    serving.terminate()
    serving.communicate(timeout=20)
    mcp = [*words, "mcp", "--user", "ann", *db]
    asked = subprocess.run(
        mcp, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    return "".join(lines), asked.stderr


def test_only_a_token_that_was_made_here_is_printed(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the server needs the extra `server`")
    pytest.importorskip("mcp", reason="the MCP server needs the extra `mcp`")
    secret = "the-token-of-the-environment"  # noqa: S105 - a test's
    said, said_to_client = served_lines(tmp_path, HYBRIDAGI_STEPS_TOKEN=secret)
    assert secret not in said
    assert "token: " not in said
    assert "access: the token of HYBRIDAGI_STEPS_TOKEN reads, writes and erases" in said
    assert "access: whoever uses this server finds the steps of ann alone" in said_to_client
    said, _ = served_lines(tmp_path, HYBRIDAGI_STEPS_TOKEN="")
    [token] = [line.removeprefix("token: ") for line in said.split("\n") if "token: " in line]
    assert f"#token={token}" in said
    assert "access: this token reads, writes and erases everybody's steps" in said
