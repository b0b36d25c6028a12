"""The documents tell the truth: Python runs, commands exist, tables are those measured."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import doctest
import json
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps
from hybridagi_steps.testing import scripted_lm

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """Return the README's code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    program = "\n".join(blocks("python"))
    assert program.count("hs.") >= 10
    kept = dict(dspy.settings.config)
    dspy.configure(lm=scripted_lm())
    try:
        exec(compile(program, "README.md", "exec", dont_inherit=True), names)  # noqa: S102
    finally:
        dspy.configure(**kept)
        for name in ("memory", "safe"):
            names[name].close()
    printed = capsys.readouterr().out
    assert "words: flights" in printed
    assert names["run"].errors == []


def test_the_commands_of_the_readme_exist() -> None:
    from typer.testing import CliRunner

    from hybridagi_steps.cli.app import app

    text = CliRunner().invoke(app, ["--help"]).output
    named = re.findall(r"^hybridagi-steps ([\w |]+)", "\n".join(blocks("bash")), re.MULTILINE)
    commands = {word.strip() for line in named for word in line.split("|") if word.strip()}
    first = {word.split()[0] for word in commands}
    assert {"import", "search", "show", "runs", "purge"} <= first
    for command in first:
        assert command in text


def test_the_two_commands_stand_alone_on_their_lines() -> None:
    bash = "\n".join(blocks("bash")).splitlines()
    assert "pip install . && hybridagi-steps demo" in bash
    assert 'pip install -e ".[dev]" && pytest' in bash


def modules() -> list[str]:
    """Return every module of the package by name."""
    found = pkgutil.walk_packages(hybridagi_steps.__path__, "hybridagi_steps.")
    return [module.name for module in found if not module.name.endswith(("__main__", ".data"))]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(import_module(name), extraglobs={"hs": hybridagi_steps})
    assert outcome.failed == 0


def test_numbers_in_the_readme_are_those_of_the_measurements() -> None:
    """The tables between the marks are what `hybridagi-steps bench readme` writes from its JSON."""
    from hybridagi_steps.bench.readme import BEGIN, END, tables

    inside = README[README.index(BEGIN) + len(BEGIN) : README.index(END)].strip()
    results = json.loads((ROOT / ".github" / "measured.json").read_text("utf-8"))
    assert inside == tables(results).strip()
