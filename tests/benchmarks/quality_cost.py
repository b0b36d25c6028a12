"""What a search costs, part by part: CPU of one query among the shipped steps.

The rivals take turns over the same questions, so a busy machine meets all of them alike. `both` is
what `memory.search` does by default; the halves alone, the query's embedding and the reading of the
steps found say where its time goes, and what an aim costs on top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import id_text
from tests.benchmarks.quality_searches import Searches
from tests.benchmarks.retrieval_tasks import Question
from tests.benchmarks.tables import Table, number
from tests.benchmarks.timing import interleaved, typical

_HITS = 10
_AT_ONCE = 20
"""Questions in one timed turn."""


def cost_by_part(
    memory: StepMemory, searches: Searches, questions: Sequence[Question], rounds: int
) -> dict[str, float]:
    """Return microseconds of CPU per query of each part.

    Args:
        memory: What is searched, its index up to date.
        searches: Searches it for an aim.
        questions: What is asked; those without a state are not asked for what to do next.
        rounds: How often each part is timed.
    """
    asked = list(questions)[:_AT_ONCE]
    stated = [question for question in questions if question.state is not None][:_AT_ONCE]
    found = [
        [id_text(hit.step.id) for hit in memory.search(question.text, _HITS)] for question in asked
    ]

    def each(of: Sequence[Question], ask: Callable[[Question], object]) -> Callable[[], object]:
        return lambda: [ask(question) for question in of]

    parts: dict[str, Callable[[], object]] = {
        "embedding of the query": each(
            asked, lambda question: memory.embedder.embed_queries([question.text])
        ),
        "words alone": each(
            asked, lambda question: memory.search(question.text, _HITS, mode="lexical")
        ),
        "meaning alone": each(
            asked, lambda question: memory.search(question.text, _HITS, mode="dense")
        ),
        "both": each(asked, lambda question: memory.search(question.text, _HITS)),
        "both, and each hit's why": each(
            asked, lambda question: [hit.why for hit in memory.search(question.text, _HITS)]
        ),
        "reading the 10 steps": lambda: [memory.get_steps(ids) for ids in found],
    }
    for aim in searches.aims:
        of = stated if aim == "next" else asked
        if of:
            parts[f'both, aim="{aim}"'] = each(of, lambda q, aim=aim: searches.hits(q, _HITS, aim))
    counts = {name: len(asked) for name in parts} | {'both, aim="next"': len(stated) or 1}
    samples = interleaved(parts, rounds)
    return {name: typical(took, "cpu", per=counts[name]) for name, took in samples.items()}


def cost_table(found: dict[str, float], steps: int) -> Table:
    """Return what each part costs."""
    rows = [[name, number(cost, 0)] for name, cost in found.items()]
    return Table(f"one query among {steps:,} steps, 10 hits", ["", "CPU µs"], rows)
