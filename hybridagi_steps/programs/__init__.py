"""The DSPy side: programs are recorded here, and recall is offered to them as modules.

DSPy is imported in this package and nowhere below it, except for the predictions. The names that
graph programs are written with are loaded on first use, so that one part never pays for another;
all else is imported from the top level (`hs.record`) or from the module that defines it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.graph.checks import check_programs as check_programs
    from hybridagi_steps.graph.metrics import AnswerCritic as AnswerCritic
    from hybridagi_steps.graph.metrics import answer_matches as answer_matches
    from hybridagi_steps.graph.nodes import Action as Action
    from hybridagi_steps.graph.nodes import Control as Control
    from hybridagi_steps.graph.nodes import Decision as Decision
    from hybridagi_steps.graph.nodes import Program as Program
    from hybridagi_steps.graph.program import GraphProgram as GraphProgram


_NAMES = {
    "checks": "check_programs",
    "metrics": "AnswerCritic answer_matches",
    "nodes": "Action Control Decision Program",
    "program": "GraphProgram",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES, "hybridagi_steps.graph")
