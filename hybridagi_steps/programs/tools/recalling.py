"""PastActionSearch: what the agent, or another one, did before in a similar situation.

It never finds the run it is part of, nor other searches of its own kind: those hold no experience.
What it finds is handed on as steps, so that the run's own record keeps their ids and not their
text: recalled experience is never stored again as new.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from typing import Any

from hybridagi_steps.dspy_types import QueryWithSteps
from hybridagi_steps.errors import InvalidMemoryError
from hybridagi_steps.graph.prompts import shown_text
from hybridagi_steps.graph.tools.base import Asked, GraphTool, ToolUse
from hybridagi_steps.programs.retriever import StepRetriever, Where
from hybridagi_steps.recalls import unnoted
from hybridagi_steps.records.filters import StepFilter


class PastActionSearch(GraphTool):
    """Finds past Actions by meaning and words.

    Args:
        memory: Where to look; by default the memory of the agent.
        k: Most steps wanted.
        where: Which steps may be found, a StepFilter or its keys; by default Actions. In a run of
            a user those of that user, unless it names a `user_id`.
        retriever: A retriever to use instead, with its own memory, k, filter and reranker.
        name: What Actions call it.
        lm: The language model that its nodes ask.
    """

    instructions = "Write a query that finds past actions of use for the prompt."
    asks_for = {"query": Asked(str, "What to look for, in a few words")}  # noqa: RUF012

    def __init__(
        self,
        memory: Any = None,
        k: int = 5,
        where: Where = None,
        *,
        retriever: StepRetriever | None = None,
        name: str | None = None,
        lm: Any = None,
    ) -> None:
        super().__init__(name=name, lm=lm)
        keys = {"step_types": ["Action"], **StepFilter.of(where).model_dump(exclude_unset=True)}
        self.k = k
        self.where = StepFilter.of(keys)
        self.retriever = retriever
        self.needs_memory = memory is None and retriever is None
        if memory is not None and retriever is None:
            self.retriever = StepRetriever(memory, k=k, where=self.where)

    def use(self, use: ToolUse) -> QueryWithSteps:
        """Return the steps found.

        Raises:
            InvalidMemoryError: Neither the tool nor the agent has a memory.
            InvalidQueryError: An empty query.
        """
        retriever = self.retriever or self._over(use.memory)
        hidden = [*(retriever.where.exclude_run_id or []), *use.run_ids]
        query = shown_text(use.arguments["query"])
        # Of twice as many, those that are searches themselves are left out. Not called as a module:
        # the Action's step tells what happens here, and what it gave.
        with unnoted():
            found = StepRetriever.forward(
                retriever,
                query,
                k=2 * retriever.k,
                where={"exclude_run_id": hidden} if hidden else None,
            )
        hits = [hit for hit in found.hits if hit.step.tool != self.name][: retriever.k]
        return QueryWithSteps.from_hits(query, hits)

    async def ause(self, use: ToolUse) -> QueryWithSteps:
        """Search in a thread."""
        return await asyncio.to_thread(self.use, use)

    def _over(self, memory: Any) -> StepRetriever:
        if memory is None:
            raise InvalidMemoryError(memory, "search()")
        return StepRetriever(memory, k=self.k, where=self.where)
