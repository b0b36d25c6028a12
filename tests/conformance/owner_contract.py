"""What every store promises about whose sessions and runs are, and when they were written."""

# A test's name says what it holds.

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from conformance.samples import (
    SessionStepStore,
    contents,
    message,
    said,
    step,
)
from hybridagi_steps.errors import NotAllowedError, SequenceConflictError, UnknownSessionError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step


def _on(day: int) -> datetime:
    """Return a day of a past year, by its number."""
    return datetime(2024, 4, 1, tzinfo=UTC) + timedelta(days=day)


class OwnerContract:
    """`SessionStore` and `StepStore`, where users are named."""

    def test_a_session_is_of_whom_it_began_with(self, store: SessionStepStore) -> None:
        store.commit("anns", [message("1", user_id="ann")])
        store.commit("anns", [message("2", user_id="bob")])
        store.commit("bobs", [message()], [step(user_id="ann")], user_id="bob")
        store.commit("of a step", [message()], [step(user_id="ann")])
        store.commit("nobodys", [message()])
        store.fork("anns", 1, "fork")
        store.fork("anns", 1, "given", user_id="bob")
        names = ("anns", "bobs", "of a step", "nobodys", "fork", "given")
        owners = [store.session_owner(name) for name in names]
        assert owners == ["ann", "bob", "ann", None, "ann", "bob"]
        listed = {each.session_id: each.user_id for each in store.sessions(limit=9)}
        assert listed == dict(zip(names, owners, strict=True))
        of_bob = store.sessions(limit=9, user_id="bob")
        assert [each.session_id for each in of_bob] == ["given", "bobs"]
        assert store.sessions(limit=1, offset=1, user_id="bob") == of_bob[1:]
        assert store.sessions(limit=9, user_id="\ud800") == []
        assert [each.user_id for each in store.messages("anns")] == ["ann", "bob"]
        with pytest.raises(UnknownSessionError):
            store.session_owner("unknown")

    def test_a_commit_for_a_user_goes_into_no_others_session(self, store: SessionStepStore) -> None:
        store.commit("anns", [message("1")], user_id="ann")
        store.commit("nobodys", [message("1")])
        store.commit("nobodys", [message("2")], user_id="bob")
        for name, user in (("anns", "bob"), ("nobodys", "ann")):
            with pytest.raises(NotAllowedError):
                store.commit(name, [message("3")], [step(id="no")], user_id=user)
        assert contents(store, "anns") == ["1"]
        assert store.get(["no"]) == []

    def test_a_session_of_nobody_is_of_whom_a_commit_names_first(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", [message("1")])
        store.append([step(user_id="bob", session_id="s")])
        assert store.session_owner("s") is None
        store.commit("s", [message("2")], [step(user_id="ann")])
        store.commit("s", [message("3", user_id="bob")])
        assert store.session_owner("s") == "ann"
        assert [each.session_id for each in store.sessions(limit=9, user_id="ann")] == ["s"]
        assert store.sessions(limit=9, user_id="bob") == []

    def test_runs_of_a_user_and_of_a_scope(self, store: SessionStepStore) -> None:
        for run, user in (
            ("a", "ann"),
            ("b", "bob"),
            ("both", "ann"),
            ("both", "bob"),
            ("a", "ann"),
        ):
            store.append([step(run_id=run, user_id=user)])
        store.append([step(run_id="b")])
        assert [each.run_id for each in store.runs(limit=9)] == ["both", "b", "a"]

        def runs(user_id: str | None = None, scope: str | None = None, **page: int) -> list[str]:
            where = StepFilter(user_id=user_id, scope=scope)
            return [each.run_id for each in store.runs(limit=9, **page, where=where)]

        assert runs("ann", "*") == ["a"]
        store.append([step(run_id=n, user_id="ann", scope=f"try:{n}") for n in ("b", "x", "x")])
        found = {
            scope: runs(scope=scope) for scope in (None, "*", "try:x", "try:b", "none", "\ud800")
        }
        assert found == {
            None: ["both", "b", "a"],
            "*": ["x", "both", "b", "a"],
            "try:x": ["x"],
            "try:b": ["b"],
            "none": [],
            "\ud800": [],
        }
        assert runs("ann") == ["a"]
        assert runs("ann", "try:x") == ["x"]
        assert runs(offset=1) == ["b", "a"]
        assert runs("bob") == runs("\ud800") == []

    def test_sessions_that_only_steps_name(self, store: SessionStepStore) -> None:
        store.commit("talk", [message()], [step(run_id="t")])
        asked = {"arguments": {"question": "Which gate?"}, "purpose": "answer"}
        store.append([step(session_id="notebook", run_id="a", user_id="ann", inputs=asked)])
        store.append([step(session_id="script", run_id="b", user_id="bob")])
        store.append([step(session_id="notebook", run_id="c", user_id="ann"), step(run_id="d")])
        listed = store.sessions(limit=9, recorded=True)
        assert [each.session_id for each in listed] == ["notebook", "script"]
        notebook = listed[0]
        assert (notebook.messages, notebook.runs, notebook.user_id) == (0, 2, "ann")
        [talk] = store.sessions(limit=9)
        assert (talk.session_id, talk.runs) == ("talk", None)
        assert "Which gate?" in notebook.first_message
        assert notebook.created_at < notebook.updated_at
        assert store.sessions(limit=1, offset=1, recorded=True) == listed[1:]
        assert store.sessions(limit=9, recorded=True, user_id="ann") == [notebook]
        assert store.sessions(limit=9, recorded=True, user_id="eve") == []
        assert store.sessions(limit=9, recorded=True, user_id="\ud800") == []
        store.append([step(session_id="notebook", run_id="a", user_id="bob")])
        assert store.sessions(limit=9, recorded=True, user_id="ann") == []
        assert store.sessions(limit=9, recorded=True)[0].user_id is None
        store.commit("notebook", [message()])
        assert [each.session_id for each in store.sessions(limit=9, recorded=True)] == ["script"]

    def test_a_session_keeps_the_times_of_its_conversation(self, store: SessionStepStore) -> None:
        def order() -> list[str]:
            return [found.session_id for found in store.sessions(limit=9)]

        def times(session_id: str) -> list[str]:
            [found] = [one for one in store.sessions(limit=9) if one.session_id == session_id]
            return [found.created_at, found.updated_at]

        def talk(*days: int) -> list[Step]:
            return [message(str(day), created_at=_on(day)) for day in days]

        store.commit("live", said(1))
        for name, day in (("may", 20), ("june", 40), ("april", 1)):
            store.commit(name, talk(day + 1, day), keep_times=True)
            assert times(name) == [_on(day).isoformat(), _on(day + 1).isoformat()]
        assert order() == ["live", "june", "may", "april"]
        store.commit("april", talk(60), keep_times=True)
        assert times("april") == [_on(1).isoformat(), _on(60).isoformat()]
        store.fork("april", 2, "fork", keep_times=True)
        assert times("fork") == [_on(1).isoformat()] * 2
        assert order() == ["live", "april", "june", "may", "fork"]
        end, before = store.session_end("april"), times("april")[1]
        store.commit("april", talk(30), keep_times=True)
        assert times("april")[1] > before, "who saw it before sees that it changed"
        with pytest.raises(SequenceConflictError):
            store.commit("april", [], [step()], expect_last=end)
        store.commit("may", said(1))
        assert order() == ["may", "live", "april", "june", "fork"]
        assert times("may")[1] > times("live")[1], "it was written now"
        store.commit("july", talk(80), keep_times=True)
        assert order() == ["may", "live", "july", "april", "june", "fork"]
        assert store.verify() == []
