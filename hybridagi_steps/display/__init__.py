"""Steps, trees of steps and search hits as HTML for notebooks.

Knows plain dicts only (`step.model_dump(mode="json")`), so that any part of the library may show
what it holds without a cycle. The HTML has no script and loads nothing, every text in it is
escaped, and long lists and values are cut with a note of how much is hidden. Colours are tints of
the page's own, so that light and dark themes both work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridagi_steps.display.rendering import render
from hybridagi_steps.display.view import hit_view, plural, step_view, tree_view

__all__ = ["hits_html", "step_html", "steps_html"]

MAX_SHOWN = 200
"""Steps or hits shown at most; the rest is counted."""


def step_html(step: Mapping[str, Any]) -> str:
    """Return one step as HTML, its inputs and outputs unfolded.

    Args:
        step: An AgentStep as JSON data; unknown keys are ignored, missing ones left out.
    """
    return render("step", nodes=[step_view(step)], opened=True, title="", hidden=0)


def steps_html(
    steps: Sequence[Mapping[str, Any]], *, title: str | None = None, limit: int = MAX_SHOWN
) -> str:
    """Return steps as a collapsible tree: what a program did stands inside the program.

    Args:
        steps: AgentSteps as JSON data, in the order to show.
        title: The heading; by default the number of steps.
        limit: Most steps shown; how many more there are is said below.
    """
    heading = plural(len(steps), "step") if title is None else title
    nodes = tree_view(steps[:limit])
    hidden = max(0, len(steps) - limit)
    return render("step", nodes=nodes, opened=False, title=heading, hidden=hidden)


def hits_html(hits: Sequence[Mapping[str, Any]], *, limit: int = MAX_SHOWN) -> str:
    """Return search hits as a ranked list: score, why, the step, what stands around it.

    Args:
        hits: StepHits as JSON data, best first.
        limit: Most hits shown; how many more there are is said below.
    """
    shown = [hit_view(rank, hit) for rank, hit in enumerate(hits[:limit], start=1)]
    title = plural(len(hits), "hit") if hits else "no hits"
    return render("hits", hits=shown, title=title, hidden=max(0, len(hits) - limit))
