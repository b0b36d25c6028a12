"""StepRetriever and StepReranker: recall inside DSPy programs."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest

from hybridagi_steps import StepMemory, record, record_step
from hybridagi_steps.dspy_types import Query, QueryList, QueryWithSteps, StepContext
from hybridagi_steps.errors import InvalidFilterError, InvalidQueryError, RerankerError
from hybridagi_steps.messages.recalled_text import recalled_text
from hybridagi_steps.programs import retriever as retriever_module
from hybridagi_steps.programs.reranking import LMStepReranker, StepReranker
from hybridagi_steps.programs.retriever import StepRetriever
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.step_text import own_text
from hybridagi_steps.rerankers import Outcome
from hybridagi_steps.testing import scripted_lm

TOPICS = ["refund the order", "cancel the flight", "book a hotel room", "reset the password"]


def topic_step(number: int, **fields: Any) -> AgentStep:
    topic = TOPICS[number % len(TOPICS)]
    return AgentStep(
        id=f"s{number}",
        step_type=AgentStepType.Action,
        inputs={"purpose": f"{topic} number {number}", "tool": "act"},
        outputs={"result": f"done {number}"},
        run_id=f"r{number // 4}",
        **fields,
    )


@pytest.fixture
def stocked(memory: StepMemory) -> StepMemory:
    memory.add([topic_step(number) for number in range(12)])
    return memory


class ListMemory:
    """A memory that answers from a list of cosines and keeps what it was asked."""

    def __init__(self, cosines: Sequence[float | None]) -> None:
        self.hits = [
            StepHit(step=topic_step(place), score=1 - place / 100, dense_score=cosine)
            for place, cosine in enumerate(cosines)
        ]
        self.asked: list[tuple[Any, int, StepFilter]] = []

    def search(
        self, query: Any, k: int = 5, *, where: Any = None, mode: str = "hybrid"
    ) -> list[StepHit]:
        self.asked.append((query, k, where))
        return self.hits[:k]

    def __deepcopy__(self, memo: Any) -> ListMemory:
        return self


def ids(found: QueryWithSteps) -> list[str]:
    return [str(step.id) for step in found.steps]


def test_what_is_found_is_a_query_with_steps(stocked: StepMemory) -> None:
    found = StepRetriever(stocked, k=3)("how did we refund an order?")
    assert isinstance(found, QueryWithSteps)
    assert found.to_dict()["queries"] == ["how did we refund an order?"]
    assert len(found.steps) == 3
    assert all("refund" in step.purpose for step in found.steps)
    assert found.passages == [recalled_text(step) for step in found.steps]
    assert found.indices == [step.id for step in found.steps]
    assert found.scores == sorted(found.scores, reverse=True)
    assert all(hit.why for hit in found.hits)
    json.dumps(found.toDict())


def test_it_agrees_with_the_memory(stocked: StepMemory) -> None:
    hits = stocked.search("cancel a flight", 5)
    found = StepRetriever(stocked)("cancel a flight")
    assert ids(found) == [hit.step.id for hit in hits]
    assert found.scores == [hit.score for hit in hits]


def test_every_form_of_a_question(stocked: StepMemory) -> None:
    retrieve = StepRetriever(stocked, k=2)
    expected = ids(retrieve("reset my password"))
    query = Query(query="reset my password")
    queries = QueryList(queries=[query])
    forms: list[Any] = [
        ["reset my password"],
        [query],
        query,
        queries,
        QueryWithSteps(queries=queries),
    ]
    for form in forms:
        assert ids(retrieve(form)) == expected
    assert ids(retrieve(query="reset my password")) == expected
    assert ids(retrieve(query_or_queries="reset my password", k=2)) == expected
    assert ids(retrieve(queries=queries)) == expected


def test_every_query_counts(stocked: StepMemory) -> None:
    found = StepRetriever(stocked, k=4)(["refund the order", "book a hotel room"])
    assert found.to_dict()["queries"] == ["refund the order", "book a hotel room"]
    purposes = " ".join(step.purpose for step in found.steps)
    assert "refund" in purposes
    assert "hotel" in purposes


def test_a_step_asks_for_steps_like_itself(stocked: StepMemory) -> None:
    (stored,) = stocked.get("s5").steps
    found = StepRetriever(stocked, k=2)(stored)
    assert ids(found)[0] == "s5"
    assert found.to_dict()["queries"] == [own_text(stored)]


def test_k_and_where_of_a_call(stocked: StepMemory) -> None:
    retrieve = StepRetriever(stocked, k=2, where={"run_id": "r0"})
    assert {step.run_id for step in retrieve("order").steps} == {"r0"}
    assert len(retrieve("order", k=3).steps) == 3
    narrower = {"run_id": "r0", "tools": "act"}
    assert {step.run_id for step in retrieve("order", where=narrower).steps} == {"r0"}
    assert len(retrieve("order").steps) == 2


def test_where_of_a_call_and_of_the_retriever_both_hold() -> None:
    memory = ListMemory([0.5])
    pinned = {"user_id": "ann", "tools": ["a", "b"], "min_score": 0.9}
    retrieve = StepRetriever(memory, where=pinned)
    assert ids(retrieve("q", where={"tools": ["b", "c"], "min_score": 0.1})) == ["s0"]
    where = memory.asked[0][2]
    assert (where.user_id, where.tools, where.min_score) == ("ann", ["b"], 0.9)


@pytest.mark.parametrize(
    ("key", "own", "asked"),
    [
        ("user_id", "ana", "bob"),
        ("session_id", "one", "other"),
        ("status", "ok", "error"),
        ("metadata", {"team": "a"}, {"team": "b"}),
    ],
)
def test_no_call_gets_out_of_what_a_retriever_is_pinned_to(
    memory: StepMemory, key: str, own: Any, asked: Any
) -> None:
    memory.add([topic_step(0, **{key: own}), topic_step(4, **{key: asked})])
    retrieve = StepRetriever(memory, where={key: own}, reranker=Outcome())
    assert ids(retrieve("refund the order")) == ["s0"]
    assert ids(retrieve("refund the order", where={key: None})) == ["s0"]
    assert ids(retrieve("refund the order", where={key: asked})) == []


def test_a_call_may_show_trials_that_a_retriever_does_not_speak_of(memory: StepMemory) -> None:
    memory.add([topic_step(0), topic_step(4, scope="trial")])
    retrieve = StepRetriever(memory, where={"tools": "act"})
    assert ids(retrieve("refund the order")) == ["s0"]
    assert ids(retrieve("refund the order", where={"scope": "trial"})) == ["s4"]


def test_nothing_found(memory: StepMemory) -> None:
    found = StepRetriever(memory)("anything")
    assert (found.steps, found.scores, found.passages, found.indices) == ([], [], [], [])


@pytest.mark.parametrize("question", ["", "  ", [], QueryList(), Query(), None, [""]])
def test_an_empty_question_is_refused(question: Any) -> None:
    with pytest.raises(InvalidQueryError, match="nothing is asked"):
        StepRetriever(ListMemory([0.5]))(question)


@pytest.mark.parametrize(
    "question",
    [
        ["refund the flight", ""],
        ["  ", "refund the flight"],
        QueryList(queries=[Query(query="refund the flight"), Query(query="\n")]),
        QueryWithSteps(
            queries=QueryList(queries=[Query(query=""), Query(query="refund the flight")])
        ),
    ],
)
def test_blank_ones_among_questions_are_left_out(stocked: StepMemory, question: Any) -> None:
    found = StepRetriever(stocked, k=2)(question)
    assert found.indices == StepRetriever(stocked, k=2)("refund the flight").indices
    assert found.indices
    assert [query.query for query in found.queries.queries] == ["refund the flight"]


def test_blank_ones_beside_a_state_are_left_out(stocked: StepMemory) -> None:
    state, asked = stocked.find(limit=1).steps, Query(query="refund the flight")
    retrieve = StepRetriever(stocked, k=2, aim="next")
    found, expected = (
        retrieve(QueryWithSteps(queries=QueryList(queries=queries), steps=state))
        for queries in ([asked, Query(query="")], [asked])
    )
    assert found.indices == expected.indices


@pytest.mark.parametrize(
    "arguments",
    [
        {"k": 0},
        {"mode": "fuzzy"},
        {"distance": "manhattan"},
        {"max_distance": -1},
        {"max_distance": float("nan")},
        {"max_distance": "0.5"},
        {"k": "3"},
        {"k": 1.5},
        {"reranker": "Outcome"},
        {"reranker": Outcome},
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidQueryError):
        StepRetriever(ListMemory([]), **arguments)


@pytest.mark.parametrize("question", [5, {"query": "x"}, object()])
def test_what_is_no_question_is_refused(question: Any) -> None:
    with pytest.raises(InvalidQueryError, match=f"AgentStep, not {type(question).__name__}"):
        StepRetriever(ListMemory([0.5]))(question)


@pytest.mark.parametrize("question", [[5], ["a", None]])
def test_a_list_of_something_else_is_refused(question: Any) -> None:
    with pytest.raises(InvalidQueryError, match=r"holds texts or Queries, not (int|NoneType)"):
        StepRetriever(ListMemory([0.5]))(question)


@pytest.mark.parametrize("reranker", ["Outcome", Outcome, None])
def test_what_is_no_reranker_is_refused(reranker: Any) -> None:
    with pytest.raises(InvalidQueryError, match=r"such as hs.rerankers.Outcome\(\)"):
        StepReranker(reranker)


@pytest.mark.parametrize("reranker", [StepReranker(Outcome()), LMStepReranker()])
def test_a_reranker_wants_what_was_found(reranker: Any) -> None:
    for given in ("look", None, [StepHit(step=topic_step(0), score=1)]):
        with pytest.raises(InvalidQueryError, match="give the QueryWithSteps of a StepRetriever"):
            reranker(given)
        with pytest.raises(InvalidQueryError, match="give the QueryWithSteps of a StepRetriever"):
            asyncio.run(reranker.acall(given))


def test_a_wrong_k_or_filter_of_a_call_is_refused() -> None:
    retrieve = StepRetriever(ListMemory([0.5]))
    with pytest.raises(InvalidQueryError, match="k is at least 1"):
        retrieve("q", k=0)
    with pytest.raises(InvalidFilterError, match="colour"):
        retrieve("q", where={"colour": "red"})


# -- distances


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        ("cosine", [0.0, 0.4, 1.0, 2.0]),
        ("euclidean", [0.0, math.sqrt(0.8), math.sqrt(2.0), 2.0]),
    ],
)
def test_distances_are_those_of_unit_vectors(distance: Any, expected: list[float]) -> None:
    found: Any = StepRetriever(ListMemory([1.0, 0.6, 0.0, -1.0]), distance=distance)("q")
    assert found.distances == pytest.approx(expected)


@pytest.mark.parametrize(("distance", "far"), [("cosine", 0.4), ("euclidean", math.sqrt(0.8))])
def test_the_largest_distance_is_still_near_enough(distance: Any, far: float) -> None:
    memory = ListMemory([1.0, 0.59, 0.6, None, 0.7])
    found = StepRetriever(memory, distance=distance, max_distance=far)("q")
    assert ids(found) == ["s0", "s2", "s4"]


def test_near_steps_further_down_fill_up_what_was_dropped() -> None:
    memory = ListMemory([0.1] * 50 + [0.9] * 3)
    found = StepRetriever(memory, k=2, max_distance=0.5)("q")
    assert ids(found) == ["s50", "s51"]
    assert len(memory.asked) == 3


def test_an_exact_copy_is_at_distance_nought(stocked: StepMemory) -> None:
    (stored,) = stocked.get("s5").steps
    found = StepRetriever(stocked, k=3, mode="dense", max_distance=1e-5)(own_text(stored))
    assert ids(found) == ["s5"]


def test_lexical_search_knows_no_distance() -> None:
    memory = ListMemory([None, None])
    found: Any = StepRetriever(memory, mode="lexical", max_distance=0.1)("q")
    assert ids(found) == ["s0", "s1"]
    assert found.distances == [None, None]


def test_reverse_puts_the_best_last(stocked: StepMemory) -> None:
    forwards = StepRetriever(stocked, k=3)("refund")
    backwards = StepRetriever(stocked, k=3, reverse=True)("refund")
    assert ids(backwards) == ids(forwards)[::-1]
    assert backwards.scores == forwards.scores[::-1]
    assert [hit.step.id for hit in backwards.hits] == ids(backwards)


# -- reranking


class Backwards:
    """Turns the order round and keeps the question."""

    question = ""

    def rerank(self, query: str, hits: Any) -> list[StepHit]:
        self.question = query
        return list(hits)[::-1]


def test_a_reranker_chooses_from_a_larger_pool() -> None:
    reranker = Backwards()
    memory = ListMemory([0.5] * 100)
    found = StepRetriever(memory, k=2, reranker=reranker)(["a", "b"])
    assert ids(found) == ["s7", "s6"]
    assert reranker.question == "a\nb"


class LastFirst(dspy.Module):
    """A module from QueryWithSteps to QueryWithSteps, as other libraries have them."""

    def __init__(self, made: Any = None) -> None:
        super().__init__()
        self.made, self.ask = made, dspy.Predict("queries -> order")

    def forward(self, query: QueryWithSteps) -> Any:
        with dspy.context(lm=scripted_lm({"order": "backwards"})):
            self.ask(queries=str(query.to_dict()["queries"]))
        query.steps.reverse()
        return query if self.made is None else self.made(query.hits)


def test_a_module_over_what_was_found_is_a_reranker() -> None:
    retrieve = StepRetriever(ListMemory([0.5] * 100), k=2, reranker=LastFirst())
    assert ids(retrieve(["a", "b"])) == ids(asyncio.run(retrieve.acall("a"))) == ["s7", "s6"]
    assert [name for name, _ in retrieve.named_predictors()] == ["reranker.ask"]
    found = StepRetriever(ListMemory([0.5, 0.4, 0.3]))("q")
    assert ids(StepReranker(LastFirst(), k=2)(found)) == ["s2", "s1"]
    assert ids(found) == ["s0", "s1", "s2"]
    with pytest.raises(RerankerError, match=r"^LastFirst returned step s9 more often than it"):
        StepReranker(LastFirst(_and_a_foreign_one))(found)


def test_a_reranker_as_a_module() -> None:
    found = StepRetriever(ListMemory([0.5, 0.4, 0.3]))("q")
    turned = StepReranker(Backwards(), k=2)(found)
    assert isinstance(turned, QueryWithSteps)
    assert ids(turned) == ["s2", "s1"]
    assert turned.indices == [step.id for step in turned.steps]
    assert ids(found) == ["s0", "s1", "s2"]


def test_a_module_reranks_steps_that_no_retriever_found() -> None:
    steps = [topic_step(0, status="error"), topic_step(1)]
    by_hand = QueryWithSteps(queries=QueryList(queries=[Query(query="q")]), steps=steps)
    assert ids(StepReranker(Outcome())(by_hand)) == ["s1", "s0"]


class Returning:
    """A reranker that returns what a function makes of the hits."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def rerank(self, query: str, hits: Any) -> Any:
        return self.made(hits)


async def _later(hits: Any) -> Any:
    return hits


def _with_score(score: Any) -> Any:
    def scored(hits: list[StepHit]) -> list[StepHit]:
        return [hit.model_copy(update={"score": score}) for hit in hits]

    return scored


def _nothing(_: Any) -> None:
    return None


def _their_steps(hits: list[StepHit]) -> list[AgentStep]:
    return [hit.step for hit in hits]


def _twice(hits: list[StepHit]) -> list[StepHit]:
    return [*hits, *hits]


def _and_nothing(hits: list[StepHit]) -> list[StepHit | None]:
    return [*hits, None]


def _and_a_foreign_one(hits: list[StepHit]) -> list[StepHit]:
    return [*hits, StepHit(step=topic_step(9), score=1)]


def _the_second(hits: list[StepHit]) -> tuple[StepHit]:
    return (hits[1].model_copy(update={"score": np.float32(0.5)}),)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (_nothing, "NoneType"),
        (str, "str"),
        (iter, "list_iterator"),
        (_later, "a coroutine"),
        (_their_steps, "a list with AgentStep in it"),
        (_and_nothing, "a list with NoneType in it"),
        (_twice, "step s0 more often than it was given"),
        (_and_a_foreign_one, "step s9 more often than it was given"),
        (_with_score(float("nan")), "the score nan for step s0"),
        (_with_score(float("inf")), "the score inf for step s0"),
        (_with_score(None), "the score None for step s0"),
        (_with_score("high"), "the score 'high' for step s0"),
    ],
)
def test_what_a_reranker_returns_is_looked_at(made: Any, told: str) -> None:
    memory = ListMemory([0.5, 0.4])
    found = StepRetriever(memory)("q")
    for rerank in (
        lambda: StepRetriever(memory, reranker=Returning(made))("q"),
        lambda: StepReranker(Returning(made))(found),
        lambda: asyncio.run(StepReranker(Returning(made)).acall(found)),
    ):
        with pytest.raises(RerankerError, match=f"^Returning.rerank returned {told}; it returns"):
            rerank()


def test_a_reranker_may_drop_hits_and_score_them_with_numpy() -> None:
    fewer = Returning(_the_second)
    assert ids(StepRetriever(ListMemory([0.5, 0.4]), reranker=fewer)("q")) == ["s1"]


def test_a_step_that_was_given_twice_may_come_back_twice() -> None:
    steps = [topic_step(0), topic_step(0)]
    by_hand = QueryWithSteps(queries=QueryList(queries=[Query(query="q")]), steps=steps)
    assert ids(StepReranker(Backwards())(by_hand)) == ["s0", "s0"]


# -- as part of programs


class Answering(dspy.Module):
    """A program written for dspy.Retrieve."""

    def __init__(self, retrieve: Any) -> None:
        super().__init__()
        self.retrieve = retrieve
        self.answer = dspy.Predict("context, question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        passages = self.retrieve(question, k=2).passages
        return self.answer(context=passages, question=question)


def test_it_serves_code_written_for_another_retriever(stocked: StepMemory) -> None:
    from hybridagi_steps.testing import scripted_lm

    prompts: list[str] = []

    def script(request: Any) -> dict[str, str]:
        prompts.append(request.messages[-1].text)
        return {"answer": "yes"}

    with dspy.context(lm=scripted_lm(script)):
        answered = Answering(StepRetriever(stocked))(question="refund the order")
    assert answered.answer == "yes"
    assert prompts[0].count(") refund the order number ") == 2


def test_copies_share_the_memory_and_state_is_saved(tmp_path: Path) -> None:
    memory = ListMemory([0.5])
    program = Answering(StepRetriever(memory, k=7, where={"run_id": "r0"}))
    for twin in (copy.deepcopy(program), program.deepcopy(), program.reset_copy()):
        assert twin.retrieve.memory is memory
        assert twin.retrieve.k == 7
    program.save(str(tmp_path / "program.json"))
    program.load(str(tmp_path / "program.json"))
    assert ids(program.retrieve("q")) == ["s0"]


def test_a_retriever_in_a_file_memory_is_pickled_whole(file_memory: StepMemory) -> None:
    import cloudpickle

    file_memory.add(topic_step(0))
    again = cloudpickle.loads(cloudpickle.dumps(StepRetriever(file_memory, k=1)))
    try:
        assert ids(again("refund")) == ["s0"]
    finally:
        again.memory.close()


def test_threads_do_not_disturb_each_other(stocked: StepMemory) -> None:
    retrieve = StepRetriever(stocked, k=2)
    expected = {topic: ids(retrieve(topic)) for topic in TOPICS}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(retrieve, TOPICS * 5))
    assert [ids(found) for found in answers] == [expected[topic] for topic in TOPICS * 5]


def test_asynchronous_calls(stocked: StepMemory) -> None:
    retrieve = StepRetriever(stocked, k=2)

    async def both() -> tuple[QueryWithSteps, QueryWithSteps]:
        return await asyncio.gather(retrieve.acall("refund"), retrieve.acall(query="hotel", k=1))

    first, second = asyncio.run(both())
    assert ids(first) == ids(retrieve("refund"))
    assert ids(second) == ids(retrieve("hotel", k=1))
    turned = asyncio.run(StepReranker(Backwards()).acall(first))
    assert ids(turned) == ids(first)[::-1]


def test_what_is_found_goes_into_a_prompt(stocked: StepMemory) -> None:
    found = StepRetriever(stocked, k=2)("refund")
    context: Any = found.as_context()
    assert isinstance(context, StepContext)
    assert all(recalled_text(step) in context.format() for step in found.steps)


class RecallingAgent(dspy.Module):
    """Recalls the question it has just been asked."""

    def __init__(self, memory: StepMemory) -> None:
        super().__init__()
        self.retrieve = StepRetriever(memory, k=5)

    def forward(self, question: str) -> dspy.Prediction:
        return self.retrieve(question)


def test_a_run_never_recalls_itself(memory: StepMemory) -> None:
    agent = RecallingAgent(memory)
    with record(memory) as first:
        assert agent(question="refund the green umbrella").steps == []
    with record(memory) as second:
        found = agent(question="refund the green umbrella")
    assert found.steps
    assert {step.run_id for step in found.steps} == {first.id}
    outside = agent(question="refund the green umbrella")
    assert second.id in {step.run_id for step in outside.steps}


@record_step
def look(order: str) -> str:
    """Look up the order."""
    return f"order {order} is here"


@record_step
def refund(order: str) -> str:
    """Pay the money back."""
    return f"{order} is paid"


def test_a_step_of_the_run_under_way_asks_for_what_comes_next(memory: StepMemory) -> None:
    for number in range(3):
        with record(memory):
            look(f"umbrella {number}")
            refund(f"umbrella {number}")
    bare, aimed = StepRetriever(memory, k=2), StepRetriever(memory, k=2, aim="next")
    with record(memory) as run:
        look("umbrella 7")
        state = run.steps.steps[-1]
        assert {step.tool for step in bare(state).steps} == {"refund"}
        assert ids(bare(state)) == ids(aimed(state))
    assert {step.tool for step in bare(state).steps} == {"look"}  # no state any more


def test_a_run_of_a_process_wide_recorder_never_recalls_itself(memory: StepMemory) -> None:
    from hybridagi_steps import StepRecorder

    agent = RecallingAgent(memory)
    with dspy.context(callbacks=[StepRecorder(memory)]):
        assert agent(question="refund the green umbrella").steps == []
        (first,) = {run.run_id for run in memory.runs()}
        again = asyncio.run(RecallingLater(memory).acall(question="refund the green umbrella"))
    assert {step.run_id for step in again.steps} == {first}


class RecallingLater(RecallingAgent):
    """The same in a coroutine, where the search runs in another thread."""

    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.retrieve.acall(question)


def test_conditions_of_ones_own_stay_beside_the_run_under_way(memory: StepMemory) -> None:
    memory.add([topic_step(0), topic_step(4)])
    retrieve = StepRetriever(memory, where={"exclude_run_id": "r0"})
    with record(memory):
        assert ids(retrieve("refund the order")) == ["s4"]


class TestUsers:
    def of_two_users(self, memory: StepMemory) -> StepRetriever:
        memory.add([topic_step(n, user_id="ana" if n % 2 else "bob") for n in range(8)])
        return StepRetriever(memory, k=8)

    def users(self, found: QueryWithSteps) -> set[str | None]:
        return {step.user_id for step in found.steps}

    def test_in_a_run_of_one_user_the_steps_of_others_are_not_found(
        self, memory: StepMemory
    ) -> None:
        retrieve = self.of_two_users(memory)
        with record(memory, user_id="ana"):
            assert self.users(retrieve("refund the order")) == {"ana"}
            assert self.users(asyncio.run(retrieve.acall("refund the order"))) == {"ana"}
            with record(memory):
                assert self.users(retrieve("refund the order")) == {"ana"}
        assert self.users(retrieve("refund the order")) == {"ana", "bob"}

    def test_a_filter_that_names_a_user_wins(self, memory: StepMemory) -> None:
        retrieve = self.of_two_users(memory)
        with record(memory, user_id="ana"):
            assert self.users(retrieve("refund", where={"user_id": "bob"})) == {"bob"}
            everybody = {"user_id": None, "step_types": ["Action"]}
            assert "bob" in self.users(retrieve("refund", where=everybody))
            assert self.users(retrieve("refund", where={"status": "ok"})) == {"ana"}

    def test_a_recording_into_another_memory_tells_the_user_too(self, memory: StepMemory) -> None:
        retrieve = self.of_two_users(memory)
        with StepMemory(":memory:", embedder="hashing") as other, record(other, user_id="ana"):
            assert self.users(retrieve("refund the order")) == {"ana"}


def test_an_evaluation_is_told_once_that_a_retriever_is_no_fence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retriever_module, "_first_warning", threading.Lock())  # once a process
    memory = StepMemory(":memory:", embedder="hashing")
    memory.add(AgentStep.model_validate({"step_type": "Action", "inputs": {"purpose": "refund"}}))
    retrieve = StepRetriever(memory, k=1)
    retrieve("refund")
    assert "earlier runs" not in caplog.text
    examples: list[Any] = [dspy.Example(query="refund").with_inputs("query")] * 2
    evaluate: Any = dspy.Evaluate(devset=examples, metric=_no_points, display_progress=False)
    evaluate(retrieve)
    assert caplog.text.count("earlier runs answered to the same question") == 1


def _no_points(*_: Any) -> float:
    return 0.0
