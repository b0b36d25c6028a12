"""The page in a real browser: graphs, the map, the outlook, titles, the tree's keys, both schemes.

Needs playwright and a Chromium of the system; nothing is downloaded.
"""

# Neither Playwright's objects nor DSPy are typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportMissingImports=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportArgumentType=false
# ruff: noqa: F811 - fixtures are named as what is given

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hybridagi_steps as hs

pytest.importorskip("fastapi", reason="the page is served by the extra `server`")
pytest.importorskip("playwright.sync_api", reason="drives a browser")

from server_cases import BROWSER, TOKEN, Served, echo, fill, serving, until
from test_drawings import PLAN, failing_plan, refunds
from test_page import FAINT, browser, page  # noqa: F401 - fixtures  # pyright: ignore[reportUnusedImport]
from test_page_runs import SIDEWAYS, UNNAMED, run_of

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

UNREACHED = """() => {
  const byArrows = ".hidden, [role=tree], [role=tablist]";
  const wanted = "a[href], button, input, select, textarea, summary, [data-step]";
  return [...document.querySelectorAll(wanted)]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled
      && node.tabIndex < 0 && !node.closest(byArrows))
    .map((node) => node.outerHTML.slice(0, 120));
}"""
"""Controls that the Tab key does not reach; those of trees and tabs are reached by arrows."""


def looked(run_id: str) -> list[hs.AgentStep]:
    """A run that looks at places of its own: what says the same is found once."""
    steps = run_of(run_id, f"on the shelf of {run_id}", 3, session_id="notebook")
    for before, step in pairwise(steps):
        step.parent_id = before.id
        if step.tool:
            step.inputs = {**(step.inputs or {}), "arguments": {"place": f"{step.tool} {run_id}"}}
    return steps


WIDER = """(width) => document.documentElement.scrollWidth <= width ? []
  : [...document.querySelectorAll("body *")]
    .filter((node) => node.getBoundingClientRect().right > width)
    .map((node) => node.outerHTML.slice(0, 120))"""
"""What stands out of the window on its right, if it can be scrolled there."""


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[hs.StepMemory]:
    """A memory with a session, runs with scores, and runs of a graph program and a plan."""
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        with ThreadPoolExecutor(1) as apart:  # Playwright has an event loop of its own
            apart.submit(fill, memory).result()
        for number in range(5):
            memory.add(looked(f"past-{number}"))
            memory.score(f"past-{number}", float(number > 0))
        failed = looked("lost")
        failed[2] = failed[2].model_copy(
            update={"status": "error", "outputs": {"error": {"type": "KeyError", "message": "p1"}}}
        )
        memory.add(failed)
        memory.flush()
        yield memory


@pytest.fixture
def served(memory: hs.StepMemory) -> Iterator[Served]:
    """A server of the memory, without a program."""
    with serving(memory) as served:
        yield served


def opened(page: Any, served: Served, address: str) -> None:
    """Open a view."""
    page.goto(f"{served.address}/#token={TOKEN}")
    page.get_by_role("heading", name="Sessions").wait_for()
    page.goto(f"{served.address}/#{address}")


def test_the_graph_shows_the_way_and_its_nodes_open_steps(page: Any, memory: Any) -> None:
    agent = refunds(memory)
    with ThreadPoolExecutor(1) as apart:
        apart.submit(agent, query="Money back?").result()
    run_id = memory.runs()[0].run_id
    with serving(memory, agent) as served:
        opened(page, served, f"/runs/{run_id}")
        page.get_by_role("tab", name="Graph").click()
        graphs = page.locator(".graph")
        until(lambda: graphs.count() == 2)
        assert "main Graph program · 5 done · 1 not reached" in graphs.first.inner_text()
        nodes = graphs.first.locator("[data-step]")
        assert nodes.count() == 3
        nodes.nth(1).click()
        details = page.get_by_label("Step", exact=True)
        until(lambda: "allowed" in details.inner_text())
        until(lambda: nodes.nth(1).get_attribute("aria-pressed") == "true")
        nodes.nth(0).focus()
        page.keyboard.press("Enter")
        until(lambda: "Look the booking up" in details.inner_text())
        page.reload()
        until(lambda: graphs.count() == 2)
        details.wait_for()
        page.get_by_label("Close the step").click()
        page.get_by_label("Overview").wait_for()
    assert page.title() == "Step memory", "a hostile purpose did not act"


def test_the_graph_of_a_plan_follows_the_run(page: Any, memory: Any, served: Served) -> None:
    began, goes_on = threading.Event(), threading.Event()
    plans = hs.Orchestrator(
        memory=memory, executor=failing_plan(began, goes_on), max_attempts=1, max_replans=0
    )
    work = threading.Thread(target=plans.run, kwargs={"plan": PLAN})
    work.start()
    try:
        assert began.wait(20)
        until(lambda: memory.runs()[0].status == "running")
        opened(page, served, f"/runs/{memory.runs()[0].run_id}")
        page.get_by_role("tab", name="Graph").click()
        caption = page.locator(".graph figcaption")
        caption.filter(has_text="1 running").wait_for()
        assert "1 waiting" in caption.inner_text()
    finally:
        goes_on.set()
        work.join()
    caption.filter(has_text="1 failed").wait_for()
    assert "1 skipped" in caption.inner_text()
    assert page.get_by_role("tab", name="Graph").get_attribute("aria-selected") == "true"


def test_the_map_is_walked_by_keys_and_opens_steps(page: Any, served: Served) -> None:
    opened(page, served, "/map")
    points = page.locator(".plane .point")
    until(lambda: points.count() > 20)
    whole = points.count()
    plane = page.get_by_role("application")
    here = page.locator("#map-here")
    plane.focus()
    said = {here.inner_text()}
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
        said.add(page.locator("#map-here a").first.get_attribute("href"))
    assert len(said) > 2, "arrows go from step to step"
    legend = page.get_by_label("Groups").get_by_role("button")
    legend.filter(has_text="look_1").click()
    until(lambda: 0 < points.count() < whole)
    assert "only=look_1" in page.url
    until(lambda: "look_1: look_1 " in here.inner_text())
    page.get_by_label("Colour by").select_option("status")
    until(lambda: points.count() == whole)
    assert legend.filter(has_text="error").count() == 1
    legend.filter(has_text="error").click()
    until(lambda: 0 < points.count() < 4)
    failed = points.count()
    address = page.locator("#map-here a").first.get_attribute("href")
    plane.focus()
    page.keyboard.press("Enter")
    until(lambda: page.url.endswith(address))
    page.get_by_label("Step", exact=True).wait_for()
    page.go_back()
    until(lambda: points.count() == failed)
    page.locator(".filter-box summary").click()
    page.get_by_role("textbox", name="Tool").fill("nothing")
    page.get_by_role("textbox", name="Tool").press("Enter")
    page.get_by_text("No embedded step matches").wait_for()


def test_a_run_shows_its_outlook_and_first_trouble(page: Any, served: Served) -> None:
    opened(page, served, "/runs/lost")
    outlook = page.get_by_label("Outlook", exact=True)
    outlook.get_by_text("First trouble").wait_for()
    trouble = outlook.locator(".to-step").first
    assert "#2" in trouble.inner_text()
    assert "p1" in trouble.inner_text()
    told = served.client.get("/runs/lost/outlook").json()
    assert f"{round(told['chance'] * 100)} %" in outlook.inner_text()
    trouble.click()
    page.get_by_label("Step", exact=True).get_by_text("KeyError").first.wait_for()
    assert "step=lost-1" in page.url
    page.goto(f"{served.address}/#/runs/past-1")
    page.get_by_text("No step failed or said so").wait_for()


def test_the_tree_is_walked_as_trees_are(page: Any, served: Served) -> None:
    opened(page, served, "/runs/past-1")
    rows = page.get_by_role("treeitem")
    until(lambda: rows.count() == 5)
    focused = "document.activeElement.dataset.id"

    def press(key: str) -> Any:
        page.keyboard.press(key)
        return page.evaluate(focused)

    rows.first.focus()
    assert press("End") == "past-1-in"
    assert press("ArrowLeft") == "past-1-2", "to the tool around it"
    assert rows.nth(3).get_attribute("aria-expanded") == "true"
    assert press("ArrowLeft") == "past-1-2"
    until(lambda: rows.count() == 4)
    assert rows.nth(3).get_attribute("aria-expanded") == "false"
    assert press("ArrowDown") == "past-1-2", "it is the last row now"
    assert press("ArrowRight") == "past-1-2"
    until(lambda: rows.count() == 5)
    assert press("ArrowRight") == "past-1-in"
    assert press("Home") == "past-1-call"
    assert press("ArrowUp") == "past-1-call"
    assert press("ArrowDown") == "past-1-0"
    page.keyboard.press("Enter")
    until(lambda: "step=past-1-0" in page.url)
    until(lambda: rows.nth(1).get_attribute("aria-selected") == "true")
    assert [rows.nth(place).get_attribute("tabindex") for place in range(3)] == ["-1", "0", "-1"]
    assert rows.nth(2).get_attribute("aria-posinset") == "2"
    assert rows.nth(2).get_attribute("aria-setsize") == "3"
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert press("ArrowDown") == "past-1-1"
    assert page.evaluate(ring) != "none", "whoever uses keys sees where he is"


def test_tabs_are_changed_by_arrows(page: Any, served: Served) -> None:
    opened(page, served, "/runs/past-1")
    page.get_by_role("tab", name="Tree").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".timeline").wait_for()
    assert page.get_by_role("tab", name="Timeline").get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.textContent") == "Timeline"


def test_without_a_program_the_page_says_so_and_offers_nothing_that_fails(
    page: Any, served: Served
) -> None:
    opened(page, served, "/sessions/talk")
    page.get_by_text("No program is served here").wait_for()
    until(lambda: page.locator(".message").count() == 4)
    assert page.get_by_label("Message", exact=True).count() == 0
    for name in ("New", "Send", "Edit", "Regenerate message 2", "Retry message 1"):
        assert page.get_by_role("button", name=name, exact=True).count() == 0, name
    assert page.get_by_role("button", name="Fork after message 2").count() == 1


def test_a_session_is_given_a_title_that_all_see(page: Any, memory: Any) -> None:
    with serving(memory, echo) as served:
        opened(page, served, "/sessions/talk")
        page.get_by_role("heading", name="How do I refund a ticket?").wait_for()
        assert page.get_by_label("Notes").count() == 0, "nothing is shown of details that are none"
        page.get_by_label("Rename the session").click()
        page.get_by_label("Title").fill("<b>Refunds</b>")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("heading", name="<b>Refunds</b>").wait_for()
        page.locator(".list .card").filter(has_text="<b>Refunds</b>").wait_for()
        assert served.client.get("/sessions/talk").json() == {"title": "<b>Refunds</b>"}
        served.client.patch("/sessions/talk", json={"metadata": {"desk": "Hanover"}})
        page.reload()
        until(lambda: page.get_by_label("Notes").inner_text() == "desk Hanover")
        page.get_by_label("Rename the session").click()
        page.get_by_label("Title").fill("")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("heading", name="How do I refund a ticket?").wait_for()


VIEWS = {
    "/sessions/talk": ".message",
    "/sessions/notebook": ".card",
    "/runs": ".card",
    "/runs/lost": ".outlook h4",
    "/runs/lost?step=lost-1": ".step-details .failure",
    "/compare/lost/past-1": ".compared",
    "/search?q=look": ".hit",
    "/map": ".point",
    "/map?by=status": ".point",
    "/work": ".work",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_of_every_view_stands_out(page: Any, memory: Any, scheme: str) -> None:
    agent = refunds(memory)
    with ThreadPoolExecutor(1) as apart:
        apart.submit(agent, query="Money back?").result()
    graph = {f"/runs/{memory.runs()[0].run_id}": ".row"}
    page.emulate_media(color_scheme=scheme)
    with serving(memory) as served:
        opened(page, served, "/sessions")
        for address, shown in {**VIEWS, **graph}.items():
            page.goto(f"{served.address}/#{address}")
            page.locator(shown).first.wait_for()
            assert page.evaluate(FAINT) == [], address
            assert page.evaluate(UNREACHED) == [], address
        page.get_by_role("tab", name="Graph").click()
        page.locator(".drawing svg").first.wait_for()
        assert page.evaluate(FAINT) == []
        assert page.evaluate(UNREACHED) == []
        page.get_by_role("tab", name="Graph").focus()
        page.keyboard.press("?")
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Tab")
        focused = "document.activeElement.textContent"
        assert page.evaluate(focused) == "Close", "what lies behind a dialog is not reached"
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        until(lambda: page.evaluate(focused) == "Graph")


@pytest.mark.parametrize("width", [320, 390, 820])
def test_nothing_new_scrolls_sideways(page: Any, memory: Any, width: int) -> None:
    agent = refunds(memory)
    with ThreadPoolExecutor(1) as apart:
        apart.submit(agent, query="Money back?" * 20).result()
    run_id = memory.runs()[0].run_id
    page.set_viewport_size({"width": width, "height": 700})
    with serving(memory, agent) as served:
        opened(page, served, "/sessions")
        long = {"title": "W" * 200, "metadata": {"W" * 80: "W" * 300}}
        served.client.patch("/sessions/talk", json=long).raise_for_status()
        for address, shown in {**VIEWS, f"/runs/{run_id}": ".row"}.items():
            page.goto(f"{served.address}/#{address}")
            page.locator(shown).locator("visible=true").first.wait_for()
            check_width(page, width, address)
        page.get_by_role("tab", name="Graph").click()
        page.locator(".drawing svg").first.wait_for()
        check_width(page, width, "graph")
        page.goto(f"{served.address}/#/sessions/talk")
        page.get_by_label("Rename the session").click()
        check_width(page, width, "rename")


def check_width(page: Any, width: int, what: str) -> None:
    """Check that nothing is wider than the window, and that each control has a name."""
    assert page.evaluate(WIDER, width) == [], what
    assert page.evaluate(SIDEWAYS) == [], what
    assert page.evaluate(UNNAMED) == [], what
