"""What a context saves, and whether what the next step needed was still in it.

A short context is worth nothing if the agent's next step cannot be taken. So for every step of the
shipped tau-bench, SWE-agent and Who&When runs the context before it is built, and what the step
needed is looked for in it: the ids and numbers that it used and that the history named. Tokens
stand beside that success; rivals are the whole history and its last n units. The second question is
how long building takes for a long session whose token counts are known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from hybridagi_steps.context.builder import ContextBuilder
from hybridagi_steps.errors import ContextBudgetError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import to_messages
from hybridagi_steps.messages.parts import json_text
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.excerpts import identifiers
from hybridagi_steps.token_counters import is_estimate
from tests.benchmarks.conditions import conditions
from tests.benchmarks.tables import Table, number, print_json, print_tables
from tests.benchmarks.timing import interleaved, typical

SOURCES = {"tau": "tau-bench", "sweagent": "SWE-agent", "whowhen": "Who&When"}
FULL = "full history"

_AMPLE = 10**9
_LAST = (1, 2, 3, 4, 6, 8)
_OURS = ((1_000, 1, 3), (2_000, 1, 5), (4_000, 2, 5), (4_000, 6, 5), (8_000, 3, 8))
"""Budget, recent units and recalled steps of the builders that are measured."""


@dataclass(slots=True)
class Outcome:
    """How one way of building contexts did on one source."""

    tokens: list[int] = field(default_factory=list[int])
    """Of each context; a context that was refused has none."""
    complete: int = 0
    """Contexts with everything the next step needed."""
    refused: int = 0
    """Contexts that could not be built within the budget."""
    steps: int = 0

    @property
    def success(self) -> float:
        """Share of steps whose needed values were all there."""
        return self.complete / self.steps if self.steps else 0.0

    def shown(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {
            "steps": self.steps,
            "tokens": mean(self.tokens) if self.tokens else None,
            "success": self.success,
            "refused": self.refused,
        }


def report(json_output: bool = False, **options: Any) -> None:
    """Print what contexts cost and hold; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(messages: int = 1_000, rounds: int = 30, counter: str = "auto") -> dict[str, Any]:
    """Return tokens and success of each way on each source, and build times in milliseconds.

    Args:
        messages: Length of the session that is timed.
        rounds: How often each build is timed.
        counter: Counts tokens: `auto`, `estimate`, `tiktoken`, or a tokenizer file.
    """
    rivals = _rivals(counter)
    return {
        **conditions(messages=messages, rounds=rounds, counter=counter),
        "counter": rivals[FULL].counter.counter_id,
        "estimated": is_estimate(rivals[FULL].counter),
        "contexts": {name: _compared(prefix, rivals) for prefix, name in SOURCES.items()},
        "build": _build_times(messages, rounds),
    }


def needed_values(step: AgentStep, history: set[str]) -> set[str]:
    """Return the ids and numbers of the history that a step used.

    Those of its arguments; of a step that has none, because it only speaks, those of what it says.
    """
    used = identifiers(json_text(step.arguments)) if step.arguments else []
    return history.intersection(used or identifiers(json_text(step.result)))


def _rivals(counter: str) -> dict[str, ContextBuilder]:
    rivals = {FULL: ContextBuilder(budget=_AMPLE, recent=None, k=0, counter=counter)}
    for count in _LAST:
        rivals[f"last {count}"] = _LastUnits(count, counter)
    for budget, recent, k in _OURS:
        name = f"budget {budget:,}, recent {recent}, k {k}"
        rivals[name] = ContextBuilder(budget=budget, recent=recent, k=k, counter=counter)
    return rivals


class _LastUnits(ContextBuilder):
    """The last n units and nothing else, however many tokens they have."""

    def __init__(self, count: int, counter: str) -> None:
        super().__init__(budget=_AMPLE, recent=None, k=0, counter=counter)
        self.count = count


def _compared(prefix: str, rivals: dict[str, ContextBuilder]) -> dict[str, dict[str, Any]]:
    outcomes = {name: Outcome() for name in rivals}
    for history, step in _moments(prefix):
        named = _named(rivals[FULL].build(steps=history).messages)
        needed = needed_values(step, named)
        if not needed:
            continue
        for name, builder in rivals.items():
            _try(builder, history, needed, outcomes[name])
    return {name: outcome.shown() for name, outcome in outcomes.items()}


def _moments(prefix: str) -> Iterator[tuple[list[AgentStep], AgentStep]]:
    """Yield each step of a source with what its agent had done before."""
    runs: dict[str, list[AgentStep]] = {}
    for step in shipped_steps():
        if str(step.run_id).startswith(prefix):
            before = runs.setdefault(str(step.run_id), [])
            if before:
                yield list(before), step
            before.append(step)


def _try(
    builder: ContextBuilder, history: Sequence[AgentStep], needed: set[str], outcome: Outcome
) -> None:
    """Build one context and see whether everything needed is in it."""
    outcome.steps += 1
    given = history[-builder.count :] if isinstance(builder, _LastUnits) else history
    try:
        context = builder.build(steps=given)
    except ContextBudgetError:
        outcome.refused += 1
        return
    outcome.tokens.append(context.receipt.tokens)
    outcome.complete += needed <= _named(context.messages)


def _named(messages: Iterable[dict[str, Any]]) -> set[str]:
    """Return the ids and numbers that messages name."""
    texts = [json_text(message.get("content") or "") for message in messages]
    texts += [
        call["function"]["arguments"]
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
    return set(identifiers("\n".join(texts)))


def _build_times(messages: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return median milliseconds of building one context of a long session in a file."""
    given = to_messages(shipped_steps(), session_id="long", carry=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        StepMemory(Path(folder) / "steps.db", embedder="hashing") as memory,
    ):
        memory.repository().store.commit("long", given[:messages])
        kept = ContextBuilder(memory, k=0)
        recalling = ContextBuilder(memory)
        samples = interleaved(
            {
                "again": lambda: kept.build(session_id="long"),
                "new builder": lambda: ContextBuilder(memory, k=0).build(session_id="long"),
                "again, with recall": lambda: recalling.build(session_id="long"),
            },
            rounds,
            warm_up=2,
        )
    return {
        name: {
            "cpu_ms": typical(found, "cpu") / 1_000,
            "wall_ms": typical(found, "wall") / 1_000,
        }
        for name, found in samples.items()
    }


def _tables(result: dict[str, Any]) -> list[Table]:
    about = "about " if result["estimated"] else ""
    tables = [
        Table(
            f"{source}: {ways[FULL]['steps']} steps that needed something",
            [
                "context",
                f"{about}tokens",
                "of full",
                "all needed values there",
                "refused",
                "cheapest rival as good",
            ],
            [_row(name, ways) for name in ways],
        )
        for source, ways in result["contexts"].items()
    ]
    rows = [
        [name, number(took["cpu_ms"], 1), number(took["wall_ms"], 1)]
        for name, took in result["build"].items()
    ]
    title = f"building a context of a session of {result['options']['messages']:,} messages"
    return [*tables, Table(title, ["", "CPU ms", "wall ms"], rows)]


def _row(name: str, ways: dict[str, dict[str, Any]]) -> list[str]:
    way = ways[name]
    tokens, full = way["tokens"], ways[FULL]["tokens"]
    share = number(100 * tokens / full, 0) + " %" if tokens else "-"
    ours = name.startswith("budget")
    return [
        name,
        number(tokens, 0),
        share,
        f"{100 * way['success']:.1f} %",
        str(way["refused"]),
        _as_good(way, ways) if ours else "",
    ]


def _as_good(way: dict[str, Any], ways: dict[str, dict[str, Any]]) -> str:
    """Return the rival with the fewest tokens that succeeds at least as often."""
    rivals = {name: rival for name, rival in ways.items() if not name.startswith("budget")}
    good = [name for name, rival in rivals.items() if rival["success"] >= way["success"]]
    best = min(good, key=lambda name: rivals[name]["tokens"])
    return f"{best}: {number(rivals[best]['tokens'], 0)}"
