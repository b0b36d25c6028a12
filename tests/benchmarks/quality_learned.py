"""What a learned rank is worth: its gain on questions whose runs it did not learn from.

The best hits of every question are judged by the question's own answer, a rank is learned from them
for each task, and its gain is cross-fitted over runs, all of them: half of a few runs would teach
and tell little. Where it refuses to learn, the row says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hybridagi_steps.errors import LabelError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.step_text import own_text, text_hash
from hybridagi_steps.rerankers import LearnedRank
from hybridagi_steps.rerankers.judged_hits import JudgedHits
from tests.benchmarks.quality_dialogue import Turn, TurnQuestion, keys_shown, known_turns
from tests.benchmarks.quality_searches import Searches
from tests.benchmarks.ranking import interval_text
from tests.benchmarks.retrieval_tasks import Question, Task
from tests.benchmarks.tables import Table, number

POOL = 50
"""Hits of a question that are judged and ordered anew."""
_TOLD = 4


def judged_question(searches: Searches, question: Question, task: Task) -> JudgedHits:
    """Return the hits of a question about steps, judged by its answer."""
    hits = searches.hits(question, POOL, task.aim)
    verdicts = [text_hash(own_text(hit.step)) in question.wanted for hit in hits]
    return JudgedHits(question.text, hits, verdicts, question.run_id)


def judged_turns(
    memory: StepMemory, turns: Iterable[Turn], questions: Iterable[TurnQuestion]
) -> list[JudgedHits]:
    """Return the hits of questions about turns, judged by their answers; who asks is no hit."""
    known = known_turns(turns)
    found: list[JudgedHits] = []
    for question in questions:
        hits = memory.search(question.text, POOL)
        keys = [keys_shown(hit, known) for hit in hits]
        verdicts = [
            None if shown == [question.asking] else bool(question.wanted & set(shown))
            for shown in keys
        ]
        found.append(JudgedHits(question.text, hits, verdicts, question.session_id))
    return found


def learned_gains(judged: Mapping[str, list[JudgedHits]]) -> dict[str, dict[str, Any]]:
    """Return for each task what a rank learned from it is worth, and what it weighs."""
    found: dict[str, dict[str, Any]] = {}
    for name, queries in judged.items():
        try:
            rank = LearnedRank().learn(queries)
        except LabelError as error:
            found[name] = {"refused": str(error)}
            continue
        gain = rank.gain
        found[name] = {
            "gain": {"mean": gain.mean, "low": gain.low, "high": gain.high},
            "measure": gain.measure,
            "before": gain.before,
            "after": gain.after,
            "groups": gain.groups,
            "questions": len(queries),
            "weights": rank.weights,
        }
    return found


def learned_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return what learned ranks are worth."""
    rows: list[list[str]] = []
    for name, each in found.items():
        if "refused" in each:
            rows.append([name, "", "", "", "", each["refused"]])
            continue
        weights = list(each["weights"].items())[:_TOLD]
        rows.append(
            [
                f"{name} ({each['groups']} runs)",
                each["measure"],
                number(each["before"]),
                number(each["after"]),
                interval_text(each["gain"], signed=True),
                ", ".join(f"{part} {weight:+.2f}" for part, weight in weights),
            ]
        )
    columns = ["", "of the judged hits", "as found", "learned", "gain [95 %]", "weightiest"]
    return Table("learned rank, cross-fitted over runs", columns, rows)
