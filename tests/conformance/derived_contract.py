"""What every store promises about words, embeddings and those who follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance.samples import (
    START,
    save_pending,
    step,
    text,
    vector,
)
from hybridagi_steps.errors import EmbedderMismatchError
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.records.agent_step import AgentStepType


class DerivedContract:
    """`IndexedStore`: words, embeddings, followers."""

    def test_words_are_pending_with_the_named_parent(self, store: StepStore) -> None:
        a, b = store.append([step(id="a"), step(id="b", parent_id="a")])
        first, second = store.pending_texts(9)
        assert (first.row, first.parent_row, first.parent) == (a, None, None)
        assert (second.row, second.parent_row) == (b, a)
        assert second.parent is not None
        assert second.parent.id == "a"
        assert [found.row for found in store.pending_texts(1)] == [a]
        store.save_derived([text(b, a)], [])
        assert [found.row for found in store.pending_texts(9)] == [a]
        store.save_derived([text(a)], [])
        assert store.pending_texts(9) == []

    def test_words_know_whether_their_step_is_of_a_trial(self, store: StepStore) -> None:
        store.append([step(id="a"), step(id="b", scope="compile:x")])
        save_pending(store)
        assert [row.scoped for row in store.changes(START).texts] == [False, True]

    @pytest.mark.parametrize("owner", [{"user_id": "ana"}, {"scope": "compile:x"}])
    @pytest.mark.parametrize("link", [{"parent_id": "a"}, {"run_id": "r", "hop": 1}])
    def test_a_step_of_another_user_or_scope_is_no_parent(
        self, store: StepStore, owner: dict[str, str], link: dict[str, Any]
    ) -> None:
        a, b, c, d = store.append(
            [
                step(id="a", run_id="r", user_id="bob"),
                step(id="b", **(link | owner)),
                step(id="c", run_id="s", **owner),
                step(id="d", run_id="s", hop=1, **owner),
            ]
        )
        assert save_pending(store) == [(a, None), (b, None), (c, None), (d, c)]

    @pytest.mark.parametrize("other", [{"user_id": "ana"}, {"user_id": None}, {"scope": "t"}])
    def test_steps_of_others_in_the_run_do_not_come_between(
        self, store: StepStore, other: dict[str, Any]
    ) -> None:
        bobs = {"run_id": "r", "user_id": "bob"}
        a, b, c, d = store.append(
            [
                step(id="a", **bobs, hop=0),
                step(id="b", **(bobs | other), hop=1),
                step(id="c", **bobs, hop=2),
                step(id="d", **(bobs | other), hop=3),
            ]
        )
        assert save_pending(store) == [(a, None), (b, None), (c, a), (d, b)]

    def test_without_a_stored_parent_it_is_the_step_before_in_the_run(
        self, store: StepStore
    ) -> None:
        rows = store.append(
            [
                step(id="x", run_id="other"),
                step(id="b", run_id="r", hop=1),
                step(id="a", run_id="r", hop=0),
                step(id="c", run_id="r", hop=2, parent_id="unknown"),
                step(id="self", parent_id="self"),
            ]
        )
        parents = [found.parent_row for found in store.pending_texts(9)]
        assert parents == [None, rows[2], None, rows[1], None]

    def test_a_parent_that_arrives_later_makes_its_children_pending_again(
        self, store: StepStore
    ) -> None:
        [child] = store.append([step(id="child", parent_id="late")])
        assert save_pending(store) == [(child, None)]
        [late] = store.append([step(id="late")])
        assert save_pending(store) == [(late, None), (child, late)]
        [newer] = store.append([step(id="late", outputs={"n": 2})], replace=True)
        assert save_pending(store) == [(child, newer), (newer, None)]

    def test_a_step_that_arrives_in_the_middle_of_a_run(self, store: StepStore) -> None:
        first, third = store.append([step(id=str(n), run_id="r", hop=n) for n in (0, 2)])
        save_pending(store)
        [second] = store.append([step(id="1", run_id="r", hop=1)])
        assert save_pending(store) == [(second, first), (third, second)]

    def test_a_parent_that_arrived_while_the_words_were_made(self, store: StepStore) -> None:
        [child] = store.append([step(id="child", parent_id="late")])
        taken = store.pending_texts(9)
        [late] = store.append([step(id="late")])
        store.save_derived([text(late)], [])
        store.save_derived([text(found.row, found.parent_row) for found in taken], [])
        assert save_pending(store) == [(child, late)]

    def test_words_of_steps_gone_meanwhile_are_skipped(self, store: StepStore) -> None:
        [row] = store.append([step(id="a")])
        store.delete(["a"])
        store.save_derived([text(row)], [])
        store.save_derived([], [vector(row, 1, 0)])
        store.append([step(id="b")])
        changes = store.changes(START)
        assert (changes.texts, changes.vectors) == ([], [])
        assert store.verify() == []

    @pytest.mark.parametrize("link", [{"parent_id": "a"}, {"run_id": "r", "hop": 2}])
    def test_words_that_others_show_of_a_step_go_with_it(
        self, store: StepStore, link: dict[str, Any]
    ) -> None:
        _, a, b, c = store.append(
            [
                step(id="first", run_id="r"),
                step(id="a", run_id="r", hop=1),
                step(id="b", **link),
                step(id="c", parent_id="b"),
            ]
        )
        first = a - 1
        assert save_pending(store) == [(first, None), (a, first), (b, a), (c, b)]
        reached = store.changes(START).position
        assert store.delete(["a"]) == 1
        changes = store.changes(reached)
        assert changes.removed == [a]
        assert [(row.row, row.parent_row, row.tokens) for row in changes.texts] == [(b, None, "")]
        assert store.stats()["pending_texts"] == 1
        assert store.verify() == []
        before = first if "run_id" in link else None
        assert save_pending(store) == [(b, before)]
        assert [row.tokens for row in store.changes(changes.position).texts] == ["refund order"]

    @pytest.mark.parametrize("run", ["r", None])
    @pytest.mark.parametrize("given", [None, [1.0]])
    def test_what_an_end_tells_of_its_call_goes_with_that(
        self, store: StepStore, run: str | None, given: list[float] | None
    ) -> None:
        kinds, inside = AgentStepType, {"run_id": run, "program_id": "call"}
        asked = {"program": "p", "purpose": "where is it?"}
        _, middle, end = store.append(
            [
                step(id="call", step_type=kinds.ProgramCall, inputs=asked, run_id=run),
                step(id="b", parent_id="call", **inside),
                step(id="end", step_type=kinds.ProgramEnd, parent_id="b", vector=given, **inside),
            ]
        )
        save_pending(store)
        store.save_derived([], [vector(row, 1) for row in range(1, end + 1)])
        reached = store.changes(START).position
        [call] = store.append(
            [step(id="call", step_type=kinds.ProgramCall, user_id="bob", run_id=run)], replace=True
        )
        emptied = {row.row: row.tokens for row in store.changes(reached).texts}
        assert emptied == {middle: "", end: ""}
        pending = {row for row, _ in store.pending_vectors(9)}
        assert pending == ({call, end} if given is None else {call})
        [told] = [found.step for found in store.pending_texts(9) if found.row == end]
        assert told is not None
        assert told.purpose != "where is it?"
        save_pending(store)
        store.delete(["call"])
        assert {found.row for found in store.pending_texts(9)} == {end}
        assert store.verify() == []

    def test_words_that_others_show_of_a_step_go_when_it_is_replaced(
        self, store: StepStore
    ) -> None:
        _, b = store.append([step(id="a"), step(id="b", parent_id="a")])
        save_pending(store)
        reached = store.changes(START).position
        store.append([step(id="a", outputs={"n": 2})], replace=True)
        assert [(row.row, row.tokens) for row in store.changes(reached).texts] == [(b, "")]

    def test_words_that_show_a_step_which_went_meanwhile_are_not_saved(
        self, store: StepStore
    ) -> None:
        a, b = store.append([step(id="a"), step(id="b", parent_id="a")])
        taken = [text(found.row, found.parent_row) for found in store.pending_texts(9)]
        store.delete(["a"])
        store.save_derived(taken, [])
        assert store.changes(START).texts == []
        assert save_pending(store) == [(b, None)]
        assert store.verify() == []
        store.append([step(id="a")])
        [late] = [found.row for found in store.pending_texts(9)]
        assert save_pending(store) == [(late, None), (b, late)]
        stale = [text(b, late)]
        store.delete(["a"])
        store.save_derived(stale, [])
        assert save_pending(store) == [(b, None)]
        assert a < b < late

    def test_words_may_be_saved_again(self, store: StepStore) -> None:
        [row] = store.append([step(id="a")])
        store.save_derived([text(row, tokens="old")], [])
        reached = store.changes(START).position
        store.save_derived([text(row, tokens="new")], [])
        assert [saved.tokens for saved in store.changes(reached).texts] == ["new"]
        assert [saved.tokens for saved in store.changes(START).texts] == ["new"]

    def test_embeddings_are_saved_once(self, store: StepStore) -> None:
        a, b, c = store.append([step(id="a"), step(id="b", vector=[3, 4]), step(id="c", scope="e")])
        assert [(row, found and str(found.id)) for row, found in store.pending_vectors(9)] == [
            (a, "a"),
            (c, "c"),
        ]
        store.save_derived([], [vector(a), vector(c, 1, 0)])
        store.save_derived([], [vector(a, 5, 5), vector(b, 5, 5), vector(c, 5, 5)])
        assert store.pending_vectors(9) == []
        steps = store.get(["a", "b", "c"], vectors=True)
        assert [found.vector for found in steps] == [None, [3, 4], [1, 0]]
        assert [found.vector for found in store.get(["b"])] == [None]
        counts = store.stats()
        assert (counts["embedded"], counts["text_only"], counts["pending_vectors"]) == (2, 1, 0)
        saved = {row.row: row for row in store.changes(START).vectors}
        assert saved[a].vector is None
        assert [saved[row].scoped for row in (a, b, c)] == [False, False, True]
        kept = saved[c].vector
        assert kept is not None
        assert kept.dtype == np.int16, "as it is stored"

    def test_pending_vectors_come_by_row_and_limit(self, store: StepStore) -> None:
        rows = store.append([step(id=str(n)) for n in range(5)])
        assert [row for row, _ in store.pending_vectors(2)] == rows[:2]
        store.save_derived([], [vector(rows[3], 1)])
        assert [row for row, _ in store.pending_vectors(9)] == [*rows[:3], rows[4]]

    def test_pending_steps_are_given_within_bounds(self, store: StepStore) -> None:
        rows = store.append([step(id=str(n), vector=[1] if n == 3 else None) for n in range(6)])
        newest = store.frontier().row
        later = store.append([step(id="later")])
        assert newest == rows[-1] < later[0] == store.frontier().row
        asked: dict[str, Any] = {"after": rows[1], "through": newest}
        assert [found.row for found in store.pending_texts(9, **asked)] == rows[2:]
        assert [found.row for found in store.pending_texts(2, **asked)] == rows[2:4]
        without = [row for row in rows[2:] if row != rows[3]]
        assert [row for row, _ in store.pending_vectors(9, **asked)] == without
        store.save_derived([text(row) for row in rows[:2]], [])
        assert [found.row for found in store.pending_texts(9, after=0, through=newest)] == rows[2:]
        assert store.pending_texts(9, after=later[0]) == []

    def test_stale_words_are_given_within_bounds(self, store: StepStore) -> None:
        [child] = store.append([step(id="child", parent_id="late")])
        save_pending(store)
        [late] = store.append([step(id="late")])
        store.save_derived([text(late)], [])
        assert [found.row for found in store.pending_texts(9, through=child)] == [child]
        assert store.pending_texts(9, after=child) == []

    def test_parents_are_found_among_many_steps_without_words(self, store: StepStore) -> None:
        rows = store.append([step(id=str(n), run_id=f"r{n % 3}", hop=n) for n in range(200)])
        rows += store.append([step(id=f"k{n}", parent_id=str(n)) for n in range(100)])
        parents = [found.parent_row for found in store.pending_texts(999)]
        assert parents == [None, None, None, *rows[:197], *rows[:100]]

    def test_a_frontier_stays_until_something_happens(self, store: StepStore) -> None:
        seen = [store.frontier()]

        def moved() -> bool:
            seen.append(store.frontier())
            return seen[-1] != seen[-2]

        assert not moved()
        [row] = store.append([step(id="a")])
        assert moved()
        store.save_derived([text(row)], [])
        assert moved()
        store.save_derived([], [vector(row, 1)])
        assert moved()
        store.get(["a"])
        assert not moved()
        [row] = store.append([step(id="a")], replace=True)
        assert moved()
        store.delete(["a"])
        assert moved()
        [newer] = store.append([step(id="b")])
        assert newer > row
        assert moved()
        store.clear()
        assert moved()
        assert seen[-1].position == store.frontier().position

    def test_words_and_embeddings_are_saved_together(self, store: StepStore) -> None:
        [child] = store.append([step(id="child", parent_id="late")])
        assert store.save_derived([text(child)], [vector(child, 1)]) == 0
        [late] = store.append([step(id="late")])
        store.set_embedder("one", 1)
        with pytest.raises(EmbedderMismatchError):
            store.save_derived([text(late)], [vector(late, 1)], model_id="two")
        assert [found.row for found in store.pending_texts(9)] == [late]
        assert store.save_derived([text(late)], [vector(late, 1)], model_id="one") == 1
        assert [found.row for found in store.pending_texts(9)] == [child]

    def test_who_waits_less_writes_as_well_when_nobody_else_does(self, store: StepStore) -> None:
        with store.waiting(0):
            store.append([step(id="a")])
            save_pending(store)
            store.append([step(id="a"), step(id="b")], replace=True)
        assert [str(found.id) for found in store.get(["a", "b"])] == ["a", "b"]

    def test_changes_come_in_pages(self, store: StepStore) -> None:
        rows = store.append([step(id=str(n), vector=[n + 1]) for n in range(5)])
        store.save_derived([text(row) for row in rows], [])
        reached = START
        texts: list[int] = []
        vectors: list[int] = []
        for _ in range(3):
            changes = store.changes(reached, limit=2)
            texts.extend(saved.row for saved in changes.texts)
            vectors.extend(saved.row for saved in changes.vectors)
            reached = changes.position
        assert texts == vectors == rows
        assert reached == store.frontier().position
        quiet = store.changes(reached)
        assert (quiet.position, quiet.texts, quiet.vectors, quiet.removed) == (reached, [], [], [])

    def test_removals_follow(self, store: StepStore) -> None:
        a, b = store.append([step(id="a"), step(id="b")])
        store.save_derived([text(a), text(b)], [])
        reached = store.changes(START).position
        assert store.delete(["a", "nobody", "\ud800"]) == 1
        assert store.frontier().position != reached
        changes = store.changes(reached)
        assert (changes.texts, changes.removed) == ([], [a])

    def test_vectors_of_an_embedder_that_was_replaced_meanwhile_are_refused(
        self, store: StepStore
    ) -> None:
        [row] = store.append([step(id="a")])
        store.set_embedder("one", 2)
        with pytest.raises(EmbedderMismatchError, match="one"):
            store.save_derived([], [vector(row)], model_id="two")
        assert [pending for pending, _ in store.pending_vectors(9)] == [row]
        store.save_derived([], [vector(row)], model_id="one")
        assert store.pending_vectors(9) == []

    def test_another_embedder_starts_a_new_epoch(self, store: StepStore) -> None:
        [row] = store.append([step(id="a", vector=[1, 2])])
        assert store.identity()[1:] == (None, None)
        store.set_embedder("one", 2)
        before = store.frontier().position
        store.set_embedder("one", 2)
        assert store.frontier().position == before
        assert store.get(["a"], vectors=True)[0].vector == [1, 2]
        store.set_embedder("two", 3)
        assert store.identity()[1:] == ("two", 3)
        assert store.frontier().position.epoch > before.epoch
        assert [pending for pending, _ in store.pending_vectors(9)] == [row]
        assert store.changes(before).vectors == []
