"""How well past steps are found, on the shipped runs: words, meaning, both together, with an aim.

Every row of the table answers the same questions over the same memory. The rows `dense, own text`,
`BM25, window text` and `this library` are `StepMemory.search` itself; `BM25, own text` and the rank
fusion exist here only, to be compared with. Of equal texts one counts, in every row. A task's value
is the mean over its runs of the mean over a run's questions: the questions of a run resemble each
other, and the longest run must not decide; its interval comes of drawing whole runs. Constants are
chosen on one half of the runs (`tune`) and the table is of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.step_text import own_text, text_hash, tokens
from hybridagi_steps.search import formulas
from hybridagi_steps.search import ranking as retrieval
from hybridagi_steps.search.bm25 import LexicalIndex
from tests.benchmarks.conditions import conditions
from tests.benchmarks.quality_cost import cost_by_part
from tests.benchmarks.quality_dialogue import (
    chat_file,
    dialogue_quality,
    mixed_memory,
    shipped_turns,
    turn_questions,
)
from tests.benchmarks.quality_evidence import evidence_questions, evidence_recall, side_by_side
from tests.benchmarks.quality_own_runs import own_quality
from tests.benchmarks.quality_searches import Searches
from tests.benchmarks.quality_tables import AIMED, CUT, HYBRID, WISHED, quality_tables
from tests.benchmarks.ranking import (
    Values,
    by_run,
    interval,
    ndcg,
    paired,
    recall,
    reciprocal_rank_fusion,
)
from tests.benchmarks.retrieval_tasks import (
    Half,
    Question,
    Task,
    half_of_runs,
    retrieval_tasks,
    shipped_tasks,
)
from tests.benchmarks.tables import print_json, print_tables

OWN_HALVES = ("BM25, own text", "dense, own text")
"""What the hybrid must not fall behind."""

PARTS: tuple[str, ...] = ("tasks", "evidence", "dialogue", "mixed", "cost")
"""What can be measured by itself."""

_DEPTH = 100
_COST_ROUNDS = 5
WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SHARES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)

Ranker = Callable[[Question, Task], list[int]]
"""Answers a question of a task with hashes of own texts, best first."""


def report(json_output: bool = False, **options: Any) -> None:
    """Print how well steps are found; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(quality_tables(result), result)


def measure(
    embedder: str = "wordllama",
    half: Half = "report",
    tune: bool = False,
    only: str = "",
    runs: str = "",
    questions: str = "",
) -> dict[str, Any]:
    """Return nDCG@10 and recall@10 of every retriever on every task, and what contexts hold.

    Args:
        embedder: Name of the embedder for the dense half.
        half: Whose runs ask.
        tune: Also try a grid of constants on the tuning half.
        only: The parts to measure, of tasks, evidence, dialogue, mixed and cost, with commas
            between them; by default all of them.
        runs: A file with runs or chats of your own, in any format that can be imported; then
            nothing but they is measured.
        questions: What to ask about them: JSON objects with question and relevant, a list of ids.

    Raises:
        InvalidSettingError: There is no such part; or runs without questions, or the reverse.
        ExchangeError: One of the two files is not what it should be.
    """
    if runs or questions:
        if not (runs and questions):
            raise InvalidSettingError("--runs and --questions go together: what is asked of what.")
        if tune:
            raise InvalidSettingError("--tune is about the shipped runs only.")
        found = conditions(embedder=embedder, runs=runs, questions=questions)
        return found | {"own": own_quality(Path(runs), Path(questions), embedder)}
    parts = _parts(only)
    steps = shipped_steps()
    with StepMemory(":memory:", embedder=embedder) as memory:
        memory.add(steps)
        memory.flush()
        found = conditions(embedder=memory.embedder.model_id, half=half, steps=len(steps))
        tasks = retrieval_tasks(steps, half)
        rankers = _rankers(memory, steps)
        if "tasks" in parts:
            each = [_measured(task, rankers) for task in tasks]
            found |= {"constants": _constants(), "tasks": each, "mean": _means(each)}
        if "cost" in parts:
            asked = [question for task in tasks for question in task.questions]
            found["cost"] = cost_by_part(memory, Searches(memory), asked, _COST_ROUNDS)
        if tune:
            found["grid"] = _grid(rankers[HYBRID], retrieval_tasks(steps, "tune"))
    if "evidence" in parts:
        found["evidence"] = _evidence(steps, embedder, half)
    if "dialogue" in parts:
        found["dialogue"] = _dialogue(steps, embedder, half)
    if "mixed" in parts:
        found["mixed"] = _mixed(steps, embedder, half)
    return found


def _parts(only: str) -> list[str]:
    asked = only.split(",") if only else list(PARTS)
    if unknown := [part for part in asked if part not in PARTS]:
        raise InvalidSettingError(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}.")
    return asked


def _evidence(steps: list[AgentStep], embedder: str, half: Half) -> dict[str, Any]:
    """Return what contexts hold, with the values in the question and without."""
    tasks, placed = shipped_tasks(), side_by_side(steps)
    asking = sorted(half_of_runs(tasks, half))
    with StepMemory(":memory:", embedder=embedder) as memory:
        memory.add(placed)
        memory.flush()
        return {
            name: evidence_recall(
                memory, placed, evidence_questions(placed, tasks, asking, blotted=blotted)
            )
            for name, blotted in (("inputs of a later step", False), ("the values left out", True))
        }


def _dialogue(steps: list[AgentStep], embedder: str, half: Half) -> dict[str, Any]:
    turns = shipped_turns(steps)
    with chat_file(turns) as file:
        return dialogue_quality(embedder, turns, turn_questions(turns, half), file)


def _mixed(steps: list[AgentStep], embedder: str, half: Half) -> dict[str, Any]:
    """Return what is found of two kinds of rows; the conversations are Who&When and tau-bench."""
    turns = shipped_turns(steps)
    spoken = {turn.session_id for turn in turns}
    tools = [step for step in steps if step.run_id not in spoken]
    tasks = [
        replace(task, questions=[q for q in task.questions if q.run_id not in spoken])
        for task in retrieval_tasks(steps, half)
    ]

    def ask(memory: StepMemory) -> Values:
        ranker = _library(Searches(memory))
        found = [_values(task, ranker)[0] for task in tasks if task.in_mean]
        return {f"{n} {run}": each for n, by in enumerate(found) for run, each in by.items()}

    return mixed_memory(embedder, tools, ask, turns, turn_questions(turns, half))


def _library(searches: Searches, mode: formulas.Mode = "hybrid", k: int = CUT) -> Ranker:
    return lambda question, _: _hashes(searches.hits(question, k, mode=mode))


def _rankers(memory: StepMemory, steps: list[AgentStep]) -> dict[str, Ranker]:
    searches = Searches(memory)

    own_words, dense = _own_words(steps), _library(searches, "dense", _DEPTH)

    def fused(question: Question, task: Task) -> list[int]:
        return reciprocal_rank_fusion([own_words(question, task), dense(question, task)])

    def aimed(question: Question, task: Task) -> list[int]:
        return _hashes(searches.hits(question, CUT, task.aim))

    def wished(question: Question, task: Task) -> list[int]:
        return _hashes(searches.hits(question, CUT, task.aim, tools=question.tools))

    return {
        "BM25, own text": own_words,
        "BM25, window text": _library(searches, "lexical"),
        "dense, own text": dense,
        "rank fusion, own text": fused,
        HYBRID: _library(searches),
        AIMED: aimed,
        WISHED: wished,
    }


def _hashes(hits: list[StepHit]) -> list[int]:
    return [text_hash(own_text(hit.step)) for hit in hits]


def _own_words(steps: list[AgentStep]) -> Ranker:
    """Return BM25 over own texts, the lexical half without its windows."""
    texts = [own_text(step) for step in steps]
    hashes = [text_hash(text) for text in texts]
    runs = np.array([str(step.run_id) for step in steps])
    index = LexicalIndex()
    index.add((row, tokens(text)) for row, text in enumerate(texts))

    def ranked(question: Question, _: Task) -> list[int]:
        seen = runs != question.run_id if question.unseen else np.ones(len(runs), np.bool_)
        best = index.match(tokens(question.text)).top(len(steps), np.flatnonzero(seen))
        return list(dict.fromkeys(hashes[int(row)] for row in best[0]))[:_DEPTH]

    return ranked


def _measured(task: Task, rankers: dict[str, Ranker]) -> dict[str, Any]:
    values = {name: _values(task, ranker) for name, ranker in rankers.items()}
    gains = {name: both[0] for name, both in values.items()}
    recalls = {name: both[1] for name, both in values.items()}
    better = max(OWN_HALVES, key=lambda name: by_run(gains[name]))
    return {
        "task": task.name,
        "aim": task.aim,
        "in_mean": task.in_mean,
        "questions": len(task.questions),
        "runs": len({question.run_id for question in task.questions}),
        "ndcg": {name: by_run(each) for name, each in gains.items()},
        "recall": {name: by_run(each) for name, each in recalls.items()},
        "intervals": {
            "ndcg": {name: interval(each)._asdict() for name, each in gains.items()},
            "recall": {name: interval(each)._asdict() for name, each in recalls.items()},
        },
        "better_half": better,
        "ahead_of_better_half": interval(paired(gains[HYBRID], gains[better]))._asdict(),
        "gain_of_aim": interval(paired(gains[AIMED], gains[HYBRID]))._asdict(),
    }


def _values(task: Task, ranker: Ranker) -> tuple[Values, Values]:
    """Return nDCG and recall of every question, by run."""
    gains: Values = {}
    recalls: Values = {}
    for question in task.questions:
        ranked = ranker(question, task)
        gains.setdefault(question.run_id, []).append(ndcg(ranked, question.wanted, CUT))
        recalls.setdefault(question.run_id, []).append(recall(ranked, question.wanted, CUT))
    return gains, recalls


def _means(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    names = found[0]["ndcg"]
    counted = [task for task in found if task["in_mean"]]
    return {
        measure: {name: fmean(task[measure][name] for task in counted) for name in names}
        for measure in ("ndcg", "recall")
    }


def _constants() -> dict[str, Any]:
    by_aim = {aim or "general": formula for aim, formula in formulas.AIMS.items()}
    return {
        **{
            name: {**formula.weights, **formula.votes, "spread": formula.spread}
            for name, formula in by_aim.items()
        },
        "pool": retrieval.POOL,
    }


def _grid(hybrid: Ranker, tasks: list[Task]) -> list[dict[str, Any]]:
    """Return the nDCG of the library's search under other constants, per task and mean."""
    found: list[dict[str, Any]] = []
    tasks = [task for task in tasks if task.in_mean]
    for weight in WEIGHTS:
        for share in SHARES:
            with _using(weight, share):
                each = {task.name: by_run(_values(task, hybrid)[0]) for task in tasks}
            settings = {"lexical_weight": weight, "neighbour_share": share}
            found.append({**settings, "mean": fmean(each.values()), "tasks": each})
    return found


@contextmanager
def _using(weight: float, share: float) -> Generator[None]:
    """Search with another general formula for a while: words and meaning share what they have."""
    before = formulas.AIMS[None]
    both = before.weights["window"] + before.weights["meaning"]
    halves = {"window": weight * both, "meaning": (1 - weight) * both}
    formulas.AIMS[None] = formulas.Formula({**before.weights, **halves}, share)
    try:
        yield
    finally:
        formulas.AIMS[None] = before
