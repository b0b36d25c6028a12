"""What every store promises about messages: commit, read, list."""

# A test's name says what it holds.

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from conformance.samples import (
    EVERYTHING,
    SessionStepStore,
    at_once,
    contents,
    ids,
    message,
    said,
    step,
)
from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidStepError,
    SequenceConflictError,
    StepTooLargeError,
    UnknownSessionError,
)
from hybridagi_steps.records import message as record
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import MessageRole, StepMetrics
from hybridagi_steps.records.store_values import BranchPosition

CALLS = [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}]
IMAGE = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]


class _Backwards:
    """Stands for `datetime`; each look at the clock is a day before the last one."""

    def __init__(self, days: Iterator[int]) -> None:
        self._days = days

    def now(self, zone: tzinfo) -> datetime:
        return datetime(2030, 1, 1, tzinfo=zone) - timedelta(days=next(self._days))


class SessionContract:
    """`SessionStore` and `MessageTokenStore`."""

    def test_a_message_comes_back_equal_at_its_place(self, store: SessionStepStore) -> None:
        full = message(
            None,
            "assistant",
            id="m1",
            run_id="r",
            tool_calls=CALLS,
            name="ada 🙂",
            content_for_user="for you",
            reasoning_content="hm",
            agent_step_id="a",
            parent_run_id="p",
            metadata={"n": 2**63, "x": [1.5, None, {"ü": True}]},
            metrics=StepMetrics(duration_ms=1.5, cache_hit=False),
            created_at=datetime(2024, 2, 29, 23, 59, 59, 5, tzinfo=UTC),
        )
        tool = message("found", "tool", tool_call_id="c1", name="find")
        [stored, _, _] = store.commit("s", [full, tool, message(IMAGE)])
        assert stored == full.model_copy(update={"session_id": "s", "sequence": 1})
        assert (full.session_id, full.sequence) == ("-", 0), "what was given is not changed"
        first, second, third = store.messages("s")
        assert first == stored
        assert isinstance(first.role, MessageRole)
        assert isinstance(first.metrics, StepMetrics)
        assert first.created_at.tzinfo is UTC
        assert (second.sequence, second.tool_call_id, third.content) == (2, "c1", IMAGE)
        dicts = store.message_dicts("s")
        assert dicts == [found.to_message_dict() for found in (first, second, third)]

    def test_what_is_read_is_a_copy(self, store: SessionStepStore) -> None:
        store.commit("s", [message(IMAGE)])
        read: Any = store.messages("s")[0]
        read.content[0]["text"] = "changed"
        store.message_dicts("s")[0]["content"][0]["text"] = "changed"
        assert contents(store, "s") == [IMAGE]

    def test_ranges(self, store: SessionStepStore) -> None:
        store.commit("s", said(5))
        assert contents(store, "s", start=2, end=3) == ["2", "3"]
        assert contents(store, "s", start=4) == ["4", "5"]
        assert contents(store, "s", start=-3, end=1) == ["1"]
        assert contents(store, "s", start=4, end=2) == contents(store, "s", start=6) == []
        assert contents(store, "s", end=0) == contents(store, "s", end=-1) == []
        assert contents(store, "s", start=10**30) == []
        assert contents(store, "s", start=-(10**30), end=10**30) == contents(store, "s")
        assert contents(store, "s", end=10**30) == ["1", "2", "3", "4", "5"]

    def test_an_unknown_session(self, store: SessionStepStore) -> None:
        for ask in (store.messages, store.message_dicts, store.session_end, store.attempts):
            for name in ("nobody", "", "\ud800"):
                with pytest.raises(UnknownSessionError):
                    ask(name)
        with pytest.raises(UnknownSessionError):
            store.commit("nobody", [message()], branch_id=1)
        assert store.sessions(limit=9) == []

    def test_an_empty_commit_makes_an_empty_session(self, store: SessionStepStore) -> None:
        assert store.commit("s", []) == []
        assert store.session_end("s").sequence == 0
        assert contents(store, "s") == []
        [listed] = store.sessions(limit=9)
        assert (listed.messages, listed.first_message) == (0, "")

    def test_expect_last_takes_a_sequence_or_a_position(self, store: SessionStepStore) -> None:
        store.commit("s", said(2), expect_last=0)
        end = store.session_end("s")
        assert end.sequence == 2
        store.commit("s", [message("3")], expect_last=end)
        store.commit("s", [message("4")], expect_last=3)
        for stale in (3, 5, end, BranchPosition(end.branch_id + 1, 4)):
            with pytest.raises(SequenceConflictError, match="'s'"):
                store.commit("s", [message("no")], [step(id="no")], expect_last=stale)
        with pytest.raises(SequenceConflictError):
            store.commit("new", [message()], expect_last=1)
        assert contents(store, "s") == ["1", "2", "3", "4"]
        assert store.get(["no"]) == []
        with pytest.raises(UnknownSessionError):
            store.session_end("new")

    def test_delete_two_append_two_is_told_apart_by_a_position(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", said(4))
        before = store.session_end("s")
        store.hide_from("s", 3)
        store.commit("s", said(2, 3))
        with pytest.raises(SequenceConflictError):
            store.commit("s", [message()], expect_last=before)
        assert store.session_end("s").sequence == before.sequence

    def test_a_key_never_doubles_a_commit(self, store: SessionStepStore) -> None:
        first = store.commit("s", said(2), [step(id="a")], idempotency_key="k")
        store.commit("s", [message("3")])
        again = store.commit("s", said(2), [step(id="a")], expect_last=0, idempotency_key="k")
        assert again == first
        assert contents(store, "s") == ["1", "2", "3"]
        store.commit("other", said(2), idempotency_key="k")
        assert len(contents(store, "other")) == 2

    @pytest.mark.parametrize("other", [[message("1")], said(3), [*said(1), message("x")], []])
    def test_a_key_with_other_messages_is_a_conflict(
        self, store: SessionStepStore, other: list[Any]
    ) -> None:
        store.commit("s", said(2), idempotency_key="k")
        with pytest.raises(SequenceConflictError, match="'k'"):
            store.commit("s", other, idempotency_key="k")
        assert contents(store, "s") == ["1", "2"]

    def test_a_key_whose_messages_were_deleted_is_a_conflict(self, store: SessionStepStore) -> None:
        store.commit("s", said(2))
        store.commit("s", [message("3")], idempotency_key="k")
        store.fork("s", 3, "fork")
        store.hide_from("s", 3)
        with pytest.raises(SequenceConflictError, match="deleted"):
            store.commit("s", [message("3")], idempotency_key="k")
        store.vacuum()
        with pytest.raises(SequenceConflictError, match="deleted"):
            store.commit("s", [message("3")], idempotency_key="k")
        assert contents(store, "s") == ["1", "2"]

    def test_a_key_without_messages_guards_agent_steps(self, store: SessionStepStore) -> None:
        for _ in range(2):
            store.commit("s", [], [step(id="a")], idempotency_key="k")
        assert ids(store.find(EVERYTHING, limit=9)) == ["a"]

    def test_all_or_nothing(self, store: SessionStepStore) -> None:
        store.append([step(id="taken")])
        store.commit("s", [message("1", id="m1")])
        for messages, steps in (
            ([message("2"), message("3", id="m1")], [step(id="new")]),
            ([message("2")], [step(id="new"), step(id="taken")]),
            ([message("2", id="x"), message("3", id="x")], [step(id="new")]),
            ([message("2")], [step(id="y"), step(id="y")]),
        ):
            for session_id in ("s", "never"):
                with pytest.raises(DuplicateStepError):
                    store.commit(session_id, messages, steps, idempotency_key="k")
        assert contents(store, "s") == ["1"]
        assert [found.session_id for found in store.sessions(limit=9)] == ["s"]
        assert ids(store.find(EVERYTHING, limit=9)) == ["taken"]
        store.commit("s", [message("2")], [step(id="new")], idempotency_key="k")
        assert contents(store, "s") == ["1", "2"]

    def test_agent_steps_stand_with_their_messages(self, store: SessionStepStore) -> None:
        store.commit("s", said(2), [step(id="a", vector=[1, 2]), step(id="b", session_id="mine")])
        a, b = store.get(["a", "b"], vectors=True)
        assert (a.session_id, b.session_id, a.vector) == ("s", "mine", [1, 2])
        assert ids(store.find(StepFilter(session_id="s"), limit=9)) == ["a", "b"]
        assert store.find(StepFilter(session_id="mine"), limit=9) == []
        assert store.verify() == []

    def test_pinned_steps_stand_in_the_order_of_their_messages(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", [message("one")], [step(id="late"), step(id="early")])
        store.commit("s", [message("two")], [step(id="second")])
        store.fork("s", 1, "fork")
        store.commit("fork", [message("other")], [step(id="forked")])
        assert store.pinned_steps("s") == [(1, "late"), (1, "early"), (2, "second")]
        assert store.pinned_steps("fork") == [(1, "late"), (1, "early"), (2, "forked")]
        assert store.pinned_steps("nobody") == []

    def test_a_message_is_found_in_a_session_that_reads_it(self, store: SessionStepStore) -> None:
        one, two = message("one", id="m1"), message("two", id="m2")
        store.commit("s", [one, two])
        store.fork("s", 2, "fork")
        store.hide_from("s", 2)
        assert store.place_of("m1") == ("s", 1)
        assert store.place_of("m2") == ("fork", 2)
        store.hide_from("fork", 2)
        assert store.place_of("m2") is None
        assert store.place_of("nobody's") is None

    def test_steps_of_one_commit_may_belong_to_several_messages(
        self, store: SessionStepStore
    ) -> None:
        steps = [step(id="a"), step(id="b"), step(id="c")]
        store.commit("s", said(1))
        store.commit("s", said(3), steps, after=[0, 2, 3])
        assert store.pinned_steps("s") == [(2, "a"), (4, "b"), (5, "c")]
        store.fork("s", 4, "fork")
        assert [step_id for _, step_id in store.pinned_steps("fork")] == ["a", "b"]

    @pytest.mark.parametrize("name", ["", "a\x00b", "\ud800"])
    def test_names_that_no_database_holds(self, store: SessionStepStore, name: str) -> None:
        with pytest.raises(InvalidStepError):
            store.commit(name, [message()])
        with pytest.raises(InvalidStepError):
            store.commit("s", [message(id=name)])
        with pytest.raises(InvalidStepError):
            store.commit("s", [message()], idempotency_key=name)
        store.commit("t", [message()])
        with pytest.raises(InvalidStepError):
            store.fork("t", 1, name)
        assert [found.session_id for found in store.sessions(limit=9)] == ["t"]

    def test_what_cannot_be_kept_is_refused(self, store: SessionStepStore) -> None:
        with pytest.raises(StepTooLargeError):
            store.commit("s", [message("x" * (8 * 1024 * 1024))])
        with pytest.raises(InvalidStepError):
            store.commit("s", [message().model_copy(update={"metadata": {"x": object()}})])
        assert store.sessions(limit=9) == []

    @pytest.mark.parametrize("odd", ["quo'te", "'; DROP TABLE message; --", "🙂", "a/b\\c", " "])
    def test_names_are_only_data(self, store: SessionStepStore, odd: str) -> None:
        store.commit(odd, [message(id=odd)], idempotency_key=odd)
        assert [found.id for found in store.messages(odd)] == [odd]
        assert store.sessions(limit=9)[0].session_id == odd

    def test_sessions_come_by_when_they_were_written(self, store: SessionStepStore) -> None:
        for name in ("a", "b", "c"):
            store.commit(name, [message("system", "system"), message(f"I am  {name}\nhello")])
        store.commit("a", [message("again")])
        listed = store.sessions(limit=9)
        assert [found.session_id for found in listed] == ["a", "c", "b"]
        assert [found.messages for found in listed] == [3, 2, 2]
        assert listed[1].first_message == "I am c hello"
        assert [found.session_id for found in store.sessions(limit=1, offset=1)] == ["c"]
        assert store.sessions(limit=10**30) == listed
        assert store.sessions(limit=0) == store.sessions(limit=9, offset=10**30) == []
        newest = listed[0]
        made, written = map(datetime.fromisoformat, (newest.created_at, newest.updated_at))
        assert made < written
        assert (newest.forked_from, newest.forked_at) == (None, None)

    def test_sessions_come_by_their_last_write_whatever_the_clock_says(
        self, store: SessionStepStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def order() -> str:
            return "".join(found.session_id for found in store.sessions(limit=9))

        days = itertools.count(1)
        monkeypatch.setattr(record, "datetime", _Backwards(days))
        for name in "abc":
            store.commit(name, said(2))
        assert order() == "cba"
        attempt = store.branch_at("a", 1)
        store.commit("b", [], [step()])
        assert order() == "bca"
        store.commit("a", said(1), branch_id=attempt)
        assert order() == "abc"
        store.commit("c", said(1))
        store.adopt("a", attempt)
        assert order() == "acb"
        store.fork("b", 1, "d")
        store.hide_from("c", 2)
        assert order() == "cdab"
        store.delete_session("c")
        store.commit("b", said(1))
        assert order() == "bda"
        newest, older, _ = store.sessions(limit=9)
        assert newest.updated_at < older.updated_at, "it is shown as the clock told it"
        store.hide_from("d", 1)
        store.vacuum()
        store.commit("a", said(1))
        assert order() == "adb"

    def test_a_long_or_odd_first_message_is_cut(self, store: SessionStepStore) -> None:
        store.commit("long", [message("x" * 5000)])
        store.commit("parts", [message(IMAGE)])
        store.commit("shown", [message("raw", content_for_user="nice")])
        shown = {found.session_id: found.first_message for found in store.sessions(limit=9)}
        assert shown == {"long": "x" * 120, "parts": "look", "shown": "nice"}

    def test_tokens_are_remembered_for_each_counter(self, store: SessionStepStore) -> None:
        store.commit("s", [message(id="a"), message(id="b")])
        store.save_message_tokens({"a": 3, "b": 4, "gone": 5, "\ud800": 6}, "one")
        store.save_message_tokens({"a": 30}, "two")
        store.save_message_tokens({"b": 5}, "one")
        assert store.message_tokens(["a", "b", "gone", "\ud800"], "one") == {"a": 3, "b": 5}
        assert store.message_tokens(["a", "b"], "two") == {"a": 30}
        assert store.message_tokens(["a"], "three") == {}
        store.delete_session("s")
        store.commit("s", [message(id="a")])
        assert store.message_tokens(["a"], "one") == {}

    def test_threads_leave_no_gap_and_lose_nothing(self, store: SessionStepStore) -> None:
        def write(name: int) -> None:
            for n in range(20):
                added = said(1 + n % 3)
                for number, one in enumerate(added):
                    one.content = f"{name}.{n}.{number}"
                store.commit("s", added, [step(id=f"{name}.{n}")])

        at_once(write)
        found = store.messages("s")
        assert [one.sequence for one in found] == list(range(1, len(found) + 1))
        wanted = {f"{w}.{n}.{m}" for w in range(8) for n in range(20) for m in range(1 + n % 3)}
        assert {str(one.content) for one in found} == wanted
        assert len(found) == len(wanted)
        assert len(store.rows(StepFilter(session_id="s"))) == 160
        assert store.verify() == []

    def test_of_writers_who_expect_the_same_end_one_wins(self, store: SessionStepStore) -> None:
        store.commit("s", [])
        end, won, lost = store.session_end("s"), list[int](), list[int]()
        ready = threading.Barrier(8)

        def write(name: int) -> None:
            ready.wait()
            try:
                store.commit("s", [message(str(name))], expect_last=end)
                won.append(name)
            except SequenceConflictError:
                lost.append(name)

        at_once(write)
        assert (len(won), len(lost)) == (1, 7)
        assert contents(store, "s") == [str(won[0])]

    def test_namespaces_share_no_session(
        self, store: SessionStepStore, other: SessionStepStore
    ) -> None:
        store.commit("s", [message("mine", id="m")], [step(id="a")], idempotency_key="k")
        other.commit("s", [message("yours", id="m")], [step(id="a")], idempotency_key="k")
        assert contents(store, "s") == ["mine"]
        assert contents(other, "s") == ["yours"]
        branch = store.session_end("s").branch_id
        store.save_message_tokens({"m": 1}, "c")
        assert other.message_tokens(["m"], "c") == {}
        other.clear()
        assert other.sessions(limit=9) == []
        with pytest.raises(UnknownSessionError):
            other.messages("s", branch_id=branch)
        assert contents(store, "s") == ["mine"]
        assert store.verify() == []
