"""Reliability curves: what was predicted, and how often it came true."""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hybridagi_steps.plots.canvas import GREY, MARKERS, PALETTE, axes_for, finish, nothing_to_show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AREA = 30.0
"""Area of a point that stands for one prediction, points²; it grows with their number."""


def reliability_curves(
    curves: Mapping[str, Sequence[tuple[float, ...]]], ax: Axes | None = None
) -> Axes:
    """Draw curves of bins: on the diagonal shares are what they say.

    Args:
        curves: By name bins as (low, high, count, predicted, observed).
        ax: Where to draw; by default a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
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
