"""What draws itself can be printed on every stream, and as JSON it loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRAWN = """
import hybridagi_steps as hs
from hybridagi_steps.context import ContextBuilder

memory = hs.StepMemory("steps.db", embedder="hashing")

@hs.record_step(purpose="look up \\u0420\\u0438\\u043c \\u2192 caf\\u00e9")
def look(city):
    return "found caf\u00e9 \u2192 " + city

with hs.record(memory, session_id="s") as run:
    look("\\u0420\\u0438\\u043c")
    look("Rome " * 60)
run.score(1.0, "f\\u00e4in \\u2713")
memory.pin(run.steps)
for drawn in (
    memory,
    memory.search("look up"),
    memory.find(),
    run.steps,
    memory.runs(),
    memory.sessions(),
    memory.trials(),
    memory.consolidate(),
    memory.search("look up")[0].step.step_type,
    hs.QueryWithSteps.from_hits("look", memory.search("look up")),
    ContextBuilder(memory, budget=300).build(steps=run.steps.steps).receipt,
):
    print(drawn)
    print(repr(drawn))
print("done")
"""
ENCODINGS = ["ascii", "cp1252", "utf-8"]


def environment(encoding: str) -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_draws_itself_is_printed_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRAWN],
        env=environment(encoding),
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    text = done.stdout.decode(encoding)
    assert done.stderr.decode(encoding) == ""
    assert text.endswith("done\n")
    assert ("├── 0 " in text) is (encoding == "utf-8")
    assert ("+-- 0 " in text) is (encoding != "utf-8")
    assert ("café" in text) is (encoding != "ascii")
    assert ("Рим" in text) is (encoding == "utf-8")
    assert ("\\u0420\\u0438\\u043c" in text) is (encoding != "utf-8")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_command_line_draws_and_lists_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "hybridagi_steps", *words, "--db", "steps.db"]
        done = subprocess.run(
            command, env=environment(encoding), cwd=tmp_path, capture_output=True, check=True
        )
        return done.stdout.decode(encoding)

    subprocess.run(
        [sys.executable, "-c", DRAWN],
        env=environment("utf-8"),
        cwd=tmp_path,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    hits = run("search", "look up")
    assert ("→ found" in hits) is (encoding == "utf-8")
    assert ("> found" in hits) is (encoding != "utf-8")
    [first, *_] = json.loads(run("search", "look up Рим", "--json"))
    assert first["step"]["inputs"]["purpose"] == "look up Рим → café"
