"""`benchmarks scaling`: each operation is measured at each size, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import scaling
from tests.benchmarks.scaling_process import CONTEXT, ONCE, OVER_AND_OVER, RECALL, TURN


def test_each_operation_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"sizes": "40", "chats": "2", "rounds": 1, "starts": 1, "embedder": "hashing"}
    scaling.report(json_output=True, workdir=str(tmp_path), imported="6", **small)
    result = json.loads(capsys.readouterr().out)
    asked = {*ONCE, *OVER_AND_OVER, scaling.NO_CACHE, scaling.WHOLE}
    found = result["steps"]["40"]
    assert found.keys() == {*asked, scaling.BYTES}
    assert all(found[what]["cpu_ms"] > 0 for what in asked)
    assert found[scaling.BYTES]["times"] > 1  # no step is stored in less than it says
    parts = result["bytes"]["40"]
    assert parts["table agent_step"] > 0 < parts["table embedding"]
    chat = result["imported"]["6"]
    assert chat["times"] > chat["times_beside"] > 1
    assert chat["parts"]["table message"] > 0 < chat["nothing"]
    assert result["messages"]["2"].keys() == {CONTEXT, RECALL, TURN}
    assert result["words"]["40"]["ours_ms"] > 0
    # What was built is kept for the next time, and nothing else.
    assert [path.name for path in tmp_path.iterdir()] == ["scaling-40-hashing"]


def test_growth_is_of_the_last_decade() -> None:
    sizes = {str(10**n): {"search": {"cpu_ms": 2.0**n}} for n in (2, 3, 4)}
    assert scaling.growth(sizes) == {"search": 2.0}
    assert scaling.growth({"1000": {}, "5000": {}}) == {}
