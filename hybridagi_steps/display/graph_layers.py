"""The order of a layered drawing: which node stands in which layer, and beside which other.

The first two steps of Sugiyama, Tagawa and Toda 1981, "Methods for visual understanding of
hierarchical system structures": loops are opened by turning round the edges that close them, every
node goes one layer below the lowest that leads to it (longest path), edges that span layers get a
bend in each, and sweeps of barycentres lower the number of crossings. Knows numbers only; sizes
and coordinates are the next step's, `graph_layout`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

SWEEPS = 24
"""Passes down and up; the order with the fewest crossings is kept."""

MOST_BESIDE = 8
"""Most nodes in a layer, so that a drawing is not wider than a page by far."""

Arc = tuple[int, int]


@dataclass(slots=True)
class Layers:
    """Nodes and bends in layers, top down; bends are numbered after the nodes."""

    order: list[list[int]]
    """For each layer what stands in it, left to right. Nodes stand in even layers."""
    chains: list[list[int]] = field(default_factory=list[list[int]])
    """For each arc what it passes, top down: a node, its bends, a node."""
    turned: set[int] = field(default_factory=set[int])
    """Arcs that lead up; their chains are top down all the same."""


def layered(count: int, arcs: Sequence[Arc]) -> Layers:
    """Return nodes in layers with few crossings; those that come first are placed first.

    No arc leads from a node to itself. Complexity: O(sweeps e log e) in the number of nodes and
    bends.
    """
    turned = _closing(count, arcs)
    down = [(b, a) if i in turned else (a, b) for i, (a, b) in enumerate(arcs)]
    depth = _depths(count, down)
    layer = [2 * level for level in depth]
    chains = list[list[int]]()
    for source, target in down:
        bends = range(len(layer), len(layer) + layer[target] - layer[source] - 1)
        layer += range(layer[source] + 1, layer[target])
        chains.append([source, *bends, target])
    return Layers(_few_crossings(layer, chains), chains, turned)


def _closing(count: int, arcs: Sequence[Arc]) -> set[int]:
    """Return the arcs that close a loop in a depth-first walk."""
    leaving: list[list[int]] = [[] for _ in range(count)]
    entered = [False] * count
    for index, (source, target) in enumerate(arcs):
        leaving[source].append(index)
        entered[target] = True
    closing, state = set[int](), [0] * count  # 0 not met, 1 on the way, 2 left behind
    for root in sorted(range(count), key=lambda node: entered[node]):
        if state[root]:
            continue
        state[root], path = 1, [(root, iter(leaving[root]))]
        while path:
            node, ahead = path[-1]
            index = next(ahead, None)
            if index is None:
                state[node] = 2
                path.pop()
                continue
            target = arcs[index][1]
            if state[target] == 1:
                closing.add(index)
            elif not state[target]:
                state[target] = 1
                path.append((target, iter(leaving[target])))
    return closing


def _depths(count: int, arcs: Sequence[Arc]) -> list[int]:
    """Return for each node the length of the longest way to it; late for nodes nothing leads to."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in arcs:
        before[target].append(source)
        after[source].append(target)
    depth = [0] * count
    for node in TopologicalSorter(dict(enumerate(before))).static_order():
        depth[node] = max((depth[other] + 1 for other in before[node]), default=0)
    first = [node for node in range(count) if not before[node]]
    for node in first:
        depth[node] = min((depth[target] for target in after[node]), default=1) - 1
    return _narrowed(depth, before, {node for node in first if not after[node]})


def _narrowed(depth: Sequence[int], before: Sequence[Sequence[int]], alone: Set[int]) -> list[int]:
    """Move nodes down out of layers that are too wide; those without any edge come last.

    A greedy form of Coffman and Graham 1972, "Optimal scheduling for two-processor systems".
    """
    narrow, beside = list(depth), Counter[int]()
    for node in sorted(range(len(depth)), key=lambda node: (node in alone, depth[node])):
        level = max((narrow[other] + 1 for other in before[node]), default=depth[node])
        level = max(beside, default=0) if node in alone else level
        while beside[level] >= MOST_BESIDE:
            level += 1
        narrow[node] = level
        beside[level] += 1
    return narrow


def _few_crossings(layer: Sequence[int], chains: Sequence[Sequence[int]]) -> list[list[int]]:
    above: list[list[int]] = [[] for _ in layer]
    below: list[list[int]] = [[] for _ in layer]
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    order = _first_order(layer, below)
    best, fewest = order, _crossings(order, below)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        order = [list(row) for row in order]
        if sweep % 2 == 0:
            for upper, row in pairwise(order):
                _sort(row, upper, above)
        else:
            for lower, row in zip(reversed(order), reversed(order[:-1]), strict=False):
                _sort(row, lower, below)
        if (crossings := _crossings(order, below)) < fewest:
            best, fewest = order, crossings
    return best


def _first_order(layer: Sequence[int], below: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return layers in the order of a depth-first walk, which keeps branches apart."""
    order: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    seen = [False] * len(layer)
    for root in sorted(range(len(layer)), key=lambda node: layer[node]):
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if not seen[node]:
                seen[node] = True
                order[layer[node]].append(node)
                waiting += reversed(below[node])
    return order


def _sort(row: list[int], fixed: Sequence[int], neighbours: Sequence[Sequence[int]]) -> None:
    """Sort a layer by the mean place of each one's neighbours in the layer beside it."""
    place = {node: float(index) for index, node in enumerate(fixed)}
    here = {node: float(index) for index, node in enumerate(row)}

    def mean(node: int) -> float:
        met = [place[other] for other in neighbours[node]]
        return sum(met) / len(met) if met else here[node]

    row.sort(key=mean)


def _crossings(order: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> int:
    """Return how many pairs of edges cross, by counting inversions between layers."""
    crossings = 0
    for upper, lower in pairwise(order):
        place = {node: index for index, node in enumerate(lower)}
        ends = list[int]()
        for node in upper:
            row = sorted(place[other] for other in below[node])
            crossings += sum(len(ends) - bisect_right(ends, end) for end in row)
            for end in row:
                insort(ends, end)
    return crossings
