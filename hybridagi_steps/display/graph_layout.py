"""Where the nodes of a layered drawing stand, and the way that each edge takes.

Each layer is moved, again and again, as near as it gets to its neighbours' means without anything
touching: a weighted isotonic regression, solved exactly by pooling adjacent violators (Ayer et al.
1955). Bends weigh more than nodes, so that long edges are straight. Nodes and labels own the whole
height of their layer and edges bend between layers only, so nothing can lie on anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hybridagi_steps.display.graph_layers import Layers, layered

BETWEEN, BESIDE, MARGIN = 15.0, 26.0, 10.0
"""Least distance of two layers, of two things in a layer, and of all to the border, in pixels."""
PORT = 16.0
"""Distance of two edges at a node."""

_PASSES = 40


@dataclass(frozen=True, slots=True)
class Line:
    """An edge to place."""

    source: int
    target: int
    label_size: tuple[float, float] | None = None
    """Width and height of its label."""


@dataclass(frozen=True, slots=True)
class Way:
    """How an edge goes: through these points, from layer to layer."""

    points: list[tuple[float, float]]
    """From source to target, two for every layer that it passes: where it enters and leaves."""
    label: tuple[float, float] | None
    """The middle of its label."""
    upward: bool
    """Whether it closes a loop and leads up."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A drawing's measures, in pixels."""

    width: float
    height: float
    centres: list[tuple[float, float]]
    ways: list[Way]


def place(sizes: Sequence[tuple[float, float]], lines: Sequence[Line]) -> Placed:
    """Return where nodes of some sizes go, and edges, none of which leads to its own node."""
    layers = layered(len(sizes), [(line.source, line.target) for line in lines])
    labels = _labelled(layers, lines)
    count = sum(len(row) for row in layers.order)
    extents = [*sizes, *[(0.0, 0.0)] * (count - len(sizes))]
    for bend, size in labels.values():
        extents[bend] = size
    ports = _ports(layers)
    x = _across(layers, extents, ports, len(sizes))
    left = min((x[n] - extents[n][0] / 2 for n in range(count)), default=0.0) - MARGIN
    right = max((x[n] + extents[n][0] / 2 for n in range(count)), default=0.0) + MARGIN
    x = [value - left for value in x]
    rows = _down(layers, extents, x)
    row_of = {node: rows[index] for index, row in enumerate(layers.order) for node in row}
    frame = _Frame(x, extents, [row_of[node] for node in range(count)], ports)
    ways = list[Way]()
    for index, chain in enumerate(layers.chains):
        points, up = frame.points(index, chain), index in layers.turned
        label = frame.middle(labels[index][0]) if index in labels else None
        ways.append(Way(points[::-1] if up else points, label, up))
    bottom = max((bottom for _, bottom in rows), default=0.0) + MARGIN
    return Placed(right - left, bottom, [frame.middle(n) for n in range(len(sizes))], ways)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where everything stands, by its number."""

    x: Sequence[float]
    extents: Sequence[tuple[float, float]]
    rows: Sequence[tuple[float, float]]
    """Top and bottom of the layer that each one stands in."""
    ports: Mapping[tuple[int, int, bool], float]

    def middle(self, node: int) -> tuple[float, float]:
        return self.x[node], sum(self.rows[node]) / 2

    def points(self, index: int, chain: Sequence[int]) -> list[tuple[float, float]]:
        """Return the points of an edge, top down."""
        first, last = chain[0], chain[-1]
        begins = self.x[first] + self.ports[index, first, True]
        ends = self.x[last] + self.ports[index, last, False]
        points = [
            (begins, self.middle(first)[1] + self.extents[first][1] / 2),
            (begins, self.rows[first][1]),
        ]
        for bend in chain[1:-1]:
            top, bottom = self.rows[bend]
            if bottom > top:  # a layer of nothing but bends need not be met at a point
                points += [(self.x[bend], top), (self.x[bend], bottom)]
        points += [
            (ends, self.rows[last][0]),
            (ends, self.middle(last)[1] - self.extents[last][1] / 2),
        ]
        return points


def _labelled(layers: Layers, lines: Sequence[Line]) -> dict[int, tuple[int, tuple[float, float]]]:
    """Return for each edge with a label the bend that carries it: the one next to its source."""
    return {
        index: (chain[-2] if index in layers.turned else chain[1], size)
        for index, chain in enumerate(layers.chains)
        if (size := lines[index].label_size) is not None
    }


def _ports(layers: Layers) -> dict[tuple[int, int, bool], float]:
    """Return how far from a node's middle each edge meets it, by edge, node and whether below."""
    place = {node: index for row in layers.order for index, node in enumerate(row)}
    met: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    for index, chain in enumerate(layers.chains):
        met.setdefault((chain[0], True), []).append((place[chain[1]], index))
        met.setdefault((chain[-1], False), []).append((place[chain[-2]], index))
    return {
        (index, node, below): (rank - (len(ends) - 1) / 2) * PORT
        for (node, below), ends in met.items()
        for rank, (_, index) in enumerate(sorted(ends))
    }


def _across(
    layers: Layers,
    extents: Sequence[tuple[float, float]],
    ports: Mapping[tuple[int, int, bool], float],
    nodes: int,
) -> list[float]:
    """Return the middle of everything, from left to right."""
    x = [0.0] * len(extents)
    above: list[list[tuple[int, float, float]]] = [[] for _ in extents]
    below: list[list[tuple[int, float, float]]] = [[] for _ in extents]
    for index, chain in enumerate(layers.chains):
        for upper, lower in pairwise(chain):
            shift = ports.get((index, upper, True), 0.0) - ports.get((index, lower, False), 0.0)
            weight = 1.0 + 2.0 * (upper >= nodes) + 2.0 * (lower >= nodes)
            above[lower].append((upper, shift, weight))
            below[upper].append((lower, -shift, weight))
    for row in layers.order:
        _settle(row, x, extents, [(0.0, 1.0)] * len(row))
    runs = _runs(layers, nodes)
    for step in range(_PASSES):
        late = step > _PASSES // 2
        for row in layers.order if step % 2 == 0 else layers.order[::-1]:
            wishes = list[tuple[float, float]]()
            for node in row:
                near = above[node] if step % 2 == 0 else below[node]
                near = [*above[node], *below[node]] if late or not near else near
                weight = sum(w for _, _, w in near)
                wish = sum((x[n] + s) * w for n, s, w in near) / weight if near else x[node]
                wishes.append((wish, weight or 0.1))
            _settle(row, x, extents, wishes)
        if late:
            _straighten(layers, x, extents, runs)
    # Lines that press on each other agree bit by bit: projections on two convex sets in turn.
    for _ in range(_PASSES):
        _straighten(layers, x, extents, runs)
    return x


def _runs(layers: Layers, count: int) -> list[list[int]]:
    """Return what should stand in one line: the bends of an edge, and nodes with one way on."""
    out, into = [0] * count, [0] * count
    for chain in layers.chains:
        out[chain[0]] += 1
        into[chain[-1]] += 1
    run_of = {node: [node] for row in layers.order for node in row}
    for chain in layers.chains:
        single = out[chain[0]] == 1 and into[chain[-1]] == 1
        line = chain if single else chain[1:-1]
        for upper, lower in pairwise(line):
            if run_of[upper] is not run_of[lower]:
                run_of[upper] += run_of[lower]
                run_of.update(dict.fromkeys(run_of[lower], run_of[upper]))
    return list({id(run): run for run in run_of.values() if len(run) > 1}.values())


def _straighten(
    layers: Layers,
    x: list[float],
    extents: Sequence[tuple[float, float]],
    runs: Sequence[Sequence[int]],
) -> None:
    """Move each run towards the mean of its places."""
    wish, weight = list(x), [1.0] * len(x)
    for run in runs:
        mean = sum(x[node] for node in run) / len(run)
        for node in run:
            wish[node], weight[node] = mean, float(len(run))
    for row in layers.order:
        _settle(row, x, extents, [(wish[node], weight[node]) for node in row])


def _settle(
    row: Sequence[int],
    x: list[float],
    extents: Sequence[tuple[float, float]],
    wishes: Iterable[tuple[float, float]],
) -> None:
    """Move a layer as near to its wishes as it gets, everything apart and in order."""
    offsets, offset = list[float](), 0.0
    for index, node in enumerate(row):
        if index:
            left, right = extents[row[index - 1]][0], extents[node][0]
            # Lines need less room between them than boxes do.
            bare = (not left) + (not right)
            offset += (left + right) / 2 + BESIDE * (1 - bare / 4)
        offsets.append(offset)
    blocks = list[tuple[float, float, int]]()  # mean, weight, how many
    for (wish, weight), offset in zip(wishes, offsets, strict=True):
        block = (wish - offset, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, heavy, many = blocks.pop()
            total = heavy + block[1]
            block = ((mean * heavy + block[0] * block[1]) / total, total, many + block[2])
        blocks.append(block)
    means = (mean for mean, _, many in blocks for _ in range(many))
    for node, mean, offset in zip(row, means, offsets, strict=True):
        x[node] = mean + offset


def _down(
    layers: Layers, extents: Sequence[tuple[float, float]], x: Sequence[float]
) -> list[tuple[float, float]]:
    """Return top and bottom of each layer; edges that go far to the side get more room to."""
    leans = [0.0] * len(layers.order)
    row_of = {node: index for index, row in enumerate(layers.order) for node in row}
    for chain in layers.chains:
        for upper, lower in pairwise(chain):
            lean = abs(x[upper] - x[lower])
            leans[row_of[lower]] = max(leans[row_of[lower]], lean)
    rows, top = list[tuple[float, float]](), MARGIN
    for index, row in enumerate(layers.order):
        height = max((extents[node][1] for node in row), default=0.0)
        top += (BETWEEN + min(leans[index] * 0.08, 40.0)) if index else 0.0
        rows.append((top, top + height))
        top += height
    return rows
