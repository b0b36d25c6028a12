"""Graphs as SVG: programs, plans, anything with nodes and arrows.

Plain dicts in, one self-contained `<svg>` out: no script, no style sheet, no address, nothing
loaded. Kinds differ in shape and in tint; lines and words take the page's own text colour, so that
light and dark pages both work. Every text is escaped, cut to fit, and whole in the tooltip.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

from hybridagi_steps.display.graph_layout import PORT, Line, Placed, Way, place

MAX_DRAWN = 300
"""Most nodes drawn; how many more there are is said below."""

_NAME, _SMALL, _LABEL = 13.0, 11.0, 11.0
_WIDEST, _NARROWEST = 210.0, 64.0
_INSIDE = {"box": 14.0, "pill": 18.0, "hexagon": 24.0, "call": 22.0}
_LOOP, _CUT = 30.0, 14.0
"""Room of an edge from a node to itself; how far a hexagon's corners are cut."""


class _Look(NamedTuple):
    shape: str
    colour: str


_LOOKS = {
    "control": _Look("pill", "#8a8f98"),
    "action": _Look("box", "#3884ff"),
    "decision": _Look("hexagon", "#a866ff"),
    "program": _Look("call", "#16a374"),
    "analyze": _Look("hexagon", "#a866ff"),
    "generate": _Look("box", "#3884ff"),
    "modify": _Look("box", "#d98200"),
    "validate": _Look("call", "#16a374"),
    "cleanup": _Look("pill", "#8a8f98"),
    "error": _Look("box", "#e5484d"),
}
"""How each kind is drawn; a kind that is not listed is a grey box."""
_OTHER = _Look("box", "#8a8f98")
_STATES = {
    "": 'fill-opacity=".16" stroke-width="1.5"',
    "idle": 'fill-opacity=".05" stroke-width="1.2" stroke-opacity=".6"',
    "done": 'fill-opacity=".26" stroke-width="2.8"',
    "running": 'fill-opacity=".26" stroke-width="2.8" stroke-dasharray="7 4"',
}
"""How a node is painted by what became of it; what its text says must not depend on that alone."""
IN_A_CELL = "max-width:100%;height:auto;color:inherit"


class _Arrow(NamedTuple):
    source: int
    target: int
    label: str
    taken: bool

    @property
    def line(self) -> str:
        """How it is painted."""
        wide, dark = (2.8, 0.95) if self.taken else (1.3, 0.55)
        return f'fill="none" stroke="currentColor" stroke-opacity="{dark}" stroke-width="{wide}"'


class _Drawn(NamedTuple):
    look: _Look
    paint: str
    ref: str
    name: list[str]
    detail: list[str]
    title: str
    width: float
    height: float
    loops: list[str]


def graph_svg(
    nodes: Sequence[Mapping[str, Any]],
    edges: Sequence[Mapping[str, Any]],
    *,
    title: str = "",
    limit: int = MAX_DRAWN,
    style: str = IN_A_CELL,
) -> str:
    """Return a directed graph as an SVG drawing, top down.

    Args:
        nodes: One dict each: `id`; `label`, what stands on it (the id if missing); `kind`, which
            gives shape and tint (see the table of this module; unknown kinds are grey boxes);
            `detail`, a smaller text below the label; `title`, the tooltip; `state`, what became of
            it: `idle`, `done` or `running`; `ref`, a step's id, with which it can be chosen.
        edges: One dict each: `source` and `target`, ids of nodes; `label`; `taken`, whether it is
            drawn as a way that was gone. Edges of nodes that are not given are left out.
        title: What a screen reader says of the whole; by default its numbers of nodes and edges.
        limit: Most nodes drawn.
        style: Of the whole drawing; none for a page whose policy forbids it.

    Complexity: grows with the number of edges times the layers they span.
    """
    given = list({str(node["id"]): node for node in nodes}.values())[:limit]
    hidden = len({str(node["id"]) for node in nodes}) - len(given)
    index = {str(node["id"]): number for number, node in enumerate(given)}
    kept = [
        _Arrow(
            index[str(edge["source"])],
            index[str(edge["target"])],
            str(edge.get("label") or ""),
            bool(edge.get("taken")),
        )
        for edge in edges
        if str(edge["source"]) in index and str(edge["target"]) in index
    ]
    drawn = [_prepared(number, node, kept) for number, node in enumerate(given)]
    between = [edge for edge in kept if edge.source != edge.target]
    labels = [wrapped(edge.label, _WIDEST, _LABEL, lines=2) for edge in between]
    sizes = [(node.width + 2 * _room(node.loops), node.height) for node in drawn]
    placed = place(
        sizes,
        [
            Line(edge.source, edge.target, _label_size(label))
            for edge, label in zip(between, labels, strict=True)
        ],
    )
    spoken = title or f"A graph of {len(given)} nodes and {len(kept)} edges"
    pieces = [
        *(
            _edge(way, lines, edge)
            for way, lines, edge in zip(placed.ways, labels, between, strict=True)
        ),
        *(_node(node, x, y) for node, (x, y) in zip(drawn, placed.centres, strict=True)),
    ]
    return _document(pieces, placed, spoken, hidden, style)


def _document(pieces: Sequence[str], placed: Placed, spoken: str, hidden: int, style: str) -> str:
    more = f"… and {hidden:,} more nodes" if hidden else ""
    width = max(placed.width, text_width(more, _SMALL) + 20)
    height = placed.height + (20 if hidden else 0)
    note = _words([more], 10, height - 12, _SMALL, anchor="start") if more else ""
    spoken = escape(shown(spoken))
    role = "img" if style else "group"  # in a page its nodes can be chosen
    styled = f'style="{escape(style)}" ' if style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="{role}" aria-label="{spoken}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'{styled}fill="currentColor" '
        'font-family="system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif">'
        f"<title>{spoken}</title>{''.join(pieces)}{note}</svg>"
    )


def _prepared(number: int, node: Mapping[str, Any], edges: Sequence[_Arrow]) -> _Drawn:
    """Return a node's texts, cut to fit, and the size that they and its edges need."""
    look = _LOOKS.get(str(node.get("kind") or "").lower(), _OTHER)
    label = str(node.get("label") or node["id"])
    name = wrapped(label, _WIDEST, _NAME, lines=2, bold=True)
    detail = wrapped(str(node.get("detail") or ""), _WIDEST, _SMALL, lines=2)
    widths = [text_width(line, _NAME, bold=True) for line in name]
    widths += [text_width(line, _SMALL) for line in detail]
    out = sum(edge.source == number != edge.target for edge in edges)
    into = sum(edge.target == number != edge.source for edge in edges)
    inside = _INSIDE[look.shape]
    width = max(_NARROWEST, max(widths, default=0.0) + 2 * inside)
    width = max(width, max(out, into) * PORT + 2 * inside)
    height = 16.0 + 17.0 * len(name) + 15.0 * len(detail)
    loops = [edge.label for edge in edges if edge.source == edge.target == number]
    title = str(node.get("title") or label)
    state = _STATES[str(node.get("state") or "")]
    paint = f'fill="{look.colour}" stroke="{look.colour}" {state}'
    ref = str(node.get("ref") or "")
    return _Drawn(look, paint, ref, name, detail, title, width, height, loops)


def _room(loops: Sequence[str]) -> float:
    """Return the width that edges from a node to itself take at its side."""
    if not loops:
        return 0.0
    texts = (text_width(_loop_text(text), _LABEL) for text in loops)
    return _LOOP + max(texts) + 6


def _loop_text(text: str) -> str:
    return "".join(wrapped(text, 110.0, _LABEL, lines=1))


def _label_size(lines: Sequence[str]) -> tuple[float, float] | None:
    if not lines:
        return None
    return max(text_width(line, _LABEL) for line in lines) + 14, 14.0 * len(lines) + 5


def _node(node: _Drawn, x: float, y: float) -> str:
    top = y - node.height / 2 + 8
    named = _words(node.name, x, top, _NAME, bold=True)
    detailed = _words(node.detail, x, top + 17 * len(node.name), _SMALL)
    loops = "".join(_self_loop(node, x, y, number, text) for number, text in enumerate(node.loops))
    title = escape(shown(node.title, lines=True))
    chosen = f' data-step="{escape(node.ref)}" tabindex="0" role="button"' if node.ref else ""
    return (
        f"<g{chosen}><title>{title}</title>"
        f"{''.join(_shape(node, x, y))}{named}{detailed}{loops}</g>"
    )


def _shape(node: _Drawn, x: float, y: float) -> Iterator[str]:
    left, top = x - node.width / 2, y - node.height / 2
    right, bottom = left + node.width, top + node.height
    paint = node.paint
    if node.look.shape == "hexagon":
        corners = [(left + _CUT, top), (right - _CUT, top), (right, y)]
        corners += [(right - _CUT, bottom), (left + _CUT, bottom), (left, y)]
        listed = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        yield f'<polygon points="{listed}" {paint} stroke-linejoin="round"/>'
        return
    radius = {"pill": node.height / 2, "call": 2.0}.get(node.look.shape, 8.0)
    yield (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" '
        f'height="{node.height:.1f}" rx="{radius:.1f}" {paint}/>'
    )
    if node.look.shape == "call":
        bars = "".join(f"M{a:.1f} {top:.1f}V{bottom:.1f}" for a in (left + 7, right - 7))
        yield f'<path d="{bars}" fill="none" {paint[paint.index("stroke=") :]}/>'


def _edge(way: Way, label: Sequence[str], edge: _Arrow) -> str:
    """Return an edge: curves between layers, straight lines across them, a head, a label."""
    ahead = -1.0 if way.upward else 1.0
    tip = way.points[-1]
    stops = [*way.points[:-1], (tip[0], tip[1] - 7 * ahead)]
    pieces = (_piece(a, b, way, _label_size(label)) for a, b in pairwise(stops))
    path = f"M{stops[0][0]:.1f} {stops[0][1]:.1f}{''.join(pieces)}"
    dashes = ' stroke-dasharray="5 4"' if way.upward else ""
    line = f'<path d="{path}" {edge.line}{dashes}/>'
    return f"<g>{line}{_head(tip, ahead, edge.taken)}{_label(way, label, edge.label)}</g>"


def _piece(
    here: tuple[float, float],
    there: tuple[float, float],
    way: Way,
    label_size: tuple[float, float] | None,
) -> str:
    """Return an edge from one point to the next, interrupted where its label stands."""
    (x, y), (to_x, to_y) = here, there
    if way.label and label_size and min(y, to_y) < way.label[1] < max(y, to_y):
        half = label_size[1] / 2 if to_y > y else -label_size[1] / 2
        return f"V{way.label[1] - half:.1f}M{x:.1f} {way.label[1] + half:.1f}V{to_y:.1f}"
    if abs(x - to_x) < 0.05:
        return f"V{to_y:.1f}"
    half_way = (y + to_y) / 2
    return f"C{x:.1f} {half_way:.1f} {to_x:.1f} {half_way:.1f} {to_x:.1f} {to_y:.1f}"


def _head(tip: tuple[float, float], ahead: float, taken: bool) -> str:
    x, y = tip
    half, long, dark = (6, 10, 0.95) if taken else (4, 8, 0.7)
    back = f"L{x - half:.1f} {y - long * ahead:.1f}H{x + half:.1f}Z"
    return f'<path d="M{x:.1f} {y:.1f}{back}" fill-opacity="{dark:g}"/>'


def _label(way: Way, label: Sequence[str], whole: str) -> str:
    size = _label_size(label)
    if way.label is None or size is None:
        return ""
    x, y = way.label
    left, top = x - size[0] / 2, y - size[1] / 2
    return (
        f"<g><title>{escape(shown(whole, lines=True))}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" '
        f'rx="9" fill-opacity=".1"/>{_words(label, x, top + 2.5, _LABEL, step=14.0)}</g>'
    )


def _self_loop(node: _Drawn, x: float, y: float, number: int, text: str) -> str:
    half = node.height / 2 - 6
    slant = _CUT * half / (node.height / 2) if node.look.shape == "hexagon" else 0.0
    right = x + node.width / 2 - slant
    far = right + _LOOP - 4 + 4 * number
    line = (
        f'<path d="M{right:.1f} {y + half:.1f}C{far:.1f} {y + half:.1f} {far:.1f} {y - half:.1f} '
        f'{right + 7:.1f} {y - half:.1f}" fill="none" stroke="currentColor" '
        'stroke-opacity=".55" stroke-width="1.3" stroke-dasharray="5 4"/>'
        f'<path d="M{right:.1f} {y - half:.1f}l8 -4v8Z" fill-opacity=".7"/>'
    )
    top = y - 7 + 14 * (number - (len(node.loops) - 1) / 2)
    return line + _words([_loop_text(text)], far, top, _LABEL, anchor="start")


def _words(
    lines: Sequence[str],
    x: float,
    top: float,
    size: float,
    *,
    bold: bool = False,
    anchor: str = "middle",
    step: float | None = None,
) -> str:
    """Return lines of text, the first one's box beginning at `top`."""
    high = step or (17.0 if bold else 15.0)
    weight = ' font-weight="600"' if bold else ""
    faint = "" if bold else ' fill-opacity=".8"'
    return "".join(
        f'<text x="{x:.1f}" y="{top + high * number + high * 0.75:.1f}" font-size="{size:g}" '
        f'text-anchor="{anchor}"{weight}{faint}>{escape(line)}</text>'
        for number, line in enumerate(lines)
        if line
    )


_NARROW, _SLIM, _WIDE = set("iljI.,:;'|!`[](){}/\\"), set('frt-" *'), set("mwMW@%&—…→")


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return about how many pixels wide a line of text is, rather too many than too few."""
    return sum(map(_share, text)) * size * (1.08 if bold else 1.0)


def _share(character: str) -> float:
    if character in _NARROW:
        return 0.33
    if character in _SLIM:
        return 0.42
    if character in _WIDE:
        return 0.98
    if character.isascii():
        return 0.72 if character.isupper() else 0.6
    if unicodedata.combining(character):
        return 0.0
    return 1.1 if unicodedata.east_asian_width(character) in "WF" else 0.75


def shown(text: str, *, lines: bool = False) -> str:
    """Return a text without what XML forbids or no eye can see; `lines` keeps line ends."""
    return "".join(_seen(character, lines) for character in text)


def _seen(character: str, lines: bool) -> str:
    if character.isprintable() or (lines and character == "\n"):
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def wrapped(text: str, width: float, size: float, *, lines: int, bold: bool = False) -> list[str]:
    """Return a text as lines that fit, the last one cut with an ellipsis if there is more.

    Lines break at blanks, and inside words that are longer than a line.
    """
    # A line holds a few dozen characters: of a prompt of megabytes only the beginning matters.
    words = shown(text[:2_000]).split()
    done, line = list[str](), ""
    while words and len(done) < lines:
        word = words.pop(0)
        longer = f"{line} {word}" if line else word
        if text_width(longer, size, bold=bold) <= width:
            line = longer
        elif line:
            done.append(line)
            line = ""
            words.insert(0, word)
        else:
            fit = _fitting(word, width, size, bold)
            done.append(word[:fit])
            words.insert(0, word[fit:])
    if line and len(done) < lines:
        done.append(line)
        return done
    return [*done[:-1], _cut(done[-1], width, size, bold)] if words and done else done


def _fitting(word: str, width: float, size: float, bold: bool) -> int:
    fit = 1
    while fit < len(word) and text_width(word[: fit + 1], size, bold=bold) <= width:
        fit += 1
    return fit


def _cut(line: str, width: float, size: float, bold: bool) -> str:
    while line and text_width(f"{line}…", size, bold=bold) > width:
        line = line[:-1]
    return f"{line.rstrip()}…"
