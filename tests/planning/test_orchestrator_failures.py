"""What goes wrong in a plan stays with the step it went wrong in, under its own name."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.planning.generator import PlanGenerator
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.testing import Reply, ScriptedLM, ToolCall, scripted_lm
from hybridagi_steps.workspace.workspace import Workspace


def one_step(**fields: Any) -> Plan:
    return Plan(name="p", steps=[PlanStep(id="a", goal="done", **fields)])


def beside(plan: Plan) -> Plan:
    """Return the plan with a step that depends on its first, and one that does not."""
    after = PlanStep(id="after", goal="g", dependencies=[plan.steps[0].id])
    free = PlanStep(id="free", goal="g")
    return plan.model_copy(update={"steps": [*plan.steps, after, free]})


def model(turns: list[Reply]) -> ScriptedLM:
    """Return a model that works off turns in step a and finishes any other step at once."""
    left = list(turns)

    def answer(request: Any) -> Reply:
        if "# Step a (" in str(request.messages):
            return left.pop(0)
        return [finish()]

    return ScriptedLM(answer)


def finish(**artifacts: Any) -> ToolCall:
    return ToolCall("finish_step", {"summary": "done", "artifacts": artifacts})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "here.txt").write_text("here")
    return Workspace(folder, commands=["echo"], state=tmp_path / "state")


def run(plan: Plan, turns: list[Reply], **options: Any) -> Any:
    options = {"max_attempts": 1, "max_replans": 0, **options}
    return Orchestrator(lm=model(turns), **options).run(requirements="r", plan=beside(plan))


def check_others(result: Any) -> None:
    """The rest of the plan went on where it could."""
    assert not result.success
    assert result.step("a").status == "failed"
    assert result.step("after").status == "skipped"
    assert result.step("free").status == "succeeded"


def test_a_missing_file_fails_its_step_before_anything_is_spent(workspace: Workspace) -> None:
    result = run(
        one_step(type="modify", files=["gone.txt"]), [], workspace=workspace, max_attempts=3
    )
    check_others(result)
    assert isinstance(result.step("a").error, errors.WorkspaceError)
    assert "gone.txt" in str(result.step("a").error)
    assert (result.step("a").spent.calls, result.step("a").attempts) == (0, 1)


def test_an_artifact_of_the_wrong_shape_is_named(memory: hs.StepMemory) -> None:
    plan = one_step(artifacts=["count"], shapes={"count": "integer"})
    executor_turns: list[Reply] = [[finish(count="many")]] * 20
    result = run(plan, executor_turns, memory=memory)
    check_others(result)
    problem = result.step("a").error
    assert isinstance(problem, errors.LimitReachedError)
    assert "count" in str(problem)
    failed = memory.find({"status": ["error"], "program": "a", "step_types": ["ProgramEnd"]}).steps
    assert (failed[0].outputs or {})["error"]["type"] == "LimitReachedError"


def test_a_command_that_is_not_allowed_is_answered_and_noted(workspace: Workspace) -> None:
    turns: list[Reply] = [[ToolCall("run_command", {"command": "rm -rf /"})], [finish()]]
    result = run(one_step(), turns, workspace=workspace)
    assert result.success
    [problem] = result.step("a").problems
    assert (problem.type, problem.tool) == ("CommandNotAllowedError", "run_command")


@pytest.mark.parametrize("path", ["../out.txt", "/etc/passwd"])
def test_a_path_that_leaves_the_workspace_is_refused(workspace: Workspace, path: str) -> None:
    turns: list[Reply] = [
        [ToolCall("write_file", {"path": path, "content": "x"})],
        [ToolCall("read_file", {"path": path})],
        [finish()],
    ]
    result = run(one_step(), turns, workspace=workspace)
    assert [problem.type for problem in result.step("a").problems] == ["WorkspaceError"] * 2
    assert workspace.list() == ["here.txt"]
    assert not (workspace.root.parent / "out.txt").exists()


def test_a_step_that_never_ends_is_given_up(workspace: Workspace) -> None:
    released, left = threading.Event(), threading.Event()

    def hang() -> str:
        """Hang."""
        released.wait(60)
        left.set()
        return "never"

    result = run(
        one_step(),
        [[ToolCall("hang", {})]],
        tools=[hang],
        workspace=workspace,
        step_timeout_seconds=0.3,
    )
    assert not left.is_set(), "the run waited for the tool"
    released.set()
    check_others(result)
    error = result.step("a").error
    assert isinstance(error, errors.LimitReachedError)
    assert error.limit == "timeout"


def test_a_step_that_talks_and_talks_is_given_up() -> None:
    turns: list[Reply] = [[ToolCall("nothing", {})]] * 30
    result = run(one_step(), turns)
    check_others(result)
    assert result.step("a").error.limit == "max_turns"
    assert result.step("a").problems[0].type == "UnknownToolError"


def test_a_plan_that_takes_too_long_is_given_up() -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id != "free":
            await anyio.sleep_forever()
        return Finished()

    result = Orchestrator(executor=execute, timeout_seconds=1.5).run(plan=beside(one_step()))
    assert isinstance(result.error, errors.LimitReachedError)
    assert result.status == "failed"
    states = {step.id: step.status.value for step in result.steps}
    assert states == {"a": "cancelled", "after": "cancelled", "free": "succeeded"}


def test_tokens_run_out(memory: hs.StepMemory) -> None:
    turns: list[Reply] = [[ToolCall("list_things", {})]] * 5

    def list_things() -> str:
        """List."""
        return "word " * 500

    result = run(
        one_step(),
        turns,
        tools=[list_things],
        max_tokens=30,
        memory=memory,
        max_parallel=1,
        max_attempts=3,
    )
    error = result.step("a").error
    assert isinstance(error, errors.LimitReachedError)
    assert error.limit == "max_tokens"
    assert result.step("a").attempts == 1
    assert result.step("after").status == "skipped"
    free = result.step("free")
    assert isinstance(free.error, errors.LimitReachedError)
    assert free.spent.calls == 0
    assert result.token_usage.total.total_tokens >= 30


def test_money_runs_out() -> None:
    class Paid(ScriptedLM):
        """A model whose calls cost a dollar each."""

        def update_history(self, entry: dict[str, Any]) -> None:
            super().update_history({**entry, "cost": 1.0})

    lm = Paid(lambda _: [finish()])
    plan = Plan(
        steps=[
            PlanStep(id=f"s{n}", goal="g", dependencies=[f"s{n - 1}"] if n else [])
            for n in range(4)
        ]
    )
    result = Orchestrator(lm=lm, max_cost=2.0, max_replans=0).run(requirements="r", plan=plan)
    assert [step.status.value for step in result.steps] == ["succeeded"] * 2 + ["failed", "skipped"]
    assert result.steps[2].error is not None
    assert getattr(result.steps[2].error, "limit", None) == "max_cost"
    assert result.token_usage.total.cost == 2.0


def test_a_budget_can_run_out_while_planning() -> None:
    lm = scripted_lm(["no plan at all"] * 3)
    result = Orchestrator(lm=lm, max_tokens=1).run(requirements="r")
    assert result.plan is None
    assert isinstance(result.error, errors.LimitReachedError)
    assert result.token_usage.planning.calls == 1
    assert result.steps == []


def test_no_plan_comes_of_it() -> None:
    result = Orchestrator(lm=scripted_lm([{"plan": "no plan"}] * 3)).run(requirements="r")
    assert not result.success
    assert isinstance(result.error, errors.PlanError)
    assert result.token_usage.planning.calls == 3


def test_a_model_that_breaks_fails_its_step() -> None:
    result = run(one_step(), [ValueError("no connection"), ValueError("no connection")])
    check_others(result)
    assert "no connection" in str(result.step("a").error)


def test_a_second_attempt_hears_why_the_first_failed() -> None:
    plan = one_step(artifacts=["n"], shapes={"n": "integer"})
    turns: list[Reply] = ["I am done!", "Really.", "Yes.", [finish(n=3)]]
    lm = model(turns)
    result = Orchestrator(lm=lm, max_attempts=2).run(requirements="r", plan=plan)
    assert result.success
    assert result.artifacts == {"n": 3}
    assert result.step("a").attempts == 2
    assert "without calling a tool" in str(lm.requests[-1].messages)


NEW = "PLAN: q\nSTEP: a\nGOAL: another way\nSTEP: after\nGOAL: g\nDEPENDENCIES: a, free\nEND_PLAN"


def test_a_failed_step_is_planned_anew(memory: hs.StepMemory) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id == "a":
            raise errors.ArtifactError("cannot be done like this")
        return Finished(summary=f"did {work.step.id}")

    lm = scripted_lm([{"plan": NEW}])
    orchestrator = Orchestrator(executor=execute, lm=lm, memory=memory, max_attempts=1)
    result = orchestrator.run(requirements="r", plan=beside(one_step()))
    assert result.success, str(result)
    assert result.replans == 1
    states = {step.id: step.status.value for step in result.steps}
    assert states == {
        "a": "replaced",
        "after": "replaced",
        "free": "succeeded",
        "a_2": "succeeded",
        "after_2": "succeeded",
    }
    asked = str(lm.requests[0].messages)
    assert "cannot be done like this" in asked
    assert "did free" in asked
    assert result.token_usage.planning.calls == 1
    choices = [s for s in memory.run(result.run_id).steps if s.step_type == "Decision"]
    assert [(step.outputs or {})["choice"] for step in choices] == ["give up", "replan"]


def test_replanning_is_bounded_and_its_failure_changes_nothing() -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id != "free":
            raise errors.ArtifactError("never")
        return Finished()

    always = scripted_lm(lambda _: {"plan": NEW})
    orchestrator = Orchestrator(executor=execute, lm=always, max_attempts=1, max_replans=2)
    result = orchestrator.run(requirements="r", plan=beside(one_step()))
    assert not result.success
    assert result.replans == 2
    assert [s.id for s in result.steps if s.status == "failed"] == ["a_3"]
    never = scripted_lm(lambda _: {"plan": "no idea"})
    orchestrator = Orchestrator(executor=execute, lm=never, max_attempts=1)
    result = orchestrator.run(requirements="r", plan=beside(one_step()))
    check_others(result)
    assert isinstance(result.step("a").error, errors.ArtifactError)


def test_a_planner_of_ones_own() -> None:
    class Planner(PlanGenerator):
        async def aforward(self, requirements: str, files: Any = (), tools: Any = ()) -> Plan:
            return one_step(description=requirements)

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished(summary=work.step.description)

    result = Orchestrator(planner=Planner(), executor=execute).run(requirements="tidy up")
    assert result.step("a").summary == "tidy up"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Finished(artifacts={"n": "many"}), "the artifact 'n' has the wrong shape"),
        (Finished(), "the artifact 'n' is missing"),
        ({"n": 3}, "returned dict; it must return a Finished"),
        (None, "returned NoneType"),
    ],
)
def test_what_an_executor_of_ones_own_gives_is_checked(given: Any, told: str) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Any:
        return Finished() if work.step.id == "free" else given

    plan = beside(one_step(artifacts=["n"], shapes={"n": "integer"}))
    result = Orchestrator(executor=execute).run(plan=plan)
    check_others(result)
    assert told in str(result.step("a").error)


def test_an_executor_that_is_no_coroutine_function_is_named() -> None:
    def execute(work: Work, workspace: Workspace | None) -> Any:
        return Finished()

    executor: Any = execute
    error = Orchestrator(executor=executor).run(plan=one_step()).step("a").error
    assert isinstance(error, errors.InvalidSettingError)
    assert "async def" in str(error)


def test_a_failed_run_says_in_short_what_went_wrong() -> None:
    result = run(one_step(), [ValueError("no connection")] * 2)
    assert str(result.error).startswith("2 of 3 steps did not succeed; first: a: ")
    assert "no connection" in str(result.error)
    assert result.to_dict()["error"]["message"] == str(result.error)


def test_files_without_a_workspace_fail_their_step_before_anything_is_spent() -> None:
    result = run(one_step(files=["a.txt", "b.txt"]), [])
    check_others(result)
    assert isinstance(result.step("a").error, errors.WorkspaceError)
    assert "a.txt, b.txt" in str(result.step("a").error)
    assert result.step("a").spent.calls == 0


def test_a_tool_that_exits_is_a_tool_that_failed() -> None:
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    async def leave_later() -> str:
        """Leave."""
        raise SystemExit(4)

    turns: list[Reply] = [[ToolCall("leave", {})], [ToolCall("leave_later", {})], [finish()]]
    result = run(one_step(), turns, tools=[leave, leave_later])
    assert result.success
    assert [problem.type for problem in result.step("a").problems] == ["SystemExit"] * 2


def test_an_executor_that_exits_fails_its_step() -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id == "a":
            raise SystemExit(3)
        return Finished()

    result = Orchestrator(executor=execute).run(plan=beside(one_step()))
    check_others(result)
    assert "SystemExit(3)" in str(result.step("a").error)


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "max_cost", "max_replans", "max_attempts", "step_timeout_seconds"],
)
@pytest.mark.parametrize("value", [-1, "3", True, float("nan")])
def test_limits_that_mean_nothing_are_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises(errors.InvalidSettingError, match=name):
        Orchestrator(**{name: value})
