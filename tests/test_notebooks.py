"""The notebooks run from top to bottom, and what is committed is what their sources give.

The percent source is run as a notebook runs it, cell by cell, the last expression of each shown the
way rich output is shown. No Jupyter is needed for that; the .ipynb beside it is read as JSON.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import dspy
import pytest

pytest.importorskip("matplotlib", reason="the notebooks draw: they need the extra `plot`")

FOLDER = Path(__file__).parent.parent / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
LARGEST_BYTES = 1_000_000
MAKE = "jupytext --to ipynb --execute notebooks/*.py"

_MARK = re.compile(r"^# %%(?P<kind>.*)\n", re.MULTILINE)
_RICH = ("_repr_html_", "_repr_png_", "__repr__")


def cells(source: Path) -> list[tuple[str, str]]:
    """Return (kind, text) of every cell of a percent source; kind is `code` or `markdown`."""
    text = source.read_text("utf-8")
    marks = list(_MARK.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    found = [(mark["kind"], text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True)]
    return [("markdown" if "markdown" in kind else "code", body.strip()) for kind, body in found]


def code(source: Path) -> list[str]:
    """Return the code cells of a source."""
    return [body for kind, body in cells(source) if kind == "code"]


def executed(source: Path) -> list[dict[str, Any]]:
    """Return the cells of the notebook beside a source."""
    notebook = json.loads(source.with_suffix(".ipynb").read_text("utf-8"))
    return notebook["cells"]


def run_cell(text: str, names: dict[str, Any], where: str) -> Any:
    """Run a cell, awaiting what it awaits; return what its last expression is shown as."""
    tree = ast.parse(text)
    last = tree.body[-1] if tree.body else None
    expression = tree.body.pop() if isinstance(last, ast.Expr) else None
    _run(tree, "exec", names, where)
    if not isinstance(expression, ast.Expr):
        return None
    value = _run(ast.Expression(expression.value), "eval", names, where)
    return None if value is None else shown(value)


def _run(tree: ast.Module | ast.Expression, mode: str, names: dict[str, Any], where: str) -> Any:
    """Run one piece of a cell; a coroutine is what awaiting at the top of a cell makes of it."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    value = eval(compile(tree, where, mode, flags, dont_inherit=True), names)  # noqa: S307
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


def shown(value: object) -> Any:
    """Return a value as a notebook shows it: as HTML, else as a picture, else as text."""
    return next(getattr(value, way)() for way in _RICH if hasattr(type(value), way))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
class TestNotebook:
    def test_it_runs_from_top_to_bottom(
        self,
        source: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"__name__": "notebook"}
        kept = dict(dspy.settings.config)
        try:
            seen = [run_cell(text, names, f"cell {n}") for n, text in enumerate(code(source))]
        finally:
            dspy.configure(**kept)
        assert sum(isinstance(value, bytes) for value in seen) >= 2, "no pictures"
        assert any(isinstance(value, str) and "<div" in value for value in seen), "no tree"
        assert capsys.readouterr().out.count("\n") > 10
        assert list(tmp_path.iterdir()) == [], "a notebook leaves nothing behind"

    def test_the_committed_notebook_is_in_step_with_its_source(self, source: Path) -> None:
        mine = cells(source)
        theirs = [(c["cell_type"], "".join(c["source"]).strip()) for c in executed(source)]
        assert [kind for kind, _ in theirs] == [kind for kind, _ in mine], f"run: {MAKE}"
        for (kind, text), (_, other) in zip(mine, theirs, strict=True):
            said = re.sub(r"^# ?", "", text, flags=re.MULTILINE) if kind == "markdown" else text
            assert other == said, f"run: {MAKE}"

    def test_the_committed_notebook_was_run_without_an_error(self, source: Path) -> None:
        ran = [cell for cell in executed(source) if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in ran] == list(range(1, len(ran) + 1))
        outputs = [output for cell in ran for output in cell["outputs"]]
        assert "error" not in [output["output_type"] for output in outputs]
        assert "stderr" not in [output.get("name") for output in outputs]
        assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
        results = [out["data"] for out in outputs if out["output_type"] == "execute_result"]
        assert all("".join(data["text/plain"]) for data in results), "text would draw it once more"

    def test_the_committed_notebook_is_small_and_names_no_machine(self, source: Path) -> None:
        text = source.with_suffix(".ipynb").read_text("utf-8")
        assert len(text.encode()) < LARGEST_BYTES
        assert not re.search(r"/home/|/root/|/tmp/|/Users/|site-packages", text)

    def test_its_cells_are_short(self, source: Path) -> None:
        assert max(len(text.splitlines()) for text in code(source)) <= 30


def test_there_is_a_notebook() -> None:
    assert "01_record_and_search" in [source.stem for source in SOURCES]
