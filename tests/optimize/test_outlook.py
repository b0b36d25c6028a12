"""How the like of a step ended before, and how far that can be trusted."""

from __future__ import annotations

from typing import Any

import pytest
from past_runs import service_desk, step

import hybridagi_steps as hs
from hybridagi_steps.errors import (
    InvalidFilterError,
    InvalidMemoryError,
    InvalidQueryError,
    InvalidStepError,
)
from hybridagi_steps.optimize.reliability import Calibration, area_under_curve


def test_a_step_that_ended_badly_before_has_a_low_chance() -> None:
    with service_desk() as memory:
        bad = hs.outlook(memory, memory.run("run-1"))
        good = hs.outlook(memory, memory.run("run-0"))
        assert [each.action for each in bad.steps] == ["look_up", "cancel"]
        assert bad.steps[1].chance == 0.0
        assert good.steps[1].chance == 1.0
        assert (bad.chance or 0) < (good.chance or 0)
        assert bad.lowest[0].action == "cancel"
        assert {hit.step.tool for hit in bad.lowest[0].neighbours} == {"cancel"}
        assert "run-1" not in {hit.step.run_id for each in bad.steps for hit in each.neighbours}


def test_it_prints_as_two_lines() -> None:
    with service_desk() as memory:
        lines = str(hs.outlook(memory, memory.run("run-1"))).splitlines()
        assert len(lines) == 2
        assert lines[0].startswith("chance 0.")
        assert "lowest: step 2 cancel 0.00 (0 of 3)" in lines[1]


def test_a_planned_step_is_judged_before_it_is_taken() -> None:
    with service_desk() as memory:
        memory.add(step("now", 1, "look_up", "the customer wants money back"))
        for tool, chance in (("cancel", 0.0), ("refund", 1.0)):
            plan = hs.AgentStep(
                step_type=hs.AgentStepType.Action,
                parent_id="now-1",
                inputs={"purpose": "the booking is paid", "tool": tool, "arguments": {}},
            )
            found = hs.outlook(memory, plan)
            assert found.chance == chance
            assert set(found.agreement) == {"cancel", "refund"}
            assert sum(found.agreement.values()) == pytest.approx(1.0)


def test_what_came_of_a_step_does_not_count() -> None:
    with service_desk() as memory:
        plain = memory.run_steps("run-1")
        told = [plain[0], plain[1].model_copy(update={"outputs": {"result": "reward = 1"}})]
        assert [each.neighbours for each in hs.outlook(memory, told).steps] == [
            each.neighbours for each in hs.outlook(memory, plain).steps
        ]


def test_fewer_than_three_scored_neighbours_are_no_chance() -> None:
    with service_desk(5) as memory:
        found = hs.outlook(memory, step("new", 2, "cancel", "the booking is paid"))
        assert found.steps[0].scored == 2
        assert found.chance is None
        assert str(found).startswith("chance unknown")
    with hs.StepMemory(":memory:", embedder="hashing") as empty:
        assert hs.outlook(empty, step("new", 1, "cancel", "pay")).chance is None
        assert hs.outlook(empty, []).agreement == {}


def test_what_is_excluded_is_not_seen() -> None:
    with service_desk(9) as memory:
        plan = step("new", 2, "refund", "the booking is paid")
        assert hs.outlook(memory, plan).steps[0].scored == 5
        found = hs.outlook(memory, plan, exclude=hs.exclude.runs(["run-0", "run-2"]))
        assert found.steps[0].scored == 3
        with pytest.raises(InvalidFilterError):
            hs.outlook(memory, plan, exclude=[{"run_id": "run-0"}])  # pyright: ignore[reportArgumentType]


def test_an_example_is_excluded_with_what_repeats_it() -> None:
    with service_desk(9) as memory:
        plan = step("new", 2, "refund", "the booking is paid")
        trial = memory.get_steps("run-0-2")[0]
        echo = memory.get_steps("run-2-2")[0]
        trial.metadata, echo.metadata = {"trial": {"example": "e"}}, {"recalled": ["run-0-2"]}
        memory.update([trial, echo])
        assert hs.outlook(memory, plan, exclude=hs.exclude.examples("e")).steps[0].scored == 3


def test_a_user_sees_his_own_past_only() -> None:
    with service_desk(user_id="ann") as memory:
        plan: dict[str, Any] = {"tool": "cancel", "purpose": "the booking is paid"}
        assert hs.outlook(memory, step("new", 2, **plan, user_id="bob")).chance is None
        assert hs.outlook(memory, step("new", 2, **plan, user_id="ann")).chance == 0.0


def whose(found: Any) -> set[str | None]:
    """The users whose steps something found."""
    return {hit.step.user_id for each in found.steps for hit in each.neighbours}


def test_where_says_whose_past_is_looked_at() -> None:
    """Ann's cancellations ended well and bob's did not; each sees his own, by `where` or by run."""
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        for number in range(12):
            user = ("ann", "bob")[number % 2]
            first = step(f"{user}-{number}", 1, "look_up", f"booking {number}", user_id=user)
            then = step(f"{user}-{number}", 2, "cancel", f"ask {number}", user_id=user)
            memory.add([first, then])
            memory.score(f"{user}-{number}", float(user == "ann"))
        plan = step("new", 2, "cancel", "she asks")
        assert whose(hs.outlook(memory, plan)) == {"ann", "bob"}
        for user, chance in (("ann", 1.0), ("bob", 0.0)):
            mine: dict[str, Any] = {"user_id": user}
            found = hs.outlook(memory, plan, where=mine)
            assert (found.chance, whose(found)) == (chance, {user})
            assert {match.score for match in hs.find_runs(memory, "cancel", where=mine)} == {chance}
            [common] = hs.common_sequences(memory, good=None, where=mine)
            assert (len(common.run_ids), common.share) == (6, chance)
            by_where = hs.reliability(memory, where=mine)
            with hs.record(memory, user_id=user):
                assert whose(hs.outlook(memory, plan)) == {user}
                runs = {match.run_id[:3] for match in hs.find_runs(memory, "cancel")}
                assert runs == {user}
                assert hs.common_sequences(memory, good=None) == [common]
                assert hs.reliability(memory) == by_where
                everybody = hs.find_runs(memory, "cancel", where={"user_id": None})
                assert len(everybody) == 12
            assert by_where.outlook.predicted == (chance,) * 6
        assert (
            hs.outlook(memory, step("x", 2, "cancel", "p", user_id="ann"), where=mine)
            .steps[0]
            .neighbours
            == ()
        )


def test_decisions_compare_by_what_was_chosen() -> None:
    def decision(run: str, choice: str) -> hs.AgentStep:
        return hs.AgentStep(
            step_type=hs.AgentStepType.Decision,
            run_id=run,
            inputs={"purpose": f"is the booking of {run} refundable?", "options": ["YES", "NO"]},
            outputs={"choice": choice},
        )

    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        for number in range(6):
            memory.add(decision(f"r{number}", "YES" if number % 2 else "NO"))
            memory.score(f"r{number}", number % 2)
        assert hs.outlook(memory, decision("new", "YES")).chance == 1.0
        assert hs.outlook(memory, decision("new", "NO")).chance == 0.0


def test_nothing_is_noted_as_recalled() -> None:
    with service_desk() as memory, hs.record(memory) as run:

        @hs.record_step(kind="action", purpose="ask first")
        def ask() -> str:
            return str(hs.outlook(memory, memory.run_steps("run-1")))

        ask()
        assert len(run.steps.steps) == 1
        assert all("recalled" not in (each.metadata or {}) for each in run.steps.steps)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_a_wrong_k_is_refused(k: Any) -> None:
    with service_desk(2) as memory, pytest.raises(InvalidQueryError):
        hs.outlook(memory, memory.run("run-0"), k=k)


def test_what_is_no_memory_or_no_step_is_refused() -> None:
    with pytest.raises(InvalidMemoryError):
        hs.outlook("steps.db", [])  # pyright: ignore[reportArgumentType]
    with service_desk(2) as memory, pytest.raises(InvalidStepError):
        hs.outlook(memory, "run-0")  # pyright: ignore[reportArgumentType]


def test_reliability_finds_a_rule_of_the_past_trustworthy() -> None:
    with service_desk(16) as memory:
        found = hs.reliability(memory)
        assert found.tasks == 16
        assert found.outlook.auc == 1.0
        assert len(found.outlook.predicted) == 16
        assert sum(each.predictions for each in found.agreement.bins) == 32
        first, second = str(found).splitlines()
        assert first.startswith("agreement: calibration error 0.")
        assert "AUC 1.00 (16 runs), 16 tasks" in second


def test_reliability_does_not_rank_noise_below_chance() -> None:
    """Leaving one good run out makes the rest look worse; that alone must not count."""
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        for number in range(12):
            memory.add(step(f"r{number}", 1, "act", "the same every time", arguments={"n": number}))
            memory.score(f"r{number}", float(number % 3 > 0))
        auc = hs.reliability(memory, k=11).outlook.auc
        assert auc == 0.5


def one_task(_: hs.AgentStep) -> str:
    """All runs are about the same."""
    return "the same"


def test_runs_of_one_task_do_not_tell_of_one_another() -> None:
    with service_desk(8) as memory:
        one = hs.reliability(memory, group=one_task)
        assert (one.tasks, one.outlook.predicted) == (1, ())
        assert "not enough runs" in str(one)


def test_reliability_of_one_predictor() -> None:
    with service_desk(8) as memory:
        memory.update(
            [s.model_copy(update={"predictor": "Desk.act"}) for s in memory.run_steps("run-0")]
        )
        assert len(hs.reliability(memory, predictor="Desk.act").agreement.predicted) == 2
        with pytest.raises(InvalidQueryError, match="nobody"):
            hs.reliability(memory, predictor="nobody")


def test_calibration_error_and_area_by_hand() -> None:
    found = Calibration((0.05, 0.95, 0.95, 0.95), (False, True, True, False), (0.1, 0.9, 0.3, 0.3))
    assert found.ece == pytest.approx((0.05 + 3 * abs(0.95 - 2 / 3)) / 4)
    assert found.auc == pytest.approx((2 + 1 + 0.5) / 4)
    assert area_under_curve([1.0], [True]) is None
    assert Calibration((), (), ()).ece is None


def test_reliability_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    with service_desk(16) as memory:
        axes = hs.reliability(memory).plot()
        legend = axes.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == [
            "agreement (steps): 32",
            "outlook (runs): 16",
        ]
    with hs.StepMemory(":memory:", embedder="hashing") as empty:
        assert hs.reliability(empty).plot().texts[0].get_text() == "nothing was predicted"
