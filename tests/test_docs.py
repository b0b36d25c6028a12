"""The documentation tells the truth: its Python and its commands run, its reference is whole."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hybridagi_steps as hs
from hybridagi_steps.cli.app import application
from hybridagi_steps.plots.step_map import MOST_POINTS
from hybridagi_steps.records.filter_fields import FILTER_FIELDS
from hybridagi_steps.records.json_values import MAX_DEPTH
from hybridagi_steps.search.lineage import FOLLOWING
from hybridagi_steps.stores.body import MAX_STEP_BYTES
from hybridagi_steps.validation import MAX_ID_LENGTH
from tests import reference
from tests.pages import DOCS, PAGES, WIDTH, Kernel, executed

REAL_MODEL = 'dspy.configure(lm=dspy.LM("openai/'
EXTRAS = {"hs.plots": "matplotlib", "matplotlib": "matplotlib", "DurableRunner": "dbos"}


def blocks(page: Path, language: str) -> list[str]:
    """Return a page's code blocks of a language, in order."""
    text = page.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Return every `hybridagi-steps …` line of the documentation as words, in order."""
    lines = [line for page in PAGES for block in blocks(page, "bash") for line in block.split("\n")]
    calls = [line.rpartition("&& ")[2] for line in lines]
    return [shlex.split(call)[1:] for call in calls if call.startswith("hybridagi-steps ")]


def check_extras(page: Path) -> None:
    """Skip a page that shows what is not installed."""
    program = "\n".join(blocks(page, "python"))
    for name, package in EXTRAS.items():
        if name in program and find_spec(package) is None:
            pytest.skip(f"{name} needs {package}")


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """What runs the cells of a notebook."""
    with asyncio.Runner() as runner:
        yield Kernel(runner.get_loop())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
class TestPage:
    def test_its_python_runs_and_gives_what_stands_below(
        self, page: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_extras(page)
        assert executed(page) == page.read_text("utf-8"), f"python -m tests.pages {page.stem}"

    def test_it_runs_in_a_notebook_too(self, page: Path, kernel: Kernel) -> None:
        check_extras(page)
        assert executed(page, kernel) == page.read_text("utf-8")

    def test_a_page_says_how_to_set_a_model_where_it_scripts_one(self, page: Path) -> None:
        program = blocks(page, "python")
        scripted = [block for block in program if "scripted_lm(" in block]
        assert not scripted or (scripted[0] == program[0] and REAL_MODEL in program[0])

    def test_no_block_runs_an_event_loop_inside_that_of_a_notebook(self, page: Path) -> None:
        assert not [block for block in blocks(page, "python") if "asyncio.run(" in block]

    def test_its_lines_of_code_fit_a_page(self, page: Path) -> None:
        code = "\n".join(blocks(page, "python") + blocks(page, "bash")).split("\n")
        assert [line for line in code if len(line) > WIDTH] == []

    def test_what_it_links_to_exists(self, page: Path) -> None:
        text = page.read_text("utf-8")
        linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        assert [name for name in linked if not (DOCS / name).exists()] == []


def test_the_example_of_a_back_end_is_a_whole_test_file(tmp_path: Path) -> None:
    [example] = blocks(DOCS / "conformance.md", "python")
    assert len([line for line in example.split("\n") if line.strip()]) <= 10
    (tmp_path / "test_my_store.py").write_text(example, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert re.search(r"^\d{3} passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


@pytest.mark.parametrize("page", sorted(DOCS.glob("from_*.md")), ids=lambda page: page.stem)
def test_what_you_write_instead_stands_in_code_that_runs(page: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    rows = re.findall(r"^\| .+ \| (.+) \|$", page.read_text("utf-8"), re.MULTILINE)
    calls = [call for row in rows for call in re.findall(r"`([^`]+[)\]])`", row)]
    assert len(calls) > 3
    assert [call for call in calls if call not in code] == []


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text("utf-8")
    assert len(PAGES) > 8
    for page in PAGES:
        assert page.stem in ("index", "api") or f"]({page.name})" in contents, page.stem


def test_the_reference_that_needs_no_build_is_that_of_the_code() -> None:
    assert reference.PAGE.read_text("utf-8") == reference.reference(), "python -m tests.reference"


def test_every_public_name_stands_in_the_reference() -> None:
    reference = (DOCS / "api.md").read_text("utf-8")
    listed = set(re.findall(r"^\.\. auto\w+:: hybridagi_steps\.(\S+)$", reference, re.MULTILINE))
    whole = {name.split(".")[0] for name in listed} | {"errors"}
    assert set(hs.__all__) <= whole
    for module in (hs.rerankers, hs.plots):
        home = module.__name__.rpartition(".")[2]
        assert {f"{home}.{name}" for name in module.__all__} <= listed


def test_the_table_of_filter_keys_is_that_of_the_code() -> None:
    text = (DOCS / "searching.md").read_text("utf-8")
    rows = [f"| `{f.name}` | `{f.option}` | {f.help} |" for f in FILTER_FIELDS]
    assert "\n".join(rows) in text, "\n".join(["write into searching.md:", *rows])


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    stated = {
        "guarantees": [
            f"at most {MAX_STEP_BYTES // 2**20} MiB",
            f"{MAX_DEPTH} levels deep",
            f"{MAX_ID_LENGTH} characters",
        ],
        "plots": [f"{MOST_POINTS:,} steps at most"],
        "searching": [f"the next {['', 'one', 'two', 'three', 'four'][FOLLOWING]} steps"],
    }
    for page, statements in stated.items():
        text = " ".join((DOCS / f"{page}.md").read_text("utf-8").split())
        assert [statement for statement in statements if statement not in text] == []


def test_the_commands_do_what_the_documentation_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command line of the documentation is run, in order, in one empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    calls = commands()
    assert {words[0] for words in calls} > {"demo", "search", "show", "import", "export", "purge"}
    for words in calls:
        done = CliRunner().invoke(application(), words)
        assert done.exit_code == 0, f"{shlex.join(words)}: {done.output}"
        assert "no steps found" not in done.output, shlex.join(words)


def test_every_command_is_named() -> None:
    text = (DOCS / "command_line.md").read_text("utf-8")
    known = [command.name for command in application().registered_commands]
    known += [group.name for group in application().registered_groups]
    assert [name for name in known if f"hybridagi-steps {name}" not in text] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site needs the extra `docs`")
    pytest.importorskip("myst_parser", reason="the site needs the extra `docs`")
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-d", tmp_path / "trees", DOCS, site],
        capture_output=True,
        check=False,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    reference = (site / "api.html").read_text("utf-8")
    for name in hs.__all__:
        assert name == "errors" or name in reference
    assert "DimensionMismatchError" in (site / "errors.html").read_text("utf-8")
    shown = re.findall(r'<img src="([^"]+)"', (site / "plots.html").read_text("utf-8"))
    assert len(shown) == 3
    assert all((site / name).stat().st_size > 1_000 for name in shown)
