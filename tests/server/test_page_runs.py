"""The page's runs in a real browser: details, filters, comparison, scores, pauses; small screens.

Needs playwright and a Chromium of the system; nothing is downloaded.
"""

# Playwright's objects are not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportMissingImports=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportArgumentType=false
# ruff: noqa: F811 - fixtures are named as what is given

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from hybridagi_steps import AgentStep, StepMemory, StepRunner, StepRunnerConfig, UserQuestions

pytest.importorskip("fastapi", reason="the page is served by the extra `server`")
pytest.importorskip("playwright.sync_api", reason="drives a browser")

from server_cases import BROWSER, TOKEN, Served, fill, serving, until
from test_page import FAINT, browser, page  # noqa: F401 - fixtures  # pyright: ignore[reportUnusedImport]

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, a[href]")]
  .filter((node) => node.offsetParent && !node.closest(".hidden")
    && !(node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim()))
  .map((node) => node.outerHTML)"""
"""Controls that no screen reader can name."""
SIDEWAYS = """() => [...document.querySelectorAll("main, .list, .split, .messages, .panel")]
  .filter((node) => node.offsetParent && node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.className)"""
"""Boxes of the page that are wider inside than outside."""


def run_of(run_id: str, answer: str, tools: int, **fields: Any) -> list[AgentStep]:
    """Steps of a run: a program, tools that it calls, and a step inside the last tool."""
    call = {"program": "Desk", "arguments": {"question": f"Where is {run_id}?"}}
    made: list[dict[str, Any]] = [
        {"id": f"{run_id}-call", "step_type": "ProgramCall", "inputs": call}
    ]
    for tool in range(tools):
        inputs = {"purpose": "look", "tool": f"look_{tool}", "arguments": {"place": f"p{tool}"}}
        made.append({"id": f"{run_id}-{tool}", "step_type": "Action", "inputs": inputs,
                     "program_id": f"{run_id}-call", "outputs": {"result": f"seen {tool}"},
                     "metrics": {"input_tokens": 11, "duration_ms": 5.0}})  # fmt: skip
    made.append({"id": f"{run_id}-in", "step_type": "Action", "inputs": {"purpose": "think"},
                 "program_id": f"{run_id}-call", "outputs": {"text": "inside"},
                 "metadata": {"within": f"{run_id}-{tools - 1}"}})  # fmt: skip
    made.append({"id": f"{run_id}-end", "step_type": "ProgramEnd", "inputs": {"program": "Desk"},
                 "program_id": f"{run_id}-call", "outputs": {"answer": answer}})  # fmt: skip
    return [
        AgentStep.model_validate({"run_id": run_id, "hop": hop, **fields, **step})
        for hop, step in enumerate(made)
    ]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A memory with a session, a run that failed, and two that can be compared."""
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        with ThreadPoolExecutor(1) as apart:  # Playwright has an event loop of its own
            apart.submit(fill, memory).result()
        memory.add(run_of("left", "on the shelf", 60, session_id="notebook", user_id="ann"))
        memory.add(run_of("right", "on the table", 3, session_id="notebook", user_id="bob"))
        with serving(memory) as served:
            yield served


def opened(page: Any, served: Served, address: str) -> None:
    """Open a view."""
    page.goto(f"{served.address}/#token={TOKEN}")
    page.get_by_role("heading", name="Sessions").wait_for()
    page.goto(f"{served.address}/#{address}")


def test_details_stand_beside_the_tree_and_in_the_address(page: Any, served: Served) -> None:
    opened(page, served, "/runs/left")
    rows = page.get_by_role("treeitem")
    until(lambda: rows.count() == 62)
    assert "11 tokens" in rows.nth(1).inner_text()
    assert "→ seen 0" in rows.nth(1).inner_text()
    assert "on the shelf" in rows.nth(0).inner_text(), "a program shows what its end says"
    levels = [rows.nth(place).get_attribute("aria-level") for place in (0, 60, 61)]
    assert levels == ["1", "2", "3"], "a step inside a tool stands below it"
    rows.nth(58).click()
    details = page.get_by_label("Step", exact=True)
    details.wait_for()
    box = details.bounding_box()
    assert 0 <= box["y"] < 900, "the details are in the window"
    assert "seen 57" in details.inner_text()
    assert "step=left-57" in page.url
    rows.nth(58).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    until(lambda: "seen 58" in details.inner_text())
    page.go_back()
    until(lambda: "seen 57" in details.inner_text())
    page.reload()
    until(lambda: "seen 57" in details.inner_text())


def test_runs_are_filtered_by_the_address_and_back_undoes_it(page: Any, served: Served) -> None:
    opened(page, served, "/runs")
    cards = page.locator(".list .card")
    until(lambda: cards.count() == 3)
    assert page.locator(".list .status-failed").count() == 1
    page.locator("summary", has_text="Filters").click()
    page.get_by_label("Tool").fill("look_50")
    page.get_by_label("Tool").press("Enter")
    until(lambda: cards.count() == 1)
    assert "tools=look_50" in page.url
    cards.first.click()
    until(lambda: "/runs/left?tools=look_50" in page.url)
    page.reload()
    until(lambda: cards.count() == 1)
    page.go_back()
    page.go_back()
    until(lambda: cards.count() == 3)
    page.locator("summary", has_text="Filters").click()
    page.get_by_label("User").fill("bob")
    page.get_by_label("User").press("Enter")
    until(lambda: cards.count() == 1 and "right" in cards.first.inner_text())


def test_an_address_asks_for_several_users_alternatives_and_operators(
    page: Any, served: Served
) -> None:
    opened(page, served, "/runs?user_id=ann&user_id=bob")
    cards = page.locator(".list .card")
    until(lambda: cards.count() == 2)
    assert page.get_by_label("User").input_value() == "ann, bob"
    either = ['{"user_id": "bob"}', '{"metadata": {"topic": {"prefix": "refund"}}}']
    text = "&".join(urlencode({"any_of": each}) for each in either)
    page.evaluate("text => { location.hash = `#/runs?${text}` }", text)
    until(lambda: cards.count() == 2 and "right" in "".join(cards.all_inner_texts()))
    field = page.get_by_label("any_of")
    assert field.input_value() == ", ".join(either)
    field.fill(f'{{"user_id": "ann"}}, {either[1]}')
    field.press("Enter")
    until(lambda: page.url.count("any_of=") == 2)
    until(lambda: cards.count() == 2 and "left" in "".join(cards.all_inner_texts()))
    page.evaluate("location.hash = '#/runs?since=2020-01-01T10:00:00Z&user_id=bob'")
    until(lambda: cards.count() == 1 and "right" in cards.first.inner_text())
    page.evaluate("location.hash = '#/runs?since=yesterday'")
    page.get_by_role("alert").wait_for()
    asked = urlencode({"q": "refund", "metadata": '{"topic": {"contains": "fund"}}'})
    page.evaluate("text => { location.hash = `#/search?${text}` }", asked)
    page.locator(".hit").filter(has_text="refunded").wait_for()
    assert page.locator(".hit").count() == 1


def test_two_runs_are_compared_and_made_a_dataset(page: Any, served: Served) -> None:
    opened(page, served, "/runs")
    for name in ("left", "right"):
        page.get_by_label(f"Pick Desk: Where is {name}?").check()
    with page.expect_download() as got:
        page.get_by_role("button", name="Dataset").click()
    lines = [json.loads(line) for line in Path(got.value.path()).read_text().splitlines()]
    assert [line["inputs"] for line in lines] == [
        {"question": "Where is left?"},
        {"question": "Where is right?"},
    ]
    assert [line["outputs"]["answer"] for line in lines] == ["on the shelf", "on the table"]
    page.get_by_role("link", name="Compare").click()
    table = page.locator(".compared")
    table.wait_for()
    marked = table.locator("mark").all_inner_texts()
    assert {"shelf", "table"} <= set(marked)
    assert "seen" not in marked, "what both say is not marked"
    assert table.locator(".absent").count() == 57, "tools that only one has called"


def test_a_run_and_a_step_are_rated(page: Any, served: Served) -> None:
    opened(page, served, "/runs/right?step=right-1")
    step = page.get_by_label("Rate the step")
    step.get_by_role("button", name="Bad").click()
    step.get_by_role("button", name="Rate").click()
    until(lambda: served.client.get("/runs/right").json()["steps"][2].get("score") == 0.0)
    page.get_by_text("Rate the run").click()
    run = page.get_by_label("Rate the run")
    run.get_by_label("Score").fill("0.75")
    run.get_by_label("Comment").fill("found at last")
    run.get_by_role("button", name="Rate").click()
    page.get_by_label("Run", exact=True).get_by_text("★ 0.75").wait_for()
    kept = served.client.get("/runs/right").json()["run"]
    assert (kept["score"], kept["feedback"]) == (0.75, "found at last")


def test_a_recorded_session_opens_as_its_runs(page: Any, served: Served) -> None:
    opened(page, served, "/sessions")
    card = page.locator(".list .card").filter(has_text="2 runs")
    card.click()
    recorded = page.get_by_label("Recorded session")
    recorded.wait_for()
    assert recorded.locator(".card").count() == 2
    with page.expect_download() as got:
        recorded.get_by_role("button", name="Export").click()
    lines = [json.loads(line) for line in Path(got.value.path()).read_text().splitlines()]
    assert {line["run_id"] for line in lines} == {"left", "right"}
    recorded.locator(".card").first.click()
    until(lambda: page.get_by_role("treeitem").count() == 5)
    page.go_back()
    page.on("dialog", lambda dialog: dialog.accept())
    recorded.get_by_role("button", name="Erase").click()
    until(lambda: page.locator(".list .card").filter(has_text="2 runs").count() == 0)
    assert served.client.get("/runs/left").status_code == 404


def test_a_search_is_in_the_address(page: Any, served: Served) -> None:
    opened(page, served, "/search?q=look+seen&tools=look_2&user_id=bob")
    hits = page.locator(".hit")
    until(lambda: hits.count() == 1)
    assert page.get_by_label("Search over all steps").input_value() == "look seen"
    assert page.get_by_label("Tool").input_value() == "look_2"
    hits.get_by_role("link", name="Run").click()
    until(lambda: "/runs/right?step=right-2" in page.url)
    page.go_back()
    until(lambda: hits.count() == 1)
    page.evaluate("location.hash = '#/search?q=look+seen&tools=look_2&tools=look_1&user_id=bob'")
    until(lambda: hits.count() > 1)
    assert page.get_by_label("Tool").input_value() == "look_2, look_1"
    page.get_by_label("Tool").fill("look_1, none")
    page.get_by_label("Tool").blur()
    until(lambda: "tools=look_1&tools=none" in page.url)


@pytest.mark.parametrize("width", [320, 390])
def test_nothing_scrolls_sideways_and_everything_has_a_name(
    page: Any,
    served: Served,
    width: int,
) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    opened(page, served, "/sessions")
    views = {
        "/sessions": ".card",
        "/sessions/talk": ".message",
        "/sessions/notebook": ".card",
        "/runs": ".card",
        "/runs/left?step=left-3": ".step-details",
        "/compare/left/right": ".compared",
        "/search?q=look": ".hit",
    }
    for address, shown in views.items():
        page.goto(f"{served.address}/#{address}")
        page.locator(shown).locator("visible=true").first.wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{address} is {wide} px wide"
        assert page.evaluate(SIDEWAYS) == [], address
        assert page.evaluate(UNNAMED) == [], address


def test_a_score_of_zero_is_shown_where_runs_are_compared(page: Any, served: Served) -> None:
    served.client.post("/runs/left/score", json={"value": 0}).raise_for_status()
    opened(page, served, "/compare/left/right")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="score"))
    until(lambda: row.get_by_role("cell").all_inner_texts() == ["0", "–"])


def test_a_session_that_is_not_there_is_told_and_a_new_one_can_be_begun(
    page: Any, served: Served
) -> None:
    opened(page, served, "/sessions/none")
    page.get_by_role("heading", name="No such session").wait_for()
    assert page.get_by_role("button", name="Send").count() == 0
    assert page.get_by_label("Conversation").count() == 0


def test_a_hit_shows_the_answer_and_no_markup(page: Any, tmp_path: Path) -> None:
    trajectory = {"steps": ["01a20a35-456a-7ad3-8bd1-7b2a0a8e8aaa"]}
    said = {"trajectory": trajectory, "answer": "The **burning** lamp."}
    steps = [
        {"id": "lamp", "inputs": {"program": "Desk"}, "outputs": said, "step_type": "ProgramEnd"},
        {"id": "tool", "inputs": {"tool": "lamp"}, "outputs": {"result": '{"lamp": {"on": 0}}'}},
    ]
    made = [AgentStep.model_validate({"step_type": "Action", "run_id": "l", **s}) for s in steps]
    with StepMemory(tmp_path / "lamps.db", embedder="hashing") as memory:
        memory.add(made)
        with serving(memory) as served:
            opened(page, served, "/search?q=lamp&mode=lexical")
            hits = page.locator(".hit")
            until(lambda: hits.count() == 2)
            shown = {*hits.locator("article > pre.prose").all_inner_texts()}
            assert shown == {"The burning lamp.", "lamp: on: 0"}
            for place in range(2):
                hits.nth(place).get_by_text("Whole step").click()
            assert "01a20a35" not in page.locator(".hits").inner_text()


def test_a_row_shows_all_answers_and_not_the_reasoning(page: Any, tmp_path: Path) -> None:
    said = {"reasoning": "It hums.", "summary": "s" * 300, "queue": "lifts", "urgent": False}
    step = {"step_type": "Action", "run_id": "lift", "inputs": {"purpose": "sort"}, "outputs": said}
    with StepMemory(tmp_path / "lifts.db", embedder="hashing") as memory:
        memory.add(AgentStep.model_validate(step))
        with serving(memory) as served:
            opened(page, served, "/runs/lift")
            row = page.get_by_role("treeitem")
            row.wait_for()
            assert row.inner_text().endswith("… · queue: lifts · urgent: false")
            assert "hums" not in row.inner_text()


class Payments:
    """An agent that pays whom it is told to, or asks by what train, and says what came of it."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def pay(self, to: str) -> str:
        """Pay."""
        self.paid.append(to)
        return f"paid {to}"

    def __call__(self, messages: list[dict[str, Any]]) -> Any:
        """Answer."""
        said = str(messages[-1]["content"])
        if messages[-1]["role"] == "tool":
            return f"It said: {said}"
        tool, argument = ("ask_user", "question") if said.endswith("?") else ("pay", "to")
        calls = [
            {"id": f"call-{n}", "function": {"name": tool, "arguments": json.dumps({argument: to})}}
            for n, to in enumerate(said.split(" and "))
        ]
        return {"role": "assistant", "tool_calls": [{"type": "function", **call} for call in calls]}

    def served(self, memory: StepMemory) -> StepRunner:
        """A runner of it that waits for whoever reads to allow a payment."""
        config = StepRunnerConfig(consent=lambda asked: True if asked.tool == "ask_user" else None)
        tools = [self.pay, UserQuestions(memory).ask_user]
        return StepRunner(self, memory, tools=tools, config=config)


def asked_to(page: Any, served: Served, words: str) -> None:
    """Begin a session with words."""
    opened(page, served, "/sessions/desk?begin=1")
    page.get_by_label("Message", exact=True).fill(words)
    page.get_by_label("Message", exact=True).press("Enter")


@pytest.mark.parametrize(
    ("button", "paid", "said"),
    [
        ("Allow", ["Ann"], "It said: paid Ann"),
        ("Deny", [], "It said: Error: the user did not allow this call."),
    ],
)
def test_a_run_that_pauses_is_answered_after_a_reload(
    page: Any, memory: StepMemory, button: str, paid: list[str], said: str
) -> None:
    payments = Payments()
    with serving(memory, payments.served(memory)) as served:
        asked_to(page, served, "Ann")
        question = page.get_by_role("alertdialog")
        question.wait_for()
        page.reload()
        question.wait_for()
        assert "pay" in question.inner_text()
        assert '"to": "Ann"' in question.inner_text()
        assert payments.paid == []
        question.get_by_role("button", name=button).click()
        page.locator(".message-assistant").get_by_text(said).wait_for()
        page.get_by_role("button", name="Export").wait_for()
        assert question.count() == 0
        page.reload()
        page.locator(".message-assistant").get_by_text(said).wait_for()
        page.get_by_role("button", name="Export").wait_for()
        assert question.count() == 0
        opened(page, served, f"/runs/{memory.runs()[-1].run_id}")
        page.get_by_text("It paused for an answer").wait_for()
    assert payments.paid == paid


def test_calls_are_allowed_one_by_one_and_not_again_in_another_tab(
    page: Any, memory: StepMemory
) -> None:
    payments = Payments()
    with serving(memory, payments.served(memory)) as served:
        asked_to(page, served, f"Ann and {'Bob' * 400}")
        questions = page.get_by_role("alertdialog")
        until(lambda: questions.count() == 2)
        assert "Bob" * 400 in questions.last.inner_text(), "what is allowed is seen whole"
        other = page.context.new_page()
        other.goto(f"{served.address}/#token={TOKEN}")
        other.goto(f"{served.address}/#/sessions/desk")
        late = other.get_by_role("alertdialog")
        until(lambda: late.count() == 2)
        questions.first.get_by_role("button", name="Allow").click()
        until(lambda: questions.count() == 1 and payments.paid == ["Ann"])
        questions.get_by_role("button", name="Deny").click()
        page.locator(".message-assistant").get_by_text("It said:").wait_for()
        late.first.get_by_role("button", name="Allow").click()
        other.get_by_text("nothing left to do").wait_for()
        until(lambda: late.count() == 0)
        other.close()
    assert payments.paid == ["Ann"]


@pytest.mark.parametrize("width", [320, 1440])
def test_a_long_question_is_answered_on_any_screen(
    page: Any, memory: StepMemory, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 600})
    with serving(memory, Payments().served(memory)) as served:
        asked_to(page, served, f"By which train {'or bus ' * 60}?")
        answer = page.get_by_label("By which train")
        answer.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for check in (FAINT, SIDEWAYS, UNNAMED):
            assert page.evaluate(check) == []
        send = page.get_by_role("button", name="Send").bounding_box()
        assert send["y"] + send["height"] <= 600, "a long question leaves room to say something"
        answer.fill("the slow one")
        button = page.get_by_role("button", name="Answer")
        box = button.bounding_box()
        assert box["x"] + box["width"] <= width
        assert box["height"] < 60
        button.click()
        page.locator(".message-assistant").get_by_text("It said: the slow one").wait_for()
