"""What every store promises about steps: append, get, read, children; and about their runs."""

# A test's name says what it holds.

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import numpy as np
import pytest

from conformance.samples import EVERYTHING, START, at_once, ids, step, text
from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidStepError,
    UnknownRunError,
    UnknownStepError,
)
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import StepMetrics


class StepsContract:
    """`StepStore`: append, get, read, children."""

    def test_what_is_stored_comes_back_equal(self, store: StepStore) -> None:
        full = step(
            id=uuid4(),
            parent_id="not a uuid",
            hop=3,
            inputs={"purpose": "find 🙂", "n": 2**63, "x": [1.5, None, {"ü": True}], "e": {}},
            outputs={},
            metadata={"a": 1},
            created_at=datetime(2024, 2, 29, 23, 59, 59, 5, tzinfo=UTC),
            session_id="s",
            user_id="u",
            run_id="r",
            program_id=str(uuid4()),
            scope="compile:x",
            status="error",
            score=0.25,
            metrics=StepMetrics(duration_ms=1.5, cache_hit=False),
            later_field={"kept": "as data"},
            _fields_set="an odd name",
        )
        store.append([full])
        assert store.get([str(full.id)]) == [full]
        [found] = store.get([str(full.id)])
        assert isinstance(found.id, UUID)
        assert isinstance(found.step_type, AgentStepType)
        assert isinstance(found.metrics, StepMetrics)
        assert found.created_at.tzinfo is UTC
        assert found.model_extra == {
            "later_field": {"kept": "as data"},
            "_fields_set": "an odd name",
        }

    def test_an_unknown_step_type_stays_data(self, store: StepStore) -> None:
        later = step().model_copy(update={"step_type": "Dream"})
        store.append([later])
        assert [found.step_type for found in store.get([str(later.id)])] == ["Dream"]

    def test_get_keeps_the_order_asked_and_skips_unknown(self, store: StepStore) -> None:
        first, second = step(id="one"), step()
        store.append([first, second])
        asked = [str(second.id), "nobody", "one", "one", "\ud800", "nul\x00"]
        assert ids(store.get(asked)) == [str(second.id), "one", "one"]
        assert ids(store.get([str(second.id).upper()])) == [str(second.id)]

    def test_changing_a_read_step_changes_nothing_stored(self, store: StepStore) -> None:
        given = step(id="a", inputs={"list": [1]})
        store.append([given])
        assert given.inputs is not None
        given.inputs["list"].append(2)
        [read] = store.get(["a"])
        assert read.inputs is not None
        assert read.inputs == {"list": [1]}
        read.inputs["list"].append(3)
        assert store.get(["a"])[0].inputs == {"list": [1]}

    def test_rows_grow_and_are_never_used_again(self, store: StepStore) -> None:
        rows = store.append([step(id="a"), step(id="b")])
        assert rows == sorted(set(rows))
        store.delete(["a", "b"])
        [later] = store.append([step(id="c")])
        assert later > max(rows)
        store.clear()
        assert store.append([step(id="d")])[0] > later

    @pytest.mark.parametrize("others", [1, 50])
    def test_a_taken_id_stops_the_whole_batch(self, store: StepStore, others: int) -> None:
        taken = step()
        store.append([taken])
        with pytest.raises(DuplicateStepError) as caught:
            store.append([*(step(id=f"new {n}") for n in range(others)), taken])
        assert caught.value.step_id == str(taken.id)
        with pytest.raises(DuplicateStepError, match="stored already"):
            store.append([taken])
        assert ids(store.find(EVERYTHING, limit=9)) == [str(taken.id)]

    @pytest.mark.parametrize("replace", [False, True])
    def test_the_same_id_twice_in_a_batch_is_refused(self, store: StepStore, replace: bool) -> None:
        same = uuid4()
        with pytest.raises(DuplicateStepError, match="twice in this call"):
            store.append([step(id=same), step(id=str(same))], replace=replace)
        assert store.find(EVERYTHING, limit=9) == []

    def test_nothing_appended_is_nothing_stored(self, store: StepStore) -> None:
        assert store.append([]) == []

    def test_replace_gives_a_new_row_and_forgets_the_old(self, store: StepStore) -> None:
        [old, other] = store.append([step(id="a", outputs={"n": 1}, vector=[1, 0]), step(id="b")])
        store.save_derived([text(old)], [])
        [new, _] = store.append([step(id="a", outputs={"n": 2}), step(id="c")], replace=True)
        assert new > other
        assert store.read([old]) == {}
        assert store.get(["a"], vectors=True)[0].outputs == {"n": 2}
        assert store.get(["a"], vectors=True)[0].vector is None
        assert old in store.changes(START._replace(epoch=1)).removed
        assert [found.row for found in store.pending_texts(9)] == [other, new, new + 1]
        assert store.verify() == []

    def test_replacing_the_only_step_of_a_run_keeps_its_score(self, store: StepStore) -> None:
        store.append([step(id="a", run_id="r")])
        store.score_run("r", 0.5, None)
        store.append([step(id="a", run_id="r")], replace=True)
        assert store.get(["a"])[0].score == 0.5
        store.append([step(id="a", run_id="other")], replace=True)
        assert [run.run_id for run in store.runs(limit=9)] == ["other"]
        assert store.get(["a"])[0].score is None

    def test_read_returns_what_is_there(self, store: StepStore) -> None:
        row_a, row_b = store.append([step(id="a"), step(id="b")])
        read = store.read(np.array([row_b, row_a, 99]).tolist())
        assert {row: str(found.id) for row, found in read.items()} == {row_a: "a", row_b: "b"}

    def test_children_by_row_whatever_the_scope(self, store: StepStore) -> None:
        parent = step()
        store.append([step(id="early", parent_id=parent.id), parent])
        store.append([step(id="late", parent_id=str(parent.id), scope="evaluate:x"), step(id="no")])
        store.append([step(id="lost", parent_id="never stored")])
        assert ids(store.children([str(parent.id)])) == ["early", "late"]
        assert ids(store.children(["never stored", str(parent.id)])) == ["early", "late", "lost"]
        assert store.children([]) == []

    @pytest.mark.parametrize("field", ["id", "run_id", "session_id", "parent_id", "scope"])
    @pytest.mark.parametrize("bad", ["nul\x00", "surrogate\ud800"])
    def test_names_no_database_can_hold_are_refused(
        self, store: StepStore, field: str, bad: str
    ) -> None:
        with pytest.raises(InvalidStepError):
            store.append([step(id="fine"), step(**{field: bad})])
        assert store.find(EVERYTHING, limit=9) == []

    def test_what_json_cannot_hold_is_refused(self, store: StepStore) -> None:
        broken = step()
        broken.outputs = {"x": object()}
        with pytest.raises(InvalidStepError, match="object"):
            store.append([broken])
        assert store.find(EVERYTHING, limit=9) == []

    def test_text_that_looks_like_a_nul_escape_is_kept(self, store: StepStore) -> None:
        odd = step(outputs={"x": r"\u0000", "y": "\\\\u0000"}, run_id=r"\u0000")
        store.append([odd])
        assert store.get([str(odd.id)]) == [odd]

    def test_eight_threads_lose_nothing(self, store: StepStore) -> None:
        def write(worker: int) -> None:
            for n in range(20):
                store.append([step(id=f"{worker}-{n}", run_id=f"run {worker}", hop=n)])
                found = store.find(StepFilter(run_id=f"run {worker}"), limit=50)
                assert [each.hop for each in found] == list(range(n + 1))

        at_once(write)
        assert len(store.rows(EVERYTHING)) == 160
        assert store.verify() == []


class RunContract:
    """`StepStore`."""

    def test_runs_newest_first(self, store: StepStore) -> None:
        noon = datetime(2025, 6, 1, 12, tzinfo=UTC)
        store.append([step(id="b", run_id="one", hop=1, created_at=noon + timedelta(minutes=1))])
        store.append([step(id="a", run_id="one", session_id="s", status="error", created_at=noon)])
        store.append([step(id="c", run_id="two", scope="compile:x"), step(id="d")])
        two, one = store.runs(limit=9)
        assert (two.run_id, two.scope, two.steps, two.first_step) == ("two", "compile:x", 1, "c")
        assert (one.run_id, one.session_id, one.steps, one.errors) == ("one", "s", 2, 1)
        assert one.first_step == "a"
        assert one.started_at == noon.isoformat()
        assert one.ended_at == (noon + timedelta(minutes=1)).isoformat()
        assert (one.score, one.feedback) == (None, None)
        assert [run.run_id for run in store.runs(limit=1, offset=1)] == ["one"]
        failed, of_session = StepFilter(status="error"), StepFilter(session_id="s")
        for where in (failed, of_session):
            assert [run.run_id for run in store.runs(limit=9, where=where)] == ["one"]
        assert store.runs(limit=9, offset=1, where=failed) == []

    def test_a_run_says_how_it_ended(self, store: StepStore) -> None:
        for run, kinds, status in (
            ("completed", ("ProgramCall", "Action", "ProgramEnd"), "ok"),
            ("failed", ("ProgramCall", "ProgramEnd"), "error"),
            ("cancelled", ("ProgramCall", "ProgramEnd"), "cancelled"),
            ("paused", ("ProgramCall", "ProgramEnd"), "paused"),
            ("interrupted", ("ProgramCall", "ProgramCall", "ProgramEnd"), "ok"),
            ("failed at once", ("Action",), "error"),
        ):
            steps = [
                step(run_id=run, hop=hop, step_type=kind, status=status if hop else "ok")
                for hop, kind in enumerate(kinds, len(kinds) == 1)
            ]
            store.append(steps)
        found = {run.run_id: run.status for run in store.runs(limit=9)}
        assert found.pop("failed at once") == "failed"
        assert found == {status: status for status in found}

    def test_a_runs_score_shows_on_steps_without_their_own(self, store: StepStore) -> None:
        store.append([step(id="a", run_id="r", score=0.1), step(id="b", run_id="r"), step(id="c")])
        store.score_run("r", 0.7, "well done")
        store.score_run("r", 0.9, "even better")
        [run] = store.runs(limit=9)
        assert (run.score, run.feedback) == (0.9, "even better")
        for found in (store.get(["a", "b", "c"]), store.find(EVERYTHING, limit=9)):
            assert [each.score for each in found] == [0.1, 0.9, None]
        store.append([step(id="d", run_id="r")])
        assert store.get(["d"])[0].score == 0.9

    def test_a_run_may_have_an_empty_name_and_no_step_without_one_is_in_it(
        self, store: StepStore
    ) -> None:
        store.append([step(id="a", run_id=""), step(id="b")])
        store.score_run("", 0.0, None)
        assert [each.score for each in store.get(["a", "b"])] == [0.0, None]
        assert ids(store.find(StepFilter(min_score=0.0), limit=9)) == ["a"]

    def test_what_was_said_of_runs(self, store: StepStore) -> None:
        store.append([step(id=name, run_id=name) for name in "abc"])
        store.score_run("a", 0.5, "so so")
        store.score_run("b", 0.5, None)
        found = store.run_scores(["a", "b", "c", "unknown", "\ud800", "a"])
        assert found == {"a": (0.5, "so so"), "b": (0.5, None)}
        assert store.run_scores([]) == {}

    def test_steps_are_scored_where_they_are(self, store: StepStore) -> None:
        store.append([step(id="a", run_id="r", vector=[1.0, 0.0]), step(id="b", run_id="r")])
        rows, before = store.rows(EVERYTHING), store.frontier()
        store.score_run("r", 0.5, None)
        store.score_steps({"a": 0.25})
        assert [each.score for each in store.get(["a", "b"])] == [0.25, 0.5]
        assert store.get(["a"], vectors=True)[0].vector == [1.0, 0.0]
        assert store.rows(EVERYTHING).tolist() == rows.tolist()
        now = store.frontier()
        assert now.position.branch != before.position.branch, "followers learn of it"
        assert now._replace(position=before.position) == before
        assert now.position._replace(branch=before.position.branch) == before.position
        assert store.rows(StepFilter(min_score=0.4)).tolist() == rows[1:].tolist()
        store.score_steps({"a": 0.75, "b": 0})
        assert store.rows(StepFilter(min_score=0.4)).tolist() == rows[:1].tolist()
        assert store.verify() == []

    def test_scores_of_steps_are_set_all_or_none(self, store: StepStore) -> None:
        store.append([step(id="a", score=0.5)])
        for wrong in ("unknown", "\ud800"):
            with pytest.raises(UnknownStepError):
                store.score_steps({"a": 1.0, wrong: 1.0})
        with pytest.raises(InvalidStepError, match="finite"):
            store.score_steps({"a": float("nan")})
        store.score_steps({})
        assert store.get(["a"])[0].score == 0.5

    @pytest.mark.parametrize("run_id", ["unknown", "\ud800"])
    def test_an_unknown_run_cannot_be_scored(self, store: StepStore, run_id: str) -> None:
        with pytest.raises(UnknownRunError):
            store.score_run(run_id, 1.0, None)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_a_score_is_a_finite_number(self, store: StepStore, value: float) -> None:
        store.append([step(id="a", run_id="r")])
        store.score_run("r", 0.5, None)
        with pytest.raises(InvalidStepError, match="finite"):
            store.score_run("r", value, None)
        with pytest.raises(InvalidStepError, match="give a text"):
            store.score_run("r", 1.0, 3)  # pyright: ignore[reportArgumentType]
        assert [run.score for run in store.runs(limit=9)] == [0.5]

    def test_a_run_without_steps_is_gone_with_its_score(self, store: StepStore) -> None:
        store.append([step(id="a", run_id="r")])
        store.score_run("r", 0.5, None)
        store.delete(["a"])
        assert store.runs(limit=9) == []
        store.append([step(id="b", run_id="r")])
        assert store.get(["b"])[0].score is None
