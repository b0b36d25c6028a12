"""The embeddings of a memory's steps as points on a plane: what lies together means alike.

The plane is that of the two principal components, so the picture is the same every time and needs
no library; the axes say how much of the variance it shows. Very large memories are sampled, and the
title says so.
"""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.plots.canvas import (
    GREY,
    STATUS_COLOURS,
    TYPE_COLOURS,
    Group,
    axes_for,
    finish,
    groups_of,
    nothing_to_show,
    own_steps,
)
from hybridagi_steps.records.agent_step import AgentStep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hybridagi_steps.memory import StepMemory, Where

MOST_POINTS = 20_000
"""Points drawn at most; more would hide each other."""

_READ_AT_ONCE = 1_000
_INK, _POINT_SIZES = 60_000, (9.0, 26.0)
"""Many points are small ones: their areas in points², added up, and the bounds of one."""
_SMALL = 16.0
_SEED = 0
_SKETCHED, _POWER_ITERATIONS = 12, 24
_METADATA = "metadata."
_FIELDS = ("tool", "program", "step_type", "status", "run_id", "session_id", "user_id", "scope")

Matrix = npt.NDArray[np.float64]
ColorBy = str | Callable[[AgentStep], Any]
"""A field of a step, `metadata.KEY`, or a function that names a step's group."""


def embedding_map(
    memory: StepMemory,
    where: Where = None,
    color_by: ColorBy = "tool",
    ax: Axes | None = None,
) -> Axes:
    """Draw steps where their embeddings put them; steps without one are left out and counted.

    Args:
        memory: Whose steps; what is not embedded yet will be.
        where: Which steps; by default the user's own history.
        color_by: `tool`, `program`, `step_type`, `status`, `run_id`, `session_id`, `user_id`,
            `scope`, `metadata.KEY`, or a function from a step to the name of its group.
        ax: Where to draw; by default a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidQueryError: Steps have no field named `color_by`.
        InvalidFilterError: An unknown key in `where`.

    Complexity: one walk over the matching steps; of at most 20,000 of them, O(n d²).
    """
    name_of = _naming(color_by)
    axes = axes_for(ax, 9.0, 5.6)
    if memory.stats()["pending_vectors"]:
        memory.flush()
    chosen, matching = _chosen([str(step.id) for step in own_steps(memory, where)])
    names, vectors = _embedded(memory, chosen, name_of)
    if not names:
        return nothing_to_show(axes, "no embedded step matches")
    points, shares = plane(vectors)
    _draw(axes, points, groups_of(names, _fixed_colours(color_by)))
    axes.set_xlabel(f"component 1, {shares[0]:.0%} of the variance", fontsize=9)
    axes.set_ylabel(f"component 2, {shares[1]:.0%} of the variance", fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    legend = color_by if isinstance(color_by, str) else "group"
    return finish(axes, _title(len(names), len(chosen), matching), legend=legend.replace("_", " "))


def _draw(axes: Axes, points: Matrix, groups: list[Group]) -> None:
    size = float(np.clip(_INK / len(points), *_POINT_SIZES))
    for group in groups:
        axes.scatter(
            points[group.places, 0],
            points[group.places, 1],
            s=size,
            c=group.colour,
            marker=group.marker,
            alpha=0.75,
            linewidths=0.4 if size > _SMALL else 0.0,
            edgecolors="white",
            label=group.label,
        )


def plane(vectors: Matrix) -> tuple[Matrix, tuple[float, float]]:
    """Project vectors on their two principal components.

    Args:
        vectors: One per row, shape (n, d).

    Returns:
        The points, shape (n, 2), and the share of the variance that each axis shows, 0..1. The
        largest loading of each axis is positive, which settles the sign.

    Complexity: O(n d).
    Reference: Halko, Martinsson and Tropp 2011, "Finding structure with randomness", with power
    iterations from a fixed seed: all components of 1,536 dimensions take seconds.
    """
    centred = vectors - vectors.mean(axis=0)
    wide = min(centred.shape[1], _SKETCHED)
    basis = np.random.default_rng(_SEED).normal(size=(centred.shape[1], wide))
    for _ in range(_POWER_ITERATIONS):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    shadow = centred @ basis
    variances, turned = np.linalg.eigh(shadow.T @ shadow)
    axes = np.zeros((centred.shape[1], 2))
    found = (basis @ turned)[:, ::-1][:, :2]
    axes[:, : found.shape[1]] = found
    largest = np.abs(axes).argmax(axis=0)
    axes *= np.where(axes[largest, [0, 1]] < 0, -1.0, 1.0)
    total = float((centred**2).sum()) or 1.0
    first, second = [max(0.0, float(value)) / total for value in [0.0, *variances][:-3:-1]]
    return centred @ axes, (first, second)


def _chosen(ids: list[str]) -> tuple[list[str], int]:
    """Return the ids of the steps to draw, in their order, and how many there were."""
    if len(ids) <= MOST_POINTS:
        return ids, len(ids)
    places = np.random.default_rng(_SEED).choice(len(ids), MOST_POINTS, replace=False)
    return [ids[place] for place in sorted(places)], len(ids)


def _embedded(
    memory: StepMemory, ids: list[str], name_of: Callable[[AgentStep], str]
) -> tuple[list[str], Matrix]:
    """Return the group and the embedding, shape (n, d), of each step that has one."""
    names: list[str] = []
    vectors: list[npt.NDArray[np.float32]] = []
    for begins in range(0, len(ids), _READ_AT_ONCE):
        for step in memory.get_steps(ids[begins : begins + _READ_AT_ONCE], vectors=True):
            if step.vector:
                names.append(name_of(step))
                vectors.append(np.array(step.vector, np.float32))
    return names, np.array(vectors, np.float64)


def _naming(color_by: ColorBy) -> Callable[[AgentStep], str]:
    """Return a function from a step to the name of its group."""
    if callable(color_by):
        return lambda step: str(color_by(step))
    if color_by in _FIELDS:
        return lambda step: str(getattr(step, color_by) or _nothing(color_by))
    if color_by.startswith(_METADATA):
        key = color_by.removeprefix(_METADATA)
        return lambda step: str((step.metadata or {}).get(key, _nothing(color_by)))
    known = ", ".join(_FIELDS)
    raise InvalidQueryError(
        f"color_by is one of {known}, metadata.KEY or a function; got {color_by!r}."
    )


def _nothing(color_by: ColorBy) -> str:
    """Return the name of the group of steps that have no such field."""
    return f"no {color_by.removeprefix(_METADATA)}" if isinstance(color_by, str) else ""


def _fixed_colours(color_by: ColorBy) -> dict[str, str]:
    if color_by == "status":
        return STATUS_COLOURS
    if color_by == "step_type":
        return TYPE_COLOURS
    return {_nothing(color_by): GREY}


def _title(drawn: int, chosen: int, matching: int) -> str:
    title = f"Map of {plural(drawn, 'step')}"
    if chosen < matching:
        title += f", sampled from {matching:,}"
    if drawn < chosen:
        title += f"; {chosen - drawn:,} without an embedding left out"
    return title
