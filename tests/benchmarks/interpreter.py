"""What a graph program costs above the language model calls it makes.

One program, a chain of Predict nodes on a scripted model, runs four ways, taking turns: its
predictors called bare with the inputs that the nodes give them; the agent without a memory; the
agent recorded into a memory that keeps nothing; the agent recorded into a file. What the second
takes over the first is the interpreter's own time; what the others take more is that of DSPy's
dispatch to callbacks, of recording and of storing.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy

from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.memory import Durability, StepMemory
from hybridagi_steps.programs import Action, GraphProgram
from hybridagi_steps.programs.tools import Predict
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.testing import scripted_lm
from tests.benchmarks.conditions import conditions
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import excess, fastest, interleaved, typical

BARE, ALONE, RECORDED, STORED = "bare predictors", "agent", "recorded", "stored"

_QUERY = "May a basic economy ticket be cancelled within a day of booking, and for what refund?"
_REPLY = "Any reservation can be cancelled within 24 hours of booking, with a full refund. " * 3


def report(json_output: bool = False, **options: Any) -> None:
    """Print what the interpreter costs; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(rounds: int = 40, nodes: int = 10, durability: Durability = "normal") -> dict[str, Any]:
    """Return milliseconds per node of each way, and the shares of interpreter and recording.

    Args:
        rounds: How often each way is measured.
        nodes: Nodes of the program.
        durability: That of the file memory.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        StepMemory(Path(folder) / "steps.db", durability=durability) as memory,
        dspy.context(lm=scripted_lm(lambda _: {"answer": _REPLY}), callbacks=[]),
    ):
        rivals = {
            BARE: _bare(nodes),
            ALONE: _running(_agent(nodes)),
            RECORDED: _running(_agent(nodes, _Nowhere())),
            STORED: _running(_agent(nodes, memory)),
        }
        samples = interleaved(rivals, rounds, warm_up=3)
    return {
        **conditions(rounds=rounds, nodes=nodes, durability=durability),
        "times": {
            name: {
                "cpu_ms": typical(found, "cpu", per=nodes) / 1000,
                "cpu_ms_least": fastest(found, "cpu", per=nodes) / 1000,
                "wall_ms": typical(found, "wall", per=nodes) / 1000,
            }
            for name, found in samples.items()
        },
        "interpreter": _in_ms(excess(samples[ALONE], samples[BARE], per=nodes)),
        "recording": _in_ms(excess(samples[RECORDED], samples[ALONE], per=nodes)),
        "storing": _in_ms(excess(samples[STORED], samples[RECORDED], per=nodes)),
    }


def _agent(nodes: int, memory: Any = None) -> GraphInterpreter:
    program = GraphProgram("main", "Look a rule up in parts")
    before = "start"
    for number_of_node in range(nodes):
        node = Action(
            f"part_{number_of_node}",
            "Predict",
            "Look a rule up",
            "Look up part {{ part }} of the rule for: {{ query }}",
            var_in=["part"],
            var_out="part",
        )
        program.add(node).connect(before, node.id)
        before = node.id
    program.var_in.append("part")
    program.connect(before, "end")
    return GraphInterpreter(program, [Predict()], memory, max_iters=nodes)


def _running(agent: GraphInterpreter) -> Callable[[], None]:
    def once() -> None:
        out = agent(query=_QUERY, part="one")
        assert out.finish_reason == "finished", out.error

    return once


def _bare(nodes: int) -> Callable[[], None]:
    """Return the same predictors called with the inputs that a run gives them."""
    agent = _agent(nodes)
    seen: list[tuple[Any, dict[str, Any]]] = []
    with dspy.context(trace=[]):
        agent(query=_QUERY, part="one")
        seen += [(predictor, inputs) for predictor, inputs, _ in dspy.settings.trace]

    def once() -> None:
        for predictor, inputs in seen:
            predictor(**inputs)

    return once


class _Nowhere:
    """A memory that keeps nothing."""

    def add(self, step_or_steps: AgentStep, /) -> None:
        """Forget the step."""

    def run(self, run_id: str, /) -> list[AgentStep]:
        """Return nothing."""
        return []


def _in_ms(times: dict[str, float]) -> dict[str, float]:
    return {name.replace("_us", "_ms"): value / 1000 for name, value in times.items()}


def _tables(result: dict[str, Any]) -> list[Table]:
    rows = [_row(name, times) for name, times in result["times"].items()]
    shares = {
        "the interpreter (agent - bare predictors)": "interpreter",
        "dispatch and recording (recorded - agent)": "recording",
        "the store's write (stored - recorded)": "storing",
    }
    rows += [_row(name, result[key]) for name, key in shares.items()]
    title = f"a program of {result['options']['nodes']} Predict nodes, per node"
    return [Table(title, ["", "CPU ms", "least", "wall ms"], rows)]


def _row(name: str, times: dict[str, float]) -> list[str]:
    keys = ("cpu_ms", "cpu_ms_least", "wall_ms")
    return [name, *(number(times[key], 2) for key in keys)]
