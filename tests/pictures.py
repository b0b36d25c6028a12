"""Draws pictures: `python -m tests.pictures` the README's two, `--views FOLDER` every view.

An airline's desk answers a passenger, offline. `page.png` is the server's page in a browser,
`notebook.png` what its run draws in a notebook. The views are drawn in a light and a dark window
and in one of 390 px, to be looked at before a change of the page is done. Needs the extra `server`,
playwright and a Chromium of the system; nothing is downloaded.
"""

# Neither Playwright's objects nor DSPy are typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportMissingImports=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import dspy

import hybridagi_steps as hs
from hybridagi_steps.testing import Reply, ScriptedLM, asked_fields
from tests.server_cases import BROWSER, QUIET, TOKEN, serving

FOLDER = Path(__file__).parent.parent / ".github" / "docs"
WIDTH = 1440
WINDOWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": WIDTH, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": WIDTH, "height": 900}, "color_scheme": "dark"},
    "small": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
CELL = """<!doctype html><meta charset="utf-8"><body style="margin:16px;background:#fff">
<pre style="font:13px/1.5 Menlo,Consolas,monospace;background:#f6f6f6;border:1px solid #ddd;
border-radius:4px;padding:8px 12px;margin:0 0 12px">with hs.record(memory) as run:
    desk(question="{question}")
run</pre>{tree}"""
"""A notebook's cell: what was typed, and what it shows."""
QUESTION = "My flight HAT042 was cancelled. Can I have the money back?"
ANSWER = "Yes. We cancelled HAT042, so all 420 dollars go back to your credit card."
EARLIER = {
    "luggage": ("May I take a violin on board?", "Yes, as your one piece of hand luggage."),
    "change": ("Move me to the flight at noon, please.", "Done. You fly with HAT113 at 12:05."),
    "boston": ("When is the next flight to Boston?", "HAT642 leaves at 9:40."),
}
"""Sessions of before: what was asked and answered."""


def find_booking(flight: str) -> dict[str, Any]:
    """Look the booking of a flight up."""
    return {"flight": flight, "fare": 420, "status": "cancelled", "paid_with": "credit card"}


def refund(flight: str, dollars: int) -> str:
    """Give the fare of a flight back."""
    return f"{dollars} dollars for {flight} are on their way"


TURNS = [
    ("The booking tells whether it is refundable.", "find_booking", {"flight": "HAT042"}),
    ("Cancelled by us: refund it.", "refund", {"flight": "HAT042", "dollars": 420}),
    ("Everything is known.", "finish", {}),
]


def answers(request: Any) -> Reply:
    """Answer as a careful clerk would: look up, refund, say so."""
    asked = asked_fields(request)
    if "topic" in asked:
        return {"topic": "refund"}
    if "next_tool_name" in asked:
        done = sum(f"observation_{turn}" in str(request.messages) for turn in range(len(TURNS)))
        return dict(
            zip(("next_thought", "next_tool_name", "next_tool_args"), TURNS[done], strict=True)
        )
    return {"reasoning": "The flight was cancelled by us.", "answer": ANSWER}


class Sort(dspy.Signature):
    """Sort a question."""

    question: str = dspy.InputField()
    topic: Literal["refund", "change", "luggage"] = dspy.OutputField()


class Help(dspy.Signature):
    """Help a passenger."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class AirlineDesk(dspy.Module):
    """Sorts a question, then answers it with tools."""

    def __init__(self) -> None:
        super().__init__()
        self.sort = dspy.Predict(Sort)
        self.agent = dspy.ReAct(Help, tools=[find_booking, refund])
        self.set_lm(ScriptedLM(answers, delay_seconds=0.05))

    def forward(self, question: str) -> Any:
        """Answer."""
        self.sort(question=question)
        return self.agent(question=question)


async def talk_before(memory: hs.StepMemory) -> None:
    """Store the sessions of before."""
    repo = memory.repository()
    for session_id, (asked, answered) in EARLIER.items():
        said = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        await repo.append(session_id, said)


def notebook(browser: Any, memory: hs.StepMemory) -> None:
    """Draw the tree of a run as a notebook shows it."""
    with hs.record(memory) as run:
        AirlineDesk()(question=QUESTION)
    page = browser.new_page(viewport={"width": WIDTH, "height": 100}, color_scheme="light")
    page.set_content(CELL.format(question=QUESTION, tree=run._repr_html_()))  # pyright: ignore[reportPrivateUsage] - as a notebook does
    page.screenshot(path=FOLDER / "notebook.png", full_page=True)


def server_page(browser: Any, memory: hs.StepMemory) -> None:
    """Draw the server's page after a question was answered."""
    page = browser.new_page(**WINDOWS["light"])
    with serving(memory, AirlineDesk()) as served:
        page.goto(f"{served.address}/#token={TOKEN}")
        page.get_by_role("button", name="New").click()
        page.get_by_label("Message", exact=True).fill(QUESTION)
        page.get_by_label("Message", exact=True).press("Enter")
        page.locator(".message-assistant").filter(has_text=ANSWER).wait_for()
        page.get_by_role("button", name="Send").wait_for()
        page.get_by_role("treeitem").filter(has_text="refund: HAT042").last.click()
        page.get_by_role("link", name="More like this").wait_for()
        page.screenshot(path=FOLDER / "page.png")
        page.close()


class Broken(dspy.Module):
    """Fails, as programs do."""

    def forward(self, question: str) -> Any:
        """Fail."""
        raise ValueError(f"no desk is open for: {question}")


def stored(memory: hs.StepMemory) -> list[str]:
    """Store two runs that can be compared and one that failed; return their ids, oldest first."""
    ids: list[str] = []
    for question in (QUESTION, "Is my suitcase on its way?"):
        with hs.record(memory, session_id="notebook", user_id="ann") as run:
            AirlineDesk()(question=question)
        run.score(0.9 if not ids else 0.2, "polite and right" if not ids else "not what was asked")
        ids.append(run.id)
    with suppress(ValueError), hs.record(memory, user_id="bob") as run:
        Broken()(question="Where is gate 4?")
    return [*ids, run.id]


def views(browser: Any, memory: hs.StepMemory, folder: Path) -> None:
    """Draw every view in every window."""
    ids = stored(memory)
    step = next(str(step.id) for step in memory.run_steps(ids[0]) if step.tool == "refund")
    with serving(memory, AirlineDesk()) as served:
        served.chat("talk", QUESTION)
        served.chat("talk", "**Thanks!** What is left?\n\n* one\n* two")
        addresses = {
            "session": "#/sessions/talk",
            "recorded": "#/sessions/notebook",
            "sessions": "#/sessions",
            "runs": "#/runs",
            "run": f"#/runs/{ids[0]}?step={step}",
            "failed": f"#/runs/{ids[2]}",
            "compare": f"#/compare/{ids[0]}/{ids[1]}",
            "search": "#/search?q=refund+the+flight",
        }
        for window, options in WINDOWS.items():
            page = browser.new_page(**options)
            page.goto(f"{served.address}/#token={TOKEN}")
            for name, address in addresses.items():
                page.goto(f"{served.address}/{address}")
                page.wait_for_load_state("networkidle")
                page.screenshot(path=folder / f"{name}-{window}.png")
            page.close()


def main() -> None:
    """Draw what is asked for."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser()
    parser.add_argument("--views", type=Path, metavar="FOLDER")
    folder: Path | None = parser.parse_args().views
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        asyncio.run(talk_before(memory))  # Playwright has an event loop of its own
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=BROWSER, args=QUIET)
            if folder is None:
                notebook(browser, memory)
                server_page(browser, memory)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                views(browser, memory, folder)
            browser.close()


if __name__ == "__main__":
    main()
