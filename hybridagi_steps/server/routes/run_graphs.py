"""Graphs of a run: graph programs with the way it took, plans with the state of their steps.

A graph program is drawn as its definition says where that is known, else as far as the run's steps
tell. A plan is drawn by what it says of itself; its steps tell their state. The drawings are SVG
without style and script, whose nodes name steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from fastapi import APIRouter, Response

from hybridagi_steps.display.graph import graph_svg
from hybridagi_steps.display.titles import fields, line
from hybridagi_steps.errors import ProgramError, StepsError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.step_identity import is_end
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.schemas import RUN, Answer, RunId, answer
from hybridagi_steps.server.services import Shared
from hybridagi_steps.server.slots import WorkRoute

if TYPE_CHECKING:
    from hybridagi_steps.graph.nodes import ProgramGraph
    from hybridagi_steps.planning.plan import Plan, PlanStep

_START, _END, _ERROR = "start", "end", "ERROR"
"""As graph programs name their first node, their last, and the edge of an Action that failed."""


class Drawing(Answer):
    """One graph."""

    name: str
    """Of the program or the plan."""
    kind: Literal["program", "plan"]
    svg: str
    """Without style, script and address; a node of a step has its id as `data-step`."""
    states: dict[str, int]
    """How many nodes are in each state."""


class RunGraphs(Answer):
    """The graphs that a run went through, the outermost first; none of a run without any."""

    graphs: list[Drawing]


router = APIRouter(tags=["runs"], route_class=WorkRoute)


@router.get(RUN + "/graph", response_model=RunGraphs, responses=problems(404))
async def draw_run(shared: Shared, run_id: RunId) -> Response:
    """Draw the graph programs and plans of a run, with what became of their nodes so far."""
    program = shared.hub.runner.program if shared.has_program else None

    def draw() -> list[Drawing] | None:
        summary = next(iter(shared.memory.runs(limit=1, scope="*", where={"run_id": run_id})), None)
        if summary is None:
            return None
        steps = list(shared.memory.run_steps(run_id))
        return run_drawings(steps, known_programs(program), summary.status == "running")

    found = await shared.asked("graph", draw)
    if found is None:  # 404, unless a kill came before the first step
        await shared.asked("graph", lambda: shared.hub.without_steps(run_id))
    return answer({"graphs": [drawing.model_dump() for drawing in found or ()]})


def run_drawings(
    steps: Sequence[AgentStep], known: Mapping[str, ProgramGraph], live: bool
) -> list[Drawing]:
    """Return the graphs of a run's steps, by hop, with the graph programs that are `known`.

    While the run is `live` what has begun is running, not cut short.
    """
    run = _Run(steps, live)
    return [*_plan_drawings(run), *_program_drawings(run, known)]


@dataclass
class _Run:
    """A run's steps by what they belong to."""

    steps: Sequence[AgentStep]
    live: bool
    calls: dict[str, AgentStep] = field(init=False)
    ends: dict[str | None, AgentStep] = field(init=False)

    def __post_init__(self) -> None:
        calls = (step for step in self.steps if step.step_type == "ProgramCall")
        self.calls = {id_text(step.id): step for step in calls}
        self.ends = {step.program_id: step for step in self.steps if is_end(step)}

    def state(self, call: AgentStep) -> str:
        """Return what became of a call."""
        if (end := self.ends.get(id_text(call.id))) is None:
            return "running" if self.live else "cut short"
        return {"ok": "succeeded", "error": "failed"}.get(str(end.status), str(end.status))


def _drawing(
    name: str, kind: Literal["program", "plan"], nodes: list[dict[str, Any]], edges: Any, note: str
) -> Drawing:
    svg = graph_svg(nodes, edges, title=note, style="")
    states = Counter(str(node.get("became") or "not reached") for node in nodes)
    return Drawing(name=name, kind=kind, svg=svg, states=dict(states))


# Graph programs


class _Way:
    """The way that runs of one program took through it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.visits = dict[str, list[AgentStep]]()
        self.taken = set[tuple[str, str, str]]()
        """Source, target and label of each edge that was gone along."""
        self.running = set[str]()
        self.ended = False


def _program_drawings(run: _Run, known: Mapping[str, ProgramGraph]) -> list[Drawing]:
    ways = dict[str, _Way]()
    within = defaultdict[str | None, list[AgentStep]](list)
    for step in run.steps:
        if not is_end(step):
            within[step.program_id].append(step)
    for call_id, call in run.calls.items():
        inside = within[call_id]
        name = call.program or ""
        definition = known.get(name)
        if definition is None and not any((step.metadata or {}).get("node") for step in inside):
            continue
        _follow(ways.setdefault(name, _Way(name)), call, inside, definition, run)
    return [_program_drawing(way, known.get(name)) for name, way in ways.items()]


def _follow(
    way: _Way,
    call: AgentStep,
    inside: Iterable[AgentStep],
    definition: ProgramGraph | None,
    run: _Run,
) -> None:
    """Add to a way where one call of the program went."""
    before, label = _START, ""
    for step in inside:
        node = _node_of(step, way.name, definition, before)
        if node is None:
            continue
        way.visits.setdefault(node, []).append(step)
        way.taken.add((before, node, label))
        before, label = node, _label_after(step, run)
        if step.step_type == "ProgramCall" and run.state(step) == "running":
            way.running.add(node)
    end = run.ends.get(id_text(call.id))
    if end is None:
        ahead = [e.target for e in _edges_of(definition, before) if (e.label or "") == label]
        if run.live and not way.running and len(ahead) == 1:
            way.running.add(ahead[0])
    elif end.status == "ok" and (definition is None or _leads(definition, before, _END, label)):
        way.taken.add((before, _END, label))
        way.ended = True


def _node_of(
    step: AgentStep, program: str, definition: ProgramGraph | None, before: str
) -> str | None:
    """Return the node that a step of a program stands for; None: it stands inside another one."""
    notes = step.metadata or {}
    if node := notes.get("node"):
        return str(node).removeprefix(f"{program}.")
    if step.step_type != "ProgramCall" or "within" in notes:
        return None
    called = step.program or ""
    if definition is None:
        return called
    calling = [
        name for name, node in definition.nodes.items() if getattr(node, "program", None) == called
    ]
    next_to = [edge.target for edge in _edges_of(definition, before) if edge.target in calling]
    return next(iter(next_to or calling), None)


def _edges_of(definition: ProgramGraph | None, source: str) -> list[Any]:
    return [edge for edge in definition.edges if edge.source == source] if definition else []


def _leads(definition: ProgramGraph, source: str, target: str, label: str) -> bool:
    ahead = _edges_of(definition, source)
    return any(edge.target == target and (edge.label or "") == label for edge in ahead)


def _label_after(step: AgentStep, run: _Run) -> str:
    """Return the label of the edge that is taken after a step."""
    if step.step_type == "Decision":
        return str((step.outputs or {}).get("choice") or "")
    ended = run.ends.get(id_text(step.id), step)
    return _ERROR if ended.status == "error" and step.step_type == "Action" else ""


def _program_drawing(way: _Way, definition: ProgramGraph | None) -> Drawing:
    if definition is None:
        drawn, edges = _as_gone(way)
    else:
        from hybridagi_steps.graph.program import nodes_and_edges

        drawn, edges = nodes_and_edges(definition)
        named = {node["id"] for node in drawn}
        drawn += [
            {"id": name, "label": name, "kind": "other", "detail": "no longer in the program"}
            for name in way.visits
            if name not in named
        ]
        there = {(edge["source"], edge["target"], edge["label"]) for edge in edges}
        edges += [_edge(*gone) for gone in sorted(way.taken - there)]
    for edge in edges:
        edge["taken"] = (edge["source"], edge["target"], edge["label"]) in way.taken
    nodes = [_with_state(node, way) for node in drawn]
    visited = sum(map(len, way.visits.values()))
    note = f"{way.name}: {visited} steps through {len(way.visits)} of its nodes"
    return _drawing(way.name, "program", nodes, edges, note)


def _as_gone(way: _Way) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the nodes that were visited, and the choices that were not."""
    nodes: list[dict[str, Any]] = [{"id": _START, "kind": "control"}]
    edges = [_edge(*gone) for gone in sorted(way.taken)]
    for name, steps in way.visits.items():
        inputs = steps[-1].inputs or {}
        kind = {"Decision": "decision", "ProgramCall": "program"}.get(str(steps[-1].step_type))
        detail = " · ".join(line(inputs[key]) for key in ("tool", "purpose") if inputs.get(key))
        nodes.append({"id": name, "kind": kind or "action", "detail": detail})
        for option in _texts(inputs.get("options")):
            if not any(gone[0] == name and gone[2] == option for gone in way.taken):
                other = f"{name} {option}"
                nodes.append({"id": other, "label": "…", "kind": "other", "title": "not taken"})
                edges.append(_edge(name, other, option))
    if way.ended:
        nodes.append({"id": _END, "kind": "control"})
    return nodes, edges


def _edge(source: str, target: str, label: str = "", taken: bool = False) -> dict[str, Any]:
    return {"source": source, "target": target, "label": label, "taken": taken}


def _with_state(node: dict[str, Any], way: _Way) -> dict[str, Any]:
    """Return a node with what became of it."""
    name = node["id"]
    visits = way.visits.get(name, [])
    if name in way.running:
        became = "running"
    elif visits:
        became = "failed" if visits[-1].status == "error" else "done"
    elif name == _START or (name == _END and way.ended):
        became = "done"
    else:
        return {**node, "state": "idle"}
    times = f" ×{len(visits)}" if len(visits) > 1 else ""
    seen = node | {"became": became, "state": "running" if became == "running" else "done"}
    seen["label"] = f"{node.get('label') or name}{times}"
    if became != "done":
        seen["detail"] = " · ".join(filter(None, (became, node.get("detail"))))
    if became == "failed":
        seen["kind"] = "error"
    return seen | ({"ref": id_text(visits[-1].id)} if visits else {})


def known_programs(program: object) -> dict[str, ProgramGraph]:
    """Return by name the graph programs that a program knows, itself or inside."""
    if not hasattr(program, "named_sub_modules"):
        return {}
    from hybridagi_steps.graph.interpreter import GraphInterpreter  # DSPy is loaded already

    modules: Iterable[tuple[str, Any]] = cast("Any", program).named_sub_modules(GraphInterpreter)
    found: dict[str, ProgramGraph] = {}
    for _, module in modules:
        for name in module.programs.names():
            try:
                found.setdefault(name, module.programs.get(name))
            except ProgramError:  # was removed meanwhile
                continue
    return found


# Plans


def _plan_drawings(run: _Run) -> list[Drawing]:
    """Return the plans of a run, each drawn from the newest text of it and from its steps."""
    found: list[Drawing] = []
    for call in run.calls.values():
        notes = call.metadata or {}
        if "plan_run" in notes and "plan_step" not in notes:
            found.append(_plan_drawing(run, call, notes["plan_run"]))
    return found


def _plan_drawing(run: _Run, call: AgentStep, key: object) -> Drawing:
    began: dict[str, AgentStep] = {
        str(notes["plan_step"]): step
        for step in run.calls.values()
        if (notes := step.metadata or {}).get("plan_run") == key
        and "plan_step" in notes
        and "attempt" not in notes
    }
    plan = _plan_of(run, call)
    planned = {step.id: step for step in plan.steps} if plan else {}
    states = {name: run.state(step) for name, step in began.items()}
    failed = {name for name, state in states.items() if state == "failed"}
    over = not run.live or id_text(call.id) in run.ends
    for name in (name for name in planned if name not in began):
        lost = plan and failed & plan.upstream(name)
        states[name] = "skipped" if lost else "not run" if over else "waiting"
    before = {name: _texts((step.metadata or {}).get("depends_on")) for name, step in began.items()}
    before |= {name: step.dependencies for name, step in planned.items()}
    nodes = [_plan_node(name, states[name], planned.get(name), began.get(name)) for name in states]
    edges = [
        _edge(source, name, taken=states.get(source) == "succeeded" and name in began)
        for name in states
        for source in before[name]
    ]
    name = (plan and plan.name) or line(str((call.inputs or {}).get("purpose") or "plan"), 60)
    counted = ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items())
    return _drawing(name, "plan", nodes, edges, f"{name}: {counted}")


def _plan_node(
    name: str, state: str, step: PlanStep | None, began: AgentStep | None
) -> dict[str, Any]:
    inputs = (began.inputs if began else None) or {}
    goal = step.goal if step else str(inputs.get("purpose") or "")
    kind = step.type.value if step else str(fields(inputs.get("arguments")).get("type") or "")
    return {
        "id": name,
        "label": step.title if step else name,
        "kind": "error" if state == "failed" else kind,
        "detail": state,
        "title": f"{name}: {goal}",
        "state": {"running": "running"}.get(state, "done" if began else "idle"),
        "became": state,
        "ref": id_text(began.id) if began else "",
    }


def _plan_of(run: _Run, call: AgentStep) -> Plan | None:
    """Return the plan that a call carries out, as far as it was told; None where it was not."""
    end = run.ends.get(id_text(call.id))
    if end and (whole := _read_plan((end.outputs or {}).get("plan"))):
        return whole
    told: list[object] = [fields((call.inputs or {}).get("arguments")).get("plan")]
    told += [(step.outputs or {}).get("plan") for step in run.steps if step.hop > call.hop]
    plans = list(filter(None, map(_read_plan, told)))
    if not plans:
        return None
    steps = {step.id: step for plan in plans for step in plan.steps}  # new ones after a failure
    return plans[0].model_copy(update={"steps": [*steps.values()]})


def _texts(value: object) -> list[str]:
    """Return what a list holds as texts; nothing of anything else."""
    return [str(each) for each in cast("list[object]", value)] if isinstance(value, list) else []


def _read_plan(text: object) -> Plan | None:
    from hybridagi_steps.planning.plan import Plan

    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return Plan.parse(text, check=False)
    except StepsError:  # some other program's `plan`
        return None
