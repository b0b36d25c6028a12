"""Layout of a layered drawing: where nodes stand, and the way that each edge takes.

After Sugiyama, Tagawa and Toda 1981, "Methods for visual understanding of hierarchical system
structures": loops are opened by turning round the edges that close them, a node goes a layer below
the lowest that leads to it, edges that span layers get a bend in each, and sweeps of barycentres
lower the crossings. Then each layer is moved towards its neighbours' means, in order and without
touching. Nodes and labels own the height of their layer and edges bend between layers only, so
nothing can lie on anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

BETWEEN, BESIDE, MARGIN = 15.0, 26.0, 10.0
"""Least distance of two layers, of two things in a layer, and of all to the border, in pixels."""
PORT = 16.0
"""Distance of two edges at a node."""
MOST_BESIDE = 8
"""Most nodes in a layer, so that a drawing is not wider than a page by far."""
_SWEEPS, _PASSES = 8, 40
_Size = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """An edge to place."""

    source: int
    target: int
    label_size: _Size | None = None
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


def place(sizes: Sequence[_Size], lines: Sequence[Line]) -> Placed:
    """Return where nodes of some sizes go, and edges, none of which leads to its own node.

    Complexity: O(p e log e) in the passes and the edges with their bends.
    """
    turned = _closing(len(sizes), lines)
    arcs = [
        (e.target, e.source) if i in turned else (e.source, e.target) for i, e in enumerate(lines)
    ]
    # Nodes stand in even layers, labels in the odd ones between.
    layer = [2 * depth for depth in _depths(len(sizes), arcs)]
    chains: list[list[int]] = []
    extents = list(sizes)
    for index, (source, target) in enumerate(arcs):
        bends = range(len(layer), len(layer) + layer[target] - layer[source] - 1)
        layer += range(layer[source] + 1, layer[target])
        extents += [(0.0, 0.0)] * len(bends)
        if size := lines[index].label_size:  # next to its source
            extents[bends[-1] if index in turned else bends[0]] = size
        chains.append([source, *bends, target])
    order = _ordered(layer, chains)
    ports = _ports(order, chains)
    x = _across(order, chains, extents, ports, len(sizes))
    left = min((x[n] - extents[n][0] / 2 for n in range(len(x))), default=0.0) - MARGIN
    right = max((x[n] + extents[n][0] / 2 for n in range(len(x))), default=0.0) + MARGIN
    x = [value - left for value in x]
    rows = _down(order, chains, extents, x)
    middles = [(x[n], sum(rows[layer[n]]) / 2) for n in range(len(x))]
    ways: list[Way] = []
    for index, (first, *bends, last) in enumerate(chains):
        begin, end = x[first] + ports[index, first], x[last] + ports[index, last]
        points = [
            (begin, middles[first][1] + extents[first][1] / 2),
            (begin, rows[layer[first]][1]),
        ]
        for bend in bends:
            top, bottom = rows[layer[bend]]
            points += [(x[bend], top), (x[bend], bottom)] if bottom > top else []
        points += [(end, rows[layer[last]][0]), (end, middles[last][1] - extents[last][1] / 2)]
        up = index in turned
        label = middles[bends[-1] if up else bends[0]] if lines[index].label_size else None
        ways.append(Way(points[::-1] if up else points, label, up))
    height = max((bottom for _, bottom in rows), default=0.0) + MARGIN
    return Placed(right - left, height, middles[: len(sizes)], ways)


def _closing(count: int, lines: Sequence[Line]) -> set[int]:
    """Return the edges that close a loop in a depth-first walk."""
    leaving: list[list[int]] = [[] for _ in range(count)]
    for index, line in enumerate(lines):
        leaving[line.source].append(index)
    targets = {line.target for line in lines}
    closing, state = set[int](), [0] * count  # 0 not met, 1 on the way, 2 left behind
    for root in sorted(range(count), key=lambda node: node in targets):
        path = [] if state[root] else [(root, iter(leaving[root]))]
        state[root] = state[root] or 1
        while path:
            node, ahead = path[-1]
            if (index := next(ahead, None)) is None:
                state[node] = 2
                path.pop()
            elif state[target := lines[index].target] == 1:
                closing.add(index)
            elif not state[target]:
                state[target] = 1
                path.append((target, iter(leaving[target])))
    return closing


def _depths(count: int, arcs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: below all that lead to it, where there is room.

    A greedy form of Coffman and Graham 1972, "Optimal scheduling for two-processor systems".
    Nodes that nothing leads to stand just above what follows; those without any edge come last.
    """
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in arcs:
        before[target].append(source)
        after[source].append(target)
    depth = [0] * count
    for node in TopologicalSorter(dict(enumerate(before))).static_order():
        depth[node] = max((depth[other] + 1 for other in before[node]), default=0)
    for node in range(count):
        if after[node] and not before[node]:
            depth[node] = min(depth[target] for target in after[node]) - 1
    beside = Counter[int]()
    for node in sorted(range(count), key=lambda n: (not (before[n] or after[n]), depth[n])):
        alone = max(beside, default=0) if not after[node] else depth[node]
        level = max((depth[other] + 1 for other in before[node]), default=alone)
        while beside[level] >= MOST_BESIDE:
            level += 1
        depth[node] = level
        beside[level] += 1
    return depth


def _ordered(layer: Sequence[int], chains: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return what stands in each layer, left to right: branches apart, then by barycentres."""
    above, below = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    order: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    met: set[int] = set()
    for root in sorted(range(len(layer)), key=layer.__getitem__):
        waiting = [root]
        while waiting:
            if (node := waiting.pop()) not in met:
                met.add(node)
                order[layer[node]].append(node)
                waiting += reversed(below[node])
    for sweep in range(_SWEEPS):
        up = sweep % 2
        for fixed, row in pairwise(order[::-1] if up else order):
            place = {node: float(index) for index, node in enumerate(fixed)}
            here = {node: float(index) for index, node in enumerate(row)}
            for node in row:
                if near := [place[other] for other in (below if up else above)[node]]:
                    here[node] = sum(near) / len(near)
            row.sort(key=here.__getitem__)
    return order


def _ports(
    order: Sequence[Sequence[int]], chains: Sequence[Sequence[int]]
) -> dict[tuple[int, int], float]:
    """Return how far from a node's middle each edge meets it, by edge and node."""
    place = {node: index for row in order for index, node in enumerate(row)}
    ends = defaultdict[tuple[int, bool], list[tuple[int, int]]](list)
    for index, chain in enumerate(chains):
        ends[chain[0], True].append((place[chain[1]], index))
        ends[chain[-1], False].append((place[chain[-2]], index))
    return {
        (index, node): (rank - (len(met) - 1) / 2) * PORT
        for (node, _), met in ends.items()
        for rank, (_, index) in enumerate(sorted(met))
    }


def _across(
    order: Sequence[Sequence[int]],
    chains: Sequence[Sequence[int]],
    extents: Sequence[_Size],
    ports: dict[tuple[int, int], float],
    nodes: int,
) -> list[float]:
    """Return the middle of everything; bends weigh more, so that long edges are straight."""
    x = [0.0] * len(extents)
    near = defaultdict[int, list[tuple[int, float, float]]](list)
    for index, chain in enumerate(chains):
        for upper, lower in pairwise(chain):
            shift = ports.get((index, upper), 0.0) - ports.get((index, lower), 0.0)
            weight = 1.0 + 2.0 * (upper >= nodes) + 2.0 * (lower >= nodes)
            near[lower].append((upper, shift, weight))
            near[upper].append((lower, -shift, weight))
    for step in range(_PASSES):
        for row in order if step % 2 == 0 else order[::-1]:
            wishes: list[tuple[float, float]] = []
            for node in row:
                weight = sum(w for _, _, w in near[node])
                total = sum((x[n] + s) * w for n, s, w in near[node])
                wishes.append((total / weight if weight else x[node], weight or 0.1))
            _settle(row, x, extents, wishes)
    return x


def _settle(
    row: Sequence[int],
    x: list[float],
    extents: Sequence[_Size],
    wishes: Iterable[tuple[float, float]],
) -> None:
    """Move a layer as near to its wishes as it gets, in order and apart.

    A weighted isotonic regression by pooling adjacent violators (Ayer et al. 1955).
    """
    offsets = [0.0]
    for before, node in pairwise(row):
        left, right = extents[before][0], extents[node][0]
        # Lines need less room between them than boxes do.
        offsets.append(
            offsets[-1] + (left + right) / 2 + BESIDE * (1 - ((not left) + (not right)) / 4)
        )
    blocks: list[tuple[float, float, int]] = []  # mean, weight, how many
    for (wish, weight), offset in zip(wishes, offsets, strict=False):
        block = (wish - offset, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, heavy, many = blocks.pop()
            total = heavy + block[1]
            block = ((mean * heavy + block[0] * block[1]) / total, total, many + block[2])
        blocks.append(block)
    means = (mean for mean, _, many in blocks for _ in range(many))
    for node, mean, offset in zip(row, means, offsets, strict=False):
        x[node] = mean + offset


def _down(
    order: Sequence[Sequence[int]],
    chains: Sequence[Sequence[int]],
    extents: Sequence[_Size],
    x: Sequence[float],
) -> list[tuple[float, float]]:
    """Return top and bottom of each layer; edges that go far to the side get more room to."""
    above = defaultdict[int, float](float)
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower] = max(above[lower], abs(x[upper] - x[lower]))
    rows: list[tuple[float, float]] = []
    top = MARGIN
    for row in order:
        lean = max((above[node] for node in row), default=0.0)
        top += BETWEEN + min(lean * 0.08, 40.0) if rows else 0.0
        rows.append((top, top + max((extents[node][1] for node in row), default=0.0)))
        top = rows[-1][1]
    return rows
