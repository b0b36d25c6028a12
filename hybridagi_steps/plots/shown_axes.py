"""Axes that a notebook shows without pyplot. The only module that imports matplotlib on loading."""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from io import BytesIO
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOTS_PER_INCH = 120


class ShownAxes(Axes):
    """Axes that are a picture of their figure wherever rich output is shown."""

    def _repr_png_(self) -> bytes:
        """Show the figure in a notebook."""
        picture = BytesIO()
        cast("Figure", self.figure).savefig(picture, format="png", dpi=DOTS_PER_INCH)
        return picture.getvalue()


def new_axes(width: float, height: float) -> Axes:
    """Return axes on a figure of their own, sizes in inches, that no global state holds."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure.add_subplot(axes_class=ShownAxes)
