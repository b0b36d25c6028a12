"""What a memory's programs did and how it ended: steps per day, and outcomes by tool."""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections import Counter
from datetime import date, timedelta
from typing import TYPE_CHECKING, get_args

from hybridagi_steps.display.view import plural
from hybridagi_steps.plots.canvas import (
    BLACK,
    GREY,
    STATUS_COLOURS,
    TYPE_COLOURS,
    axes_for,
    finish,
    groups_of,
    nothing_to_show,
    own_steps,
    short,
    type_of,
)
from hybridagi_steps.records.agent_step import StepStatus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from hybridagi_steps.memory import StepMemory, Where

MOST_TOOLS = 20
"""Tools drawn at most, those used most; the title counts the rest."""
MOST_DAYS = 366
"""Days drawn at most, the last ones; the title says so."""

_FEWEST_DAYS, _MOST_LABELS = 14, 8


def activity(memory: StepMemory, where: Where = None, ax: Axes | None = None) -> Axes:
    """Draw how many steps were made on each day (UTC), stacked by type.

    Args:
        memory: Whose steps.
        where: Which steps; by default the user's own history.
        ax: Where to draw; by default a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidFilterError: An unknown key in `where`.
    """
    axes = axes_for(ax, 9.0, 3.6)
    made = [(step.created_at.date(), type_of(step)) for step in own_steps(memory, where)]
    if not made:
        return nothing_to_show(axes, "no step matches")
    last = max(day for day, _ in made)
    first = max(min(day for day, _ in made), _days_after(last, 1 - MOST_DAYS))
    shown_from = min(first, _days_after(last, 1 - _FEWEST_DAYS))
    days = [shown_from + timedelta(days=n) for n in range((last - shown_from).days + 1)]
    kept = [(day, kind) for day, kind in made if day >= first]
    below = [0] * len(days)
    for group in groups_of([kind for _, kind in kept], TYPE_COLOURS):
        counts = Counter(kept[place][0] for place in group.places)
        heights = [counts[day] for day in days]
        axes.bar(days, heights, bottom=below, color=group.colour, label=group.label)  # pyright: ignore[reportArgumentType] - dates are values of an axis
        below = [low + height for low, height in zip(below, heights, strict=True)]
    _label_days(axes, days)
    axes.set_ylabel("steps", fontsize=9)
    _count_whole(axes.yaxis)
    axes.grid(axis="y", color=GREY, alpha=0.4, linewidth=0.6)
    axes.set_axisbelow(True)
    title = f"{plural(len(kept), 'step')} on {plural(len({day for day, _ in kept}), 'day')}"
    if len(kept) < len(made):
        title += f"; {len(made) - len(kept):,} older ones left out"
    return finish(axes, title, legend="step type")


def outcomes(memory: StepMemory, where: Where = None, ax: Axes | None = None) -> Axes:
    """Draw how the calls of each tool ended, most used tool first.

    Args:
        memory: Whose steps.
        where: Which steps; by default the user's own history.
        ax: Where to draw; by default a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidFilterError: An unknown key in `where`.
    """
    calls = Counter((step.tool, step.status) for step in own_steps(memory, where) if step.tool)
    uses = Counter[str]()
    for (tool, _), count in calls.items():
        uses[tool or ""] += count
    tools = sorted(uses, key=lambda tool: (-uses[tool], tool))
    shown = tools[:MOST_TOOLS]
    axes = axes_for(ax, 9.0, 1.2 + 0.3 * max(3, len(shown)))
    if not shown:
        return nothing_to_show(axes, "no tool call matches")
    left = [0] * len(shown)
    for status in get_args(StepStatus):
        counts = [calls[tool, status] for tool in shown]
        if any(counts):
            label = f"{status} ({sum(counts):,})"
            axes.barh(
                range(len(shown)), counts, left=left, color=STATUS_COLOURS[status], label=label
            )
            left = [so_far + count for so_far, count in zip(left, counts, strict=True)]
    for row, tool in enumerate(shown):
        axes.annotate(
            _success(calls[tool, "ok"], uses[tool]),
            (uses[tool], row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=BLACK,
        )
    axes.set_yticks(range(len(shown)), [short(tool) for tool in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * uses[tools[0]])
    axes.set_xlabel("calls", fontsize=9)
    _count_whole(axes.xaxis)
    total = sum(uses.values())
    title = f"{plural(total, 'call')} of {plural(len(tools), 'tool')}"
    if len(tools) > MOST_TOOLS:
        seen = sum(uses[tool] for tool in shown)
        title = f"{seen:,} of {total:,} calls: the {MOST_TOOLS} most used of {len(tools):,} tools"
    return finish(axes, title, legend="outcome")


def _count_whole(axis: Axis) -> None:
    """Put ticks at whole numbers only: there is no half step."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _success(ok: int, uses: int) -> str:
    # Rounded down: only what never failed is 100 %.
    return f"{uses:,}, all ok" if ok == uses else f"{uses:,}, {100 * ok // uses}% ok"


def _days_after(day: date, count: int) -> date:
    """Return the day so many days later, within the calendar."""
    return date.fromordinal(min(max(day.toordinal() + count, 1), date.max.toordinal()))


def _label_days(axes: Axes, days: list[date]) -> None:
    """Name days, the last one among them, without running their names into each other."""
    every = math.ceil(len(days) / _MOST_LABELS)
    named = days[::-1][::every]
    axes.set_xticks(named, [f"{day:%d %b}" for day in named])  # pyright: ignore[reportArgumentType] - as above
    axes.set_xlim(_days_after(days[0], -1), _days_after(days[-1], 1))  # pyright: ignore[reportArgumentType] - as above
    years = dict.fromkeys((days[0].year, days[-1].year))
    axes.set_xlabel(f"day (UTC), {'–'.join(map(str, years))}", fontsize=9)
