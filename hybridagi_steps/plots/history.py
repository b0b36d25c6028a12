"""What programs did, how it ended, what contexts held, what predictions were worth."""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, get_args

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.plots.canvas import (
    BLACK,
    GREY,
    MARKERS,
    PALETTE,
    STATUS_COLOURS,
    TYPE_COLOURS,
    axes_for,
    finish,
    groups_of,
    nothing_to_show,
    own_steps,
    short,
)
from hybridagi_steps.records.agent_step import StepStatus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from hybridagi_steps.context.builder import Context
    from hybridagi_steps.context.receipt import Receipt
    from hybridagi_steps.memory import StepMemory, Where

_AREA = 30.0
"""Area of a point that stands for one prediction, points²; it grows with their number."""
_WRITTEN = {"system": "system prompt", "opening": "opening", "recalled": "recalled"}
"""Entries of a receipt that are no message of the session."""
_KINDS = ("system prompt", "opening", "messages", "recalled")
_LEFT_OUT = "left out"

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
    made = [(step.created_at.date(), str(step.step_type)) for step in own_steps(memory, where)]
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


def context_use(contexts: Context | Iterable[Context], ax: Axes | None = None) -> Axes:
    """Draw the tokens of contexts as bars, one for each: what is in it, and what it leaves out.

    Args:
        contexts: One context or several, such as one session's at different budgets.
        ax: Where to draw; by default a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidSettingError: What was given is no context.
    """
    receipts = _receipts(contexts)
    axes = axes_for(ax, 9.0, 1.2 + 0.5 * max(1, len(receipts)))
    if not receipts:
        return nothing_to_show(axes, "no context")
    places = range(len(receipts))
    begun = [0] * len(receipts)
    for kind, colour in zip((*_KINDS, _LEFT_OUT), (*PALETTE[:4], GREY), strict=True):
        widths = [_tokens(receipt, kind) for receipt in receipts]
        if not any(widths):
            continue
        out = kind == _LEFT_OUT
        look: dict[str, Any] = {"hatch": "///", "edgecolor": "white"} if out else {}
        axes.barh(places, widths, left=begun, height=0.7, color=colour, label=kind, **look)
        begun = [start + width for start, width in zip(begun, widths, strict=True)]
    for place, receipt in zip(places, receipts, strict=True):
        axes.plot([receipt.budget] * 2, [place - 0.4, place + 0.4], color="black", lw=1.5)
    axes.set_yticks(places, [f"{receipt.budget:,}" for receipt in receipts])
    axes.invert_yaxis()
    axes.set_ylabel("budget")
    estimated = any(receipt.estimated for receipt in receipts)
    axes.set_xlabel("tokens (estimated)" if estimated else "tokens")
    return finish(axes, "What the contexts are made of; the mark is the budget", legend="tokens of")


def _receipts(contexts: Context | Iterable[Context]) -> list[Receipt]:
    drawn = [contexts] if hasattr(contexts, "receipt") else contexts
    if not isinstance(drawn, Iterable):
        raise InvalidSettingError(f"contexts are drawn here, not {type(contexts).__name__}.")
    receipts = [getattr(context, "receipt", None) for context in drawn]
    found = [receipt for receipt in receipts if receipt is not None]
    if len(found) < len(receipts):
        raise InvalidSettingError("one of these is no context: ContextBuilder.build() makes them.")
    return found


def _tokens(receipt: Receipt, kind: str) -> int:
    if kind == _LEFT_OUT:
        return sum(entry.tokens for entry in receipt.dropped)
    entries: Sequence[tuple[str, int]] = [(entry.id, entry.tokens) for entry in receipt.kept]
    return sum(tokens for name, tokens in entries if _WRITTEN.get(name, "messages") == kind)


def reliability_curves(
    curves: Mapping[str, Sequence[tuple[float, ...]]], ax: Axes | None = None
) -> Axes:
    """Draw curves of bins: on the diagonal shares are what they say.

    Bins are (low, high, count, predicted, observed) each, by the curve's name.
    """
    axes = axes_for(ax, 5.5, 4.5)
    if not any(curves.values()):
        return nothing_to_show(axes, "nothing was predicted")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
    for (name, bins), colour, marker in zip(curves.items(), PALETTE, MARKERS, strict=False):
        if not bins:
            continue
        _, _, counts, predicted, observed = zip(*bins, strict=True)
        axes.plot(predicted, observed, color=colour, linewidth=1)
        areas = [_AREA * count**0.5 for count in counts]
        label = f"{name}: {sum(counts):,}"
        axes.scatter(predicted, observed, areas, color=colour, marker=marker, label=label)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("predicted share", fontsize=9)
    axes.set_ylabel("what came true", fontsize=9)
    return finish(axes, "Predicted and observed", legend="predictions")
