"""Whose vectors a file holds: each stands beside the name of the embedder that made it.

Vectors of two embedders cannot be compared, even when they have the same length. So a vector goes
out with the `model_id` of its memory's embedder, and comes in only where that is the embedder, too;
anywhere else the step comes in without it, and is embedded anew. A vector that says nothing of its
origin is taken as it is, which is how other programs bring their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridagi_steps.exchange.records import ParsedScore
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.json_reading import JsonObject, as_object

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.stores.sql.salvage import Salvaged

VECTOR_EMBEDDER = "vector_embedder"
"""The field, in Parquet the column, that names the embedder."""


def with_origin(step: AgentStep, embedder: str) -> AgentStep:
    """Return a step as it is to be written, its vector's origin named."""
    if step.vector is None:
        return step
    return step.model_copy(update={VECTOR_EMBEDDER: embedder})


def origin_of(fields: JsonObject) -> tuple[JsonObject, str | None]:
    """Return the fields of a step without the name of its vector's embedder, and that name."""
    name = fields.get(VECTOR_EMBEDDER)
    if not isinstance(name, str) or fields.get("vector") is None:
        return fields, None
    return {field: fields[field] for field in fields if field != VECTOR_EMBEDDER}, name


class VectorOrigins:
    """Leaves out vectors that another embedder made than the memory's."""

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        self._left_out: Counter[str] = Counter()

    def fitting(self, step: AgentStep, embedder: str | None) -> AgentStep:
        """Return a step, without its vector where that cannot be compared with the others here.

        Args:
            step: A step that is to be stored.
            embedder: Who made its vector, as far as the file says.
        """
        if step.vector is None or embedder in (None, self._memory.embedder.model_id):
            return step
        self._left_out[embedder] += 1
        return step.model_copy(update={"vector": None})

    def notes(self) -> list[str]:
        """Return what was left out, in words."""
        return [
            f"vectors by {name:.80} left out, since this memory embeds with "
            f"{self._memory.embedder.model_id:.80}: {count:,}"
            for name, count in self._left_out.items()
        ]


RUN_SCORE = "run_score"


class RunScores:
    """The scores of runs, as a memory knows them: each is asked for when its run comes."""

    def __init__(self, memory: StepMemory | Salvaged) -> None:
        self._memory = memory
        self._known: dict[str, tuple[float, str | None] | None] = {}
        self._told: set[str] = set()

    def of(self, run_id: str | None) -> tuple[float, str | None] | None:
        """Return the score of a run and what was said of it; None when it has no score."""
        if run_id is None:
            return None
        if run_id not in self._known:
            found = self._memory.repository().store.run_scores([run_id])
            self._known[run_id] = found.get(run_id)
        return self._known[run_id]

    def told_with(self, step: AgentStep) -> AgentStep:
        """Return a step as it is to be written: the first of its run says the run's score."""
        scored = self.of(step.run_id)
        if scored is None or step.run_id is None or step.run_id in self._told:
            return step
        self._told.add(step.run_id)
        said = dict(zip(("value", "feedback"), scored, strict=True))
        return step.model_copy(update={RUN_SCORE: {k: v for k, v in said.items() if v is not None}})


class RunScoresRead:
    """The scores of runs, as the lines of a file tell them."""

    def __init__(self) -> None:
        self._told: dict[str, ParsedScore] = {}

    def without(self, line: int, fields: JsonObject) -> JsonObject:
        """Return the fields of a step without the score of its run."""
        run_id, said = fields.get("run_id"), as_object(fields.get(RUN_SCORE))
        if not isinstance(run_id, str):
            return fields
        value, feedback = said.get("value"), said.get("feedback")
        if isinstance(value, int | float):
            words = feedback if isinstance(feedback, str) else None
            self._told.setdefault(run_id, ParsedScore(line, run_id, float(value), words))
            fields = {name: fields[name] for name in fields if name != RUN_SCORE}
        told = self._told.get(run_id)
        inherits = told is not None and fields.get("score") == told.score
        return {**fields, "score": None} if inherits else fields

    def read(self) -> Iterator[ParsedScore]:
        """Yield them, when all steps were read."""
        yield from self._told.values()
