"""`benchmarks scaling`: each operation is measured at each size, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps.search.step_index import FORMAT
from tests.benchmarks import (
    comparison,
    goals,
    postgres_scaling,
    readme,
    scaling,
    scaling_process,
    turns,
)
from tests.benchmarks.__main__ import app
from tests.benchmarks.lexical import TANTIVY
from tests.benchmarks.peers import OURS, TALKERS
from tests.benchmarks.scaling_process import (
    ADD_AND_SEARCH,
    ANOTHER,
    BESIDE,
    CONTEXT,
    EIGHT,
    FILTERS,
    FIRST,
    FIRST_BY,
    IN_TURN,
    ONCE,
    OPENED,
    OVER_AND_OVER,
    RECALL,
    SEARCH,
)
from tests.benchmarks.scaling_tables import CLOSE_NO_CACHE, NO_CACHE, TURN, server_tables


def test_each_operation_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_process = scaling.in_a_process
    here = {name.format(kind) for name in (FIRST_BY, ANOTHER) for kind in FILTERS if kind != "user"}

    def measured(address: Path, what: str, rounds: int) -> dict[str, Any]:
        """Start a process for one filter of each kind, not for thirteen."""
        if what in here:
            return scaling_process.measured(str(address), what, rounds)
        return in_a_process(address, what, rounds)

    monkeypatch.setattr(scaling, "in_a_process", measured)
    small = {"sizes": "40", "chats": "2", "rounds": 1, "starts": 1, "embedder": "hashing"}
    small["peers"] = "none"
    scaling.report(json_output=True, workdir=str(tmp_path), imported="6", **small)
    result = json.loads(capsys.readouterr().out)
    asked = {*ONCE, *OVER_AND_OVER, NO_CACHE, CLOSE_NO_CACHE, scaling.WHOLE}
    found = result["steps"]["40"]
    assert found.keys() == {*asked, scaling.BYTES}
    assert all(found[what]["cpu_ms"] > 0 for what in asked)
    assert found[scaling.BYTES]["times"] > 1  # no step is stored in less than it says
    parts = result["bytes"]["40"]
    assert parts["table agent_step"] > 0 < parts["table embedding"]
    chat = result["imported"]["6"]
    assert chat["times"] > chat["times_beside"] > 1
    assert chat["parts"]["table message"] > 0 < chat["nothing"]
    contexts = {CONTEXT, EIGHT, FIRST, OPENED, BESIDE, IN_TURN, RECALL}
    assert result["messages"]["2"].keys() == {*contexts, TURN}
    assert result["turns"]["2"].keys() == {OURS}
    words = result["words"]["40"]
    assert words["ours_ms"] > 0 < words["ours"]["file_mb"]
    assert TANTIVY not in words
    # What was built is kept for the next time, and nothing else.
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [f"stems-40-{FORMAT}", "varied-40-hashing"]
    pages = comparison.on_sizes({"scaling": result})
    assert f"| {TURN} |" in pages
    assert "| message through StepRunner |" in pages


def test_growth_is_of_the_last_decade() -> None:
    sizes = {str(10**n): {"search": {"cpu_ms": 2.0**n}} for n in (2, 3, 4)}
    assert scaling.growth(sizes) == {"search": 2.0}
    assert scaling.growth({"1000": {}, "5000": {}}) == {}


def test_a_stream_is_measured_beside_the_calls_below_it() -> None:
    found = turns.streaming(2)
    assert len(found["times"]) == 6
    assert all(times["cpu_ms"] > 0 for times in found["times"].values())
    assert found["piece_us"].keys() == {turns.BARE, turns.STREAMED, turns.RUN}
    assert found["over_bare"].keys() == {"55", "550"} == found["over_streamed"].keys()


def test_a_server_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_scaling, "_NEEDED", ("no_such_package",))
    found = postgres_scaling.measure(sizes="10")
    assert [table.title for table in server_tables(found)] == [
        "on PostgreSQL: no_such_package is not installed"
    ]


def test_what_grows_on_a_server_is_measured() -> None:
    for package in postgres_scaling._NEEDED:  # pyright: ignore[reportPrivateUsage]
        pytest.importorskip(package, reason=f"{package} is not installed")
    found = postgres_scaling.measure(sizes="40", rounds=1, starts=1, embedder="hashing")
    assert found["steps"]["40"].keys() == {SEARCH, NO_CACHE, ADD_AND_SEARCH}
    assert [len(table.rows) for table in server_tables(found)] == [3, 3]


class TestGoals:
    @staticmethod
    def row(results: dict[str, Any], words: str) -> list[str]:
        [row] = [goal.row(results) for goal in goals.GOALS if goal.what.startswith(words)]
        return row[1:4]

    def test_a_goal_is_reached_missed_or_not_measured(self) -> None:
        def searched(p50: float, **more: float) -> dict[str, Any]:
            times = {"search, hybrid": {"p50_ms": p50, **more}}
            return {"scaling": {"steps": {"100000": times}}}

        words, goal = "hybrid search of 100,000", "≤ 5 ms; ≤ 12 ms"
        assert self.row(searched(5, p99_ms=12), words) == [goal, "5.0 ms; 12.0 ms", "yes"]
        assert self.row(searched(5, p99_ms=13), words)[2] == "**no**: 1 of 2"
        assert self.row(searched(6), words) == [goal, "6.0 ms; not measured", "**no**: 1 of 2"]
        assert self.row(searched(5), words)[2] == "-"
        assert self.row({}, words) == [goal, "not measured; not measured", "-"]

    def test_the_slowest_filter_is_named(self) -> None:
        rows = {ANOTHER.format(kind): {"p50_ms": ms} for kind, ms in (("user", 9), ("run", 80))}
        first = {FIRST_BY.format("user"): {"p50_ms": 99}}
        found = self.row({"scaling": {"steps": {"1000000": rows | first}}}, "the slowest single")
        assert found == ["≤ 75 ms; ≤ 100 ms", "80.0 ms (run); 99.0 ms (user)", "**no**: 1 of 2"]

    def test_others_must_not_be_cheaper(self) -> None:
        def beside(ratio: float) -> dict[str, Any]:
            others = {goals_peer: {"cpu_ratio": ratio} for goals_peer in _OTHERS}
            message = {TURN: {"cpu_ms": 2.0}}
            return {"scaling": {"messages": {"2": message}, "turns": {"2": others}}}

        assert self.row(beside(1.0), "message through StepRunner at 2 ")[2] == "yes"
        assert self.row(beside(0.9), "message through StepRunner at 2 ")[2] == "**no**: 2 of 3"

    def test_each_is_measured_by_a_command_and_none_is_left_out(self) -> None:
        commands = {command.name for command in app.registered_commands}
        assert {goal.command for goal in goals.GOALS} <= commands & {*readme.MEASUREMENTS}
        assert len(goals.goals({}).splitlines()) == len(goals.GOALS) + 2
        for goal in goals.GOALS:
            assert goal.row({})[3] == "-"


_OTHERS = [peer.name for peer in TALKERS if not peer.name.startswith(OURS)]
