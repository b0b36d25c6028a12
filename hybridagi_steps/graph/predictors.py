"""One predictor per node, with a name that stays: what teleprompters optimise and files keep.

A node's predictor is found by the node's own place, `program.node`, never by the order in which a
run came by. So what was learned for one node serves that node, whatever way a run takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import dspy

from hybridagi_steps.errors import ProgramError, UnknownToolError
from hybridagi_steps.graph.decision_labels import offered
from hybridagi_steps.graph.nodes import Action, Decision, Node
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.graph.tools.base import INPUTS, Asked, GraphTool, node_signature

_DECIDE = "Answer the question by choosing one of the options."
_DECISION_INPUTS = {
    "objective": INPUTS["objective"],
    "past_steps": INPUTS["past_steps"],
    "question": "What to decide",
    "options": "The options to choose from",
}


def place_of(program: GraphProgram, node: Node) -> str:
    """Return the name under which a node's predictor is kept."""
    return f"{program.name}.{node.id}"


def predictors_of(
    programs: Iterable[GraphProgram], tools: Mapping[str, GraphTool]
) -> dict[str, dspy.Module]:
    """Return a new predictor for every node that asks a language model."""
    found: dict[str, dspy.Module] = {}
    for program in programs:
        for node in program.nodes.values():
            predictor = predictor_of(node, program, tools)
            place = place_of(program, node)
            if predictor is not None and place in found:
                raise ProgramError(f"two nodes are called {place!r}; rename one of them.")
            if predictor is not None:
                found[place] = predictor
    return found


def predictor_of(
    node: Node, program: GraphProgram, tools: Mapping[str, GraphTool]
) -> dspy.Module | None:
    """Return a new predictor for one node, None when it asks no language model."""
    if isinstance(node, Action):
        tool = tools.get(node.tool)
        if tool is None:
            raise UnknownToolError(node.tool, list(tools))
        return None if node.disable_inference else tool.predictor(node.purpose)
    if not isinstance(node, Decision):
        return None
    options = ", ".join(offered(list(program.choices(node.id))))
    choice = {"choice": Asked(str, f"one of: {options}")}
    return dspy.Predict(node_signature(_DECIDE, node.purpose, _DECISION_INPUTS, choice))
