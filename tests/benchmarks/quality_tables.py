"""The tables of `quality`: what was measured, a table a part."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.quality_cost import cost_table
from tests.benchmarks.quality_dialogue import dialogue_table, mixed_table
from tests.benchmarks.quality_evidence import evidence_table
from tests.benchmarks.quality_own_runs import own_tasks_table
from tests.benchmarks.ranking import interval_text
from tests.benchmarks.tables import Table, number

CUT = 10
"""Hits that are looked at."""
HYBRID, AIMED = "this library (hybrid)", "this library, aim named"
WISHED = "this library, aim and tools named"
"""The rows that come with their intervals."""
_OURS = (HYBRID, AIMED, WISHED)


def quality_tables(result: dict[str, Any]) -> list[Table]:
    """Return a table for every part that was measured."""
    if "own" in result:
        return _own_tables(result["own"])
    tables: list[Table] = []
    if "tasks" in result:
        tables.append(_comparison(result, "ndcg", f"nDCG@{CUT}"))
        tables.append(_comparison(result, "recall", f"recall@{CUT}"))
    for name, found in result.get("evidence", {}).items():
        tables.append(evidence_table(f"evidence in the context, asked with {name}", found))
    if "dialogue" in result:
        tables.append(dialogue_table("turns of conversations", result["dialogue"]))
    if "mixed" in result:
        tables.append(mixed_table(result["mixed"]))
    if "cost" in result:
        tables.append(cost_table(result["cost"], result["options"]["steps"]))
    if "grid" in result:
        tables.append(_grid_table(result["grid"]))
    return tables


def _own_tables(own: dict[str, Any]) -> list[Table]:
    tables: list[Table] = []
    if "tasks" in own:
        tables.append(own_tasks_table(own["tasks"]))
    if "dialogue" in own:
        tables.append(dialogue_table("turns", own["dialogue"]))
    return [*tables, evidence_table("evidence in the context", own["evidence"])]


def _comparison(result: dict[str, Any], measure: str, title: str) -> Table:
    means = result["mean"][measure]
    rivals = [name for name in means if name not in _OURS]
    columns = ["", "questions (runs)", *rivals, *_OURS, "aim"]
    rows: list[list[str]] = []
    for task in sorted(result["tasks"], key=lambda task: not task["in_mean"]):
        ours = [interval_text(task["intervals"][measure][name]) for name in _OURS]
        asked = f"{task['questions']} ({task['runs']})"
        others = [number(task[measure][name]) for name in rivals]
        rows.append([task["task"], asked, *others, *ours, task["aim"]])
    counted = sum(task["in_mean"] for task in result["tasks"])
    ours = [number(means[name]) for name in _OURS]
    rows.insert(counted, ["mean", "", *(number(means[name]) for name in rivals), *ours, ""])
    if measure == "ndcg":
        columns += ["hybrid - better own-text half [95 %]", "gain of the aim [95 %]"]
        by_name = {task["task"]: task for task in result["tasks"]}
        for row in rows:
            found = by_name.get(row[0])
            for key in ("ahead_of_better_half", "gain_of_aim"):
                row.append(interval_text(found[key], signed=True) if found else "")
    options = result["options"]
    return Table(f"{title}, half `{options['half']}`, {options['embedder']}", columns, rows)


def _grid_table(grid: list[dict[str, Any]]) -> Table:
    means = {(entry["lexical_weight"], entry["neighbour_share"]): entry["mean"] for entry in grid}
    weights, shares = (sorted({key[place] for key in means}) for place in (0, 1))
    rows = [[str(w), *(number(means[w, share]) for share in shares)] for w in weights]
    columns = ["share of words \\ spread", *map(str, shares)]
    return Table(f"mean nDCG@{CUT} on the half `tune`", columns, rows)
