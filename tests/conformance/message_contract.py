"""What a store promises that has messages found by a search, or tells what is new of a session."""

# A test's name says what it holds.

from __future__ import annotations

import pytest

from conformance.samples import (
    START,
    SessionStepStore,
    message,
    said,
    step,
    text,
)
from hybridagi_steps.errors import SequenceConflictError, UnknownSessionError
from hybridagi_steps.protocols import MessageIndex, SessionFollower
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    BranchPosition,
    MessagePlace,
    PendingText,
)

_CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"n": 1}'}}


def _talk() -> list[Step]:
    return [
        message("where is it?", id="q", name="ann"),
        message(None, "assistant", id="c", tool_calls=[_CALL]),
        message("in Oslo", "tool", id="r", tool_call_id="c1", name="find"),
        message("It is in Oslo.", "assistant", id="a"),
    ]


def _pending(store: SessionStepStore) -> list[PendingText]:
    newest = store.frontier().message_row
    return store.pending_texts(99, after=MESSAGE_ROWS, through=newest) if newest else []


def _rows(store: SessionStepStore) -> list[int]:
    """Return the rows of what a store says that messages tell, none without the ability."""
    return [found.row for found in _pending(store)]


class MessageIndexContract:
    """`MessageIndex`, or nothing of it."""

    def test_a_store_without_the_ability_says_that_it_has_no_rows_of_messages(
        self, store: SessionStepStore
    ) -> None:
        before = store.frontier().message_row
        store.commit("s", _talk())
        newest = store.frontier().message_row
        if isinstance(store, MessageIndex):
            assert newest > max(before, MESSAGE_ROWS)
        else:
            assert (before, newest) == (0, 0)

    def test_messages_tell_question_call_result_and_answer(self, store: SessionStepStore) -> None:
        store.commit("s", _talk())
        found = {str(one.step.id): one for one in _pending(store) if one.step is not None}
        assert found.keys() == ({"q", "c", "r", "a"} if isinstance(store, MessageIndex) else set())
        for one, asked in (("r", "c"), ("a", "q")) if found else ():
            told, answered = found[one].step, found[one].asked
            assert told is not None
            assert answered is not None
            assert (told.purpose, str(answered.id)) == ("where is it?", asked)
        if found:
            told = found["r"].step
            assert told is not None
            assert (told.tool, told.arguments, told.result) == ("find", {"n": 1}, "in Oslo")
            assert found["a"].parent_row == found["r"].row
            assert found["q"].parent_row is None

    def test_words_of_one_user_are_not_told_with_anothers(self, store: SessionStepStore) -> None:
        talk = [
            message("where is it?", id="q", user_id="bob"),
            message("In Oslo.", "assistant", id="a", user_id="ann"),
            message("and the key?", id="r", user_id="bob"),
            message("In Rome.", "assistant", id="b"),
        ]
        store.commit("s", talk)
        if not isinstance(store, MessageIndex):
            return
        found = {str(one.step.id): one for one in _pending(store) if one.step is not None}
        told = {name: (one.step and one.step.purpose) for name, one in found.items()}
        assert told == {"q": "where is it?", "a": "", "r": "and the key?", "b": "and the key?"}
        assert [found[name].asked for name in ("q", "a", "r")] == [None] * 3
        assert [one.parent_row for one in found.values()] == [None] * 4
        for user, rows in (("ann", ["a"]), ("bob", ["q", "r", "b"]), ("cy", [])):
            where = StepFilter(user_id=user)
            assert store.message_rows(where).tolist() == [found[name].row for name in rows]
        left = store.message_rows(StepFilter.of({"exclude": {"user_id": "bob"}}))
        assert left.tolist() == [found["a"].row]

    def test_words_of_messages_are_followed_and_go_with_their_session(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", _talk())
        rows = _rows(store)
        store.save_derived([text(row) for row in rows], [])
        assert _rows(store) == []
        changes = store.changes(START)
        assert [one.row for one in changes.texts] == rows
        store.delete_session("s")
        gone = store.changes(changes.position)
        assert sorted(gone.removed) == rows
        assert store.read(rows) == {}
        assert store.verify() == []

    def test_what_is_deleted_in_a_session_is_hidden_and_comes_back_with_a_reader(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", _talk())
        rows = _rows(store)
        store.fork("s", 4, "fork")
        store.hide_from("s", 2)
        if not isinstance(store, MessageIndex):
            return
        assert store.hidden_messages().abandoned.tolist() == []
        store.delete_session("fork")
        hidden = store.hidden_messages().abandoned.tolist()
        assert [row for row in store.read(rows) if row not in hidden] == rows[:1]

    def test_filters_and_places_of_messages(self, store: SessionStepStore) -> None:
        store.commit("s", [message("one", run_id="r1"), message("two", run_id="r2")])
        store.commit("t", [message("three", metadata={"mood": "glad"})])
        store.fork("s", 1, "fork")
        rows = _rows(store)
        if not isinstance(store, MessageIndex):
            assert rows == []
            return
        wheres = {
            "run": {"run_id": "r2"},
            "not_run": {"exclude_run_id": ["r2"]},
            "not_glad": {"exclude": [{"metadata": {"mood": "glad"}}, {"tools": ["find"]}]},
            "not_in_session": {"exclude": {"session_id": "fork"}},
            "session": {"session_id": "fork"},
            "metadata": {"metadata": {"mood": "glad"}},
            "nobody": {"user_id": "ann"},
            "steps": {"kinds": ["step"]},
            "tool": {"tools": ["find"]},
            "all": {},
        }
        first, second, third = rows
        found = {n: store.message_rows(StepFilter.of(w)).tolist() for n, w in wheres.items()}
        assert found == {
            "run": [second],
            "not_run": [first, third],
            "not_glad": [first, second],
            "not_in_session": [second, third],
            "session": [first],
            "metadata": [third],
            "nobody": [],
            "steps": [],
            "tool": [],
            "all": rows,
        }
        told = store.read(rows)
        named = {str(told[row].id): row for row in rows}
        assert store.rows_of_messages([*named, "nobody", "\ud800"]) == named
        assert store.message_places([first])[first] == MessagePlace("s", 1)
        assert store.message_places([first], "fork")[first] == MessagePlace("fork", 1)
        keys = store.message_keys(["run_id"], after=first, limit=9)
        assert (keys[0].tolist(), keys[1]) == ([second, third], {"run_id": ["r2", None]})

    def test_metadata_of_messages_is_told_by_key(self, store: SessionStepStore) -> None:
        values = ["a", 1, 2.5, True, None, [1], {"b": 1}, "ä"]
        store.commit("s", [message("x", metadata={'k"': each}) for each in values])
        store.commit("t", [message("y"), message("z", metadata={'k"x': "a"})])
        if not isinstance(store, MessageIndex):
            return
        rows = store.message_rows(StepFilter()).tolist()
        found = store.message_metadata(after=0, through=rows[-1])
        told = [*({'k"': each} for each in values), None, {'k"x': "a"}]
        assert found == [(row, each) for row, each in zip(rows, told, strict=True) if each]
        assert store.message_metadata(after=rows[0], through=rows[2]) == found[1:3]
        for row, value in zip(rows[:3], values, strict=False):
            assert store.message_rows(StepFilter(metadata={'k"': value})).tolist() == [row]


class SessionFollowerContract:
    """`SessionFollower`, where a store is one."""

    def test_a_session_state_tells_what_is_new(self, store: SessionStepStore) -> None:
        if not isinstance(store, SessionFollower):
            with pytest.raises(UnknownSessionError):
                store.session_end("s")
            return
        with pytest.raises(UnknownSessionError):
            store.session_state("s")
        stored = store.commit("s", said(3), [step(id="a", user_id="ann")])
        first = store.session_state("s", after=1, users_after=0)
        assert first.end == store.session_end("s")
        assert first.messages == stored[1:]
        assert first.users == {"ann"}
        last = first.end.sequence
        assert store.session_state("s").messages == []
        assert store.session_state("s", after=last, users_after=last)[2:] == (frozenset(), [])
        new = store.commit("s", said(2, 4), [step(id="b", user_id="bob"), step(id="c")])
        second = store.session_state("s", after=last, users_after=last)
        assert (second.messages, second.users) == (new, {"bob"})
        assert second.erasures == first.erasures

    def test_a_session_state_is_that_of_a_branch(self, store: SessionStepStore) -> None:
        if not isinstance(store, SessionFollower):
            return
        store.commit("s", said(4), [step(id="a", user_id="ann")])
        branch = store.branch_at("s", 2)
        store.commit("s", [message("other")], [step(id="b", user_id="bob")], branch_id=branch)
        assert store.session_state("s").end.sequence == 4
        state = store.session_state("s", branch_id=branch, after=2, users_after=2)
        assert state.end == BranchPosition(branch, 3)
        assert [one.content for one in state.messages] == ["other"]
        assert state.users == {"bob"}
        # What stands before the fork is not its own: whoever wants that reads it.
        assert store.session_state("s", branch_id=branch, after=1).messages == []
        store.commit("t", said(1))
        with pytest.raises(SequenceConflictError):
            store.session_state("t", branch_id=branch)
        with pytest.raises(UnknownSessionError):
            store.session_state("nobody", branch_id=branch)

    def test_a_session_state_tells_of_erasures(self, store: SessionStepStore) -> None:
        if not isinstance(store, SessionFollower):
            return
        store.commit("s", said(2), [step(id="a")])
        store.append([step(id="b")])
        before = store.session_state("s").erasures
        store.delete(["b"])
        deleted = store.session_state("s").erasures
        assert deleted != before
        store.delete_session("s")
        store.commit("s", said(1))
        assert store.session_state("s").erasures != deleted
