"""The page in a real browser: talk, stream, lose the line, retry, fork, compare, search, no script.

Needs playwright and a Chromium of the system; nothing is downloaded.
"""

# Neither Playwright's event objects nor DSPy are typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportMissingImports=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dspy
import pytest

from hybridagi_steps import StepMemory
from hybridagi_steps.testing import Reply, ScriptedLM, asked_fields, plausible_reply

pytest.importorskip("fastapi", reason="the page is served by the extra `server`")
playwright = pytest.importorskip("playwright.sync_api", reason="drives a browser")

from server_cases import BROWSER, QUIET, TOKEN, Served, Told, serving, until  # noqa: E402 - needs the extra

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
LINE = """
const send = window.fetch;
let down = false, open = new AbortController();
window.fetch = (path, options) => down ? Promise.reject(new TypeError("no line"))
  : send(path, { ...options, signal: open.signal });
window.cutTheLine = () => { down = true; open.abort(); };
window.mendTheLine = () => { down = false; open = new AbortController(); };
"""
"""A line that can be cut: requests that are open fail, and so do new ones until it is mended."""
FAINT = Path(__file__).with_name("contrast.js").read_text("utf-8")
"""Finds texts that stand out too little."""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order} was returned {HOSTILE}"


def desk(request: Any) -> Reply:
    """Look up, then answer with hostile text."""
    asked = asked_fields(request)
    if "next_tool_name" in asked:
        seen = "observation_0" in str(request.messages[-1].text)
        tool, arguments = ("finish", {}) if seen else ("look_up", {"order": "A17"})
        return {"next_thought": "Look.", "next_tool_name": tool, "next_tool_args": arguments}
    if "answer" in asked:
        return {"reasoning": "It came back.", "answer": f"Refunded. {HOSTILE}"}
    return plausible_reply(request)


class Desk(dspy.Module):
    """A program with a tool and a scripted model of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = dspy.ReAct("question -> answer", tools=[look_up])
        self.agent.set_lm(ScriptedLM(desk))

    def forward(self, question: str) -> Any:
        """Answer."""
        return self.agent(question=question)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for all tests here."""
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not report an error of its own script."""
    faults: list[str] = []
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(15_000)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda told: faults.append(told.text) if "Security" in told.text else None)
    yield opened
    context.close()
    assert faults == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server with a program that uses a tool."""
    memory = StepMemory(tmp_path / "steps.db", embedder="hashing")
    with memory, serving(memory, Desk()) as served:
        yield served


def broken(seat: str) -> str:
    """Fail."""
    raise LookupError(f"no seat {seat}")


class Failing(dspy.Module):
    """Has a tool that raises, then fails itself."""

    async def aforward(self, question: str) -> Any:
        """Fail."""
        with suppress(LookupError):
            await dspy.Tool(broken).acall(seat="7A")
        raise ValueError(f"no desk is open for {question}")


def entered(page: Any, served: Served) -> None:
    """Open the page as its printed address does, and begin a session."""
    page.goto(f"{served.address}/#token={TOKEN}")
    page.get_by_role("button", name="New").click()


def say(page: Any, text: str) -> None:
    """Say something and wait for the answer to be stored."""
    said = page.locator(".message-user").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")
    # A busy machine may look too late to see Stop.
    until(lambda: page.locator(".message-user").count() > said)
    page.get_by_role("button", name="Send").wait_for()
    page.locator(".messages[aria-busy=false]").wait_for()
    until(lambda: page.get_by_role("button", name="Export").count() == 1)


def say_on(page: Any, text: str) -> None:
    """Say something."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")
    page.get_by_role("button", name="Stop").wait_for()


def test_a_wrong_token_is_refused_and_the_right_one_opens(page: Any, served: Served) -> None:
    page.goto(served.address)
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Open").click()
    page.get_by_text("This token is not the server's").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    page.get_by_role("heading", name="Sessions").wait_for()
    assert TOKEN not in page.url


@pytest.mark.parametrize("shown", ["#/", "#/search?q=refund", "#/runs"])
def test_a_token_that_is_no_longer_the_servers_is_asked_for_again(
    page: Any, served: Served, shown: str
) -> None:
    page.goto(f"{served.address}/#token=that-of-the-server-before")
    page.get_by_text("This token is not the server's").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    page.get_by_role("heading", name="Sessions").wait_for()
    page.evaluate("sessionStorage.setItem('hybridagi-steps-token', 'of-the-server-before')")
    page.evaluate("shown => history.replaceState(null, '', shown)", shown)
    page.reload()
    page.get_by_text("This token is not the server's").wait_for()
    pasted = f"void setTimeout(() => {{ location.hash = 'token={TOKEN}' }})"
    page.evaluate(pasted)  # into the same tab
    page.get_by_role("heading", name="Sessions").wait_for()
    assert TOKEN not in page.url


def test_a_conversation_shows_messages_calls_steps_and_context(page: Any, served: Served) -> None:
    entered(page, served)
    say(page, f"Where is my money? {HOSTILE}")
    talk = page.get_by_label("Conversation")
    assert talk.locator(".message").count() == 3
    assert talk.locator(".message-user").count() == 1
    talk.locator(".call summary").click()
    assert "A17 was returned" in talk.locator(".call").inner_text()
    tree = page.get_by_role("treeitem")
    until(lambda: tree.count() >= 3)
    tree.nth(2).click()
    page.get_by_label("Step", exact=True).wait_for()
    page.get_by_role("tab", name="Timeline").click()
    assert page.locator(".timeline .span").count() >= 2
    page.get_by_role("tab", name="Context").click()
    page.get_by_role("heading", name="Kept").wait_for()
    assert page.title() == "Step memory", "hostile text ran as script"
    assert "<img src=x" in talk.inner_text(), "hostile text is shown as text"
    assert page.locator("#app img").count() == 1, "only the logo is an image"


def test_a_retry_keeps_the_old_answer_and_both_can_be_compared(page: Any, served: Served) -> None:
    entered(page, served)
    say(page, "Where is my money?")
    page.get_by_role("button", name="Retry message 1").click()
    page.get_by_role("button", name="Send").wait_for()
    page.get_by_role("tab", name="Branches").click()
    boxes = page.locator(".attempts input")
    until(lambda: boxes.count() == 2)
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.locator(".compared").wait_for()
    assert "Refunded." in page.locator(".compared").inner_text()


def test_an_edited_message_is_run_again(page: Any, served: Served) -> None:
    entered(page, served)
    say(page, "Where is my money?")
    page.get_by_role("button", name="Edit message 1").click()
    page.get_by_label("Edit the message").fill("Where is my parcel?")
    page.get_by_role("button", name="Run again with this").click()
    page.get_by_role("button", name="Send").wait_for()
    user = page.locator(".messages .message-user")
    until(lambda: "parcel" in user.inner_text())
    assert user.count() == 1


def test_a_fork_is_a_session_of_its_own(page: Any, served: Served) -> None:
    entered(page, served)
    say(page, "Where is my money?")
    before = page.url
    page.get_by_role("button", name="Fork after message 1", exact=True).click()
    page.wait_for_url(lambda url: url != before)
    until(lambda: page.locator(".messages .message").count() == 1)
    until(lambda: page.locator(".cards a").count() == 2)
    assert page.get_by_text("fork at 1", exact=True).count() == 1


def test_search_finds_steps_and_steps_like_them(page: Any, served: Served) -> None:
    entered(page, served)
    say(page, "Where is my money?")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Search").click()
    page.get_by_label("Search over all steps").fill("look up the order A17")
    page.get_by_role("search").get_by_role("button", name="Search").click()
    hits = page.locator(".hit")
    hits.first.wait_for()
    assert "look_up" in hits.first.inner_text()
    hits.first.get_by_role("link", name="More like this").click()
    page.get_by_text("Steps like").wait_for()
    hits.first.wait_for()
    page.get_by_label("Type").select_option("Decision")
    page.get_by_text("Nothing was found").wait_for()
    assert page.title() == "Step memory"


def test_a_lost_line_is_taken_up_without_gap_or_repeat(page: Any, tmp_path: Path) -> None:
    told = Told()
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, told) as served,
    ):
        page.add_init_script(LINE)
        entered(page, served)
        page.get_by_label("Message", exact=True).fill("Count.")
        page.get_by_label("Message", exact=True).press("Enter")
        told.say("one ", "two ")
        answer = page.locator(".message-assistant .text")
        until(lambda: answer.count() == 1 and answer.inner_text().startswith("one two"))
        page.evaluate("cutTheLine()")
        told.say("three ")
        page.get_by_text("Connection lost").wait_for()
        told.say("four ")
        page.evaluate("mendTheLine()")
        told.say("five")
        told.end()
        page.get_by_role("button", name="Send").wait_for()
        until(lambda: answer.count() == 1 and answer.inner_text() == "one two three four five")


def test_a_run_is_stopped_and_what_was_said_stays(page: Any, tmp_path: Path) -> None:
    told = Told()
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, told) as served,
    ):
        entered(page, served)
        page.get_by_label("Message", exact=True).fill("Count.")
        page.get_by_label("Message", exact=True).press("Enter")
        told.say("one ")
        page.get_by_text("one", exact=True).wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("The run was cancelled").wait_for()
        page.locator(".message-assistant .status-partial").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(page: Any, served: Served, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    entered(page, served)
    say(page, "Where is my money?")
    page.get_by_role("treeitem").first.click()
    page.get_by_label("Step", exact=True).wait_for()
    assert page.evaluate(FAINT) == []


def test_a_failed_run_shows_what_went_wrong_and_the_tool_that_raised_is_red(
    page: Any, tmp_path: Path
) -> None:
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, Failing()) as served,
    ):
        entered(page, served)
        say(page, "a flight")
        alert = page.get_by_label("Conversation").get_by_role("alert")
        alert.wait_for()
        assert "ValueError" in alert.inner_text()
        assert "no desk is open for a flight" in alert.inner_text()
        assert page.locator(".call-failed").count() == 1
        page.locator(".call-failed summary").click()
        assert "no seat 7A" in page.locator(".call-failed").inner_text()
        page.reload()
        shown = page.get_by_label("Details").get_by_role("alert")
        shown.wait_for()
        assert "no desk is open for a flight" in shown.inner_text(), "after a reload, too"


def test_a_run_in_flight_is_joined_and_what_was_typed_survives(page: Any, tmp_path: Path) -> None:
    told = Told()
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, told) as served,
    ):
        entered(page, served)
        say_on(page, "Count.")
        told.say("one ", "two ")
        answer = page.locator(".message-assistant .text")
        until(lambda: answer.count() == 1 and "two" in answer.inner_text())
        page.get_by_label("Message", exact=True).fill("and then?")
        page.reload()
        page.get_by_role("button", name="Stop").wait_for()
        until(lambda: answer.count() == 1 and "one two" in answer.inner_text())
        assert page.locator(".message-user").count() == 1
        assert page.get_by_label("Message", exact=True).input_value() == "and then?"
        other = page.context.new_page()
        other.goto(f"{served.address}/#token={TOKEN}")
        other.goto(page.url)
        other.get_by_role("button", name="Stop").wait_for()
        told.say("three")
        until(lambda: "one two three" in other.locator(".message-assistant .text").inner_text())
        other.get_by_role("button", name="Stop").click()
        page.get_by_text("The run was cancelled").wait_for()
        other.get_by_text("The run was cancelled").wait_for()
        other.close()


def test_a_message_that_is_refused_is_not_lost(page: Any, tmp_path: Path) -> None:
    told = Told()
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, told) as served,
    ):
        entered(page, served)
        other = page.context.new_page()
        other.goto(f"{served.address}/#token={TOKEN}")
        other.goto(page.url)
        other.get_by_role("button", name="Send").wait_for()
        say_on(page, "First.")
        page.locator(".message-user").wait_for()
        field = other.get_by_label("Message", exact=True)
        field.fill("Second.")
        field.press("Enter")
        other.get_by_role("alert").filter(has_text="run in flight").wait_for()
        until(lambda: field.input_value() == "Second.")
        other.get_by_role("button", name="Stop").wait_for()
        told.end()
        other.get_by_role("button", name="Send").wait_for()
        assert field.input_value() == "Second."
        other.close()


def test_an_answer_is_regenerated(page: Any, served: Served) -> None:
    entered(page, served)
    say(page, "Where is my money?")
    answers = page.locator(".message-assistant")
    assert answers.count() == 2
    calls = page.locator(".message-assistant").first.inner_text()
    page.get_by_role("button", name="Regenerate message 4").click()
    page.get_by_role("tab", name="Branches").click()
    until(lambda: page.locator(".attempts input").count() == 2)
    assert "after #3" in page.locator(".attempts").inner_text()
    page.locator(".messages[aria-busy=false]").wait_for()
    assert answers.first.inner_text() == calls, "what stands before it is not made again"
    assert "Refunded." in answers.last.inner_text()


def test_the_view_follows_the_answer_unless_the_reader_went_away(page: Any, tmp_path: Path) -> None:
    told = Told()
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, told) as served,
    ):
        entered(page, served)
        say_on(page, "Count.")
        box = "document.querySelector('.messages')"
        end = f"{box}.scrollHeight - {box}.scrollTop - {box}.clientHeight"
        told.say("line\n" * 100, "last words")
        page.get_by_text("last words").wait_for()
        until(lambda: page.evaluate(f"{box}.scrollHeight > 1500 && {end} < 5"))
        page.evaluate(f"{box}.scrollTop = 0")
        until(lambda: page.evaluate(f"{end} > 100"))
        told.say("line\n" * 50, "said meanwhile")
        page.get_by_text("said meanwhile").wait_for()
        assert page.evaluate(f"{box}.scrollTop") == 0
        told.end()
        page.get_by_role("button", name="Send").wait_for()


def test_markdown_is_shown_and_what_is_hostile_in_it_is_text(page: Any, tmp_path: Path) -> None:
    told = Told()
    said = f"**Bold** {HOSTILE} [x](javascript:alert(1)) [y](https://example.org)"
    told.say(said)
    told.end()
    with (
        StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        serving(memory, told) as served,
    ):
        entered(page, served)
        page.get_by_label("Message", exact=True).fill("Go.")
        page.get_by_label("Message", exact=True).press("Enter")
        text = page.locator(".markdown")
        text.wait_for()
        assert text.locator("strong").inner_text() == "Bold"
        assert text.locator("img, script").count() == 0
        [link] = text.locator("a").all()
        assert link.get_attribute("href") == "https://example.org"
        assert "noopener" in (link.get_attribute("rel") or "")
        assert "<img src=x" in text.inner_text()
        assert page.title() == "Step memory"


def test_a_session_is_exported_and_erased(page: Any, served: Served) -> None:
    entered(page, served)
    say(page, "Where is my money?")
    with page.expect_download() as got:
        page.get_by_role("button", name="Export").click()
    lines = Path(got.value.path()).read_text().splitlines()
    assert [json.loads(line)["role"] for line in lines] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Erase").click()
    page.get_by_text("No session yet.").wait_for()
    assert served.client.get("/runs").json()["runs"] == []
