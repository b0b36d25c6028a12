"""Search against the formula written out step by step, and what users may rely on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

from hybridagi_steps import AgentStep, AgentStepType, Query, QueryList, StepFilter, StepMemory
from hybridagi_steps.embedders import HashingEmbedder
from hybridagi_steps.embedders.vectors import shortened, unpacked
from hybridagi_steps.errors import InvalidFilterError, InvalidQueryError
from hybridagi_steps.records.step_text import glimpse_text, own_text, text_hash, tokens, whole_text
from hybridagi_steps.records.store_values import Rows
from hybridagi_steps.search import ranking
from hybridagi_steps.search.formulas import Mode
from hybridagi_steps.search.score_parts import ScoreParts


def action(purpose: str, result: str = "done", tool: str = "search", **fields: Any) -> AgentStep:
    """Return an Action that used a tool."""
    inputs = {"purpose": purpose, "tool": tool, "arguments": {"q": purpose[:10]}}
    return AgentStep(
        step_type=AgentStepType.Action, inputs=inputs, outputs={"result": result}, **fields
    )


def bm25(documents: dict[str, list[str]], asked: Sequence[str], average: float) -> dict[str, float]:
    """Return unweighted BM25 scores over the best of them, lengths counted in words."""
    scores = dict.fromkeys(documents, 0.0)
    for thing in set(asked):
        for name, held in documents.items():
            frequency = held.count(thing)
            length = 0.25 + 0.75 * LENGTHS[name] / average
            scores[name] += frequency * 2.5 / (frequency + 1.5 * length)
    best = max(scores.values()) or 1.0
    return {name: score / best for name, score in scores.items()}


LENGTHS: dict[str, int] = {}
"""Words of each document."""


def pairs(words: list[str]) -> list[str]:
    return [" ".join(pair) for pair in pairwise(words)]


def pieces(words: list[str]) -> list[str]:
    return [word[n : n + 4] for word in words for n in range(len(word) - 3)]


def by_the_formula(steps: Sequence[AgentStep], query: str) -> dict[str, float]:
    """Return every step's hybrid score, computed one part after the other."""
    by_id = {str(step.id): step for step in steps}
    parent = {name: by_id.get(str(step.parent_id)) for name, step in by_id.items()}
    documents = {
        name: tokens(glimpse_text(parent[name]) + own_text(step)) for name, step in by_id.items()
    }
    LENGTHS.update({name: len(words) for name, words in documents.items()})
    average = sum(map(len, documents.values())) / len(documents)
    whole = {name: {*tokens(whole_text(step))} for name, step in by_id.items()}
    lexical = dict.fromkeys(by_id, 0.0)
    for term in set(tokens(query)):
        holding = sum(term in words or term in whole[name] for name, words in documents.items())
        idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
        for name, words in documents.items():
            frequency = words.count(term)
            length = 0.25 + 0.75 * len(words) / average
            lexical[name] += idf * frequency * 2.5 / (frequency + 1.5 * length)
            if not frequency and term in whole[name]:  # a word beyond the cuts
                lexical[name] += idf * 0.2
    embedder = HashingEmbedder()
    target = embedder.embed_queries([query])[0]
    vectors = embedder.embed_documents([own_text(step) for step in by_id.values()])
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(target)
    dense = dict(zip(by_id, (vectors @ target / norms).tolist(), strict=True))
    best = max(lexical.values()) or 1.0
    asked = tokens(query)
    phrases = bm25({n: pairs(words) for n, words in documents.items()}, pairs(asked), average)
    parts = bm25(
        {n: pieces(words) for n, words in documents.items()}, pieces(sorted({*asked})), average
    )
    fused = {
        n: (0.6 * lexical[n] / best + 0.55 * max(0.0, dense[n]) + 0.15 * (phrases[n] + parts[n]))
        / 1.45
        for n in by_id
    }
    spread = dict(fused)
    for name, step in parent.items():
        if step is not None:
            spread[name] = max(spread[name], 0.7 * fused[str(step.id)])
            spread[str(step.id)] = max(spread[str(step.id)], 0.7 * fused[name])
    return spread


def test_scores_are_those_of_the_formula_on_real_runs(
    memory: StepMemory, real_steps: list[AgentStep]
) -> None:
    chosen = [step for step in real_steps if step.run_id and "tau" in step.run_id]
    memory.add(chosen)
    for query in ("cancel the reservation and refund", "flight to Seattle in economy"):
        expected = by_the_formula(chosen, query)
        hits = memory.search(query, k=15)
        assert len(hits) == 15
        for hit in hits:
            assert hit.score == pytest.approx(expected[str(hit.step.id)], abs=1e-5)
        missed = set(expected) - {str(hit.step.id) for hit in hits}
        texts = {text_hash(whole_text(hit.step)) for hit in hits}
        others = [
            expected[str(s.id)]
            for s in chosen
            if str(s.id) in missed and text_hash(whole_text(s)) not in texts
        ]
        assert max(others) <= hits[-1].score + 1e-6


def test_one_half_alone_scores_by_that_half(
    memory: StepMemory, real_steps: list[AgentStep]
) -> None:
    """Meaning alone: the cosine. Words alone: the share of the best BM25 score."""
    chosen = [step for step in real_steps if step.run_id and "tau" in step.run_id][:150]
    memory.add(chosen)
    embedder = HashingEmbedder()
    query = "cancel the reservation and refund"
    [asked] = embedder.embed_queries([query])
    dense = memory.search(query, k=10, mode="dense")
    kept = shortened(embedder.embed_documents([own_text(hit.step) for hit in dense]))
    cosines = (unpacked(kept) @ asked).tolist()
    assert [hit.score for hit in dense] == pytest.approx(cosines, abs=1e-6)
    assert [hit.dense_score for hit in dense] == pytest.approx(cosines, abs=1e-6)
    assert {hit.lexical_score for hit in dense} == {None}
    words = memory.search(query, k=10, mode="lexical")
    best = words[0].lexical_score
    assert best
    assert [hit.score for hit in words] == pytest.approx(
        [(hit.lexical_score or 0) / best for hit in words]
    )
    assert {hit.dense_score for hit in words} == {None}


def test_of_equal_texts_the_newest_stands_with_the_score_of_the_best(memory: StepMemory) -> None:
    trip = action("plan the trip to Zanzibar", id="trip")
    memory.add([trip, action("book the hotel", id="old", parent_id="trip")])
    [best] = (hit for hit in memory.search("hotel in Zanzibar") if hit.step.id == "old")
    memory.add(action("book the hotel", id="new"))
    hits = {hit.step.id: hit.score for hit in memory.search("hotel in Zanzibar")}
    assert hits.keys() == {"trip", "new"}
    assert hits["new"] == pytest.approx(best.score, rel=0.1)


class Loud(HashingEmbedder):
    """Gives queries a length of its own, as some models do."""

    length = 1.0

    def embed_queries(self, texts: Sequence[str]) -> Any:
        return self.length * super().embed_queries(texts)


@pytest.mark.parametrize("length", [7.0, 1e-30, 1e38])
def test_how_long_an_embedder_makes_a_query_changes_no_score(
    memory: StepMemory, length: float
) -> None:
    steps = [action(f"refund the {thing}") for thing in ("hat", "coat", "shoe")]
    embedder = Loud()
    embedder.length = length
    with StepMemory(":memory:", embedder=embedder) as loud:
        for each in (memory, loud):
            each.add(steps)
        for mode in ("hybrid", "dense"):
            plain, scaled = (each.search("refund a hat", mode=mode) for each in (memory, loud))
            assert [hit.score for hit in scaled] == pytest.approx([hit.score for hit in plain])


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
@pytest.mark.parametrize(
    "as_query",
    [whole_text, AgentStep.purpose.fget, str, AgentStep.model_copy],
    ids=["whole text", "purpose", "prompt text", "the step"],
)
def test_an_exact_duplicate_ranks_first(
    memory: StepMemory,
    real_steps: list[AgentStep],
    as_query: Callable[[AgentStep], Any],
    mode: Any,
) -> None:
    memory.add(real_steps[:200])
    actions = [s for s in real_steps[:200] if s.purpose and s.step_type == "Action"]
    for step in random.Random(7).sample(actions, 10):
        best = memory.search(as_query(step), k=3, mode=mode)[0]
        same = own_text(best.step) == own_text(step) or best.step.purpose == step.purpose
        assert same
        assert best.score == pytest.approx(1.0)


def test_steps_that_differ_only_far_behind_are_two_steps(memory: StepMemory) -> None:
    lines = ["x " * 400 + end for end in ("zanzibar", "timbuktu", "samarkand")]
    steps = [action("read the log", line) for line in lines]
    memory.add(steps)
    assert len(memory.search("read the log", k=5)) == 3
    for step in steps:
        copy = step.model_copy(update={"id": "elsewhere"})
        best = memory.search(copy, k=1)[0]
        assert (best.step.id, best.score) == (step.id, pytest.approx(1.0))
        assert best.why.startswith("same text")


def test_words_far_behind_are_found(memory: StepMemory) -> None:
    inputs = {
        "purpose": "p " * 400 + "deep",
        "tool": "t",
        "arguments": {f"a{n}": "v " * 100 + f"argument{n}" for n in range(20)},
    }
    outputs = {"result": "r " * 900 + "CONFIRMED-X7Z"}
    target = AgentStep(step_type=AgentStepType.Action, inputs=inputs, outputs=outputs)
    memory.add([target, *[action(f"other thing {n}", "r " * 50) for n in range(30)]])
    for query, place in (("X7Z", "result"), ("deep", "purpose"), ("argument19", "a19")):
        found = memory.search(query, mode="lexical")
        assert [hit.step.id for hit in found] == [target.id]
        assert found[0].why == f"words in {place}: {query}"


def test_short_words_and_accents_are_words(memory: StepMemory) -> None:
    listing = action("ls -la the folder")
    composed, decomposed = action("réserver un café"), action("re\u0301server la voiture")
    memory.add([listing, composed, decomposed, action("l is a letter")])
    assert [hit.step.id for hit in memory.search("ls", mode="lexical")] == [listing.id]
    found = {hit.step.id for hit in memory.search("réserver", mode="lexical")}
    assert found == {composed.id, decomposed.id}


def test_a_stored_step_as_query_returns_itself_even_among_its_copies(memory: StepMemory) -> None:
    copies = [action("look up the weather", run_id=f"r{n}") for n in range(300)]
    memory.add(copies)
    for step in (copies[0], copies[150], copies[299]):
        hits = memory.search(step, k=5)
        assert [hit.step.id for hit in hits] == [step.id]


def test_of_equal_texts_the_newest_stands_and_others_get_their_place(memory: StepMemory) -> None:
    memory.add([action("check the refund policy", run_id=f"r{n}") for n in range(400)])
    newest = action("check the refund policy")
    memory.add(newest)
    memory.add(action("read the refund rules once more"))
    hits = memory.search("refund policy", k=3)
    assert len(hits) == 2
    assert newest.id in [hit.step.id for hit in hits]


def test_rows_that_say_the_same_are_not_all_scored(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found is the same; what neighbours of all would lend their text may be missing."""
    words = ["look", "read", "answer", "letters", "letter", "new", "old", "mail", "box", "seen"]
    chance = random.Random(3)
    for n in range(400):
        run = f"run-{n // 9}"
        memory.add(action("look for new letters", "none", tool="mailbox", run_id=run))
        if n % 8 == 0:
            said = " ".join(chance.choices(words, k=chance.randint(3, 12)))
            memory.add(action(said, f"it says {n}", tool=f"t{n % 3}", run_id=run))
    scored, values = list[int](), ScoreParts.values

    def counted(parts: ScoreParts, rows: Rows, names: Iterable[str]) -> dict[str, Any]:
        scored.append(len(rows))
        return values(parts, rows, names)

    monkeypatch.setattr(ScoreParts, "values", counted)
    for mode in get_args(Mode):
        for k, where in ((45, {}), (15, {"tools": ["mailbox", "t1"]})):
            found: list[dict[str, float]] = []
            for most in (1_000, 60):
                monkeypatch.setattr(ranking, "MOST_EQUAL", most)
                scored.clear()
                hits = memory.search("look for letters", k=k, mode=mode, where=where)
                found.append({str(hit.step): hit.score for hit in hits})
            assert list(found[0]) == list(found[1])
            assert len(found[0]) == k
            assert found[0] == pytest.approx(found[1], abs=0.01)
            assert max(scored) < 200


def test_every_query_of_a_list_gets_a_place(memory: StepMemory) -> None:
    memory.add([action(f"refund ticket number {n}") for n in range(30)])
    hotel = action("book a hotel room")
    memory.add(hotel)
    asked = QueryList(queries=[Query(query="refund ticket"), Query(query="hotel room")])
    for query in (asked, ["refund ticket", "hotel room"]):
        hits = memory.search(query, k=2)
        assert len(hits) == 2
        assert hotel.id in [hit.step.id for hit in hits]


def test_filters_work_inside_the_search_not_after_it(memory: StepMemory) -> None:
    memory.add([action("refund the ticket", f"ticket {n}", run_id="loud") for n in range(200)])
    quiet = action("say hello, no refund here", run_id="quiet", status="error")
    memory.add(quiet)
    for where in ({"run_id": "quiet"}, {"status": "error"}, {"exclude_run_id": "loud"}):
        hits = memory.search("refund ticket", k=3, where=where)
        assert [hit.step.id for hit in hits] == [quiet.id]
        assert hits[0].lexical_score == pytest.approx(
            memory.search("refund ticket", k=1, where=StepFilter.of(where))[0].lexical_score
        )
    assert memory.search("refund", where={"run_id": "nobody"}) == []


def test_trial_runs_stay_out_and_do_not_distort_the_weights(memory: StepMemory) -> None:
    memory.add([action("refund the ticket"), action("book a room", "refund")])
    before = [hit.score for hit in memory.search("refund ticket", k=2)]
    trials = [action(f"ticket trial {n}", scope="compile:MIPROv2:1") for n in range(50)]
    memory.add(trials)
    assert [hit.score for hit in memory.search("refund ticket", k=2)] == before
    assert not memory.search("trial", mode="lexical")
    every = memory.search("ticket trial", k=60, where={"scope": "*"})
    assert {hit.step.scope for hit in every} == {None, "compile:MIPROv2:1"}
    only = memory.search("ticket trial", k=60, where={"scope": "compile:MIPROv2:1"})
    assert {hit.step.scope for hit in only} == {"compile:MIPROv2:1"}


def test_a_trial_next_to_a_match_stays_hidden(memory: StepMemory) -> None:
    asked = action("refund the ticket", run_id="a")
    trial = action("something else", parent_id=asked.id, scope="evaluate:1", run_id="b")
    memory.add([asked, trial])
    for where in (None, {"exclude_run_id": "c"}, {"step_types": "Action"}):
        assert [hit.step.id for hit in memory.search("refund ticket", where=where)] == [asked.id]


def test_a_neighbour_of_a_match_is_found_and_says_so(memory: StepMemory) -> None:
    asked = action("which baggage allowance applies", "gold members: three bags")
    answered = AgentStep(
        step_type=AgentStepType.Action,
        parent_id=asked.id,
        inputs={"purpose": "reply"},
        outputs={"text": "ok"},
    )
    memory.add([asked, answered, *[action(f"other thing {n}") for n in range(20)]])
    hits = memory.search("baggage allowance gold members", k=2)
    assert [hit.step.id for hit in hits] == [asked.id, answered.id]
    assert "words: gold, members; words in purpose: baggage, allowance" in hits[0].why


def test_a_parent_that_arrives_later_shows_in_its_childs_text(memory: StepMemory) -> None:
    parent = action("zanzibar expedition")
    child = action("pack the bags", parent_id=parent.id)
    memory.add(child)
    assert not memory.search("zanzibar", mode="lexical")
    memory.add(parent)
    found = [hit.step.id for hit in memory.search("zanzibar", mode="lexical")]
    assert found == [parent.id, child.id]


def test_min_score_and_why_and_halves(memory: StepMemory) -> None:
    memory.add([action("refund the ticket"), action("feed the cat")])
    hits = memory.search("refund ticket", k=5)
    assert all(0 <= hit.score <= 1 for hit in hits)
    assert hits[0].dense_score is not None
    assert hits[0].lexical_score is not None
    strict = memory.search("refund ticket", k=5, min_score=hits[0].score)
    assert [hit.step.id for hit in strict] == [hits[0].step.id]
    lexical = memory.search("refund ticket", mode="lexical")
    assert [hit.dense_score for hit in lexical] == [None]


def test_expand_brings_what_led_here_what_followed_and_the_program(memory: StepMemory) -> None:
    call = AgentStep(
        step_type=AgentStepType.ProgramCall, inputs={"program": "agent"}, run_id="r", hop=0
    )
    steps = [call]
    for hop in range(1, 6):
        steps.append(
            action(
                f"stage {'abcde'[hop - 1] * 3}",
                parent_id=steps[-1].id,
                hop=hop,
                run_id="r",
                program_id=str(call.id),
            )
        )
    memory.add(steps)
    hit = memory.search("stage bbb", k=1, expand="parents")[0]
    assert [step.id for step in hit.context] == [steps[1].id, call.id]
    hit = memory.search("stage bbb", k=1, expand="following")[0]
    assert [step.id for step in hit.context] == [step.id for step in steps[3:6]]
    hit = memory.search("stage bbb", k=1, expand="program")[0]
    assert [step.id for step in hit.context] == [step.id for step in steps]


@pytest.mark.parametrize("query", ["", "  \n", [], [""], QueryList()])
def test_an_empty_query_is_refused(memory: StepMemory, query: Any) -> None:
    with pytest.raises(InvalidQueryError, match="empty"):
        memory.search(query)


@pytest.mark.parametrize("k", [0, -1, True, 1.5])
def test_k_is_a_number_of_hits(memory: StepMemory, k: Any) -> None:
    with pytest.raises(InvalidQueryError, match="at least 1"):
        memory.search("refund", k=k)


@pytest.mark.parametrize("least", ["0.5", math.nan, True, [0.5]])
def test_min_score_is_a_number(memory: StepMemory, least: Any) -> None:
    with pytest.raises(InvalidQueryError, match="min_score is a number"):
        memory.search("refund", min_score=least)


def test_unknown_filter_keys_modes_and_expansions_are_refused(memory: StepMemory) -> None:
    with pytest.raises(InvalidFilterError, match="unknown filter key 'sesion_id'"):
        memory.search("x", where={"sesion_id": "s"})
    with pytest.raises(InvalidQueryError, match="mode is one of"):
        memory.search("x", mode="fuzzy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidQueryError, match="expand is one of"):
        memory.search("x", expand="children")  # pyright: ignore[reportArgumentType]


def test_odd_queries_are_answered(memory: StepMemory) -> None:
    memory.add([action("日本語のチケットを払い戻す"), action("ünïcödé ✈ refund")])
    assert memory.search("払い戻す", k=1)[0].step.purpose.startswith("日本語")
    for query in ("✈", '" OR 1=1 --', "the of and", "\ud800", "x" * 1_000_000, "\x00"):
        memory.search(query)


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_a_word_is_found_where_it_stands_not_in_the_step_after(
    memory: StepMemory, mode: Any
) -> None:
    """The step after glimpses it, in a window as long: their scores by words are the same."""
    memory.add([action(f"marker{n} refund", run_id="r", hop=n) for n in range(8)])
    for n in range(8):
        assert memory.search(f"marker{n}", k=1, mode=mode)[0].step.hop == n
