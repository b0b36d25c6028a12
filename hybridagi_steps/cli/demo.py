"""`hybridagi-steps demo`: the whole library in a few seconds, offline and without a key.

Everything it prints is computed while it runs. The past is real (the runs that come with the
package); one run is kept out of it, and a DSPy agent runs that one anew, its model and tools
answering as recorded. Running the demo again replaces its own run and changes nothing else.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hybridagi_steps.cli.options import opened

if TYPE_CHECKING:
    from rich.console import Console

    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.agent_step import AgentStep
    from hybridagi_steps.records.filters import StepHit

REPLAYED = "tau-airline-45-0"
"""The run that happens anew: a delayed flight, a claim, a certificate."""
SESSION = "hybridagi-steps-demo"
_HITS = 3
_OUTCOMES = ("reward", "em", "win")


class Question(NamedTuple):
    """One search, told in words, run here, and shown as the command line that does the same."""

    kind: str
    text: str | None = None
    like: str | None = None
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """What `StepMemory.search` takes beside the query and k."""
    words: tuple[str, ...] = ()
    """The same on the command line."""

    def hits(self, memory: StepMemory) -> list[StepHit]:
        """Search."""
        from hybridagi_steps.cli.finding import steps_like

        if self.like is not None:
            return steps_like(memory, self.like, _HITS, **self.options)
        return memory.search(self.text or "", _HITS, **self.options)

    def command(self, db: str) -> str:
        """Return the command line that gives the same hits."""
        query = ["--like", self.like] if self.like is not None else [self.text or ""]
        return _command("search", *query, *self.words, "-k", str(_HITS), db=db)


def demo(
    db: Annotated[
        str, typer.Option("--db", help="The memory file to fill.", metavar="FILE")
    ] = "steps-demo.db",
) -> None:
    """See it all at work: offline, no key."""
    from hybridagi_steps.cli import render
    from hybridagi_steps.display.view import plural
    from hybridagi_steps.stores.address import is_server

    if is_server(db):
        raise typer.BadParameter("the demo fills a file of its own, no database.")
    screen = render.console()
    with opened(db, "default") as memory:
        past, anew = _recorded_runs()
        _load(memory, past, screen)
        screen.print()
        screen.print(render.styled(("2  Record", "bold"), ("  a DSPy agent while it works", "")))
        steps = _run_agent(memory, anew)
        calls = plural(len(anew), "recorded tool call")
        _tell(screen, f"A dspy.ReAct agent under hs.record(memory); its model replays {calls}.")
        screen.print()
        screen.print(render.run_tree(steps))
        _ask(memory, steps, db, screen)
        _say_what_next(memory, steps, db, screen)


def _load(memory: StepMemory, past: list[AgentStep], screen: Console) -> None:
    from hybridagi_steps.cli import render

    started = time.monotonic()
    known = {str(step.id) for step in memory.get_steps([str(step.id) for step in past])}
    memory.add([step for step in past if str(step.id) not in known])
    memory.delete([step.id for step in memory.iter_steps({"session_id": SESSION})])
    for run_id, score in _outcomes().items():
        if run_id != REPLAYED:
            memory.score(run_id, score)
    with render.progress("embedding and indexing") as watch:
        memory.flush(watch)
    runs = len({step.run_id for step in past})
    screen.print(render.styled(("1  Load", "bold"), ("  what other agents did before", "")))
    _tell(
        screen,
        f"{len(past):,} real steps of {runs} runs (airline service, questions, code, APIs), "
        f"{len(past) - len(known):,} of them new here. Stored, embedded with "
        f"{memory.embedder.model_id.partition('@')[0]} and indexed in "
        f"{time.monotonic() - started:.1f} s.",
    )


def _run_agent(memory: StepMemory, recorded: list[AgentStep]) -> list[AgentStep]:
    from hybridagi_steps.programs.replay import replay

    run = replay(memory, recorded, session_id=SESSION, tags={"replay_of": REPLAYED})
    run.score(_outcomes()[REPLAYED])
    return memory.run_steps(run.id)


def _ask(memory: StepMemory, steps: list[AgentStep], db: str, screen: Console) -> None:
    from hybridagi_steps.cli import render

    screen.print()
    screen.print(render.styled(("3  Find", "bold"), ("  the past steps that matter now", "")))
    for question in _questions(steps):
        screen.print()
        _tell(screen, question.kind)
        screen.print(render.styled((f"   {question.command(db)}", "green")), soft_wrap=True)
        screen.print(render.hits_table(question.hits(memory)))


def _questions(steps: list[AgentStep]) -> list[Question]:
    done = [step.tool for step in steps].index("send_certificate")
    promise = next(step for step in steps[done:] if step.tool == "respond")
    run_id = str(promise.run_id)
    return [
        Question(
            "By meaning alone: the customer spoke of suitcases, never of luggage.",
            text="how much luggage may a passenger bring",
            options={"mode": "dense"},
            words=("--mode", "dense"),
        ),
        Question(
            "By words and meaning, only among answers in runs that ended well.",
            text="basic economy cancellation without insurance",
            options={"where": {"tools": ["respond"], "min_score": 1.0}},
            words=("--tool", "respond", "--rated", "1"),
        ),
        Question(
            "Other runs' steps like the one in which our agent promised a compensation.",
            like=str(promise.id),
            options={"where": {"exclude_run_id": [run_id]}},
            words=("--not-run", run_id),
        ),
    ]


def _say_what_next(memory: StepMemory, steps: list[AgentStep], db: str, screen: Console) -> None:
    from hybridagi_steps.cli import render

    size = memory.stats()["bytes"] / 1e6
    screen.print()
    screen.print(
        render.styled(("4  Go on", "bold"), (f"  the memory is {Path(db).absolute()}", ""))
    )
    screen.print(f"   {size:.1f} MB, one file. Type next:\n")
    run_id = str(steps[0].run_id)
    for words in (["runs"], ["show", run_id], ["search", "refund after a delay"], ["stats"]):
        screen.print(render.styled((f"   {_command(*words, db=db)}", "green")), soft_wrap=True)
    screen.print("\n   In your own program:\n")
    for line in (
        "import hybridagi_steps as hs",
        'memory = hs.StepMemory("steps.db")',
        "with hs.record(memory):",
        '    your_program(question="…")',
        'memory.search("what we did when …")',
    ):
        screen.print(render.styled((f"   {line}", "cyan")))
    screen.print()


def _tell(screen: Console, text: str) -> None:
    """Print a paragraph, indented as the text of a section is."""
    from rich.padding import Padding

    screen.print(Padding(text, (0, 0, 0, 3)))


def _command(*words: str, db: str) -> str:
    return shlex.join(["hybridagi-steps", *words, "--db", db])


def _recorded_runs() -> tuple[list[AgentStep], list[AgentStep]]:
    """Return the steps of the past, and those of the run that happens anew."""
    from hybridagi_steps.exchange.shipped_runs import shipped_steps

    steps = shipped_steps()
    past = [step for step in steps if step.run_id != REPLAYED]
    return past, [step for step in steps if step.run_id == REPLAYED]


def _outcomes() -> dict[str, float]:
    """Return how well each recorded run went, where that is known."""
    from hybridagi_steps.exchange.shipped_runs import shipped_runs

    known: dict[str, float] = {}
    for run in shipped_runs():
        found = [run[key] for key in _OUTCOMES if isinstance(run.get(key), bool | int | float)]
        if found:
            known[run["run_id"]] = float(found[0])
    return known
