"""A run that stopped, read back from its steps: its session, and the node where it is taken up.

For runs that gave nothing back: their process was killed, or what ended them was raised. Each
stored step is followed along the edges of its program, so the place is as certain as the steps. A
node that has none, or whose step is an error that nothing came after, is done again. What came out
of a node is what its step tells: JSON, redacted where the memory redacts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hybridagi_steps.dspy_types import AgentStepList, QueryWithSteps
from hybridagi_steps.errors import InvalidSettingError, UnknownRunError
from hybridagi_steps.graph.checks import template_of
from hybridagi_steps.graph.nodes import END, START, Action, Decision
from hybridagi_steps.graph.predictors import offered
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.graph.program_memory import AgentPrograms
from hybridagi_steps.graph.prompts import history_text, rendered
from hybridagi_steps.graph.run_state import (
    AgentOutput,
    Place,
    ProgramSession,
    Result,
    RunError,
    observed_text,
)
from hybridagi_steps.graph.tools.base import GraphTool
from hybridagi_steps.graph.tools.builtin import Speak
from hybridagi_steps.messages.fences import inert, inert_json
from hybridagi_steps.recording.call_steps import NODE, REASONED
from hybridagi_steps.recording.recorder import user_recorded_for
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType

_KILLED = {"type": "Interrupted", "message": "the run has no end: its process was stopped."}


class ProgramAgent(Protocol):
    """What is read of an agent to follow its runs."""

    entrypoint: str
    programs: AgentPrograms
    tools: dict[str, GraphTool]
    num_history: int
    commit_decision_steps: bool


def stopped_run(
    agent: ProgramAgent, memory: Any, run_id: str, session: ProgramSession
) -> AgentOutput:
    """Return what a run, begun with a session, would have given back when it stopped."""
    found = _steps(memory.run(run_id))
    if (user_id := user_recorded_for(memory)) is not None:
        found = [step for step in found if step.user_id == user_id]
    output = _stopped(agent, memory, run_id, found, session)
    if not output.stopped_at:
        raise InvalidSettingError(f"the run {run_id} finished: there is nothing to resume.")
    return output


def node_fields(agent: ProgramAgent, memory: Any, step: AgentStep) -> dict[str, Any]:
    """Return what the predictor of a node was first asked, and gave, when it left a step, inert.

    Its run is followed up to it; what a session before the run had left to it is not known.

    Raises:
        UnknownRunError: The memory has no such run of this agent.
        InvalidSettingError: The programs have changed, or a part of the run was not stored whole.
        PromptError: The prompt needs what was not stored.
    """
    run = _steps(memory.run(step.run_id))
    before = run[: next((place for place, each in enumerate(run) if each.id == step.id), 0)]
    trace, earlier = _followed(agent, memory, str(step.run_id), before, ProgramSession())
    frame, place = trace.frames.get(step.program_id), str((step.metadata or {})[NODE])
    program = None if frame is None else frame.program
    node = None if program is None else program.nodes.get(place.removeprefix(f"{program.name}."))
    if (
        program is None
        or not isinstance(node, Action | Decision)
        or _is_cut(trace.steps[0], "inputs")
    ):
        raise InvalidSettingError(f"the run of the step {step.id} cannot be followed to {place}.")
    steps = [*earlier.program_trace.steps, *trace.steps]
    recalled = {str(each.id): _recalled_by(each, memory) for each in steps}
    known = {step_id: found for step_id, found in recalled.items() if found is not None}
    prompt, _ = node_prompt(node, place, trace.session, for_model=True)
    objective = inert(trace.session.objective)  # what has marks of its own is inert inside them
    asked = {"objective": objective, "past_steps": past_steps(agent, steps, known)}
    if isinstance(node, Action):
        reasons = {key: value for key, value in (step.metadata or {}).items() if key == REASONED}
        given = inert_json({**reasons, **agent.tools[node.tool].prediction_of(step)})
        return {**asked, "prompt": prompt, **given}
    options, choice = offered(list(program.choices(node.id))), (step.outputs or {}).get("choice")
    chosen = {"choice": choice} if choice in options else {}  # no model gave a fallback's label
    return {**asked, "question": prompt, "options": ", ".join(options), **chosen}


def node_prompt(
    node: Action | Decision, place: str, session: ProgramSession, *, for_model: bool
) -> tuple[str, str]:
    """Return the prompt of a node, and as it may be remembered: see `rendered`."""
    variables = {**session.variables, "query": session.query, "objective": session.objective}
    part, template = template_of(node)
    return rendered(template, variables, node.var_in, f"the {part} of {place}", for_model=for_model)


def past_steps(
    agent: ProgramAgent, steps: Sequence[AgentStep], recalled: Mapping[str, QueryWithSteps]
) -> str:
    """Return the last of the steps so far as text for a prompt."""
    if not agent.commit_decision_steps:
        steps = [step for step in steps if step.step_type is not AgentStepType.Decision]
    return history_text(steps[-agent.num_history :] if agent.num_history else [], recalled)


def results_so_far(
    steps: Iterable[AgentStep], tools: Mapping[str, GraphTool]
) -> tuple[Result | None, Result | None]:
    """Return the last result of a run's Actions, and what was last said to the user."""
    last = spoken = None
    for step in steps:
        if step.step_type is AgentStepType.Action:
            last = Result(step.result, step.result, failed=step.status != "ok")
            said = not last.failed and isinstance(tools.get(step.tool or ""), Speak)
            spoken = last if said else spoken
    return last, spoken


def _stopped(
    agent: ProgramAgent,
    memory: Any,
    run_id: str,
    steps: Sequence[AgentStep],
    session: ProgramSession,
    later: frozenset[str] = frozenset(),
) -> AgentOutput:
    trace, before = _followed(agent, memory, run_id, steps, session, later)
    path = trace.path()
    end = (trace.steps[-1].outputs or {}) if trace.steps[-1].status != "ok" else {}
    return AgentOutput(
        finish_reason="error" if path else "finished",
        program_trace=AgentStepList(steps=[*before.program_trace.steps, *trace.steps]),
        session=trace.session,
        stopped_at=path,
        error=RunError(**end.get("error", _KILLED)) if path else None,
    )


def _followed(
    agent: ProgramAgent,
    memory: Any,
    run_id: str,
    steps: Sequence[AgentStep],
    session: ProgramSession,
    later: frozenset[str] = frozenset(),
) -> tuple[_Trace, AgentOutput]:
    """Return a run as far as its steps go, and the run that it resumed; an empty one for none."""
    place = _entry(steps, agent.entrypoint)
    if place is None or run_id in later:
        raise UnknownRunError(run_id)
    entry, given = steps[place], dict(steps[place].arguments)
    if _is_cut(entry, "inputs"):  # which of them is not told: whoever goes on gives them again
        given = {"query": given["query"]}
    earlier, before = (entry.metadata or {}).get("resumes"), AgentOutput(session=session)
    if earlier is not None:
        rest = steps[:place] if earlier == run_id else _steps(memory.run(earlier))
        rest = [step for step in rest if step.user_id == entry.user_id]
        before = _stopped(agent, memory, earlier, rest, session, later | {run_id} - {earlier})
    following = before.session.going_on(
        given.pop("query"), given, given.pop("objective", None), resumed=earlier is not None
    )
    trace = _Trace(agent, memory, following, before.stopped_at)
    trace.follow(entry, steps[place + 1 :])
    return trace, before


def _entry(steps: Sequence[AgentStep], entrypoint: str) -> int | None:
    """Return where the last call of an agent stands that is not inside another one's."""
    found = within = None
    for place, step in enumerate(steps):
        if within is None and _is_call(step) and step.program == entrypoint:
            if "query" in step.arguments:
                found, within = place, str(step.id)
        elif step.step_type is AgentStepType.ProgramEnd and step.program_id == within:
            within = None
    return found


def _steps(given: Any) -> list[AgentStep]:
    return list(getattr(given, "steps", given))


def _is_cut(step: AgentStep, field: str) -> bool:
    """Whether some of a step's inputs or outputs was left out when it was stored."""
    cuts: list[str] = (step.metadata or {}).get("truncated", [])
    return any(field in cut.partition(":")[0].partition(".")[0] for cut in cuts)


def _is_call(step: AgentStep) -> bool:
    return step.step_type is AgentStepType.ProgramCall


@dataclass(slots=True)
class _Frame:
    """A program that was called, and how far it came."""

    name: str
    program: GraphProgram | None
    """None when the agent does not know it, which it then need not: an Action called it."""
    at: str
    """The node that is next."""
    above: _Frame | None = None
    """Whose Program node called it; None for the entry program, and where an Action did."""
    followed: bool = True
    """Whether its place is that of the run; an Action that called a program is done again."""
    inner: _Frame | None = None
    """The program that its Program node is in the middle of."""
    after_error: str | None = None
    """Where a failed Action leads, should the run have gone on after it."""

    def go_to(self, node_id: str | None) -> None:
        """Come to the next node; to none once the program has ended."""
        self.at, self.inner, self.after_error = node_id or "", None, None


class _Trace:
    """Follows the steps of one run; the session is changed as their nodes changed it."""

    def __init__(
        self, agent: ProgramAgent, memory: Any, session: ProgramSession, waiting: Sequence[Place]
    ) -> None:
        self.steps: list[AgentStep] = []
        self.session = session
        self.frames: dict[str | None, _Frame] = {}
        self._agent, self._memory = agent, memory
        self._waiting = list(waiting)

    def follow(self, entry: AgentStep, rest: Iterable[AgentStep]) -> None:
        """Follow a run from the call of its entry program."""
        self._opened(entry, followed=True)
        for step in rest:
            frame = self.frames.get(step.program_id)
            if frame is not None:
                self._follow(frame, step)

    def path(self) -> list[Place]:
        """Return where the run stopped; nowhere when it came to its end."""
        path: list[Place] = []
        inner: _Frame | None = next(iter(self.frames.values()))
        while inner is not None and inner.at:
            path.append((inner.name, inner.at))
            inner = inner.inner
        return path

    def _opened(self, call: AgentStep, *, followed: bool) -> _Frame:
        """Note a call; what an earlier run had begun goes on where that one stopped in it."""
        self.steps.append(call)
        name, programs = str(call.program), self._agent.programs
        program = programs.get(name) if name in programs.names() else None
        at = "" if program is None else program.next(START)
        if followed and self._waiting:
            at = self._waiting.pop(0)[1]
        self.frames[str(call.id)] = frame = _Frame(name, program, at, followed=followed)
        return frame

    def _follow(self, frame: _Frame, step: AgentStep) -> None:
        if step.step_type is AgentStepType.ProgramEnd and step.status != "ok":
            self.steps.append(step)  # the run went no further
            return
        if frame.after_error is not None:
            frame.go_to(frame.after_error)
        place = str((step.metadata or {}).get(NODE, ""))
        node_id = place.removeprefix(f"{frame.name}.")
        if step.step_type is AgentStepType.ProgramEnd:
            self._ended(frame, step)
        elif place and frame.followed and node_id != frame.at:
            raise _changed(frame, node_id)
        elif not _is_call(step):
            self._visited(frame, node_id, step)
        elif place:
            frame.inner = self._opened(step, followed=frame.followed)
            frame.inner.above = frame
        elif not step.arguments:  # the call of a module tells what it was called with
            self._opened(step, followed=False)

    def _ended(self, frame: _Frame, end: AgentStep) -> None:
        self.steps.append(end)
        if frame.followed and frame.at != END:
            raise _changed(frame, END)
        if frame.above is not None and frame.above.program is not None:
            frame.above.go_to(frame.above.program.next(frame.above.at))
        frame.go_to(None)

    def _visited(self, frame: _Frame, node_id: str, step: AgentStep) -> None:
        """Do as a node did, and go where it led."""
        program = frame.program
        node = None if program is None else program.nodes.get(node_id)
        if program is None or not isinstance(node, Action | Decision):
            return  # what a tool did inside, or a program from elsewhere
        self.steps.append(step)
        done = step.status == "ok"
        if isinstance(node, Decision):
            label = str((step.outputs or {}).get("choice"))
            if done and label not in program.choices(node_id):
                raise _changed(frame, f"{node_id}, {label}")
            frame.go_to(program.choices(node_id)[label] if done else node_id)
            return
        tool = self._agent.tools.get(node.tool)
        if done and tool is not None:
            tool.restore(self.session, step)
        if node.var_out is not None:
            self.session.variables[node.var_out] = self._value(step)
        frame.go_to(program.next(node_id) if done else node_id)
        if not done:
            frame.after_error = program.on_error(node_id) or program.next(node_id)

    def _value(self, step: AgentStep) -> Any:
        """Return what an Action gave; recalled steps are those that the memory still has."""
        if step.status != "ok":
            return observed_text((step.outputs or {}).get("error", _KILLED))
        if _is_cut(step, "outputs"):
            raise InvalidSettingError(
                f"what {(step.metadata or {})[NODE]} gave was too large to be stored whole, and "
                "later nodes use it: this run cannot be resumed. Begin a new one."
            )
        recalled = _recalled_by(step, self._memory)
        return step.result if recalled is None else recalled


def _recalled_by(step: AgentStep, memory: Any) -> QueryWithSteps | None:
    """Return the steps that an Action found, of those that the memory still has."""
    notes: dict[str, Any] = step.metadata or {}
    match step.result:
        case {"steps": ids, **rest} if not rest and set(ids) <= set(notes.get("recalled", ())):
            return QueryWithSteps(steps=_steps(memory.get(ids)) if ids else [])
        case _:
            return None


def _changed(frame: _Frame, found: str) -> InvalidSettingError:
    return InvalidSettingError(
        f"the run came to {frame.name}.{found}, where this agent comes to {frame.name}."
        f"{frame.at or END}: its programs have changed. Begin a new run."
    )
