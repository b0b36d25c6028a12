"""A plan as HTML for notebooks: its dependency graph and its steps in a table.

No script, nothing loaded, every text escaped. Draws whatever the plan holds, one that cannot be run
included, and says then what is wrong with it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridagi_steps.planning.plan import Plan, PlanStep

MOST_STEPS_DRAWN = 60
MOST_STEPS_LISTED = 200
_CELL = "text-align:left;vertical-align:top;padding:.2em .6em"


def plan_html(plan: Plan) -> str:
    """Return a plan as HTML."""
    title = escape(plan.name or "plan")
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in plan.problems())
    parts = [
        f"<p><strong>{title}</strong> · {len(plan.steps)} steps</p>",
        f"<p style='white-space:pre-wrap'>{escape(plan.description)}</p>",
        f"<p>This plan cannot be run:</p><ul>{problems}</ul>" if problems else "",
        _graph(plan),
        _table(plan.steps[:MOST_STEPS_LISTED]),
        _hidden(len(plan.steps) - MOST_STEPS_LISTED),
    ]
    html = f"<div class='hybridagi-steps-plan'>{''.join(parts)}</div>"
    return html.encode("utf-8", "replace").decode()  # a notebook cannot store lone surrogates


def _hidden(count: int) -> str:
    return f"<p>… and {count} more steps</p>" if count > 0 else ""


def _graph(plan: Plan) -> str:
    if not plan.steps:
        return ""
    from hybridagi_steps.display.graph_drawing import graph_svg

    nodes, edges = graph_parts(plan)
    return graph_svg(nodes, edges, limit=MOST_STEPS_DRAWN)


def graph_parts(plan: Plan) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the dependency graph as plain dicts; unknown dependencies have no edge."""
    known = {step.id for step in plan.steps}
    nodes: list[dict[str, Any]] = [
        {"id": step.id, "label": step.title, "kind": step.type.value, "title": step.goal}
        for step in plan.steps
    ]
    edges: list[dict[str, Any]] = [
        {"source": dependency, "target": step.id}
        for step in plan.steps
        for dependency in step.dependencies
        if dependency in known
    ]
    return nodes, edges


def _table(steps: list[PlanStep]) -> str:
    head = "".join(
        f"<th style='{_CELL}'>{name}</th>"
        for name in ("step", "type", "goal", "files", "waits for", "hands on")
    )
    return f"<table><tr>{head}</tr>{''.join(_row(step) for step in steps)}</table>"


def _row(step: PlanStep) -> str:
    cells = (
        step.id,
        step.type.value,
        step.goal,
        ", ".join(step.files),
        ", ".join(step.dependencies),
        ", ".join(step.artifacts),
    )
    return "<tr>" + "".join(f"<td style='{_CELL}'>{escape(cell)}</td>" for cell in cells) + "</tr>"
