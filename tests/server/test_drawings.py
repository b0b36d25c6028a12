"""Drawings of the server: the way through graph programs and plans, the map of what is remembered.

Graphs are parsed as XML: nothing in them may act in a page, whatever a program says.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import hybridagi_steps as hs
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import Predict, Speak
from hybridagi_steps.testing import Reply, ScriptedLM, asked_fields, plausible_reply
from hybridagi_steps.workspace.workspace import Workspace

pytest.importorskip("fastapi", reason="drawn by the server, the extra `server`")

from server_cases import Served, problem, serving, until

from hybridagi_steps.planning.worker import Work
from hybridagi_steps.server.tokens import Caller, TokenScope

HOSTILE = '"><script>document.title="taken"</script><img src=x onerror=1>'
TEXT = "{http://www.w3.org/2000/svg}text"
ELEMENTS = {"svg", "g", "title", "rect", "polygon", "path", "text"}
ANN = "the-test-token-of-ann-and-of-nobody-else"


def choose(request: Any) -> Reply:
    """Refund; else answer anything."""
    return {"choice": "YES"} if "choice" in asked_fields(request) else plausible_reply(request)


def refunds(memory: Any) -> hs.GraphInterpreter:
    """A graph program that calls another one and has a way that is not taken."""
    pay = GraphProgram(name="pay", description="Pay back")
    pay.add(Action("tell", "Speak", f"Tell {HOSTILE}", "Say that it is done"))
    pay.connect("start", "tell").connect("tell", "end").build()
    main = GraphProgram(name="main", description="Refund or not")
    main.add(Action("look", "Predict", "Look the booking up", "Look it up"))
    main.add(Decision("allowed", "May it be refunded", "May it?"))
    main.add(Program("pay back", "Refund", "pay"))
    main.add(Action("refuse", "Speak", "Say no", "Say no"))
    main.connect("start", "look").connect("look", "allowed")
    main.connect("allowed", "pay back", label="YES").connect("allowed", "refuse", label="NO")
    main.connect("pay back", "end").connect("refuse", "end").build()
    agent = hs.GraphInterpreter([main, pay], tools=[Predict(), Speak()], memory=memory)
    agent.set_lm(ScriptedLM(choose))
    return agent


def drawn(served: Served, run_id: str) -> dict[str, Any]:
    """The graphs of a run by name, each with its SVG as `root`."""
    graphs = served.client.get(f"/runs/{run_id}/graph").raise_for_status().json()["graphs"]
    for graph in graphs:
        graph["root"] = ElementTree.fromstring(graph["svg"])  # noqa: S314 - our own
    return {graph["name"]: graph for graph in graphs}


def words(root: Any, step: bool = True) -> list[str]:
    """What stands on the nodes that lead to a step, or on those that do not."""
    groups = (node for node in root.iter() if node.tag.endswith("}g"))
    nodes = [node for node in groups if ("data-step" in node.attrib) is step]
    texts = ([text.text or "" for text in node.iter() if text.tag == TEXT] for node in nodes)
    return [" ".join(told) for told in texts]


def check_harmless(root: Any) -> None:
    """Check that a drawing acts in no page and breaks no content policy."""
    for node in root.iter():
        assert node.tag.rpartition("}")[2] in ELEMENTS
        assert not {name for name in node.attrib if name == "style" or name.startswith("on")}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[hs.StepMemory]:
    """A memory in a file."""
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        yield memory


def test_the_way_through_a_graph_program_is_drawn_on_its_definition(memory: Any) -> None:
    agent = refunds(memory)
    with serving(memory, agent) as served:
        run_id = served.chat("talk", "Money back?")[-1].data["run_id"]
        graphs = drawn(served, run_id)
    assert list(graphs) == ["main", "pay"], "the outer one first"
    for graph in graphs.values():
        check_harmless(graph["root"])
        assert graph["kind"] == "program"
    main = graphs["main"]
    assert [text.split()[0] for text in words(main["root"])] == ["look", "allowed", "pay"]
    assert any(text.startswith("refuse") for text in words(main["root"], step=False))
    assert main["states"] == {"done": 5, "not reached": 1}
    wide = [node for node in main["root"].iter() if node.get("stroke-width") == "2.8"]
    taken = [node for node in wide if node.get("stroke") == "currentColor"]
    assert len(taken) == 4, "start, look, allowed, pay back, end"
    steps = {str(step.id): step for step in memory.run_steps(run_id)}
    refs = [node.get("data-step") for node in main["root"].iter() if node.get("data-step")]
    nodes = [(steps[ref].metadata or {}).get("node") for ref in refs]
    assert nodes == ["main.look", "main.allowed", "main.pay back"]


def test_without_the_program_the_way_is_drawn_as_far_as_steps_tell(memory: Any) -> None:
    refunds(memory)(query="Money back?")
    run_id = memory.runs()[0].run_id
    with serving(memory) as served:
        graphs = drawn(served, run_id)
    assert list(graphs) == ["main", "pay"]
    root = graphs["main"]["root"]
    check_harmless(root)
    assert [text.split()[0] for text in words(root)] == ["look", "allowed", "pay"]
    assert "NO" in " ".join(words(root, step=False)), "a choice that was not taken is shown"


def failing_plan(began: threading.Event, goes_on: threading.Event) -> Any:
    """An executor of which step `b` waits, then fails."""

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id == "b":
            began.set()
            while not goes_on.is_set():
                await asyncio.sleep(0.005)
            raise ValueError("no money left")
        return Finished(summary=f"{work.step.id} is done")

    return execute


PLAN = Plan(
    name="refund",
    steps=[
        PlanStep(id="a", goal="Look"),
        PlanStep(id="c", goal=f"Tell {HOSTILE}", dependencies=["b"]),
        PlanStep(id="b", goal="Pay", dependencies=["a"]),
        PlanStep(id="d", goal="File", dependencies=["a"]),
    ],
)


def test_a_plan_is_drawn_while_it_runs_and_when_it_has_failed(memory: Any) -> None:
    began, goes_on = threading.Event(), threading.Event()
    plans = hs.Orchestrator(
        memory=memory, executor=failing_plan(began, goes_on), max_attempts=1, max_replans=0
    )
    with serving(memory) as served:
        work = threading.Thread(target=plans.run, kwargs={"plan": PLAN})
        work.start()
        try:
            assert began.wait(20)
            until(lambda: memory.runs())
            run_id = memory.runs()[0].run_id
            until(lambda: drawn(served, run_id)["refund"]["states"].get("succeeded") == 2)
            live = drawn(served, run_id)["refund"]
        finally:
            goes_on.set()
            work.join()
        over = drawn(served, run_id)["refund"]
    assert live["states"] == {"succeeded": 2, "running": 1, "waiting": 1}
    assert over["states"] == {"succeeded": 2, "failed": 1, "skipped": 1}
    check_harmless(over["root"])
    assert sorted(words(over["root"])) == ["a succeeded", "b failed", "d succeeded"]
    assert "c skipped" in words(over["root"], step=False)


def test_a_run_without_a_graph_has_none_and_an_unknown_one_is_404(memory: Any) -> None:
    odd = {"arguments": 3, "program": "x", "options": 4, "purpose": ["look"], "tool": 5}
    notes = {"plan_run": "p", "node": "x.a", "depends_on": 6}
    memory.add(_steps("plain", inputs={"purpose": "look"}))
    memory.add(_steps("odd", inputs=odd, metadata=notes))
    memory.add(_steps("other", inputs=odd, metadata=notes | {"plan_step": 7}))
    with serving(memory) as served:
        assert served.client.get("/runs/plain/graph").json() == {"graphs": []}
        problem(served.client.get("/runs/nowhere/graph"), 404)
        for run_id in ("odd", "other"):
            for graph in drawn(served, run_id).values():
                check_harmless(graph["root"])


def _steps(run_id: str, **fields: Any) -> list[hs.AgentStep]:
    """One step of each type, all in the first."""
    types = ("ProgramCall", "Action", "Decision", "ProgramCall", "ProgramEnd")
    made = [
        {"id": f"{run_id}-{hop}", "hop": hop, "step_type": kind} for hop, kind in enumerate(types)
    ]
    about = {"run_id": run_id, "program_id": f"{run_id}-0", **fields}
    return [hs.AgentStep.model_validate({**about, **step}) for step in made]


def test_the_map_places_the_newest_steps_and_no_other_users(memory: Any) -> None:
    def step(number: int, user: str) -> hs.AgentStep:
        inputs = {"purpose": f"look {number} {user}", "tool": "look", "arguments": {"n": number}}
        made = {"id": f"{user}-{number}", "run_id": f"run-{user}", "user_id": user}
        return hs.AgentStep.model_validate({"step_type": "Action", "inputs": inputs, **made})

    memory.add([step(number, user) for user in ("ann", "bob") for number in range(6)])
    memory.flush()
    ann = {ANN: Caller(frozenset({TokenScope.READ}), "ann")}
    with serving(memory, callers=ann) as served:
        found = served.client.get("/map", params={"limit": 7}).json()
        own = served.client.get("/map", headers={"Authorization": f"Bearer {ANN}"}).json()
        narrow = served.client.get("/map", params={"user_id": "bob", "tools": "look"}).json()
        both = served.client.get("/map", params={"user_id": ["ann", "bob", "cy"]}).json()
        runs = served.client.get("/runs", params={"run_id": ["run-ann", "run-bob"]}).json()["runs"]
        users = served.client.get("/runs", params={"user_id": ["bob", "cy"]}).json()["runs"]
        none = served.client.get("/map", params={"tools": "nothing"}).json()
        problem(served.client.get("/map", params={"limit": 2001}), 422)
    assert len(found["points"]) == 7
    assert len(both["points"]) == 12
    assert [run["run_id"] for run in runs] == ["run-bob", "run-ann"]
    assert [run["run_id"] for run in users] == ["run-bob"]
    assert found["more"] is True
    assert found["without"] == 0
    assert all(0 <= point[axis] <= 1 for point in found["points"] for axis in "xy")
    assert {point["x"] for point in found["points"]} >= {0.0, 1.0}, "the whole width is used"
    assert {point["id"][:3] for point in own["points"]} == {"ann"}
    assert {point["id"][:3] for point in narrow["points"]} == {"bob"}
    assert narrow["points"][0] | {"x": 0, "y": 0} == {
        "id": "bob-5",
        "x": 0,
        "y": 0,
        "title": "look: 5",
        "step_type": "Action",
        "status": "ok",
        "tool": "look",
        "run_id": "run-bob",
    }
    assert none == {"points": [], "shares": [0.0, 0.0], "without": 0, "more": False}
