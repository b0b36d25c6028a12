"""Hashes and links, against plain dictionaries, through any sequence of changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridagi_steps.records.step_text import SpokenTurn
from hybridagi_steps.records.store_values import TextRow
from hybridagi_steps.search import vector_rows
from hybridagi_steps.search.columns import step_columns
from hybridagi_steps.search.columns.step_columns import NO_ROW, StepColumns, TurnColumns
from hybridagi_steps.search.vector_rows import RowPositions

rows = st.integers(1, 20)
texts = st.builds(
    TextRow,
    row=rows,
    parent_row=st.one_of(st.none(), rows),
    tokens=st.just(""),
    text_hash=st.integers(1, 4),
    purpose_hash=st.integers(0, 3).map(lambda n: n and n + 10),
    scoped=st.just(False),
)
changes = st.lists(
    st.one_of(
        st.lists(texts, max_size=6, unique_by=lambda text: text.row),
        st.frozensets(rows, max_size=5),
        st.none(),
    ),
    max_size=10,
)


@pytest.mark.parametrize("few", [0, 4, 1_000])
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes)
def test_columns_say_what_dictionaries_would(
    few: int, monkeypatch: pytest.MonkeyPatch, steps: list[list[TextRow] | frozenset[int] | None]
) -> None:
    monkeypatch.setattr(step_columns, "_FEW_DEAD", few)
    monkeypatch.setattr(step_columns, "_FEW_FRESH", few)
    columns, held = StepColumns(), dict[int, TextRow]()
    for change in steps:
        if isinstance(change, list):
            columns.add(change)
            held.update({text.row: text for text in change})
        elif change is None:
            columns = StepColumns.from_arrays(columns.to_arrays())
        else:
            columns.remove(np.array(sorted(change), np.int64))
            held = {row: text for row, text in held.items() if row not in change}
    every = np.arange(1, 21)
    assert len(columns) == len(held)
    assert columns.held().tolist() == sorted(held)
    assert columns.parents(every).tolist() == [
        held[row].parent_row or NO_ROW if row in held else NO_ROW for row in every.tolist()
    ]
    assert columns.text_hashes(every).tolist() == [
        held[row].text_hash if row in held else 0 for row in every.tolist()
    ]
    found, of = columns.children(every)
    assert sorted(zip(found.tolist(), of.tolist(), strict=True)) == sorted(
        (row, text.parent_row) for row, text in held.items() if text.parent_row
    )
    for value in range(1, 5):
        wanted = sorted((r for r, t in held.items() if t.text_hash == value), reverse=True)
        assert columns.with_text(value).tolist() == wanted
    for value in range(11, 14):
        wanted = sorted((r for r, t in held.items() if t.purpose_hash == value), reverse=True)
        assert columns.with_text(value).tolist() == wanted


def test_the_largest_hash_is_found() -> None:
    columns = StepColumns()
    columns.add([TextRow(1, None, "", 2**63 - 1, -(2**63), scoped=False)])
    assert columns.with_text(2**63 - 1).tolist() == [1]
    assert columns.with_text(-(2**63)).tolist() == [1]


def test_what_is_sorted_outlives_additions_removals_and_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search after a change sorts the change, never all that is known."""
    sizes: list[int] = []
    argsort = np.argsort

    def counted(values: Any, **options: Any) -> Any:
        sizes.append(len(values))
        return argsort(values, **options)

    def text(row: int) -> TextRow:
        return TextRow(row, row // 2, "", row * 7_919 % 9_973, row % 97, scoped=False)

    columns = StepColumns()
    columns.add(map(text, range(1, 20_001)))
    columns = StepColumns.from_arrays(columns.to_arrays())
    monkeypatch.setattr(step_columns.np, "argsort", counted)
    for row in range(20_001, 20_101):
        columns.add([text(row)])
        columns.remove(np.array([row // 2]))
        assert columns.with_text(text(row).text_hash).tolist()[0] == row
        assert columns.children(np.array([row // 2]))[0].tolist()[-1] == row
        assert row in columns.with_purposes(np.array([row % 97]))
    assert max(sizes) <= 100


turns = st.builds(
    SpokenTurn,
    session=st.integers(1, 3),
    speaker=st.sampled_from(["ann", "bob lee", ""]),
    length=st.integers(0, 9),
    asks=st.booleans(),
    dated=st.booleans(),
    exchange=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(st.dictionaries(rows, turns, max_size=5), st.frozensets(rows), st.none()),
        max_size=10,
    )
)
def test_turns_say_what_dictionaries_would(
    steps: list[dict[int, SpokenTurn] | frozenset[int] | None],
) -> None:
    columns, held = TurnColumns(), dict[int, SpokenTurn]()
    seen: list[tuple[Any, list[int]]] = []
    for change in steps:
        if isinstance(change, dict):
            columns.add(change.items())
            held |= change
        elif change is None:
            columns = TurnColumns.from_arrays(columns.to_arrays())
        else:
            columns.remove(np.array(sorted(change), np.int64))
            held = {row: turn for row, turn in held.items() if row not in change}
        assert columns.rows.tolist() == sorted(held)
        for name in ("length", "asks", "dated"):
            column = columns.column(
                f"{name}s" if name == "length" else name, columns.places(columns.rows)
            )
            assert column.tolist() == [getattr(held[row], name) for row in sorted(held)]
        numbers = dict(zip(columns.rows.tolist(), columns.sessions.tolist(), strict=True))
        pairs = {(held[row].session, number) for row, number in numbers.items()}
        assert len(pairs) == len(dict(pairs)) == len({number for _, number in pairs})
        seen.append((columns.rows, columns.rows.tolist()))
    assert all(rows.tolist() == then for rows, then in seen), "what was handed out stays"


@pytest.mark.parametrize("few", [0, 4, 1_000])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.one_of(st.lists(rows, unique=True), st.integers(0, 30)), max_size=8),
    st.lists(st.integers(-3, 300)),
)
def test_rows_stand_where_they_were_appended_last(
    few: int, monkeypatch: pytest.MonkeyPatch, appended: list[list[int] | int], wanted: list[int]
) -> None:
    monkeypatch.setattr(vector_rows, "_SORTED_BEHIND", few)
    places, known, held = RowPositions(), np.empty(0, np.int64), dict[int, int]()
    for given_rows in appended:
        first = int(known.max(initial=0)) + 1
        new = range(first, first + given_rows) if isinstance(given_rows, int) else given_rows
        more = np.array([*new], np.int64)
        assert not (places.extended_by(known, more) and held.keys() & {*new})
        held |= zip(new, range(len(known), len(known) + len(more)), strict=True)
        known = np.concatenate((known, more))
        places.follow(known)
        found = places.find(known, np.array(wanted, np.int64))
        assert found.tolist() == [held.get(row, -1) for row in wanted]
