"""The benchmark of learning measures what it says: each task held out, the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import ExchangeError, InvalidSettingError
from tests.benchmarks.learning import _tables, measure  # pyright: ignore[reportPrivateUsage]
from tests.benchmarks.learning_copier import Copier, asked, by_task, experienced, poisoned
from tests.benchmarks.learning_outlook import decisive_steps, loops_table, same_task_hits
from tests.benchmarks.learning_runs import (
    RealRun,
    examples,
    of_domain,
    plain_memory,
    real_runs,
    recorded_memory,
)


@pytest.fixture(scope="module")
def runs() -> list[RealRun]:
    """Four runs of an airline's desk."""
    return of_domain(real_runs(), "airline")[:4]


def test_own_runs_are_read_with_the_steps_beside_them(tmp_path: Path) -> None:
    rows = [{"run_id": "a", "domain": "desk", "task_id": 7, "reward": 1.0}]
    step: dict[str, Any] = {
        "id": "1",
        "run_id": "a",
        "hop": 1,
        "step_type": "Action",
        "messages": [],
    }
    step["inputs"] = {"purpose": "hello", "tool": "greet", "arguments": {}}
    step["outputs"] = {"result": "Episode finished, reward = True"}
    (tmp_path / "runs.jsonl").write_bytes(orjson.dumps(rows[0]))
    (tmp_path / "steps.jsonl").write_bytes(orjson.dumps(step))
    [run] = real_runs(str(tmp_path / "runs.jsonl"))
    assert (run.task, run.score, len(run.steps)) == ("desk 7", 1.0, 1)
    assert run.steps[0].result == "", "a result that tells the score tells it to nobody"
    with pytest.raises(InvalidSettingError):
        real_runs(str(tmp_path / "mine.jsonl"))
    with pytest.raises(ExchangeError):
        real_runs(str(tmp_path / "no-runs.jsonl"))


def test_runs_of_another_shape_are_measured_like_those_of_the_repository(tmp_path: Path) -> None:
    """A domain of their own, tasks named by their text, steps without ids, hops and parents."""
    runs, steps = list[bytes](), list[bytes]()
    for number in range(8):
        row = {"run_id": f"r{number}", "domain": "retail", "task": f"task {number // 2}"}
        runs.append(orjson.dumps({**row, "score": number % 2, "seed": {"x": [1]}}))
        for tool in ("respond", "find", ("refund", "swap")[number // 2 % 2]):
            inputs: dict[str, Any] = {"purpose": f"the customer {number}", "tool": tool}
            inputs["arguments"] = {"nested": [{"a": None}]}
            step: dict[str, Any] = {"run_id": f"r{number}", "step_type": "Action"}
            step |= {"inputs": inputs, "outputs": {"result": {"rows": [tool]}}}
            steps.append(orjson.dumps(step))
    (tmp_path / "runs.jsonl").write_bytes(b"\n".join(runs))
    (tmp_path / "steps.jsonl").write_bytes(b"\n\n".join(steps))
    found = measure(runs=str(tmp_path / "runs.jsonl"), embedder="hashing", k=2)
    assert found["options"]["runs"].endswith("runs.jsonl, retail")
    assert found["options"]["tasks"] == 4
    assert set(found["copier"]) >= {"WithExperience", "LabeledFewShot 16", "BootstrapFromMemory 16"}
    assert found["copier"]["WithExperience"]["lm_calls"] == 1.0
    assert found["domains"]["retail"]["same_task"]["tasks"] == 4
    titles = [table.title for table in _tables(found)]
    assert any("retail" in title and "next action" in title for title in titles)
    (tmp_path / "runs.jsonl").write_bytes(b'{"domain": "retail"}')
    with pytest.raises(ExchangeError, match="run_id"):
        real_runs(str(tmp_path / "runs.jsonl"))


def test_a_program_with_experience_sees_no_step_of_its_task(runs: list[RealRun]) -> None:
    """The answers of a memory that only knows the task itself are worth nothing."""
    with recorded_memory(runs[:1], "hashing") as memory:
        found = experienced(runs[:1], memory, 3)
        assert set(found.among[runs[0].task]) == {0.0}
    with recorded_memory(runs, "hashing") as memory:
        found = experienced(runs, memory, 3)
        assert found.lm_calls == 1.0
        assert sum(found.among[runs[0].task]) > 0
        again = experienced(runs, memory, 3)
        assert again.right == found.right


def test_the_copier_takes_the_last_or_the_likest(runs: list[RealRun]) -> None:
    from tests.benchmarks.learning_runs import STATES, Replay

    STATES.update({run.run_id: run.states() for run in runs})
    program = Replay()
    program.act.demos = examples(runs[:1])
    ordered = asked(runs[:1], lambda _: program, ordered=True)
    last = runs[0].states()[-1].tool
    assert ordered.right[runs[0].task] == [float(s.tool == last) for s in runs[0].states()]
    likest = asked(runs[:1], lambda _: program, ordered=False)
    assert sum(likest.right[runs[0].task]) > sum(ordered.right[runs[0].task])
    assert Copier(ordered=True).shown == []


def test_poisoned_copies_do_the_wrong_thing(runs: list[RealRun]) -> None:
    with recorded_memory(runs[:2], "hashing") as memory:
        before = [step for step in memory.iter_steps() if step.predictor]
        tools = sorted({state.tool for run in runs for state in run.states()})
        with poisoned(memory, tools, scored=True) as worse:
            made = [step for step in worse.iter_steps() if step.predictor]
            assert len(made) == 10 * len(before)
            wrong = [step for step in made if (step.score or 0) < 0]
            assert len(wrong) == 9 * len(before)
            asked_of = {str(step.arguments): (step.outputs or {})["tool"] for step in before}
            assert all(asked_of[str(s.arguments)] != (s.outputs or {})["tool"] for s in wrong)
            assert worse.verify() == []


def test_the_tables_of_what_can_be_seen() -> None:
    given = real_runs()
    looped = loops_table(of_domain(given, "toolbench"))
    assert looped is not None
    assert (looped["runs"], looped["flagged"]) == (15, 11)
    assert loops_table(of_domain(given, "swe-agent")) is None
    decided = decisive_steps(given)
    assert decided is not None
    assert decided["runs"] == 30
    assert decisive_steps(of_domain(given, "airline")) is None
    airline = of_domain(given, "airline")[:2]
    with plain_memory(airline, "hashing") as memory:
        assert same_task_hits(airline, memory) is None
        twice = [airline[0], RealRun("again", "airline", airline[0].task, 1.0, airline[1].steps)]
        found = same_task_hits(twice, memory)
        assert found is not None
        assert found["tasks"] == 1


def test_runs_are_grouped_by_task() -> None:
    assert by_task({"run_id": "a", "task": "airline 7"}) == "airline 7"
    assert hs.exclude.runs("a").where.exclude_run_id == ["a"]
