"""What the plots share: where they draw, which colour means what, and whose steps they show.

The palette is that of Okabe and Ito, which people of every kind of colour vision can tell apart;
groups differ in their markers too. More groups than it has colours are drawn as "other", in grey.

Reference: Okabe and Ito 2008, "Color Universal Design".
"""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hybridagi_steps.display.view import line
from hybridagi_steps.errors import MissingExtraError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.validation import Where

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, BLACK, GREY = "#56B4E9", "#D55E00", "#333333", "#B8B8B8"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "<", ">")

TYPE_COLOURS = {"Action": BLUE, "Decision": ORANGE, "ProgramCall": GREEN, "ProgramEnd": SKY}
STATUS_COLOURS = {"ok": BLUE, "partial": SKY, "cancelled": GREY, "paused": GREY, "error": RED}

_NAME_LENGTH = 30
_MARK_AREA = 26.0
"""Area of a point in the legend, points²."""


class Group(NamedTuple):
    """Some of the things drawn, with one look and one entry in the legend."""

    name: str
    places: list[int]
    """Which things belong to it."""
    colour: str
    marker: str

    @property
    def label(self) -> str:
        """Name and size, as the legend shows them."""
        return f"{self.name} ({len(self.places):,})"


def axes_for(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the axes to draw on: those given, else new ones of this size in inches."""
    try:
        from hybridagi_steps.plots.shown_axes import new_axes
    except ImportError as error:
        raise MissingExtraError("a plot", "plot") from error
    return new_axes(width, height) if ax is None else ax


def groups_of(names: Sequence[str], colours: Mapping[str, str] | None = None) -> list[Group]:
    """Return equal names as groups, largest first; those beyond the palette become one, in grey.

    `colours` are those of names whose colour is fixed.
    """
    ranked = [name for name, _ in sorted(Counter(names).items(), key=lambda i: (-i[1], i[0]))]
    most = len(PALETTE) if len(ranked) <= len(PALETTE) else len(PALETTE) - 1
    places: dict[str, list[int]] = {}
    shown = set(ranked[:most])
    rest = f"{len(ranked) - most:,} others"
    for place, name in enumerate(names):
        places.setdefault(name if name in shown else rest, []).append(place)
    fixed = colours or {}
    looks = zip(ranked[:most], PALETTE, MARKERS, strict=False)
    groups = [
        Group(short(name), places[name], fixed.get(name, colour), marker)
        for name, colour, marker in looks
    ]
    return [*groups, Group(rest, places[rest], GREY, ".")] if rest in places else groups


def short(name: str, length: int = _NAME_LENGTH) -> str:
    """Return a name as one line that a plot has room for, and that matplotlib shows as it is."""
    shown = line(name, length).replace("$", r"\$")  # a pair of dollar signs would be a formula
    return f" {shown}" if shown.startswith("_") else shown  # a legend skips names like _this


def finish(ax: Axes, title: str, *, legend: str | None = None) -> Axes:
    """Give axes their title, a light frame, and the legend beside them."""
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(GREY)
    ax.tick_params(color=GREY, labelsize=9)
    from matplotlib.collections import PathCollection

    if legend is not None and ax.get_legend_handles_labels()[0]:
        shown = ax.legend(
            title=legend,
            alignment="left",
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            borderaxespad=0.0,
            frameon=False,
            fontsize=9,
            title_fontsize=9,
        )
        for mark in shown.legend_handles:
            if isinstance(mark, PathCollection):  # points, which may be very small ones
                mark.set_sizes([_MARK_AREA])
    return ax


def nothing_to_show(ax: Axes, why: str) -> Axes:
    """Say on empty axes why they are empty."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, why, ha="center", va="center", transform=ax.transAxes, color=BLACK)
    return ax


def own_steps(memory: StepMemory, where: Where) -> Iterator[AgentStep]:
    """Yield the steps that match; those of trial runs only when `where` names a scope."""
    asked = StepFilter.of(where)
    for step in memory.iter_steps(asked):
        if asked.scope is not None or step.scope is None:
            yield step
