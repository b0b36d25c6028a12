"""Shows what was measured: a table for people, on screen or as Markdown, or JSON for programs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

_WHOLE = 20
"""Longest cell of a column of numbers that is not wrapped."""


@dataclass(frozen=True)
class Table:
    """Rows under column names, with the notes one needs to read them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default=())


def print_json(result: dict[str, Any]) -> None:
    """Print a measurement as JSON."""
    print(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())


def print_tables(tables: Sequence[Table], result: dict[str, Any]) -> None:
    """Print tables and the conditions they were measured under."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    for table in tables:
        shown = RichTable(
            title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for place, (column, width) in enumerate(zip(table.columns, _widths(table), strict=True)):
            if place > 0 and column:  # numbers
                heading = len(column) if _fits(table, console.width) else 0
                shown.add_column(column, justify="right", width=max(width, heading))
            else:  # what a row is about
                shown.add_column(column, min_width=width, overflow="fold")
        for row in _once(table):
            shown.add_row(*(Text(cell) for cell in row))
        console.print(shown)
        for note in table.notes:
            console.print(Text(note))
    versions = ", ".join(f"{name} {found}" for name, found in result["versions"].items())
    console.print(Text(f"{result['machine']}; {versions}; {result['measured_at']}", style="dim"))


def _widths(table: Table) -> list[int]:
    """Return how wide each column must be: no word is broken, and no cell but a remark wrapped."""
    found: list[int] = []
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        words = " ".join([column, *cells]).split()
        whole = [cell for cell in cells if place > 0 and column and len(cell) <= _WHOLE]
        found.append(max(map(len, [*words, *whole]), default=1))
    return found


def _fits(table: Table, width: int) -> bool:
    """Tell whether a table fits a screen with its headings on one line."""
    columns = zip(table.columns, zip(*table.rows, strict=True), strict=True)
    return (
        sum(3 + max(map(len, [column, *cells])) for column, cells in columns) <= width
    )  # gaps, too


def _once(table: Table) -> Generator[Sequence[str]]:
    """Yield the rows, without the first cell where it says again what the row above said."""
    above = ""
    for first, *rest in table.rows:
        grouped = len(table.columns) > 1 and not table.columns[1]
        yield ["" if grouped and first == above else first, *rest]
        above = first


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as a table shows it; nothing measured is a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"
