"""StepRetriever: recall as a module of a DSPy program.

A retriever asks the memory and answers with a QueryWithSteps that also carries `scores`,
`passages` and `indices`, so it drops into code written for `dspy.Retrieve` or DSPy's embedding
retriever. It keeps no state of a run and no lock: copies, threads and teleprompters share only the
memory. What it finds never includes the run that is being recorded, since a program that recalls
what it is doing right now learns nothing; nor, in a run of one user, the steps of another.

A program that asks its memory leaves its questions there, and those are the nearest to the next
wording of the same question. So earlier calls of a retriever are never recalled, and a bare
ProgramCall, one that was asked something of which its purpose tells nothing, only takes a place
that no other step wants. What a user said in an imported chat is the purpose of its ProgramCall.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast

import dspy

from hybridagi_steps.dspy_types import Query, QueryList, QueryWithSteps
from hybridagi_steps.errors import InvalidMemoryError, InvalidQueryError
from hybridagi_steps.programs.reranking import GivesSteps, checked_reranker, in_order
from hybridagi_steps.protocols import Reranker
from hybridagi_steps.recording_hooks import active_user_id, note_steps, unnoted
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.step_identity import given_answer, recalls
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.search.formulas import Aim, Mode
from hybridagi_steps.validation import Where, chosen, is_number, whole_number

log = logging.getLogger("hybridagi_steps")

Distance = Literal["cosine", "euclidean"]
"""How far two unit vectors are apart: 1 - cos, in 0..2, or sqrt(2 - 2 cos), in 0..2."""
Recallable = str | Query | QueryList | QueryWithSteps | AgentStep | Sequence[str | Query]
"""What a retriever can be asked."""

_POOL = 4
"""Hits fetched per hit wanted when a reranker or a largest distance may push some out."""
_MOST_FETCHED = 2_000
_first_warning = threading.Lock()
_QUESTIONS = "a text, texts, a Query, a QueryList, a QueryWithSteps or an AgentStep"


class SearchableMemory(Protocol):
    """What a retriever needs of a memory."""

    def search(
        self, query: Any, k: int = 5, *, where: Where = None, mode: Mode = "hybrid"
    ) -> list[StepHit]:
        """Return up to k hits, best first; of a retriever with an `aim`, it takes that too."""
        ...


class StepRetriever(GivesSteps):
    """Finds past steps for a query.

    Args:
        memory: Where to look; shared, never copied.
        k: Most steps wanted; at least 1.
        where: Which steps may be found, a StepFilter or its keys; no call lifts it. Inside a
            recorded run of a user only that user's steps are, unless `where` names a `user_id`;
            None stands for all users.
            Unless it names `step_types`, a ProgramCall whose purpose does not say what was asked,
            and a program's answer that a better hit gives too, are found only while fewer than k
            other steps are.
        mode: `hybrid`, `dense` or `lexical`.
        distance: The measure of `max_distance` and of the answer's `distances`.
        max_distance: Largest distance of a step's meaning from the query's. Steps without a vector
            are dropped too; lexical search measures no distance and ignores it.
        reverse: Answer in reverse order, the best step last, next to the question in a prompt.
        reranker: Reorders a pool of 4 k hits before the best k are kept: a `protocols.Reranker`, or
            a DSPy module from QueryWithSteps to QueryWithSteps.
        aim: What is recalled for, as `StepMemory.search` has it; for `next` a call is given the
            last step, or a QueryWithSteps that ends with it. None is `next` where a step of the run
            that is being recorded is asked, since that is its state.

    Raises:
        InvalidMemoryError: `memory` has no `search`.
        InvalidQueryError: k below 1, an unknown mode or distance, a negative `max_distance`, a
            `reranker` that is neither, an unknown aim.
        InvalidFilterError: An unknown key in `where`.
    """

    def __init__(
        self,
        memory: SearchableMemory,
        k: int = 5,
        where: Where = None,
        mode: Mode = "hybrid",
        distance: Distance = "cosine",
        max_distance: float | None = None,
        reverse: bool = False,
        reranker: Reranker | dspy.Module | None = None,
        aim: Aim | None = None,
    ) -> None:
        super().__init__()
        if max_distance is not None and not (is_number(max_distance) and max_distance >= 0):
            raise InvalidQueryError(f"max_distance is 0 or more, not {max_distance!r}.")
        if isinstance(memory, type) or not callable(getattr(memory, "search", None)):
            raise InvalidMemoryError(memory, "search()")
        self.memory = memory
        self.k = whole_number("k", k, 1, InvalidQueryError)
        self.where = StepFilter.of(where)
        self.mode: Mode = chosen("mode", mode, Mode, InvalidQueryError)
        self.distance: Distance = chosen("distance", distance, Distance, InvalidQueryError)
        self.max_distance = max_distance
        self.reverse = reverse
        self.aim = None if aim is None else chosen("aim", aim, Aim, InvalidQueryError)
        self.reranker = None if reranker is None else checked_reranker(reranker)

    def forward(
        self,
        query: Recallable | None = None,
        k: int | None = None,
        where: Where = None,
        *,
        query_or_queries: Recallable | None = None,
        queries: Recallable | None = None,
    ) -> QueryWithSteps:
        """Return the steps found, best first.

        Args:
            query: A text, texts, a Query, a QueryList, a QueryWithSteps (its queries are asked
                again) or an AgentStep ("steps like this one"). Blank ones among several are left
                out.
            k: Instead of the retriever's own.
            where: Narrows the retriever's own filter: both hold. Where no step can pass both, such
                as two users, nothing is found.
            query_or_queries: `query` under the name that `dspy.Retrieve` uses.
            queries: `query` under the name of QueryWithSteps' field.

        Raises:
            InvalidQueryError: No query, none that is not blank, or k below 1.
            InvalidFilterError: An unknown key in `where`.
            RerankerError: The reranker returned something else than the hits it was given.
        """
        asked = next((q for q in (query, query_or_queries, queries) if q is not None), None)
        wanted = self.k if k is None else whole_number("k", k, 1, InvalidQueryError)
        question, texts = _question(asked)
        if self.aim == "next" and isinstance(asked, QueryWithSteps):
            # With its steps, the last of which is the state.
            question = asked.copy(queries=QueryList(queries=[Query(query=text) for text in texts]))
        scope = self._scope(where)
        with unnoted():
            hits = [] if scope is None else self._found(question, wanted, scope)
        if self.reranker is not None:
            hits = in_order(self.reranker, texts, hits)
        hits = hits[:wanted]
        if hits and _is_trial():
            _warn_of_answers()
        note_steps(hit.step for hit in hits)
        if self.reverse:
            hits = hits[::-1]
        return QueryWithSteps.from_hits(texts, hits, distances=[self._apart(hit) for hit in hits])

    async def aforward(self, *args: Any, **kwargs: Any) -> QueryWithSteps:
        """Search in a thread, so that the event loop goes on; otherwise as `forward`."""
        return await asyncio.to_thread(type(self).forward, self, *args, **kwargs)

    def _found(self, question: object, wanted: int, scope: StepFilter) -> list[StepHit]:
        """Return at least `wanted` hits that are worth recalling, if there are as many."""
        far = None if self.mode == "lexical" else self.max_distance
        pool = wanted if self.reranker is None else wanted * _POOL
        limit = pool if far is None else wanted * _POOL
        aim = self._aim(question)
        calls_too = scope.step_types is not None or isinstance(question, AgentStep)
        while True:
            hits = self.memory.search(question, limit, where=scope, mode=self.mode, **aim)
            near = [hit for hit in hits if not recalls(hit.step)]
            if far is not None:
                near = [hit for hit in near if self._within(hit, far)]
            spare = [] if calls_too else _spare(near)
            telling = len(near) - len(spare)
            if telling >= pool or len(hits) < limit or limit >= _MOST_FETCHED:
                dropped = {id(hit) for hit in spare[max(0, wanted - telling) :]}
                return [hit for hit in near if id(hit) not in dropped]
            limit = min(limit * _POOL, _MOST_FETCHED)

    def _aim(self, question: object) -> dict[str, Any]:
        """Return what is recalled for as the memory takes it: the default not at all."""
        state = isinstance(question, AgentStep) and question.run_id in _runs_under_way(self.memory)
        aim = self.aim or ("next" if state else None)
        return {} if aim is None else {"aim": aim}

    def _scope(self, where: Where) -> StepFilter | None:
        """Return the filter of one call: both filters, without the run that is under way.

        A run of one user recalls that user's steps alone, unless a filter says whose to recall.
        None when no step can pass both filters.
        """
        asked = self.where.and_(StepFilter.of(where))
        if asked is None:
            return None
        keys: dict[str, Any] = {}
        if hidden := _runs_under_way(self.memory):
            keys["exclude_run_id"] = hidden
        user_id = active_user_id(self.memory)
        if user_id is not None and not asked.says_whose:
            keys["user_id"] = user_id
        return asked.and_(StepFilter(**keys))

    def _apart(self, hit: StepHit) -> float | None:
        """Return how far a hit's meaning is from the query's; None when it was not measured."""
        if hit.dense_score is None or math.isnan(hit.dense_score):
            return None
        cosine = min(1.0, max(-1.0, hit.dense_score))
        return 1 - cosine if self.distance == "cosine" else math.sqrt(2 - 2 * cosine)

    def _within(self, hit: StepHit, far: float) -> bool:
        apart = self._apart(hit)
        # Scores are float32: a distance equal to the limit may come out a hair above it.
        return apart is not None and apart <= far + 1e-6


def _runs_under_way(memory: object) -> list[str]:
    # Loaded here because the recorder is needed only when a program runs.
    from hybridagi_steps.recording.recorder import active_run_ids

    return active_run_ids(memory)


def _is_trial() -> bool:
    from hybridagi_steps.recording.trials import current_level

    return current_level() is not None


def _warn_of_answers() -> None:
    """Say once in a process, whichever thread is first, what a score may be worth."""
    if _first_warning.acquire(blocking=False):
        log.warning(
            "StepRetriever: inside an evaluation or a compilation it also finds what earlier runs "
            "answered to the same question; narrow its `where`, or see WithExperience(group=...)."
        )


def _spare(hits: Sequence[StepHit]) -> list[StepHit]:
    """Return hits that are worth a place nobody else wants: bare calls, answers given before."""
    spare: list[StepHit] = []
    answers: set[str] = set()
    for hit in hits:
        answer = given_answer(hit.step) if hit.kind == "step" else None
        if _is_bare_call(hit) or answer in answers:
            spare.append(hit)
        elif answer is not None:
            answers.add(answer)
    return spare


def _is_bare_call(hit: StepHit) -> bool:
    """Whether a hit is a question that its own text does not show, and that holds no answer."""
    step = hit.step
    asked = list(step.arguments.values())
    is_call = step.step_type == AgentStepType.ProgramCall
    return is_call and bool(asked) and step.purpose not in asked


def _question(asked: Recallable | None) -> tuple[Any, list[str]]:
    """Return what the memory is asked, and the same as texts."""
    if isinstance(asked, AgentStep):
        return asked, [own_text(asked)]
    texts = [text for text in _texts(asked) if text.strip()]
    if not texts:
        raise InvalidQueryError(f"nothing is asked: give {_QUESTIONS}.")
    return texts[0] if len(texts) == 1 else texts, texts


def _texts(asked: object) -> list[str]:
    if asked is None:
        return []
    if isinstance(asked, str):
        return [asked]
    if isinstance(asked, Query):
        return [asked.query]
    if isinstance(asked, QueryWithSteps):
        return _texts(asked.queries)
    items: Any = asked.queries if isinstance(asked, QueryList) else asked
    if not isinstance(items, Sequence):
        raise InvalidQueryError(f"a question is {_QUESTIONS}, not {type(asked).__name__}.")
    texts: list[str] = []
    for item in cast("Sequence[Any]", items):
        if not isinstance(item, str | Query):
            raise InvalidQueryError(
                f"a list of questions holds texts or Queries, not {type(item).__name__}."
            )
        texts.append(item if isinstance(item, str) else item.query)
    return texts
