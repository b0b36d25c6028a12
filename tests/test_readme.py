"""The documents tell the truth: Python runs, commands exist, tables are those measured."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import doctest
import json
import pkgutil
import re
import shutil
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps
from tests.pages import Kernel

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """Return the README's code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


MOST_LINES = 150


@pytest.mark.parametrize("kernel", [False, True], ids=["terminal", "kernel"])
def test_the_python_of_the_readme_runs_from_top_to_bottom(
    kernel: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first block runs as pasted, and the others after it with the line named below it."""

    def run(code: str) -> None:
        cell = partial(exec, compile(code, "README.md", "exec", dont_inherit=True), names)
        with asyncio.Runner() as runner:
            Kernel(runner.get_loop()).called(cell) if kernel else cell()

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    first, *others = blocks("python")
    offline = "dspy.configure(lm=scripted_lm())"
    assert f"`{offline}`" in README
    program = "\n".join([offline, *others])
    assert len(others) == 3
    kept = dict(dspy.settings.config)
    try:
        run(first)
        assert [capsys.readouterr().out] == blocks("text")
        run(program)
        assert len(names["trip"].attempts) == 2
    finally:
        dspy.configure(**kept)
        names["memory"].close()
    assert "words: flights" in capsys.readouterr().out
    assert names["run"].errors == []
    assert names["out"].finish_reason == "finished"


def test_the_readme_is_short_and_what_it_links_to_exists() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    linked = re.findall(r"\]\((?!https:)([^)#]+)(#[^)]*)?\)", README)
    assert len(linked) > 15
    assert [name for name, _ in linked if not (ROOT / name).exists()] == []
    for name, anchor in linked:
        titles = re.findall(r"^#+ (.+)$", (ROOT / name).read_text("utf-8") if anchor else "", re.M)
        assert not anchor or anchor[1:] in [title.lower().replace(" ", "-") for title in titles]


def test_the_pictures_load_quickly_and_are_of_one_width() -> None:
    """`python -m tests.pictures` makes them."""
    pictures = [(ROOT / name).read_bytes() for name in re.findall(r"!\[.+\]\((.+)\)", README)]
    assert len(pictures) == 2
    assert max(map(len, pictures)) <= 200_000
    assert {int.from_bytes(picture[16:20]) for picture in pictures} == {1440}  # in the PNG's head


def test_the_commands_of_the_readme_exist() -> None:
    from typer.testing import CliRunner

    from hybridagi_steps.cli.app import application

    text = CliRunner().invoke(application(), ["--help"]).output
    named = re.findall(r"`hybridagi-steps ([\w |]+)`", README)
    named += re.findall(r"^hybridagi-steps (\w+)", "\n".join(blocks("bash")), re.MULTILINE)
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


OF_EXTRAS = (
    "hybridagi_steps.durable.plan_steps",
    "hybridagi_steps.durable.engine",
    "hybridagi_steps.durable.session_runs",
    "hybridagi_steps.durable.session_worker",
    "hybridagi_steps.server.",
)
"""Modules that may need what only an extra installs."""


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = import_module(name)
    except ImportError as error:
        if not name.startswith(OF_EXTRAS):
            raise
        pytest.skip(f"needs an extra: {error}")
    outcome = doctest.testmod(module, extraglobs={"hs": hybridagi_steps})
    assert outcome.failed == 0


def test_numbers_on_the_pages_are_those_of_the_measurements() -> None:
    """Between marks stands what `python -m tests.benchmarks readme` writes from its JSON."""
    from tests.benchmarks.readme import inside, sections

    results = json.loads((ROOT / ".github" / "measured.json").read_text("utf-8"))
    for page, parts in sections(results).items():
        text = (ROOT / page).read_text("utf-8")
        assert {mark: inside(text, mark) for mark in parts} == parts


def test_pages_are_written_between_their_marks_from_the_numbers_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridagi_steps.errors import ExchangeError
    from tests.benchmarks import readme

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExchangeError, match="checkout"):
        readme.measure(only="none")
    for page in (readme.README, readme.PAGE, readme.LEARNING, readme.RESULTS):
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, page)
    emptied = README.replace(readme.inside(README, "bench"), "old numbers")
    readme.README.write_text(emptied, "utf-8")
    with pytest.raises(ExchangeError, match="no measurement 'speed'"):
        readme.measure(only="embed,speed")
    readme.measure(only="none")
    assert readme.README.read_text("utf-8") == README


def test_only_what_is_asked_for_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.benchmarks import readme

    monkeypatch.chdir(tmp_path)
    for page in (readme.README, readme.PAGE, readme.LEARNING, readme.RESULTS):
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, page)
    kept = json.loads(readme.RESULTS.read_text("utf-8"))
    asked: list[tuple[str, list[str]]] = []

    def measured(name: str, more: list[str]) -> dict[str, Any]:
        asked.append((name, more))
        return {**kept[name], "measured_at": "now"}

    monkeypatch.setattr(readme, "_measured_alone", measured)
    readme.measure(only="search,scaling,embed", million=True, workdir="built")
    scaling = ["--million", "--workdir", "built"]
    assert asked == [("search", ["--million"]), ("scaling", scaling), ("embed", [])]
    changed = json.loads(readme.RESULTS.read_text("utf-8"))
    assert {n for n in kept if changed[n] != kept[n]} == {"search", "scaling", "embed"}
