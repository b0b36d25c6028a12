"""How well past steps are found, on the shipped runs: words, meaning, and both together.

Every row of the table answers the same questions over the same memory. The rows `dense, own text`,
`BM25, window text` and `this library` are `StepMemory.search` itself; `BM25, own text` and the rank
fusion exist here only, to be compared with. Of equal texts one counts, in every row. A task's value
is the mean over its runs of the mean over a run's questions: the questions of a run resemble each
other, and the longest run must not decide. Constants are chosen on one half of the runs (`tune`)
and the table is of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from statistics import fmean, stdev
from typing import Any

import numpy as np

from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_text import own_text, text_hash, tokens
from hybridagi_steps.search import ranking as retrieval
from hybridagi_steps.search.bm25 import LexicalIndex
from tests.benchmarks.conditions import conditions
from tests.benchmarks.ranking import ndcg, recall, reciprocal_rank_fusion
from tests.benchmarks.retrieval_tasks import Half, Question, Task, retrieval_tasks
from tests.benchmarks.tables import Table, number, print_json, print_tables

CUT = 10
"""Hits that are looked at."""
HYBRID = "this library (hybrid)"
OWN_HALVES = ("BM25, own text", "dense, own text")
"""What the hybrid must not fall behind."""

_DEPTH = 100
WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SHARES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)

Ranker = Callable[[Question], list[int]]
"""Answers a question with hashes of own texts, best first."""
Values = dict[str, list[float]]
"""Values of a run's questions, by run."""


def report(json_output: bool = False, **options: Any) -> None:
    """Print how well steps are found; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables(_tables(result), result)


def measure(
    embedder: str = "wordllama", half: Half = "report", tune: bool = False
) -> dict[str, Any]:
    """Return nDCG@10 and recall@10 of every retriever on every task.

    Args:
        embedder: Name of the embedder for the dense half.
        half: Whose runs ask.
        tune: Also try a grid of constants on the tuning half.
    """
    steps = shipped_steps()
    with StepMemory(":memory:", embedder=embedder) as memory:
        memory.add(steps)
        memory.flush()
        tasks = retrieval_tasks(steps, half)
        rankers = _rankers(memory, steps)
        found = [_measured(task, rankers) for task in tasks]
        result = {
            **conditions(embedder=memory.embedder.model_id, half=half, steps=len(steps)),
            "constants": _constants(),
            "tasks": found,
            "mean": _means(found),
        }
        if tune:
            result["grid"] = _grid(rankers[HYBRID], retrieval_tasks(steps, "tune"))
    return result


def _rankers(memory: StepMemory, steps: list[AgentStep]) -> dict[str, Ranker]:
    def by_library(mode: retrieval.Mode, k: int) -> Ranker:
        def ranked(question: Question) -> list[int]:
            hits = memory.search(question.text, k, where=_where(question), mode=mode)
            return [text_hash(own_text(hit.step)) for hit in hits]

        return ranked

    own_words, dense = _own_words(steps), by_library("dense", _DEPTH)

    def fused(question: Question) -> list[int]:
        return reciprocal_rank_fusion([own_words(question), dense(question)])

    return {
        "BM25, own text": own_words,
        "BM25, window text": by_library("lexical", CUT),
        "dense, own text": dense,
        "rank fusion, own text": fused,
        HYBRID: by_library("hybrid", CUT),
    }


def _where(question: Question) -> StepFilter:
    return StepFilter(exclude_run_id=[question.run_id] if question.unseen else None)


def _own_words(steps: list[AgentStep]) -> Ranker:
    """Return BM25 over own texts, the lexical half without its windows."""
    texts = [own_text(step) for step in steps]
    hashes = [text_hash(text) for text in texts]
    runs = np.array([str(step.run_id) for step in steps])
    index = LexicalIndex()
    index.add((row, tokens(text)) for row, text in enumerate(texts))

    def ranked(question: Question) -> list[int]:
        seen = runs != question.run_id if question.unseen else np.ones(len(runs), np.bool_)
        rows, _ = index.match(tokens(question.text)).top(len(steps), np.flatnonzero(seen))
        return list(dict.fromkeys(hashes[int(row)] for row in rows))[:_DEPTH]

    return ranked


def _measured(task: Task, rankers: dict[str, Ranker]) -> dict[str, Any]:
    values = {name: _values(task, ranker) for name, ranker in rankers.items()}
    better = max(OWN_HALVES, key=lambda name: _by_run(values[name][0]))
    return {
        "task": task.name,
        "questions": len(task.questions),
        "runs": len({question.run_id for question in task.questions}),
        "ndcg": {name: _by_run(both[0]) for name, both in values.items()},
        "recall": {name: _by_run(both[1]) for name, both in values.items()},
        "better_half": better,
        "ahead_of_better_half": _difference(values[HYBRID][0], values[better][0]),
    }


def _values(task: Task, ranker: Ranker) -> tuple[Values, Values]:
    """Return nDCG and recall of every question, by run."""
    gains: Values = {}
    recalls: Values = {}
    for question in task.questions:
        ranked = ranker(question)
        gains.setdefault(question.run_id, []).append(ndcg(ranked, question.wanted, CUT))
        recalls.setdefault(question.run_id, []).append(recall(ranked, question.wanted, CUT))
    return gains, recalls


def _by_run(values: Values) -> float:
    return fmean(fmean(run) for run in values.values())


def _difference(ours: Values, theirs: Values) -> dict[str, float | None]:
    """Return the mean difference over runs and its standard error."""
    found = [fmean(ours[run]) - fmean(theirs[run]) for run in ours]
    error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else None
    return {"mean": fmean(found), "standard_error": error}


def _means(found: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    names = found[0]["ndcg"]
    return {
        measure: {name: fmean(task[measure][name] for task in found) for name in names}
        for measure in ("ndcg", "recall")
    }


def _constants() -> dict[str, float]:
    return {
        "lexical_weight": retrieval.LEXICAL_WEIGHT,
        "neighbour_share": retrieval.NEIGHBOUR_SHARE,
        "pool": retrieval.POOL,
    }


def _grid(hybrid: Ranker, tasks: list[Task]) -> list[dict[str, Any]]:
    """Return the nDCG of the library's search under other constants, per task and mean."""
    found: list[dict[str, Any]] = []
    for weight in WEIGHTS:
        for share in SHARES:
            with _using(weight, share):
                each = {task.name: _by_run(_values(task, hybrid)[0]) for task in tasks}
            settings = {"lexical_weight": weight, "neighbour_share": share}
            found.append({**settings, "mean": fmean(each.values()), "tasks": each})
    return found


@contextmanager
def _using(weight: float, share: float) -> Generator[None]:
    """Search with other constants for a while."""
    before = retrieval.LEXICAL_WEIGHT, retrieval.NEIGHBOUR_SHARE
    _set_constants(weight, share)
    try:
        yield
    finally:
        _set_constants(*before)


def _set_constants(weight: float, share: float) -> None:
    for name, value in (("LEXICAL_WEIGHT", weight), ("NEIGHBOUR_SHARE", share)):
        setattr(retrieval, name, value)


def _tables(result: dict[str, Any]) -> list[Table]:
    tables = [
        _comparison(result, "ndcg", f"nDCG@{CUT}"),
        _comparison(result, "recall", f"recall@{CUT}"),
    ]
    if "grid" in result:
        tables.append(_grid_table(result["grid"]))
    return tables


def _comparison(result: dict[str, Any], measure: str, title: str) -> Table:
    names = list(result["mean"][measure])
    columns = ["", "questions (runs)", *names]
    rows = [
        [
            task["task"],
            f"{task['questions']} ({task['runs']})",
            *(number(task[measure][name]) for name in names),
        ]
        for task in result["tasks"]
    ]
    rows.append(["mean", "", *(number(result["mean"][measure][name]) for name in names)])
    if measure == "ndcg":
        columns.append("hybrid - better own-text half ± s.e.")
        for row, task in zip(rows, result["tasks"], strict=False):
            row.append(_signed(task["ahead_of_better_half"]))
        rows[-1].append("")
    options = result["options"]
    return Table(f"{title}, half `{options['half']}`, {options['embedder']}", columns, rows)


def _signed(difference: dict[str, float | None]) -> str:
    return f"{difference['mean']:+.3f} ± {number(difference['standard_error'])}"


def _grid_table(grid: list[dict[str, Any]]) -> Table:
    means = {(entry["lexical_weight"], entry["neighbour_share"]): entry["mean"] for entry in grid}
    rows = [[str(w), *(number(means[w, share]) for share in SHARES)] for w in WEIGHTS]
    columns = ["LEXICAL_WEIGHT \\ NEIGHBOUR_SHARE", *map(str, SHARES)]
    return Table(f"mean nDCG@{CUT} on the half `tune`", columns, rows)
