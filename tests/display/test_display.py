"""Steps and hits as HTML: what a notebook shows, and that hostile text stays text."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridagi_steps as hs
from hybridagi_steps.display import hits_html, step_html, steps_html
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepHit

CANARIES = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "</pre></details><iframe src=javascript:alert(1)>",
    "{{ 7 * 7 }}{% for x in y %}",
    "</style><style>*{display:none}",
    "&lt;b&gt;",
]


class Page(HTMLParser):
    """Collects tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


SAFE_TAGS = {"style", "div", "span", "details", "summary", "pre", "b", "i"}
SAFE_ATTRIBUTES = {"class", "open", "title", "style", "aria-hidden"}


def hostile_step(text: str) -> dict[str, Any]:
    return {
        "id": text,
        "parent_id": text,
        "hop": text,
        "step_type": text,
        "inputs": {text: text, "purpose": text, "tool": text, "arguments": {text: [text]}},
        "outputs": {"error": {"type": text, "message": text}},
        "metadata": {text: text},
        "status": text,
        "run_id": text,
        "program_id": text + "-other",
        "metrics": {"duration_ms": text, "model_name": text},
    }


def assert_harmless(page: Page) -> None:
    assert set(page.tags) <= SAFE_TAGS
    assert {name for name, _ in page.attributes} <= SAFE_ATTRIBUTES
    for name, value in page.attributes:
        if name == "style":
            assert value.removeprefix("width:").removesuffix("%").isdigit()
        if name == "class":
            assert all(word == "hs" or word.startswith("hs-") for word in value.split())


@pytest.mark.parametrize("text", CANARIES)
def test_hostile_text_is_shown_as_text(text: str) -> None:
    step = hostile_step(text)
    hit = {"step": step, "score": 0.5, "why": text, "context": [step]}
    for html in (step_html(step), steps_html([step], title=text), hits_html([hit])):
        page = Page(html)
        assert_harmless(page)
        assert text in page.text


@given(st.text(max_size=60))
def test_no_text_becomes_markup(text: str) -> None:
    assert_harmless(Page(steps_html([hostile_step(text)], title=text)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=8,
    )
)
def test_odd_data_is_shown_without_an_error(value: Any) -> None:
    names = ("id", "step_type", "inputs", "outputs", "metrics", "score", "hop", "program_id")
    step = dict.fromkeys(names, value) | {"metrics": {"duration_ms": value, "total_tokens": value}}
    assert "<div" in steps_html([step])
    assert "<div" in hits_html([{"step": step, "score": value, "dense_score": value}])


def test_nothing_is_loaded_and_nothing_runs() -> None:
    html = steps_html([step() for _ in range(3)]) + hits_html([])
    for forbidden in ("<script", "http://", "https://", "url(", "@import", "<link", "src="):
        assert forbidden not in html


def step(**fields: Any) -> dict[str, Any]:
    given = {"step_type": "Action", "inputs": {"purpose": "look up", "tool": "search"}, **fields}
    return AgentStep.model_validate(given).model_dump(mode="json")


def test_a_step_shows_what_it_did_and_what_it_cost() -> None:
    shown = Page(
        step_html(
            step(
                hop=7,
                outputs={"error": {"type": "TimeoutError", "message": "too slow"}},
                status="error",
                score=0.25,
                metrics={"duration_ms": 1234.0, "input_tokens": 1000, "output_tokens": 20},
            )
        )
    ).text
    for part in ("7", "Action", "search", "look up", "TimeoutError: too slow", "error"):
        assert part in shown
    assert "1.2 s · 1,020 tokens · score 0.25" in shown


def test_a_programs_steps_stand_inside_it() -> None:
    call = step(id="call", step_type="ProgramCall", inputs={"program": "Agent"})
    inner = step(id="inner", program_id="call", hop=1)
    outer = step(id="outer", hop=2)
    html = steps_html([call, inner, outer])
    inside = html.split('<div class="hs-inside">')[1].split("</details>\n</div>")[0]
    assert "look up" in inside
    assert html.count('<div class="hs-inside">') == 1
    assert "3 steps" in html


def test_a_step_that_follows_an_earlier_one_says_so() -> None:
    steps = [
        step(id="a", hop=1),
        step(id="b", hop=2, parent_id="a"),
        step(id="c", hop=3, parent_id="a"),
    ]
    assert Page(steps_html(steps)).text.count("after 1") == 1


def test_loops_and_endless_nesting_are_flattened() -> None:
    loop = [step(id="a", program_id="b"), step(id="b", program_id="a")]
    deep = [step(id=str(n), program_id=str(n - 1)) for n in range(150)]
    itself = [step(id="x", program_id="x")]
    for steps in (loop, deep, itself):
        assert steps_html(steps).count('hs-chip hs-action">') == len(steps)


def test_steps_with_the_same_id_are_all_shown() -> None:
    steps = [step(id="twin", hop=41), step(id="twin", hop=42)]
    shown = Page(steps_html(steps)).text
    assert "41" in shown
    assert "42" in shown


def test_long_lists_are_cut_and_stay_fast() -> None:
    steps = [step(id=str(n), inputs={"purpose": "p" * 3000}) for n in range(10_000)]
    started = time.process_time()
    html = steps_html(steps)
    assert time.process_time() - started < 10
    assert len(html) < 2_000_000
    assert "10,000 steps" in html
    assert "… and 9,800 more" in html


def test_a_long_value_is_cut_and_says_by_how_much() -> None:
    html = step_html(step(outputs={"result": "x" * 1_000_000}))
    assert len(html) < 20_000
    assert "more characters" in html


def test_hits_are_ranked_with_score_and_reason() -> None:
    hit = StepHit(
        step=AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "refund"}),
        score=0.875,
        dense_score=0.5,
        lexical_score=3.25,
        why="words: refund",
        context=[AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "before"})],
    )
    html = hits_html([hit.model_dump(mode="json")])
    shown = Page(html).text
    assert "width:88%" in html
    for part in ("1 hit", "0.875", "words: refund", "meaning 0.50 · words 3.25", "1 around it"):
        assert part in shown


def test_no_hits_say_so() -> None:
    assert "no hits" in hits_html([])


def test_records_show_themselves_in_a_notebook() -> None:
    made = AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "<b>bold</b>"})
    assert "&lt;b&gt;bold" in made._repr_html_()
    assert "&lt;b&gt;bold" in StepHit(step=made, score=1.0)._repr_html_()


class Broken:
    """An object that cannot be described."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def cycle() -> dict[str, Any]:
    """A value that holds itself."""
    held: dict[str, Any] = {"word": "round"}
    held["again"] = held
    return held


ODD: list[Any] = [
    object(),
    Broken(),
    [Broken()],
    {Broken(): Broken()},
    {("a", 1): {1: 2}},
    cycle(),
    np.ones(3),
    b"bytes",
    {1, 2},
    10**400,
    "\ud800",
    Path("a"),
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_any_value_in_any_place_is_shown(value: Any) -> None:
    odd: dict[str, Any] = dict.fromkeys(hostile_step(""), value)
    inside = {
        "inputs": {"purpose": value, "tool": value, "program": value},
        "outputs": {"a": value},
    }
    failed = {"outputs": {"error": {"type": value, "message": value}}, "metrics": {"cost": value}}
    for given_step in (odd, inside, failed, {"step_type": "ProgramCall", **inside}):
        assert "<div" in step_html(given_step)
        html = steps_html([given_step, given_step])
        assert "<div" in html
        html.encode()
    assert "<div" in hits_html([{"step": odd, "score": value, "why": value, "context": value}])
    assert "<div" in hits_html([{"step": value, "context": [value]}])


def test_outputs_that_became_an_object_or_a_cycle_are_shown() -> None:
    made = AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "refund"})
    for value in (object(), cycle(), Broken()):
        made.outputs = {"result": value}
        assert "refund" in made._repr_html_()
        assert "refund" in StepHit(step=made, score=1.0)._repr_html_()
    assert "round" in step_html({"step_type": "Action", "outputs": cycle()})


def test_lists_of_steps_print_as_a_tree_and_what_was_found_as_a_table() -> None:
    with hs.StepMemory(":memory:") as memory:
        asked = {"purpose": "refund", "tool": "refund", "arguments": {"code": "HAT042"}}
        for run_id in ("monday", "tuesday"):
            memory.add(
                hs.AgentStep(
                    step_type=hs.AgentStepType.Action,
                    inputs=asked,
                    outputs={"result": "done"},
                    run_id=run_id,
                )
            )
        one, both = memory.run("monday"), memory.find()
        assert str(one) == "run monday  1 step\n└── 0 Action refund  HAT042  → done" == repr(one)
        assert str(both).splitlines()[0] == "2 steps"
        assert str(memory.find({"run_id": "none"})) == "no steps"
        found = hs.StepRetriever(memory, k=1)("refund")
        assert str(found) == str(memory.search("refund", k=1))
