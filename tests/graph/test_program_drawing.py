"""Drawings: whole, harmless, readable to people and screen readers, nothing on top of another."""

from __future__ import annotations

import random
import sys
import time
from itertools import combinations
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridagi_steps.display.graph import graph_svg, shown, text_width, wrapped
from hybridagi_steps.display.graph_layout import BESIDE, Line, place
from hybridagi_steps.display.mermaid import graph_mermaid
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program

SVG = "{http://www.w3.org/2000/svg}"
CANARIES = [
    "<script>alert(1)</script>",
    '" onload="alert(1)" x="',
    "' onmouseover='alert(1)",
    "</title></svg><img src=x onerror=alert(1)>",
    "]]><!--",
    "&lt;b&gt; &#60;i>",
    "javascript:alert(1)",
]
SAFE_TAGS = {"svg", "title", "g", "rect", "polygon", "path", "text"}


def parsed(svg: str) -> ElementTree.Element:
    """Return a drawing as XML; a drawing that is none raises."""
    return ElementTree.fromstring(svg)  # noqa: S314


def texts(svg: str) -> str:
    return " ".join(element.text or "" for element in parsed(svg).iter(f"{SVG}text"))


def titles(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}title")]


def sample(text: str = "Say it") -> GraphProgram:
    program = GraphProgram("main", text)
    program.add(Decision("d", text, text)).add(Action("a", text, text, text))
    program.add(Program("p", text, text))
    program.connect("start", "d").connect("d", "a", label="YES").connect("d", "p", label=text)
    return program.connect("a", "end").connect("p", "d").connect("d", "d", label="WAIT")


def random_graph(count: int, seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return a graph with loops, long edges, parallel edges and labels."""
    chance = random.Random(seed)
    kinds = ["control", "action", "decision", "program", "odd"]
    nodes = [
        {
            "id": f"n{number}",
            "label": "node " * chance.randint(1, 6) + str(number),
            "kind": chance.choice(kinds),
            "detail": "some detail " * chance.randint(0, 8),
        }
        for number in range(count)
    ]
    edges = [{"source": f"n{n}", "target": f"n{n + 1}", "label": ""} for n in range(count - 1)]
    for _ in range(count):
        ends = (f"n{chance.randrange(count)}", f"n{chance.randrange(count)}")
        label = chance.choice(["", "YES", "MAYBE LATER", "A LABEL THAT IS LONG " * 4])
        edges.append({"source": ends[0], "target": ends[1], "label": label})
    return nodes, edges


Box = tuple[float, float, float, float]


def boxes(svg: str) -> list[Box]:
    """Return left, top, right, bottom of every node and label."""
    found = list[Box]()
    for element in parsed(svg).iter():
        if element.tag == f"{SVG}rect":
            x, y, wide, high = (float(element.attrib[k]) for k in ("x", "y", "width", "height"))
            found.append((x, y, x + wide, y + high))
        if element.tag == f"{SVG}polygon":
            points = [pair.split(",") for pair in element.attrib["points"].split()]
            across, down = [float(x) for x, _ in points], [float(y) for _, y in points]
            found.append((min(across), min(down), max(across), max(down)))
    return found


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("count", [3, 8, 20, 40])
@pytest.mark.parametrize("seed", range(4))
class TestNothingLiesOnAnything:
    def test_nodes_and_labels_keep_apart_and_inside(self, count: int, seed: int) -> None:
        svg = graph_svg(*random_graph(count, seed))
        found = boxes(svg)
        assert len(found) > count
        assert not [pair for pair in combinations(found, 2) if overlap(*pair)]
        wide, high = (float(number) for number in parsed(svg).attrib["viewBox"].split()[2:])
        assert all(b[0] >= 0 and b[1] >= 0 and b[2] <= wide and b[3] <= high for b in found)

    def test_edges_pass_beside_the_nodes(self, count: int, seed: int) -> None:
        """Where an edge crosses a layer it keeps its distance from what stands there."""
        nodes, edges = random_graph(count, seed)
        ends = [(int(e["source"][1:]), int(e["target"][1:])) for e in edges]
        lines = [Line(a, b) for a, b in ends if a != b]
        sizes = [(60.0 + 5 * n, 30.0 + n) for n in range(len(nodes))]
        placed = place(sizes, lines)
        for line, way in zip(lines, placed.ways, strict=True):
            passed = way.points[2:-2]
            for number, (x, y) in enumerate(placed.centres):
                if number in (line.source, line.target):
                    continue
                beside = [px for px, py in passed if abs(py - y) <= sizes[number][1] / 2]
                assert all(
                    abs(px - x) >= sizes[number][0] / 2 + BESIDE * 0.75 - 0.01 for px in beside
                )


class TestLayout:
    def test_what_follows_stands_below_and_loops_lead_up(self) -> None:
        lines = [Line(0, 1), Line(1, 2), Line(2, 3), Line(3, 1)]
        placed = place([(80.0, 40.0)] * 4, lines)
        down = [y for _, y in placed.centres]
        assert down == sorted(down)
        assert [way.upward for way in placed.ways] == [False, False, False, True]
        assert placed.ways[3].points[0][1] > placed.ways[3].points[-1][1]

    def test_a_straight_program_is_drawn_straight(self) -> None:
        placed = place([(80.0 + n, 40.0) for n in range(6)], [Line(n, n + 1) for n in range(5)])
        assert len({round(x, 3) for x, _ in placed.centres}) == 1

    def test_edges_that_need_not_cross_do_not(self) -> None:
        placed = place([(40.0, 40.0)] * 6, [Line(0, 3), Line(1, 2), Line(5, 4)])
        across = [x for x, _ in placed.centres]
        assert (across[0] < across[1]) == (across[3] < across[2])

    @pytest.mark.parametrize("joined", [True, False])
    def test_many_nodes_side_by_side_are_broken_into_rows(self, joined: bool) -> None:
        lines = [Line(0, n) for n in range(1, 41)] + [Line(n, 41) for n in range(1, 41)]
        placed = place([(150.0, 50.0)] * 42, lines if joined else [])
        assert placed.width < 40 * (150 + BESIDE) / 2
        assert placed.height < 25 * 50

    def test_nodes_without_an_edge_come_last_and_first_comes_first(self) -> None:
        placed = place([(80.0, 40.0)] * 12, [Line(0, 1), Line(1, 2)])
        down = [y for _, y in placed.centres]
        assert down[0] < down[1] < down[2] <= min(down[3:])

    def test_many_nodes_take_little_time(self) -> None:
        nodes, edges = random_graph(40, 7)
        start = time.process_time()
        graph_svg(nodes, edges)
        assert time.process_time() - start < 5

    def test_a_chain_of_thousands_is_no_problem(self) -> None:
        lines = [Line(n, n + 1) for n in range(3_000)]
        assert len(place([(50.0, 20.0)] * 3_001, lines).centres) == 3_001


class TestDrawing:
    def test_it_is_accessible_and_loads_nothing(self) -> None:
        svg = sample()._repr_html_()  # pyright: ignore[reportPrivateUsage]
        root = parsed(svg)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"] == "main: Say it"
        assert root[0].tag == f"{SVG}title"
        assert root[0].text == "main: Say it"
        assert svg.count("http") == 1  # the namespace
        assert "url(" not in svg

    def test_it_takes_the_colours_of_the_page(self) -> None:
        svg = graph_svg([{"id": "a"}, {"id": "b"}], [{"source": "a", "target": "b"}])
        assert parsed(svg).attrib["fill"] == "currentColor"
        assert "black" not in svg
        assert "white" not in svg

    def test_kinds_differ_in_shape_and_in_colour(self) -> None:
        looks = set[tuple[Any, ...]]()
        for kind in ("control", "action", "decision", "program"):
            svg = graph_svg([{"id": "same", "kind": kind}], [])
            shapes = [
                e for e in parsed(svg).iter() if e.tag != f"{SVG}text" and "stroke" in e.attrib
            ]
            looks.add((*(e.tag for e in shapes), shapes[0].attrib.get("rx")))
            looks.add((shapes[0].attrib["stroke"],))
        assert len(looks) == 8

    def test_every_node_and_label_can_be_read(self) -> None:
        svg = sample()._repr_html_()  # pyright: ignore[reportPrivateUsage]
        assert {"start", "end", "d", "a", "p", "YES", "WAIT"} <= set(texts(svg).split())

    def test_a_long_text_is_cut_and_whole_in_the_tooltip(self) -> None:
        prompt = "word " * 200 + "last"
        program = GraphProgram("main").add(Decision("d", "Why", prompt))
        svg = program._repr_html_()  # pyright: ignore[reportPrivateUsage]
        assert "…" in texts(svg)
        assert "last" not in texts(svg)
        assert any(title.endswith("last") for title in titles(svg))

    def test_edges_of_nodes_that_are_not_there_are_left_out(self) -> None:
        program = sample().connect("nobody", "a").connect("a", "no one")
        assert "nobody" not in program._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def test_what_is_too_much_is_counted(self) -> None:
        nodes = [{"id": str(number)} for number in range(40)]
        svg = graph_svg(nodes, [], limit=12)
        assert "28 more nodes" in texts(svg)
        assert len(boxes(svg)) == 12

    def test_no_nodes_at_all(self) -> None:
        assert parsed(graph_svg([], [])).attrib["aria-label"] == "A graph of 0 nodes and 0 edges"

    def test_the_same_graph_is_drawn_the_same(self) -> None:
        assert graph_svg(*random_graph(20, 1)) == graph_svg(*random_graph(20, 1))


class TestHostileText:
    @pytest.mark.parametrize("text", CANARIES)
    def test_text_stays_text(self, text: str) -> None:
        program = sample(text)
        program.add(Action(text, text, text, text)).connect("a", text, label=text)
        program.connect(text, text, label=text)
        program.name = text
        svg = program._repr_html_()  # pyright: ignore[reportPrivateUsage]
        for element in parsed(svg).iter():
            assert element.tag.removeprefix(SVG) in SAFE_TAGS
            assert not [name for name in element.attrib if name.startswith(("on", "href", "{"))]
        assert any(text in title for title in titles(svg))

    @given(st.text(), st.text(max_size=30))
    @settings(max_examples=50, deadline=None)
    def test_any_text_makes_a_whole_drawing(self, text: str, label: str) -> None:
        nodes = [{"id": text, "detail": text, "title": text, "kind": text}, {"id": text + "2"}]
        edges = [{"source": text, "target": text + "2", "label": label}]
        edges.append({"source": text, "target": text, "label": label})
        svg = graph_svg(nodes, edges, title=text)
        assert parsed(svg).tag == f"{SVG}svg"
        svg.encode()

    def test_what_a_file_or_an_eye_cannot_hold_is_replaced(self) -> None:
        assert shown("a\x00b\ud800c\u202ed\u2028e\n") == "a\ufffdb\ufffdc\ufffdd e "
        assert shown("a\nb", lines=True) == "a\nb"


class TestMermaid:
    def test_a_program_is_a_flowchart(self) -> None:
        lines = sample().to_mermaid().splitlines()
        assert lines[0] == "flowchart TD"
        assert {'    n0(["start"])', '    n2{{"d"}}', '    n3["a"]', '    n4[["p"]]'} <= set(lines)
        assert {"    n0 --> n2", '    n2 -->|"YES"| n3', '    n2 -->|"WAIT"| n2'} <= set(lines)

    def test_a_plan_is_a_flowchart(self) -> None:
        plan = Plan.parse("STEP: a\nGOAL: g\nSTEP: b\nGOAL: g\nDEPENDENCIES: a, c", check=False)
        assert plan.to_mermaid() == 'flowchart TD\n    n0["a"]\n    n1["b"]\n    n0 --> n1\n'

    @pytest.mark.parametrize("text", [*CANARIES, 'a"] --> b["', "`code` **bold**", "x\ny", "#35;"])
    def test_text_stays_text(self, text: str) -> None:
        drawn = graph_mermaid([{"id": text}], [{"source": text, "target": text, "label": text}])
        head, node, edge = drawn.splitlines()
        assert head == "flowchart TD"
        assert set(node.removeprefix('    n0["').removesuffix('"]')).isdisjoint('"<>[]{}()`&*|\n')
        assert edge.count('"') == 2
        assert edge.startswith('    n0 -->|"')


class TestText:
    def test_lines_fit(self) -> None:
        for text in ("some words that go on and on " * 9, "W" * 300, "日本語" * 80, "a b " * 99):
            lines = wrapped(text, 120.0, 11.0, lines=2)
            assert len(lines) == 2
            assert lines[1].endswith("…")
            assert all(text_width(line, 11.0) <= 120.0 for line in lines)

    def test_what_fits_is_not_touched(self) -> None:
        assert wrapped("two words", 120.0, 11.0, lines=2) == ["two words"]
        assert wrapped("", 120.0, 11.0, lines=2) == []

    def test_a_prompt_of_megabytes_costs_nothing(self) -> None:
        text, start = "word " * 1_000_000, time.process_time()
        for _ in range(20):  # read to its end, each would take a second
            wrapped(text, 120.0, 11.0, lines=2)
        assert time.process_time() - start < 5


class TestShow:
    def test_a_terminal_gets_the_text_form(self, capsys: pytest.CaptureFixture[str]) -> None:
        sample().show()
        assert capsys.readouterr().out.strip() == sample().to_cypher().strip()

    def test_a_notebook_gets_the_drawing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        displayed = list[Any]()
        shell = SimpleNamespace(kernel=object())
        ipython: Any = SimpleNamespace(get_ipython=lambda: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        display: Any = SimpleNamespace(display=displayed.append)
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        program = sample()
        program.show()
        assert displayed == [program]
        assert capsys.readouterr().out == ""
