"""The pages of the documentation, run: `python -m tests.pages [PAGE …]` writes their outputs anew.

Python blocks of a page run one after the other, as at the Python prompt or in the cells of a
notebook: what is printed, and then the value of the last line, stands in a block `output` below.
A block that awaits at its top runs in an event loop, as in a notebook; no other one does, unless
the page is run as a notebook, where one loop goes on below all of them. No language model is set
but by the page itself.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Coroutine, Generator
from contextlib import chdir, contextmanager, redirect_stdout
from contextvars import copy_context
from functools import partial
from pathlib import Path
from pprint import pformat
from textwrap import wrap
from typing import Any

import dspy

import hybridagi_steps as hs

DOCS = Path(__file__).parent.parent / ".github" / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
WIDTH = 88
"""Characters that the site's column shows without a scroll bar."""
MOST_LINES = 30
"""Of a longer output the beginning is shown."""

_CUT: dict[str, Any] = {"subsequent_indent": "    ", "max_lines": 3, "placeholder": " …"}
_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```output\n(?P<output>.*?)^```\n)?", re.M | re.S
)
_CHANGING = [
    (re.compile(r"(?:\b[0-9a-f]+[0-9a-f-]*)?…"), ""),
    (re.compile(r"\b\d\d-\d\d \d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b|\b[0-9a-f]{6,}\b"), "ID"),
    (
        re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:\+00:00|Z| UTC)?"),
        "TIME",
    ),
    (re.compile(r"\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b[\d,.]+ (?:ms|µs|s|min)\b"), "DURATION"),
    (re.compile(r"\bmeaning \d\.\d+|\babout \d+ of\b|\bas data, \d+"), "DATED"),
    (re.compile(r"(\d\.\d\d)\d+"), r"\1"),
    (re.compile(r"[\s─━│-]+"), " "),
]
"""What differs from run to run, or from day to day as recalled texts do, as it is compared."""


def comparable(output: str) -> str:
    """Return an output without what differs from run to run: ids, times, widths of columns."""
    for pattern, instead in _CHANGING:
        output = pattern.sub(instead, output)
    return output.strip()


def executed(page: Path, kernel: Kernel | None = None) -> str:
    """Run a page in an empty folder; return its text with the outputs of this run.

    An output that says the same as the one that stands there stays as it is.

    Args:
        page: Its file.
        kernel: That of a notebook; None: as a script.
    """
    names: dict[str, Any] = {"__name__": page.stem}

    def run_block(block: re.Match[str]) -> str:
        output = _cut(_output(block["code"], names, page.name, kernel))
        if comparable(output) == comparable(block["output"] or ""):
            return block[0]
        shown = f"\n```output\n{output}```\n" if output else ""
        return f"```python\n{block['code']}```\n{shown}"

    with _own_folder():
        try:
            return _BLOCK.sub(run_block, page.read_text("utf-8"))
        finally:
            for value in names.values():
                if isinstance(value, hs.StepMemory):
                    value.close()


def _output(code: str, names: dict[str, Any], where: str, kernel: Kernel | None) -> str:
    """Run one block; return what is printed, and the value of its last line."""
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    value: object = None
    with redirect_stdout(io.StringIO()) as printed:
        if isinstance(last, ast.Expr):
            tree.body.pop()
            _run(tree, "exec", names, where, kernel)
            value = _run(ast.Expression(last.value), "eval", names, where, kernel)
        else:
            _run(tree, "exec", names, where, kernel)
        if value is not None and not isinstance(value, dspy.Module):
            print(pformat(value, width=WIDTH, sort_dicts=False) if plain(value) else repr(value))
    return printed.getvalue().replace(str(Path.cwd()), "/work")


def plain(value: object) -> bool:
    """Whether a value is one of Python's own containers, which notebooks lay out by themselves."""
    return type(value) in (list, dict, tuple)


def _run(
    tree: ast.Module | ast.Expression,
    mode: str,
    names: dict[str, Any],
    where: str,
    kernel: Kernel | None,
) -> Any:
    code = compile(tree, where, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    cell = partial(eval, code, names)
    awaits = code.co_flags & inspect.CO_COROUTINE
    if kernel is None:
        return asyncio.run(cell()) if awaits else cell()
    return kernel.awaited(cell) if awaits else kernel.called(cell)


class Kernel:
    """Runs cells as a notebook does: in one event loop and one context."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._context = loop, copy_context()

    def awaited(self, cell: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return what a cell returns that awaits."""
        return self._loop.run_until_complete(self._loop.create_task(cell(), context=self._context))

    def called(self, cell: Callable[[], Any]) -> Any:
        """Return what a cell returns that does not; in no task, for there DSPy is not configured.

        A notebook is an exception that DSPy makes.
        """
        outcome = self._loop.create_future()

        def call() -> None:
            try:
                outcome.set_result(cell())
            except Exception as error:  # noqa: BLE001, RUF100 - whatever a page raises
                outcome.set_exception(error)

        self._loop.call_soon(call, context=self._context)
        return self._loop.run_until_complete(outcome)


def _cut(output: str) -> str:
    """Return an output in lines that fit a page, its beginning where it is too long."""
    lines: list[str] = []
    bars = re.compile(r"^.*\r.*\n", re.M)
    for line in bars.sub("", output).strip("\n").split("\n"):
        wrapped = wrap(line, WIDTH, break_on_hyphens=False, **_CUT)
        lines += wrapped if len(line) > WIDTH else [line.rstrip()]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES - 6 :] = [f"… ({len(lines) - MOST_LINES + 6} more lines)"]
    return "".join(f"{line}\n" for line in lines) if any(lines) else ""


@contextmanager
def _own_folder() -> Generator[None]:
    """Stand in an empty folder of known width with the core alone; give DSPy's settings back."""
    kept, width = dict(dspy.settings.config), os.environ.get("COLUMNS")
    dspy.configure(lm=None, adapter=None, callbacks=[])
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            yield
    finally:
        dspy.configure(**kept)
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)


if __name__ == "__main__":
    for page in [DOCS / f"{name}.md" for name in sys.argv[1:]] or PAGES:
        page.write_text(executed(page), "utf-8")
        print(page.stem)
