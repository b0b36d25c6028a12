"""What every store promises about deletion, counting, closing and namespaces."""

# A test's name says what it holds.

from __future__ import annotations

import pytest

from conformance.samples import EVERYTHING, ids, save_pending, step, text
from hybridagi_steps.errors import MemoryClosedError
from hybridagi_steps.protocols import StepStore


class AdminContract:
    """`StepStore` and the rest."""

    def test_delete_forgets_and_counts(self, store: StepStore) -> None:
        given = step(vector=[1])
        store.append([given, step(id="b")])
        assert store.delete([str(given.id).upper(), str(given.id), "unknown"]) == 1
        assert store.get([str(given.id)]) == []
        assert store.delete([str(given.id)]) == 0
        store.append([given])
        assert ids(store.find(EVERYTHING, limit=9)) == ["b", str(given.id)]
        assert store.verify() == []

    def test_clear_starts_a_new_epoch(self, store: StepStore) -> None:
        rows = store.append([step(id="a", run_id="r", vector=[1])])
        store.save_derived([text(rows[0])], [])
        store.score_run("r", 1, None)
        before = store.frontier().position
        store.clear()
        assert store.find(EVERYTHING, limit=9) == store.runs(limit=9) == []
        assert store.frontier().position.epoch > before.epoch
        changes = store.changes(before)
        assert (changes.texts, changes.vectors, changes.removed) == ([], [], [])
        store.append([step(id="a", run_id="r")])
        assert store.get(["a"])[0].score is None

    def test_stats_count(self, store: StepStore) -> None:
        store.append([step(run_id="r", session_id="s"), step(run_id="r"), step(vector=[1])])
        save_pending(store)
        store.append([step()])
        counts = store.stats()
        wanted = {"steps": 4, "runs": 1, "sessions": 1, "pending_texts": 1, "pending_vectors": 3}
        assert {name: counts[name] for name in wanted} == wanted
        assert counts["bytes"] > 0
        assert counts["durability"] in {"normal", "full"}

    def test_what_the_caller_knows_of_pending_steps_is_taken_as_it_is(
        self, store: StepStore
    ) -> None:
        a, b, c = store.append([step(id="a"), step(id="b"), step(id="c")])
        told = step(id="told")
        found = store.pending_vectors(9, known={a: told, b: None, c + 9: told})
        assert [(row, None if one is None else str(one.id)) for row, one in found] == [
            (a, "told"),
            (b, None),
            (c, "c"),
        ]
        save_pending(store)
        store.sync()
        assert store.verify() == []

    def test_vacuum_and_verify_leave_everything_in_place(self, store: StepStore) -> None:
        store.append([step(id=str(n)) for n in range(20)])
        save_pending(store)
        store.delete([str(n) for n in range(10)])
        store.vacuum()
        assert ids(store.find(EVERYTHING, limit=99)) == [str(n) for n in range(10, 20)]
        assert store.verify() == []

    def test_a_closed_store_says_so(self, store: StepStore) -> None:
        store.append([step(id="a")])
        store.close()
        store.close()
        with pytest.raises(MemoryClosedError):
            store.append([step(id="b")])
        with pytest.raises(MemoryClosedError):
            store.get(["a"])
        with pytest.raises(MemoryClosedError):
            store.delete(["a"])

    def test_store_ids_are_of_one_store(self, store: StepStore, other: StepStore) -> None:
        assert store.identity().store_id == store.identity().store_id
        assert len(store.identity().store_id) >= 16
        assert (store.identity().store_id == other.identity().store_id) is self.one_file

    one_file = False
    """Whether `store` and `other` are two namespaces of one file."""

    def test_namespaces_never_meet(self, store: StepStore, other: StepStore) -> None:
        same = step(run_id="r", session_id="s", parent_id="p", vector=[1, 2])
        store.append([same, step(id="p")])
        store.score_run("r", 0.5, None)
        other.append([same])
        assert other.get([str(same.id)])[0].score is None
        assert ids(other.find(EVERYTHING, limit=9)) == [str(same.id)]
        assert [found.parent_row for found in other.pending_texts(9)] == [None]
        assert [run.score for run in other.runs(limit=9)] == [None]
        other.set_embedder("elsewhere", 9)
        assert store.identity().embedder is None
        assert store.get([str(same.id)], vectors=True)[0].vector == [1, 2]
        other.clear()
        assert len(store.rows(EVERYTHING)) == 2
        assert store.delete([str(same.id)]) == 1
        other.append([same])
        assert other.children(["p"]) == [same.model_copy(update={"vector": None})]
        assert store.children(["p"]) == []
