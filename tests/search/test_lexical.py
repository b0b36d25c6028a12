"""The BM25 index against the formula written out, through any sequence of changes."""

from __future__ import annotations

import math
import random
import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridagi_steps.search import bm25 as lexical
from hybridagi_steps.search import index_cache, posting_blocks, vocabulary
from hybridagi_steps.search.bm25 import Document, LexicalIndex
from hybridagi_steps.search.index_cache import DamagedCacheError, load_cache, save_cache
from hybridagi_steps.search.posting_blocks import Posting

Documents = dict[int, list[str]]


def bm25(documents: Documents, terms: list[str]) -> dict[int, float]:
    """Return the score of each document by the formula, term by term."""
    count = len(documents)
    average = sum(map(len, documents.values())) / count if count else 1.0
    scores = dict.fromkeys(documents, 0.0)
    for term in set(terms):
        holding = sum(term in words for words in documents.values())
        idf = math.log(1 + (count - holding + 0.5) / (holding + 0.5))
        for row, words in documents.items():
            frequency = words.count(term)
            length = 1 - 0.75 + 0.75 * len(words) / (average or 1.0)
            scores[row] += idf * frequency * 2.5 / (frequency + 1.5 * length)
    return scores


def few_hashes(words: vocabulary.Spelled, _secret: np.uint64) -> np.ndarray[Any, Any]:
    """Return hashes of which several words have the same."""
    return (words.letters[words.starts] % 3).astype(np.uint64) << np.uint64(62)


def through_a_file(index: LexicalIndex, path: Path | None = None) -> LexicalIndex:
    """Return what a process finds in the file that another one wrote."""
    with TemporaryDirectory() as folder:
        file = path or Path(folder, "words")
        assert save_cache(file, {}, index.to_arrays(patched=True))
        loaded = load_cache(file, {})
        assert loaded is not None
        return LexicalIndex.from_arrays(loaded)


words = st.lists(st.sampled_from("abcdefgh"), max_size=12)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.dictionaries(st.integers(1, 30), words, max_size=8)),
        st.tuples(st.just("remove"), st.lists(st.integers(1, 30), max_size=8)),
        st.tuples(st.just("merge"), st.none()),
        st.tuples(st.just("reload"), st.none()),
    ),
    max_size=12,
)


@pytest.mark.parametrize("sizes", ["one block", "many blocks", "removed ones stay"])
@settings(max_examples=200, deadline=None)
@given(
    steps=changes,
    query=st.lists(st.sampled_from("abcdefghz"), max_size=5),
)
def test_scores_are_those_of_the_formula_after_any_changes(
    sizes: str, steps: list[tuple[str, Documents | list[int] | None]], query: list[str]
) -> None:
    # Not a fixture of the module: it would hold while other tests of the module run between.
    with pytest.MonkeyPatch.context() as patch:
        if sizes != "one block":
            patch.setattr(posting_blocks, "MOST_DOCUMENTS", 4)
            patch.setattr(lexical, "NEWEST", 2)
        if sizes == "removed ones stay":
            patch.setattr(lexical, "DEAD_SHARE", 1.0)
        patch.setattr(vocabulary.Spelled, "hashes", few_hashes)
        patch.setattr(index_cache, "_PAGE_BYTES", {1: 8, 2: 4})
        check_scores(steps, query)


def check_scores(steps: list[tuple[str, Documents | list[int] | None]], query: list[str]) -> None:
    index, documents = LexicalIndex(), dict[int, list[str]]()
    for kind, value in steps:
        if isinstance(value, dict):
            index.add(list(value.items()))
            documents.update(value)
        elif isinstance(value, list):
            gone = set(value) & set(documents)
            assert index.remove(np.array(sorted(set(value)), np.int64)) == len(gone)
            documents = {row: text for row, text in documents.items() if row not in gone}
        elif kind == "merge":
            index.merge()
        else:
            index = through_a_file(index)
            assert_holds_no_more_than(index, documents)
    expected = bm25(documents, query)
    match = index.match(query)
    rows = np.arange(1, 31)
    assert len(index) == len(documents)
    np.testing.assert_allclose(
        match.of(rows), [expected.get(row, 0.0) for row in rows.tolist()], rtol=1e-5
    )
    few = [match.top(3, rows[::3])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexical, "FEW", 0)
        few.append(match.top(3, rows[::3]))
        patch.setattr(lexical, "NARROW", 10.0)
        few.append(match.top(3, rows[::3]))
    for found, reached in few:
        passing = {row: score for row, score in expected.items() if row % 3 == 1 and score > 0}
        assert sorted(reached.tolist()) == pytest.approx(sorted(passing.values())[-3:], rel=1e-5)
        assert set(found.tolist()) <= set(passing)
    best, scores = match.top(3)
    wanted = sorted((row for row in expected if expected[row] > 0), key=lambda r: -expected[r])
    np.testing.assert_allclose(scores, [expected[row] for row in wanted[:3]], rtol=1e-5)
    assert [round(expected[row], 9) for row in best.tolist()] == [
        round(expected[row], 9) for row in wanted[:3]
    ]


def assert_holds_no_more_than(index: LexicalIndex, documents: Documents) -> None:
    """Nothing that is saved tells a word of a document that was removed."""
    held = {word for words in documents.values() for word in words}
    arrays = index.to_arrays()
    assert {*arrays["term_text"].tobytes()} <= {0, *map(ord, held)}
    numbers = {*index.numbers(sorted(held)).tolist()}
    assert {*arrays["block_terms"].tolist()} <= numbers
    ends = [0, *arrays["forward_ends"].tolist()]
    for place, row in enumerate(arrays["rows"].tolist()):
        if place in arrays.get("gone", ()):
            assert not arrays["forward_units"][ends[place] : ends[place + 1]].any()
        else:
            assert row in documents


def test_a_filter_keeps_scores_and_hides_the_rest() -> None:
    index = LexicalIndex()
    index.add([(1, ["refund", "ticket"]), (2, ["refund"]), (3, ["hotel"])])
    rows, scores = index.match(["refund"]).top(5, np.array([1, 3]))
    assert rows.tolist() == [1]
    assert scores[0] == index.match(["refund"]).of(np.array([1]))[0]


def test_a_term_in_every_document_still_counts() -> None:
    """SQLite's own bm25() gives such terms an idf near zero; this one must not."""
    index = LexicalIndex()
    index.add([(row, ["flight"] * row + ["x"] * (9 - row)) for row in range(1, 9)])
    rows, scores = index.match(["flight"]).top(3)
    assert rows.tolist() == [8, 7, 6]
    assert scores[0] > scores[1] > scores[2] > 0


def test_many_documents_merge_by_themselves() -> None:
    index = LexicalIndex()
    for start in range(0, 6_000, 500):
        index.add([(row, [f"w{row % 97}", "all"]) for row in range(start, start + 500)])
    rows, _ = index.match(["w5"]).top(1_000)
    assert rows.tolist() == list(range(5, 6_000, 97))


def test_further_words_are_found_weigh_little_and_add_no_length() -> None:
    plain, further = LexicalIndex(), LexicalIndex()
    plain.add([(1, ["refund", "ticket"]), (2, ["hotel"])])
    further.add([Document(1, ["refund", "ticket"], ["voucher", "refund"]), Document(2, ["hotel"])])
    every = np.array([1, 2])
    assert (
        further.match(["refund"]).of(every).tolist() == plain.match(["refund"]).of(every).tolist()
    )
    rows, scores = further.match(["voucher"]).top(5)
    assert rows.tolist() == [1]
    assert 0 < scores[0] < further.match(["ticket"]).top(1)[1][0]


def test_words_that_nothing_holds_any_more_are_forgotten() -> None:
    index = LexicalIndex()
    index.add([(1, ["secret", "shared"]), (2, ["shared"])])
    index.remove(np.array([1]))
    arrays = index.to_arrays()
    assert arrays["term_text"].tobytes().rstrip(b"\0") == b"shared"
    again = LexicalIndex.from_arrays(arrays)
    again.add([(3, ["secret"])])
    assert again.match(["secret"]).top(5)[0].tolist() == [3]
    assert again.match(["shared"]).top(5)[0].tolist() == [2]


def test_of_few_that_are_removed_only_their_places_are_saved(tmp_path: Path) -> None:
    def document(row: int) -> Document:
        return Document(row, [f"ref{row:04}", f"w{row % 97}", "all"], [f"far{row:04}"])

    index, gone = LexicalIndex(), [5, 700, 701, 2_999]
    index.add([document(row) for row in range(3_000)])
    once = through_a_file(index, tmp_path / "words")
    once.remove(np.array(gone))
    once.add([Document(7, ["ref0007", "again"])])
    index = LexicalIndex()
    index.add([document(row) for row in range(3_000) if row not in (7, *gone)])
    index.add([Document(7, ["ref0007", "again"])])
    for again in (once, through_a_file(once, tmp_path / "words")):
        for query in (["all", "w5"], ["w87", "far2998", "ref0007"], ["again"], ["ref0700", "w21"]):
            expected, found = index.match(query).top(20), again.match(query).top(20)
            assert found[0].tolist() == expected[0].tolist()
            assert found[1].tolist() == expected[1].tolist()
    saved = (tmp_path / "words").read_bytes()
    assert [row for row in (6, *gone) if f"ref{row:04}".encode() in saved] == [6]
    assert [row for row in (6, 7, *gone) if f"far{row:04}".encode() in saved] == [6]
    again = through_a_file(once, tmp_path / "words")
    assert again.numbers(["ref0700", "far0007"]).tolist() == [-1, -1]
    again.add([document(700)])
    assert again.match(["far0700"]).top(3)[0].tolist() == [700]


@pytest.mark.parametrize("words", [[], ["a"], ["żółw", "日", "refund"]])
def test_a_revived_index_spells_its_words_as_before(words: list[str]) -> None:
    index = LexicalIndex()
    index.add([Document(0, words)] if words else [])
    again = LexicalIndex.from_arrays(index.to_arrays())
    for more in ([], ["flight"]):
        for each in (index, again):
            each.add([Document(1, more)] if more else [])
        for one, other in zip(
            index.vocabulary.spelling(), again.vocabulary.spelling(), strict=True
        ):
            assert one.tolist() == other.tolist()


def common_words(documents: int) -> LexicalIndex:
    """Return an index of documents whose words are as common as Zipf has it."""
    chance = random.Random(3)
    vocabulary = [f"w{number}" for number in range(300)]
    often = [1 / (number + 1) for number in range(300)]
    index = LexicalIndex()
    index.add(
        (row, chance.choices(vocabulary, often, k=chance.randint(5, 30)))
        for row in range(documents)
    )
    return index


@pytest.mark.parametrize("most", [500, 65_536])
def test_the_best_are_found_without_adding_up_everything(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Common terms are looked up only where the rarer ones left a chance, and nothing is lost."""
    monkeypatch.setattr(posting_blocks, "MOST_DOCUMENTS", most)
    index, chance, rows = common_words(4_000), random.Random(4), np.arange(4_000)
    touched: list[int] = []
    add_to = Posting.add_to

    def counted(posting: Posting, *asked: Any) -> None:
        touched.append(len(posting.positions) if asked[-1] is None else len(asked[-1]))
        add_to(posting, *asked)

    monkeypatch.setattr(Posting, "add_to", counted)
    held = 0
    for _ in range(30):
        query = [*chance.sample([f"w{number}" for number in range(300)], 4), "w0", "w1", "w2"]
        match = index.match(query)
        scores = match.of(rows)
        held += 3 * sum(index.statistics(query).frequencies.values())
        for passing in (rows, rows[rows % 3 > 0], rows[rows % 13 == 0]):
            asked = None if passing is rows else passing
            found, reached = match.top(10, asked)
            wanted = np.sort(scores[passing])[::-1][:10]
            np.testing.assert_allclose(reached, wanted, rtol=1e-6)
            np.testing.assert_allclose(scores[found], reached, rtol=1e-6)
    assert sum(touched) < held / 3


def test_equal_documents_tie_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks meet with lists of other lengths; the sum of the same must be the same."""
    monkeypatch.setattr(posting_blocks, "MOST_DOCUMENTS", 100)
    index = common_words(1_000)
    index.add((row, ["w0", "w5", "w40", "w41", "w250"]) for row in range(5_000, 5_300, 10))
    rows, scores = index.match(["w5", "w41", "w0", "w250", "w40"]).top(20)
    assert rows.tolist() == list(range(5_000, 5_200, 10))
    assert len(set(scores.tolist())) == 1


def test_a_memory_that_grows_makes_few_blocks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an addition waits for has a bound, and all of it together is a few times the words."""
    monkeypatch.setattr(posting_blocks, "MOST_DOCUMENTS", 2_048)
    made: list[int] = []
    make = posting_blocks._made  # pyright: ignore[reportPrivateUsage]

    def counted(forward: Any, span: slice, *others: Any) -> Any:
        made.append(span.stop - span.start)
        return make(forward, span, *others)

    monkeypatch.setattr(posting_blocks, "_made", counted)
    index = LexicalIndex()
    for row in range(0, 20_000, 50):
        index.add((n, ["all", f"w{n % 97}"]) for n in range(row, row + 50))
    assert len(index.match(["all"]).top(20_000)[0]) == 20_000
    assert max(made) <= 2_048
    assert sum(made) <= 8 * 20_000
    blocks = list(index.found(index.numbers(["all"]), 1.0))
    assert len(blocks) <= 20_000 / 1_024 + 6


def postings_of(index: LexicalIndex, term: str) -> list[tuple[int, float]]:
    """Return where a term stands, and how often."""
    return [
        (found.block.start + int(position), float(count))
        for found in index.found(index.numbers([term]), 1.0)
        for position, count in zip(*found.postings[0], strict=True)
    ]


def test_blocks_that_grew_are_those_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting_blocks, "_AT_ONCE", 300)
    monkeypatch.setattr(posting_blocks, "MOST_DOCUMENTS", 2_500)
    monkeypatch.setattr(lexical, "NEWEST", 256)
    chance, often = random.Random(5), [1 / (n + 1) for n in range(300)]
    documents = [
        Document(row, [f"w{n}" for n in chance.choices(range(300), often, k=9)], [f"w{row % 40}"])
        for row in range(3_000)
    ]
    whole, grown = LexicalIndex(), LexicalIndex()
    whole.add(documents)
    first = 0
    while first < len(documents):
        count = chance.randint(1, 700)
        grown.add(documents[first : first + count])
        grown.match(["w0"]).top(1)
        first += count
    assert len(list(whole.found(whole.numbers(["w0"]), 1.0))) == 2
    for term in (f"w{n}" for n in range(300)):
        assert postings_of(whole, term) == postings_of(grown, term)
    # What a term adds at most is a bound: it may be higher for a block that was joined.
    exact = whole.match(["w3", "w70"]).top(20)
    for expected, found in zip(exact, grown.match(["w3", "w70"]).top(20), strict=True):
        np.testing.assert_allclose(found, expected)


def test_no_word_costs_a_call_when_many_documents_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(posting_blocks, "MOST_DOCUMENTS", 2**16)
    documents = [(row, " ".join(f"w{(row + n) % 500}" for n in range(80))) for row in range(2_000)]
    calls = 0

    def counted(frame: Any, event: str, _argument: Any) -> None:  # not what a collection runs
        nonlocal calls
        ours = str(frame.f_globals.get("__name__")).startswith("hybridagi_steps.search")
        calls += ours and event in ("call", "c_call")

    index, before = LexicalIndex(), sys.getprofile()
    sys.setprofile(counted)
    try:
        index.add_lines(documents)
        index.match(["w7"]).top(1)
    finally:
        sys.setprofile(before)
    assert len(documents) <= calls <= 4 * len(documents)


def test_making_blocks_takes_a_fraction_of_the_words_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rebuild holds what 4,096 documents need to be sorted, not what a block of them would."""
    monkeypatch.setattr(posting_blocks, "MOST_DOCUMENTS", 2**16)
    index, chance = LexicalIndex(), np.random.default_rng(2)
    for first in range(0, 50_000, 1_000):
        numbers = chance.zipf(1.3, (1_000, 40)) % 20_000
        index.add((first + n, [f"w{word}" for word in each]) for n, each in enumerate(numbers))
    tracemalloc.start()
    try:
        index.merge()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 3 * held + 4_096 * 40 * 32


def test_a_posting_takes_three_bytes_and_a_word_two() -> None:
    arrays = common_words(4_000).to_arrays()
    words, postings = int(arrays["lengths"].sum()), len(arrays["block_positions"])
    assert postings == int(arrays["holding"].sum())
    assert arrays["block_positions"].nbytes + arrays["block_counts"].nbytes == 3 * postings
    assert arrays["forward_units"].nbytes == 2 * words


def test_words_beyond_those_of_two_bytes_and_counts_beyond_one() -> None:
    """Numbers of terms from 57,344 on take two units, and blocks count as far as need be."""
    many = [f"w{number}" for number in range(70_000)]
    index = LexicalIndex()
    index.add([Document(1, many[:60_000], many[60_000:], 59_000), Document(2, ["w59999"] * 700)])
    for again in (index, LexicalIndex.from_arrays(index.to_arrays())):
        words, first, last = again.forward.own_words(again.positions_of(np.array([1, 3, 2])))
        assert words.lengths.tolist() == [70_000, 0, 700]
        assert words.ids.tolist() == [*range(70_000), *[59_999] * 700]
        assert [first.tolist(), last.tolist()] == [[59_000, 0, 0], [60_000, 0, 700]]
        asked = again.numbers(["w59999", "w0", "w69999"])
        assert again.counts(np.array([0, 1]), asked).tolist() == [[1, 1, 0], [700, -1, -1]]
        assert again.match(["w59999"]).top(1)[0].tolist() == [2]
        assert again.match(["w69999"]).top(5)[0].tolist() == [1]


def test_what_is_removed_counts_in_no_weight() -> None:
    index = common_words(600)
    index.add([Document(700, ["w0", "once"], ["further"]), Document(701, ["once"])])
    index.remove(np.array([700]))
    assert index.statistics(["once", "further"]).frequencies == {"once": 1, "further": 0}
    assert index.match(["further"]).top(3)[0].tolist() == []
    assert index.match(["once"]).top(3)[0].tolist() == [701]
    index.add([Document(701, ["again"]), Document(701, ["last"])])
    assert index.statistics(["once", "again", "last"]).frequencies == {
        "once": 0,
        "again": 0,
        "last": 1,
    }


words_in_order = st.lists(
    st.tuples(st.lists(st.sampled_from("abcde"), max_size=6), st.integers(0, 6)), max_size=8
)


@given(words_in_order, st.lists(st.integers(0, 9), max_size=4), st.booleans())
def test_the_forward_index_has_the_words_of_each_document(
    documents: list[tuple[list[str], int]], gone: list[int], reload: bool
) -> None:
    index = LexicalIndex()
    index.add(Document(row, words, (), first) for row, (words, first) in enumerate(documents))
    index.remove(np.array(gone, np.int64))
    if reload:
        index = LexicalIndex.from_arrays(index.to_arrays())
        index.add([Document(99, ["z", "a"], (), 1)])
    rows = np.array([*range(10), 99])
    alphabet = "abcdez"
    numbers = dict(zip(index.numbers(alphabet).tolist(), alphabet, strict=False))
    found, starts, ends = index.forward.own_words(index.positions_of(rows))
    held: dict[int, list[str]] = {row: [] for row in rows.tolist()}
    for document, term in zip(found.document.tolist(), found.ids.tolist(), strict=True):
        held[int(rows[document])].append(numbers[term])
    assert found.lengths.tolist() == [len(held[row]) for row in rows.tolist()]
    bounds = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    own = {row: held[row][start:end] for row, start, end in bounds}
    for row, (words, first) in enumerate(documents):
        assert (held[row], own[row]) == (([], []) if row in gone else (words, words[first:]))
    assert (held[99], own[99]) == ((["z", "a"], ["a"]) if reload else ([], []))


def test_of_a_file_only_the_words_looked_at_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting_blocks, "MOST_DOCUMENTS", 2**16)
    monkeypatch.setattr(lexical, "NEWEST", posting_blocks.NEWEST)
    index, read = LexicalIndex(), [0]
    common = [f"c{number}" for number in range(60)]
    index.add([(row, [f"ref{row}", f"w{row % 999}", *common]) for row in range(20_000)])
    expected, terms = index.match(["w5", "ref104"]).top(9), ["w5", "ref104", "nowhere"]
    pread = index_cache._pread  # pyright: ignore[reportPrivateUsage]

    def counted(descriptor: int, count: int, start: int) -> bytes:
        read[0] += count
        return pread(descriptor, count, start)

    monkeypatch.setattr(index_cache, "_pread", counted)
    again = through_a_file(index, tmp_path / "words")
    opened, read[0] = read[0], 0
    for _ in range(2):
        rows, scores = again.match(terms).top(9)
        assert rows.tolist() == expected[0].tolist()
        assert scores.tolist() == expected[1].tolist()
    size = (tmp_path / "words").stat().st_size
    assert 0 < read[0] < opened < size / 4
    asked, read[0] = read[0], 0
    again.add([(20_000, ["w5", "new"])])
    assert again.match(["new"]).top(1)[0].tolist() == [20_000]
    where_words_stand = 14 * 20_000  # bytes; there is room for new ones behind what a file has
    assert read[0] == where_words_stand
    assert len(again.to_arrays()["forward_units"]) == len(index.to_arrays()["forward_units"]) + 2
    assert read[0] > size / 2 > asked


def test_words_damaged_in_a_file_are_told_when_they_are_read(tmp_path: Path) -> None:
    index = LexicalIndex()
    index.add([(row, [f"ref{row}", "all"]) for row in range(5_000)])
    again = through_a_file(index, tmp_path / "words")
    (tmp_path / "words").write_bytes(bytes((tmp_path / "words").stat().st_size))
    for look in (lambda: again.match(["ref7"]).top(1), again.to_arrays):
        with pytest.raises(DamagedCacheError):
            look()


def test_terms_take_a_fraction_of_what_a_dictionary_of_them_would() -> None:
    index, terms = LexicalIndex(), [f"reference-of-a-step-{row}" for row in range(20_000)]
    index.add((row, [term, "all"]) for row, term in enumerate(terms))
    assert len(index.vocabulary) == 20_001
    held = sum(array.nbytes for array in index.vocabulary.to_arrays().values())
    of_letters = sum(map(len, terms))
    assert held - of_letters < 20 * len(terms)
    assert index.match([terms[12_345]]).top(5)[0].tolist() == [12_345]
    assert index.statistics(["all", terms[3], terms[3][:-1], "none"]).frequencies == {
        "all": 20_000,
        terms[3]: 1,
        terms[3][:-1]: 0,
        "none": 0,
    }


@given(st.lists(st.text("aż日𝄞", min_size=1, max_size=40), min_size=1, max_size=30))
def test_each_word_has_one_number_whatever_its_length(words: list[str]) -> None:
    known = vocabulary.Vocabulary()
    spelled, counts = vocabulary.cut_words(" ".join(words) + "\n")
    assert counts.tolist() == [len(words)]
    numbers = dict(zip(words, known.number(spelled).tolist(), strict=True))
    assert [*numbers.values()] == [*range(len(numbers))]
    assert known.find(["a" * 41, *words]) == [-1, *(numbers[word] for word in words)]


WORDS = st.lists(st.sampled_from(["order", "refund", "was", "x1"]), max_size=4)


@given(st.lists(st.tuples(st.integers(0, 9), WORDS, WORDS, WORDS, st.booleans()), max_size=12))
def test_lines_of_words_are_the_documents_they_tell(
    told: list[tuple[int, list[str], list[str], list[str], bool]],
) -> None:
    """As stored: words of the step before, a tab, its own; on the next line further ones."""
    documents, lines = LexicalIndex(), LexicalIndex()
    documents.add(
        Document(row, [*before, *own], further, len(before))
        for row, before, own, further, _ in told
    )
    lines.add_lines(
        (
            row,
            f"{' '.join(before)}\t{' '.join(own)}\n{' '.join(further)}"
            + ("\n7 3 0" if spoken else ""),
        )
        for row, before, own, further, spoken in told
    )
    expected, found = documents.to_arrays(), lines.to_arrays()
    assert found.keys() == expected.keys()
    for name in expected.keys() - {"term_slots", "term_secret"}:
        np.testing.assert_array_equal(found[name], expected[name])
