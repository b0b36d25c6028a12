"""`benchmarks sessions`: what it measures is there, and nothing was lost while it was measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.benchmarks import sessions

SMALL: Any = {"processes": 2, "appends": 15, "length": 60, "forks": 20, "kills": 3}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_sessions_are_measured_and_none_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    sessions.report(json_output=True, peers="none", **SMALL)
    result = json.loads(capsys.readouterr().out)
    [ours] = result["writers"].values()
    assert (ours["acknowledged"], ours["refused"], ours["lost"], ours["doubled"]) == (30, 0, 0, 0)
    killed = result["killed"]
    assert killed["acknowledged"] > 0
    assert (killed["lost"], killed["half_units"], killed["problems"]) == (0, 0, 0)
    assert 0 < result["fork"]["median_ms"] < 1000
    assert result["retry"]["ends_at"] == SMALL["length"], "each retry replaced one message"
    assert result["reading"]["100"]["context_ms"] > 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_peer_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.benchmarks import session_writers

    absent = session_writers.RIVALS[1]._replace(package="no_such_package")
    monkeypatch.setattr(sessions, "RIVALS", (session_writers.RIVALS[0], absent))
    options: Any = {**SMALL, "processes": 1, "kills": 1}
    sessions.report(**options)
    shown = " ".join(capsys.readouterr().out.split())
    assert "kill -9, 1 times" in shown
    assert "not" in shown
