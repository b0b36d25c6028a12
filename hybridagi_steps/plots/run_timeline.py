"""The timeline of a run: what it did when, how long it took, and what failed.

Steps stand below the program they belong to, in the order they began. A step is recorded
when it ends and says how long it took, so its bar reaches back from `created_at`; a program reaches
from its call to its end. A step whose duration nobody measured is a dot.
"""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hybridagi_steps.display.titles import title_of
from hybridagi_steps.display.view import MAX_DEPTH, duration, plural
from hybridagi_steps.errors import InvalidQueryError, UnknownRunError
from hybridagi_steps.plots.canvas import (
    BLACK,
    GREY,
    RED,
    TYPE_COLOURS,
    axes_for,
    finish,
    nothing_to_show,
    short,
)
from hybridagi_steps.records.agent_step import AgentStep, id_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hybridagi_steps.dspy_types import AgentStepList
    from hybridagi_steps.memory import StepMemory

MOST_ROWS = 80
"""Steps drawn at most; the title counts the rest."""

_LABEL_LENGTH, _LABEL_POINTS = 38, 9
_UNITS = ((60_000.0, "minutes"), (1_000.0, "seconds"), (1.0, "milliseconds"))
_LONGEST_MS = 365 * 86_400_000.0
"""A step that says it took longer, or less than nothing, was measured wrongly."""
_BAR_HEIGHT = 0.62
_ROOM_FOR_TEXT = 0.16
"""Share of the width kept free for what stands beside the longest bar."""


@dataclass(slots=True)
class Bar:
    """One row of a timeline, times in milliseconds of the epoch."""

    label: str
    kind: str
    begins: float
    ends: float
    status: str
    measured: bool = True
    """Whether the duration is known."""
    ended: bool = True
    """False for a program whose end is missing: it lasts as long as what is inside."""
    home: Bar | None = None
    """The program it is in."""


def timeline(
    steps: StepMemory | AgentStepList | Iterable[AgentStep],
    run_id: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a run as a waterfall of bars, nested by program and coloured by type.

    Args:
        steps: A memory, or steps such as `run.steps`.
        run_id: Which run; by default the newest of the memory, or all the steps given.
        ax: Where to draw; by default a new figure, as high as the run has steps.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UnknownRunError: No step carries this run id.
        InvalidQueryError: `run_id` is not given and the steps are of several runs.
    """
    found = _steps_of_run(steps, run_id)
    bars = bars_of(found)
    axes = axes_for(ax, 9.5, 1.3 + 0.3 * max(3, min(len(bars), MOST_ROWS)))
    if not bars:
        return nothing_to_show(axes, "no steps")
    origin = min(bar.begins for bar in bars)
    total = max(bar.ends for bar in bars) - origin
    unit_ms, unit = next((ms, name) for ms, name in _UNITS if total >= ms or name == "milliseconds")
    shown = bars[:MOST_ROWS]
    _draw_bars(axes, shown, origin, unit_ms)
    _say_durations(axes, shown, origin, unit_ms)
    _name_rows(axes, [bar.label for bar in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    length = total / unit_ms or 1.0
    axes.set_xlim(-0.01 * length, (1 + _ROOM_FOR_TEXT) * length)
    axes.set_xlabel(f"{unit} since the start", fontsize=9)
    axes.grid(axis="x", color=GREY, alpha=0.4, linewidth=0.6)
    axes.set_axisbelow(True)
    return finish(axes, _title(len(found), bars, total), legend="step")


def bars_of(steps: list[AgentStep]) -> list[Bar]:
    """Return one bar per step, programs with their end, each below the program it is in."""
    ends = {
        step.program_id: step
        for step in steps
        if step.step_type == "ProgramEnd" and step.program_id
    }
    calls = {id_text(step.id) for step in steps if step.step_type == "ProgramCall"}
    inside: dict[str | None, list[tuple[AgentStep, Bar]]] = {}
    for step in steps:
        if step.step_type == "ProgramEnd" and step.program_id in calls:
            continue
        home = step.program_id if step.program_id in calls else None
        inside.setdefault(home, []).append((step, _bar(step, ends.get(id_text(step.id)))))
    bars = list(_nested(inside))
    for bar in reversed(bars):
        if bar.home is not None and not bar.home.ended:
            bar.home.ends = max(bar.home.ends, bar.ends)
    return bars


def _nested(inside: dict[str | None, list[tuple[AgentStep, Bar]]]) -> Iterable[Bar]:
    """Yield bars in the order of a tree; programs that contain themselves come last, flat."""
    waiting = [(step, bar, 0) for step, bar in reversed(_in_order(inside.pop(None, [])))]
    while waiting or inside:
        if not waiting:
            home = next(iter(inside))
            waiting = [(step, bar, 0) for step, bar in reversed(_in_order(inside.pop(home)))]
        step, bar, depth = waiting.pop()
        bar.label = "   " * min(depth, MAX_DEPTH) + bar.label
        yield bar
        for child, below in reversed(_in_order(inside.pop(id_text(step.id), []))):
            below.home = bar
            waiting.append((child, below, depth + 1))


def _in_order(found: list[tuple[AgentStep, Bar]]) -> list[tuple[AgentStep, Bar]]:
    return sorted(found, key=lambda item: (item[1].begins, item[0].hop))


def _bar(step: AgentStep, end: AgentStep | None) -> Bar:
    made = _milliseconds(step)
    kind = str(step.step_type)
    title = title_of(vars(step))
    label = short(f"{step.hop}  {title.name or title.about or kind}", _LABEL_LENGTH)
    if kind == "ProgramCall":
        if end is None:
            return Bar(label, kind, made, made, step.status, ended=False)
        return Bar(label, kind, made, max(made, _milliseconds(end)), end.status)
    took = step.metrics.duration_ms if step.metrics is not None else None
    if took is None or not 0 <= took <= _LONGEST_MS:
        return Bar(label, kind, made, made, step.status, measured=False)
    return Bar(label, kind, made - took, made, step.status)


def _milliseconds(step: AgentStep) -> float:
    return step.created_at.timestamp() * 1_000


def _draw_bars(axes: Axes, bars: list[Bar], origin: float, unit_ms: float) -> None:
    """Draw one row per bar: coloured by type, hatched in red when it failed, a dot when untimed."""
    rows = range(len(bars))
    begins = [(bar.begins - origin) / unit_ms for bar in bars]
    widths = [(bar.ends - bar.begins) / unit_ms for bar in bars]

    def draw(chosen: list[int], **look: Any) -> None:
        if chosen:
            lefts, lengths = [begins[row] for row in chosen], [widths[row] for row in chosen]
            heights = [_height(bars[row]) for row in chosen]
            axes.barh(chosen, lengths, left=lefts, height=heights, **look)

    for kind in dict.fromkeys(bar.kind for bar in bars):
        colour = TYPE_COLOURS.get(kind, GREY)
        same = [row for row in rows if bars[row].kind == kind and bars[row].measured]
        # The edge keeps a bar of no length visible.
        draw(same, color=colour, edgecolor=colour, linewidth=1.0, label=kind)
    untimed = [row for row in rows if not bars[row].measured]
    if untimed:
        look: dict[str, Any] = {"s": 24, "color": BLACK, "zorder": 3, "label": "duration unknown"}
        axes.scatter([begins[row] for row in untimed], untimed, **look)
    failed = [row for row in rows if bars[row].status != "ok"]
    draw(failed, fill=False, edgecolor=RED, hatch="/////", linewidth=1.2, label="not ok")


def _height(bar: Bar) -> float:
    """Return how thick a bar is; programs are thin, since what they spend is spent inside."""
    return _BAR_HEIGHT / 2 if bar.kind == "ProgramCall" else _BAR_HEIGHT


def _say_durations(axes: Axes, bars: list[Bar], origin: float, unit_ms: float) -> None:
    for row, bar in enumerate(bars):
        words = [duration(bar.ends - bar.begins)] if bar.measured else []
        if bar.status != "ok":
            words.append(bar.status)
        axes.annotate(
            ", ".join(words),
            ((bar.ends - origin) / unit_ms, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=RED if bar.status != "ok" else BLACK,
        )


def _name_rows(axes: Axes, labels: list[str]) -> None:
    """Write labels left-aligned beside the axis, so that their indents show."""
    from matplotlib.textpath import TextPath

    # Blanks leave no trace in a path; any letter stands in for them.
    paths = [TextPath((0, 0), label.replace(" ", "x"), size=_LABEL_POINTS) for label in labels]
    widest = max(path.get_extents().width for path in paths)
    axes.set_yticks(range(len(labels)), labels, ha="left", fontsize=_LABEL_POINTS)
    axes.tick_params(axis="y", length=0, pad=float(widest) + 4)


def _steps_of_run(steps: Any, run_id: str | None) -> list[AgentStep]:
    if hasattr(steps, "iter_steps"):
        memory = cast("StepMemory", steps)
        wanted = run_id or next((run.run_id for run in memory.runs(limit=1)), None)
        found = memory.run_steps(wanted) if wanted is not None else []
    else:
        listed = cast("list[AgentStep]", list(getattr(steps, "steps", steps)))
        found = [step for step in listed if run_id in (None, step.run_id)]
    if run_id is not None and not found:
        raise UnknownRunError(run_id)
    runs = {step.run_id for step in found}
    if len(runs) > 1:
        raise InvalidQueryError(f"these are steps of {len(runs)} runs; say which by run_id.")
    return found


def _title(steps: int, bars: list[Bar], total: float) -> str:
    title = plural(steps, "step")
    if any(bar.measured for bar in bars):
        title += f" in {duration(total)}"
    failed = sum(bar.status != "ok" for bar in bars)
    if failed:
        title += f", {failed:,} not ok"
    if len(bars) > MOST_ROWS:
        title += f"; the first {MOST_ROWS} rows are shown"
    return title
