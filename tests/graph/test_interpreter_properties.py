"""Any sound program, whatever its models and tools do, ends truthfully and leaves whole steps."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import random
from typing import Any

import dspy
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidProgramError
from hybridagi_steps.graph.checks import check_programs
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import Predict, Speak
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.testing import scripted_lm


def flaky(chance: float) -> str:
    """Fail now and then."""
    if chance < 0.3:
        raise RuntimeError("no luck")
    return "luck"


@st.composite
def graphs(draw: st.DrawFn, name: str, callable_programs: tuple[str, ...]) -> GraphProgram:
    """A random graph; most are sound."""
    program = GraphProgram(name, f"the {name} program")
    count = draw(st.integers(1, 5))
    ids = [f"n{i}" for i in range(count)]
    targets = st.sampled_from([*ids, "end"])
    for place, node_id in enumerate(ids):
        kinds = ["say", "think", "flaky", "decide", *["call"] * bool(callable_programs)]
        kind = draw(st.sampled_from(kinds))
        if kind == "decide":
            program.add(Decision(node_id, "Decide", "Which?"))
            program.connect(node_id, draw(targets), "LEFT").connect(node_id, draw(targets), "RIGHT")
            if draw(st.booleans()):
                program.connect(node_id, "end", "OTHERWISE")
            continue
        if kind == "call":
            program.add(Program(node_id, "Call", draw(st.sampled_from(callable_programs))))
        elif kind == "flaky":
            chance = str(draw(st.floats(0, 1)))
            program.add(Action(node_id, "flaky", "Try", chance, disable_inference=True))
        else:
            tool = "Speak" if kind == "say" else "Predict"
            program.add(Action(node_id, tool, "Do", "{{ query }}", disable_inference=kind == "say"))
        following = draw(st.sampled_from([*ids[place + 1 :], "end"]))
        program.connect(node_id, following)
    return program.connect("start", ids[0])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    main=graphs("main", ("helper", "main")),
    helper=graphs("helper", ()),
    max_iters=st.integers(1, 12),
    seed=st.integers(0, 999),
)
def test_every_run_ends_truthfully_and_leaves_whole_steps(
    main: GraphProgram, helper: GraphProgram, max_iters: int, seed: int
) -> None:
    try:
        check_programs([main, helper])
    except InvalidProgramError:
        assume(False)
    dice = random.Random(seed)

    def answer(_: Any) -> Any:
        said = dice.choice(["left", "RIGHT.", "either", "LEFT, of course", "no idea"])
        return {"choice": said, "answer": said}

    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        agent = GraphInterpreter(
            [main, helper], [Speak(), Predict(), flaky], memory, max_iters=max_iters
        )
        with dspy.context(lm=scripted_lm(answer)):
            out = agent(query="q")
        steps = out.program_trace.steps
        assert list(memory.iter_steps()) == steps
    assert [step.hop for step in steps] == list(range(len(steps)))
    assert [step.parent_id for step in steps] == [None, *(step.id for step in steps[:-1])]
    visited = [s for s in steps if s.step_type in (AgentStepType.Action, AgentStepType.Decision)]
    assert len(visited) <= max_iters
    open_calls: list[Any] = []
    for step in steps:
        if step.step_type == AgentStepType.ProgramEnd:
            call = open_calls.pop()
            assert (call.program, step.program_id) == (step.program, str(call.id))
            continue
        assert step.program_id == (str(open_calls[-1].id) if open_calls else None)
        if step.step_type == AgentStepType.ProgramCall:
            open_calls.append(step)
    assert open_calls == []
    failed = [step for step in steps if step.status == "error"]
    assert (out.finish_reason == "finished") == (not failed) == (out.error is None)
    if out.finish_reason == "error":
        assert failed[0].step_type in (AgentStepType.Action, AgentStepType.Decision)
    if out.finish_reason == "max_iters":
        assert {step.step_type for step in failed} == {AgentStepType.ProgramEnd}
    if out.finish_reason != "finished":
        read = stopped(agent, steps)
        assert (read.stopped_at, read.session) == (out.stopped_at, out.session)
    for cut in range(1, len(steps)):
        following = steps[cut]
        if following.step_type != AgentStepType.ProgramEnd:
            place = (following.metadata or {})["node"]
        elif following.status == "ok":
            place = f"{following.program}.end"
        else:
            break
        assert ".".join(stopped(agent, steps[:cut]).stopped_at[-1]) == place


class Left(list[AgentStep]):
    """The steps of the only run of a memory."""

    def add(self, step: AgentStep, /) -> None:
        self.append(step)

    def run(self, run_id: str, /) -> list[AgentStep]:
        return [step for step in self if step.run_id == run_id]


def stopped(agent: GraphInterpreter, steps: list[AgentStep]) -> AgentOutput:
    """Return what a run is taken up from of which these steps were stored."""
    return agent.stopped_run(str(steps[0].run_id), memory=Left(steps))
