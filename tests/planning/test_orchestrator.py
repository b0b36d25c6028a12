"""Plans are run: in order, side by side, merged whole, told truthfully."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportPrivateUsage=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.planning.example_tasks import Task, replaying_lm, tasks
from hybridagi_steps.planning.orchestrator import Orchestrator, run_step_executor
from hybridagi_steps.planning.plan import Plan, PlanStep, PlanStepType
from hybridagi_steps.planning.scheduler import StepState
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.workspace.workspace import Workspace

PACKAGE = str(Path(hs.__file__).parent)
CYCLE = "PLAN: p\nSTEP: a\nGOAL: g\nDEPENDENCIES: b\nSTEP: b\nGOAL: g\nDEPENDENCIES: a"


def plan_of(edges: dict[str, list[str]], **more: Any) -> Plan:
    """Return a plan of steps with their dependencies."""
    steps = [
        PlanStep(id=name, goal=f"{name} is done", dependencies=before)
        for name, before in edges.items()
    ]
    return Plan(name="a plan", steps=steps, **more)


def statuses(result: Any) -> dict[str, str]:
    return {step.id: step.status.value for step in result.steps}


async def nothing(work: Work, workspace: Workspace | None) -> Finished:
    """Succeed at once."""
    return Finished(summary=f"{work.step.id} was done")


def failing(*names: str) -> Any:
    """Return an executor that fails at some steps."""

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id in names:
            raise errors.ArtifactError(f"{work.step.id} went wrong")
        return Finished(summary="done")

    return execute


def workspace_of(task: Task, folder: Path) -> Workspace:
    task.copy_workspace(folder / "files")
    return Workspace(folder / "files", commands=task.commands, state=folder / "state")


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.name)
def test_a_task_is_done_and_passes_its_acceptance_test(
    task: Task, tmp_path: Path, memory: hs.StepMemory
) -> None:
    workspace = workspace_of(task, tmp_path)
    assert task.accept(workspace.root).exit_code != 0
    run = Orchestrator(workspace=workspace, memory=memory, lm=replaying_lm(task)).run
    result = run(requirements=task.requirement)
    assert result.success, str(result)
    assert task.accept(workspace.root).exit_code == 0
    assert result.recording_errors == []
    assert result.plan is not None
    assert [step.id for step in result.steps] == [step.id for step in task.plan().steps]
    compared = result.comparison
    assert 0 < compared.planning < compared.ours < compared.last_messages < compared.full_history
    assert compared.saving is not None
    assert 0.2 < compared.saving < 0.9


def test_what_memory_tells_of_a_plan(tmp_path: Path, memory: hs.StepMemory) -> None:
    task = next(task for task in tasks() if task.name == "fix_pagination")
    workspace = workspace_of(task, tmp_path)
    orchestrator = Orchestrator(workspace=workspace, memory=memory, lm=replaying_lm(task))
    result = orchestrator.run(requirements=task.requirement)
    steps = memory.run(result.run_id).steps
    begun = [step.program for step in steps if step.step_type == "ProgramCall"]
    assert begun[:2] == ["Orchestrator", "PlanGenerator"]
    assert set(begun[2:]) == {step.id for step in result.steps}
    whole = steps[-1]
    assert (whole.step_type, whole.program, whole.status) == ("ProgramEnd", "Orchestrator", "ok")
    assert (whole.outputs or {})["plan"] == task.plan().to_text()
    ended = next(s for s in steps if s.step_type == "ProgramEnd" and s.program == "find_bugs")
    assert (ended.outputs or {})["artifacts"] == result.step("find_bugs").artifacts
    assert ended.metrics is not None
    assert ended.metrics.llm_calls == result.step("find_bugs").spent.calls
    tools = {step.tool for step in steps if step.step_type == "Action" and step.tool}
    assert tools >= {"read_file", "write_file", "run_command"}
    hits = memory.search("pages at the end of a listing get lost", k=3)
    assert any(hit.step.run_id == result.run_id for hit in hits)


def test_memory_tells_what_each_step_was_called_with(tmp_path: Path, memory: hs.StepMemory) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished(artifacts=dict.fromkeys(work.step.artifacts, "a long text"))

    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.txt").write_text("x")
    first = PlanStep(id="a", goal="g", artifacts=["out"])
    second = PlanStep(
        id="b",
        goal="g",
        type=PlanStepType.GENERATE,
        description="with care",
        files=["x.txt"],
        dependencies=["a"],
    )
    workspace = Workspace(tmp_path / "files", state=tmp_path / "state")
    orchestrator = Orchestrator(executor=execute, memory=memory, workspace=workspace)
    run = orchestrator.run(plan=Plan(steps=[first, second]))
    steps = memory.find({"run_id": run.run_id, "step_types": "ProgramCall"}).steps
    assert {step.program: step.arguments for step in steps[1:]} == {
        "a": {"type": first.type.value},
        "b": {
            "type": "generate",
            "description": "with care",
            "files": ["x.txt"],
            "artifacts": ["a.out"],
        },
    }


def test_steps_run_side_by_side_within_the_limit() -> None:
    running = most = 0
    four = asyncio.Barrier(4)

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.wait_for(four.wait(), 30)  # nobody passes alone
        running -= 1
        return Finished()

    plan = plan_of({f"s{n}": [] for n in range(8)})
    result = Orchestrator(executor=execute, max_parallel=4).run(plan=plan)
    assert result.success
    assert most == 4


def test_the_orchestrator_itself_costs_little() -> None:
    assert calls_of_a_run(200) <= 200 * 800
    assert calls_of_a_run(200) <= 4.4 * calls_of_a_run(50), "the cost of a step grows with the plan"


def calls_of_a_run(count: int) -> int:
    """Return how many calls into this package a run of a chain of steps that do nothing makes."""
    calls = 0

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    plan = plan_of({f"s{n}": [f"s{n - 1}"] if n else [] for n in range(count)})
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        assert Orchestrator(executor=nothing).run(plan=plan).success
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def test_a_failure_skips_only_what_depends_on_it() -> None:
    plan = plan_of({"a": [], "b": ["a"], "c": ["b"], "d": [], "e": ["d"], "f": ["c", "e"]})
    result = Orchestrator(executor=failing("b"), max_replans=0).run(plan=plan)
    assert not result.success
    assert statuses(result) == {
        "a": "succeeded",
        "b": "failed",
        "c": "skipped",
        "d": "succeeded",
        "e": "succeeded",
        "f": "skipped",
    }
    assert result.step("f").because == "b"
    assert isinstance(result.step("b").error, errors.ArtifactError)
    assert result.step("b").attempts == 2
    assert "b went wrong" in str(result)
    assert "b went wrong" in result._repr_html_()


@st.composite
def plans_with_failures(draw: st.DrawFn) -> tuple[Plan, set[str]]:
    """Plans of 500 steps in random order, each depending on some before it."""
    count = 500
    random = draw(st.randoms(use_true_random=False))
    edges: dict[str, list[str]] = {}
    for number in range(count):
        most = min(number, random.choice([0, 1, 1, 2, 3]))
        edges[f"s{number}"] = [f"s{n}" for n in random.sample(range(number), most)]
    failed = {name for name in edges if random.random() < draw(st.sampled_from([0.0, 0.01, 0.1]))}
    names = list(edges)
    random.shuffle(names)
    return plan_of({name: edges[name] for name in names}), failed


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(plans_with_failures(), st.integers(1, 16))
def test_any_plan_runs_in_order_once_and_around_its_failures(
    given_plan: tuple[Plan, set[str]], parallel: int
) -> None:
    plan, failed = given_plan
    ended: set[str] = set()
    attempts: list[tuple[str, int]] = []

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        assert set(work.step.dependencies) <= ended
        attempts.append((work.step.id, work.attempt))
        await anyio.lowlevel.checkpoint()
        if work.step.id in failed:
            raise ValueError("by chance")
        ended.add(work.step.id)
        return Finished()

    orchestrator = Orchestrator(
        executor=execute, max_parallel=parallel, max_replans=0, max_attempts=2
    )
    result = orchestrator.run(plan=plan)
    reached = {step.step.id for step in result.steps if step.attempts}
    lost = failed & reached
    skipped = {step.id for step in plan.steps if lost & plan.upstream(step.id)}
    assert {s.id for s in result.steps if s.status is StepState.SKIPPED} == skipped
    assert {s.id for s in result.steps if s.status is StepState.FAILED} == lost
    assert {s.id for s in result.steps if s.status is StepState.SUCCEEDED} == ended
    assert len(ended) + len(lost) + len(skipped) == len(plan.steps)
    assert len(attempts) == len(set(attempts)) == len(ended) + 2 * len(lost)


def writing(path: str, *, first: list[str] | None = None) -> Any:
    """Return an executor whose steps all append their name to one file."""

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        assert workspace is not None
        if first is not None:
            first.append(work.feedback)
        text = workspace.read(path)
        await anyio.sleep(0.1)
        workspace.write(path, f"{text}{work.step.id}\n")
        return Finished()

    return execute


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "notes.txt").write_text("begin\n")
    return Workspace(folder, state=tmp_path / "state")


def test_two_steps_on_one_file_both_take_effect(workspace: Workspace) -> None:
    heard: list[str] = []
    orchestrator = Orchestrator(
        executor=writing("notes.txt", first=heard), workspace=workspace, max_attempts=1
    )
    result = orchestrator.run(plan=plan_of({"a": [], "b": []}))
    assert result.success, str(result)
    assert sorted(workspace.read("notes.txt").split()) == ["a", "b", "begin"]
    assert sorted(step.attempts for step in result.steps) == [1, 2]
    again = next(step for step in result.steps if step.attempts == 2)
    assert again.problems[0].type == "ArtifactConflictError"
    assert any("notes.txt" in feedback for feedback in heard)


def test_a_step_reruns_once_for_a_conflict_and_then_fails(workspace: Workspace) -> None:
    plan = plan_of({"a": [], "b": [], "c": []})
    orchestrator = Orchestrator(
        executor=writing("notes.txt"), workspace=workspace, max_attempts=1, max_replans=0
    )
    result = orchestrator.run(plan=plan)
    failed = [step for step in result.steps if step.status != "succeeded"]
    assert all(isinstance(step.error, errors.ArtifactConflictError) for step in failed)
    assert len(workspace.read("notes.txt").split()) == 4 - len(failed)


def test_what_a_failed_step_wrote_never_reaches_the_workspace(workspace: Workspace) -> None:
    async def execute(work: Work, place: Workspace | None) -> Finished:
        assert place is not None
        place.write("half.txt", "half")
        place.remove("notes.txt")
        raise errors.ArtifactError("and then it broke")

    orchestrator = Orchestrator(executor=execute, workspace=workspace, max_replans=0)
    assert not orchestrator.run(plan=plan_of({"a": []})).success
    assert workspace.list() == ["notes.txt"]


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
def test_the_workspace_goes_back_when_that_is_asked_for(
    workspace: Workspace, on_failure: Any
) -> None:
    async def execute(work: Work, place: Workspace | None) -> Finished:
        assert place is not None
        if work.step.id == "b":
            raise errors.ArtifactError("no")
        place.write("new.txt", "new")
        return Finished()

    orchestrator = Orchestrator(
        executor=execute, workspace=workspace, max_replans=0, on_failure=on_failure
    )
    result = orchestrator.run(plan=plan_of({"a": [], "b": ["a"]}))
    assert result.rolled_back == (on_failure == "rollback")
    assert workspace.exists("new.txt") == (on_failure == "keep")
    assert result.snapshot is not None
    workspace.rollback(result.snapshot)
    assert workspace.list() == ["notes.txt"]


def test_artifacts_are_handed_on_once_and_only_to_those_who_depend() -> None:
    seen: dict[str, dict[str, Any]] = {}

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        seen[work.step.id] = work.artifacts
        return Finished(artifacts=dict.fromkeys(work.step.artifacts, f"{work.step.id}!"))

    plan = plan_of({"a": [], "b": ["a"], "c": ["b", "b"], "d": []})
    for step in plan.steps:
        step.artifacts = ["out"]
    plan.steps[2].needs = ["out"]
    result = Orchestrator(executor=execute).run(plan=plan)
    assert seen == {"a": {}, "b": {"a.out": "a!"}, "c": {"b.out": "b!"}, "d": {}}
    assert result.step("a").artifacts == {"out": "a!"}


def test_a_step_that_says_what_it_needs_sees_that_alone() -> None:
    seen: dict[str, set[str]] = {}

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        seen[work.step.id] = set(work.artifacts)
        return Finished(artifacts=dict.fromkeys(work.step.artifacts, 1))

    made = {"a": ["gold", "dust"], "b": ["iron", "rust"]}
    needs = {"c": [], "d": ["iron"], "e": ["gold"], "f": ["gold", "rust"]}
    plan = plan_of({"a": [], "b": ["a"], **{name: ["b"] for name in needs}})
    for step in plan.steps:
        step.artifacts, step.needs = made.get(step.id, []), needs.get(step.id, [])
    assert Orchestrator(executor=execute).run(plan=plan).success
    assert seen == {
        "a": set(),
        "b": {"a.gold", "a.dust"},
        "c": {"b.iron", "b.rust"},
        "d": {"b.iron"},
        "e": {"a.gold"},
        "f": {"a.gold", "b.rust"},
    }


def test_events_tell_the_plan_and_every_end() -> None:
    events: list[StepEvent] = []
    plan = plan_of({"a": [], "b": ["a"], "c": ["b"]})
    orchestrator = Orchestrator(
        executor=failing("b"), max_replans=0, on_event=events.append, session_id="s"
    )
    orchestrator.run(plan=plan, key="run-1")
    assert [event.number for event in events] == list(range(len(events)))
    assert {event.run_id for event in events} == {"run-1"}
    assert events[0].type is StepEventType.RUN_STARTED
    assert events[-1].type is StepEventType.RUN_FAILED
    told = {e.step_id: (e.data or {})["status"] for e in events if e.snapshot is not None}
    assert told == {"a": "succeeded", "b": "failed", "c": "skipped"}


def test_a_plan_goes_on_when_nobody_can_watch(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(event: StepEvent) -> None:
        raise OSError("the screen is gone")

    assert Orchestrator(executor=nothing, on_event=break_down).run(plan=plan_of({"a": []})).success
    assert "the screen is gone" in caplog.text


def test_a_stream_ends_with_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    async def listen() -> list[StepEventType]:
        orchestrator = Orchestrator(executor=nothing, progress=True)
        return [event.type async for event in orchestrator.stream(plan=plan_of({"a": []}))]

    kinds = asyncio.run(listen())
    assert kinds[0] is StepEventType.RUN_STARTED
    assert kinds[-1] is StepEventType.RUN_COMPLETED
    assert "1/1" in capsys.readouterr().err


def test_leaving_a_stream_stops_the_run() -> None:
    begun = threading.Event()

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        begun.set()
        await anyio.sleep_forever()
        return Finished()

    async def leave() -> None:
        events = Orchestrator(executor=execute).stream(plan=plan_of({"a": []}))
        async for _ in events:
            if begun.is_set():
                break
        await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]

    asyncio.run(asyncio.wait_for(leave(), 20))


def test_a_run_is_cancelled_from_another_thread(memory: hs.StepMemory) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id == "b":
            threading.Timer(0.05, orchestrator.cancel).start()
            await anyio.sleep(30)
        return Finished()

    orchestrator = Orchestrator(executor=execute, memory=memory)
    result = orchestrator.run(plan=plan_of({"a": [], "b": ["a"], "c": ["b"]}))
    assert result.status == "cancelled"
    assert statuses(result) == {"a": "succeeded", "b": "cancelled", "c": "cancelled"}
    steps = memory.run(result.run_id).steps
    ends = {step.program: step.status for step in steps if step.step_type == "ProgramEnd"}
    assert ends["b"] == "cancelled"
    assert ends["Orchestrator"] == "error"


def test_inside_an_event_loop_run_works_too() -> None:
    async def notebook() -> bool:
        return Orchestrator(executor=nothing).run(plan=plan_of({"a": []})).success

    assert asyncio.run(notebook())


def test_one_orchestrator_runs_many_plans_at_once() -> None:
    async def both() -> list[bool]:
        orchestrator = Orchestrator(executor=nothing)
        plans = [plan_of({f"s{n}": [] for n in range(20)}) for _ in range(5)]
        results = await asyncio.gather(*(orchestrator.arun(plan=plan) for plan in plans))
        return [result.success for result in results]

    assert asyncio.run(both()) == [True] * 5


def test_the_same_key_twice_at_once_is_refused() -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        with pytest.raises(errors.InvalidSettingError, match="under way"):
            await orchestrator.arun(plan=plan_of({"x": []}), key="k")
        return Finished()

    orchestrator = Orchestrator(executor=execute)
    assert orchestrator.run(plan=plan_of({"a": []}), key="k").success


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ("this is no plan", errors.PlanParseError),
        (CYCLE, errors.InvalidPlanError),
        (Plan(name="empty"), errors.InvalidPlanError),
    ],
)
def test_what_is_no_plan_is_refused_before_anything_runs(plan: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Orchestrator(executor=nothing).run(plan=plan)


def test_bad_settings_are_named() -> None:
    with pytest.raises(errors.InvalidSettingError, match="max_parallel"):
        Orchestrator(max_parallel=0)
    with pytest.raises(errors.InvalidSettingError, match="requirements"):
        Orchestrator().run()
    with pytest.raises(errors.InvalidSettingError, match="on_failure"):
        Orchestrator(on_failure="explode")  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.InvalidMemoryError):
        Orchestrator(memory="steps.db")  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.InvalidSettingError, match="function"):
        Orchestrator(executor="me")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["lm", "model_factory"])
def test_run_step_executor_makes_a_plan_and_runs_it(tmp_path: Path, name: str) -> None:
    task = tasks()[0]
    workspace = workspace_of(task, tmp_path)
    lm = replaying_lm(task)
    model: dict[str, Any] = {name: lm if name == "lm" else lambda: lm}
    asked = run_step_executor(
        requirements=task.requirement,
        **model,
        system_context="Write British English.",
        tools=[],
        workspace=workspace,
    )
    result = asyncio.run(asked)
    assert result.success
    assert task.accept(workspace.root).exit_code == 0
    told = [request for request in lm.requests if "British English" in str(request.system)]
    assert len(told) == len(lm.requests) - 1  # all but the one for the plan


def test_a_model_is_given_once() -> None:
    asked = run_step_executor("x", lm=object(), model_factory=object)
    with pytest.raises(errors.InvalidSettingError, match="give one"):
        asyncio.run(asked)


def test_what_was_found_out_is_not_found_out_again(
    workspace: Workspace, memory: hs.StepMemory
) -> None:
    asked: list[str] = []

    async def execute(work: Work, place: Workspace | None) -> Finished:
        assert place is not None
        asked.append(work.step.id)
        if work.step.id == "write":
            place.write("out.txt", str(len(asked)))
        return Finished(summary="known", artifacts=dict.fromkeys(work.step.artifacts, 7))

    plan = plan_of({"look": [], "write": ["look"]})
    plan.steps[0].artifacts = ["count"]
    orchestrator = Orchestrator(executor=execute, workspace=workspace, memory=memory, reuse=True)
    first = orchestrator.run(plan=plan)
    assert first.snapshot is not None
    workspace.rollback(first.snapshot)
    second = orchestrator.run(plan=plan)
    assert asked == ["look", "write", "write"]
    assert second.step("look").reused
    assert second.artifacts == {"count": 7}
    workspace.write("notes.txt", "changed")
    orchestrator.run(plan=plan)
    assert asked[3:] == ["look", "write"]


def test_an_orchestrator_is_a_tool_of_other_programs() -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.requirement == "fail":
            raise errors.ArtifactError("there are no books")
        return Finished(summary=f"did {work.requirement}", artifacts={"count": 2})

    steps = [PlanStep(id="look", goal="g", artifacts=["count"])]

    class Planner:
        async def acall(self, **given: Any) -> Plan:
            return Plan(steps=steps)

    orchestrator = Orchestrator(planner=Planner(), executor=execute, max_replans=0)
    tool = orchestrator.as_tool("count_books", "Count the books.")
    assert (tool.name, tool.desc) == ("count_books", "Count the books.")
    said = asyncio.run(tool.acall(requirement="Count."))
    assert said == 'look: did Count.\nArtifacts: {"count":2}'
    with pytest.raises(errors.StepsError, match="there are no books"):
        asyncio.run(tool.acall(requirement="fail"))
