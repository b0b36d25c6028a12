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
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.programs import Action, Decision, GraphProgram, Program
from hybridagi_steps.programs.tools import Predict, Speak
from hybridagi_steps.testing import Reply, ScriptedLM, asked_fields, plausible_reply
from hybridagi_steps.workspace.workspace import Workspace
from tests.server_cases import BROWSER, QUIET, TOKEN, serving, until

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


def refunds(memory: hs.StepMemory) -> hs.GraphInterpreter:
    """A graph program that decides whether to refund, and calls another one."""
    pay = GraphProgram(name="pay back", description="Send the money")
    pay.add(Action("card", "Predict", "Find the card that paid", "Which card?", var_out="card"))
    pay.add(Action("tell", "Speak", "Tell the passenger", "Say when the money comes"))
    pay.connect("start", "card").connect("card", "tell").connect("tell", "end").build()
    main = GraphProgram(name="main", description="Refund a cancelled flight, or explain why not")
    main.add(Action("booking", "Predict", "Look the booking up", "What is booked?"))
    main.add(Decision("cancelled", "May it be refunded", "Did the airline cancel the flight?"))
    main.add(Program("refund", "Send the money", "pay back"))
    main.add(Action("voucher", "Predict", "Offer a voucher", "Which voucher?"))
    main.add(Action("explain", "Speak", "Explain the rules", "Say why not"))
    main.connect("start", "booking").connect("booking", "cancelled")
    main.connect("cancelled", "refund", label="YES").connect("cancelled", "explain", label="NO")
    main.connect("cancelled", "voucher", label="UNCLEAR").connect("voucher", "explain")
    main.connect("refund", "end").connect("explain", "end").build()
    agent = hs.GraphInterpreter([main, pay], tools=[Predict(), Speak()], memory=memory)
    agent.set_lm(ScriptedLM(plausible_reply))
    return agent


PLAN = """PLAN: move a passenger
DESCRIPTION: Move the passenger of HAT042 to another flight
STEP: find_flights
TYPE: analyze
GOAL: Flights of the same day are known
STEP: read_rules
TYPE: analyze
GOAL: The rules of the fare are known
STEP: choose
TYPE: generate
GOAL: The best flight is chosen
DEPENDENCIES: find_flights, read_rules
STEP: rebook
TYPE: modify
GOAL: The booking names the new flight
DEPENDENCIES: choose
STEP: tell
TYPE: validate
GOAL: The passenger knows
DEPENDENCIES: rebook
STEP: file_report
TYPE: cleanup
GOAL: The report is filed
DEPENDENCIES: read_rules
"""


async def carry_out(work: Work, workspace: Workspace | None) -> Finished:
    """Do each step of the plan but one."""
    if work.step.id == "rebook":
        raise ValueError("flight HAT113 is full")
    return Finished(summary=f"{work.step.goal}.")


def graph_runs(memory: hs.StepMemory) -> list[str]:
    """Store a run of a graph program and one of a plan; return their ids."""
    with hs.record(memory) as run:
        refunds(memory)(query=QUESTION)
    plans = hs.Orchestrator(memory=memory, executor=carry_out, max_attempts=1, max_replans=0)
    return [run.id, plans.run(plan=PLAN).run_id]


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


def settle(page: Any) -> None:
    """Wait until nothing loads any more."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(100)  # until the view has begun to load
    until(lambda: page.locator(".busy").count() == 0)


def views(browser: Any, memory: hs.StepMemory, folder: Path) -> None:
    """Draw every view in every window."""
    ids = stored(memory)
    graph, plan = graph_runs(memory)
    step = next(str(step.id) for step in memory.run_steps(ids[0]) if step.tool == "refund")
    with serving(memory, AirlineDesk()) as served, serving(memory) as reading:
        served.chat("talk", QUESTION)
        served.chat("talk", "**Thanks!** What is left?\n\n* one\n* two")
        told = {"title": "Refund of HAT042", "metadata": {"desk": "Hanover", "priority": 2}}
        served.client.patch("/sessions/talk", json=told).raise_for_status()
        addresses = {
            "session": "#/sessions/talk",
            "recorded": "#/sessions/notebook",
            "sessions": "#/sessions",
            "runs": "#/runs",
            "run": f"#/runs/{ids[0]}?step={step}",
            "overview": f"#/runs/{ids[0]}",
            "graph": f"#/runs/{graph}",
            "plan": f"#/runs/{plan}",
            "map": "#/map",
            "failed": f"#/runs/{ids[2]}",
            "compare": f"#/compare/{ids[0]}/{ids[1]}",
            "search": "#/search?q=refund+the+flight",
        }
        memory.flush()
        for window, options in WINDOWS.items():
            page = browser.new_page(**options)
            page.goto(f"{served.address}/#token={TOKEN}")
            for name, address in addresses.items():
                page.goto(f"{served.address}/{address}")
                settle(page)
                if name in ("graph", "plan"):
                    page.get_by_role("tab", name="Graph").click()
                    page.locator(".drawing svg").first.wait_for()
                    settle(page)
                page.screenshot(path=folder / f"{name}-{window}.png")
            page.goto(f"{reading.address}/#token={TOKEN}")
            page.goto(f"{reading.address}/#/sessions/luggage")
            page.get_by_text("No program is served").wait_for()
            page.screenshot(path=folder / f"reading-{window}.png")
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
