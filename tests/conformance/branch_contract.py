"""What every store promises about fork, retry, delete and forgetting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from conformance.samples import (
    EVERYTHING,
    SessionStepStore,
    contents,
    ids,
    message,
    said,
    save_pending,
    step,
)
from hybridagi_steps.errors import (
    SequenceConflictError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.records.filters import StepFilter


def of_session(store: SessionStepStore, session_id: str, **where: object) -> list[str]:
    """Return the ids of a session's AgentSteps, asked in all ways, which must agree."""
    asked = StepFilter.of({"session_id": session_id, **where})
    found = ids(store.find(asked, limit=99))
    assert sorted(ids(list(store.read(store.rows(asked).tolist()).values()))) == sorted(found)
    return found


def in_scope(store: SessionStepStore, scope: str | None = None) -> list[str]:
    return ids(store.find(StepFilter(scope=scope), limit=99))


def counted(store: SessionStepStore) -> dict[str, int]:
    """Count what `stats` says of steps by looking at each."""
    steps = list(store.iter_steps(EVERYTHING))
    known, texts = {str(one.id) for one in steps}, store.pending_texts(999)
    named = {one.session_id for one in steps} | {s.session_id for s in store.sessions(limit=999)}
    return {
        "steps": len(steps),
        "runs": len({one.run_id for one in steps} - {None}),
        "sessions": len(named - {None}),
        "dangling_parents": sum(str(one.parent_id) not in {*known, "None"} for one in steps),
        "pending_texts": len(texts),
        "pending_vectors": len(store.pending_vectors(999)),
    }


class BranchContract:
    """`SessionStore` and `SessionStore`."""

    @pytest.mark.parametrize("few", [0, 5])
    @pytest.mark.parametrize("seed", range(4))
    def test_a_count_that_is_kept_stays_right(
        self, store: SessionStepStore, monkeypatch: pytest.MonkeyPatch, seed: int, few: int
    ) -> None:
        monkeypatch.setattr("hybridagi_steps.stores.sql.admin._FEW", few)
        choose, made = Random(seed), iter(range(999))

        def append() -> None:
            links = [{}, {"parent_id": f"{choose.randrange(60)}"}, {"run_id": choose.choice("rst")}]
            links += [{"session_id": choose.choice("uvw")}, {"vector": [1.0]}, {"scope": "trial"}]
            links += [{"user_id": "ann"}]
            chosen = choose.sample(links, 3)
            link = {key: value for one in chosen for key, value in one.items()}
            some = [step(id=f"{next(made)}", **link) for _ in range(choose.randrange(1, 4))]
            store.append(some, replace=True)

        def commit() -> None:
            name = choose.choice("vwxy")
            store.commit(name, said(1), [step(id=f"c{next(made)}", session_id=choose.choice("vz"))])

        def delete_session() -> None:
            with suppress(UnknownSessionError):
                store.delete_session(choose.choice("vwxy"), by=choose.choice([None, "bob"]))

        does = [append] * 6 + [commit, commit, delete_session, lambda: save_pending(store)]
        does += [
            lambda: store.delete([f"{choose.randrange(60)}"]),
            lambda: store.append([step(id=f"{choose.randrange(60)}", run_id="t")], replace=True),
        ]
        for _ in range(40):
            choose.choice(does)()
            if choose.random() < 0.6:
                counts, wanted = store.stats(), counted(store)
                assert {name: counts[name] for name in wanted} == wanted
        assert store.verify() == []
        store.clear()
        assert store.stats()["steps"] == store.stats()["sessions"] == 0

    def test_a_fork_shares_and_goes_its_own_way(self, store: SessionStepStore) -> None:
        store.commit("s", said(5))
        fork = store.fork("s", 3)
        assert contents(store, fork) == ["1", "2", "3"]
        store.commit("s", [message("6")])
        store.commit(fork, [message("four")])
        assert contents(store, "s") == ["1", "2", "3", "4", "5", "6"]
        assert contents(store, fork) == ["1", "2", "3", "four"]
        assert store.messages(fork)[0].id == store.messages("s")[0].id
        assert contents(store, fork, start=3, end=4) == ["3", "four"]
        listed = {found.session_id: found for found in store.sessions(limit=9)}
        assert (listed[fork].forked_from, listed[fork].forked_at) == ("s", 3)
        assert (listed[fork].messages, listed[fork].first_message) == (4, "1")
        assert store.stats()["messages"] == 7, "nothing is copied"
        assert store.verify() == []

    def test_a_fork_is_asked_by_name_and_place(self, store: SessionStepStore) -> None:
        store.commit("s", said(2))
        assert store.fork("s", 0, "empty") == "empty"
        assert contents(store, "empty") == []
        with pytest.raises(SequenceConflictError, match="empty"):
            store.fork("s", 1, "empty")
        for beyond in (3, -1, 10**30):
            with pytest.raises(UnknownSequenceError, match="session 's' has the messages 1 to 2"):
                store.fork("s", beyond, "new")
            with pytest.raises(UnknownSequenceError, match="session 's' has the messages 1 to 2"):
                store.branch_at("s", beyond)
        for ask in (store.fork, store.branch_at, store.adopt, store.hide_from):
            with pytest.raises(UnknownSessionError):
                ask("nobody", 1)
        assert len(store.sessions(limit=9)) == 2

    def test_forks_of_forks(self, store: SessionStepStore) -> None:
        store.commit("0", said(3))
        for n in range(6):
            store.fork(str(n), n + 2, str(n + 1))
            store.commit(str(n + 1), [message(f"of {n + 1}")])
        assert contents(store, "6") == ["1", "2", *(f"of {n}" for n in range(1, 7))]
        assert contents(store, "6", start=4, end=5) == ["of 2", "of 3"]
        assert contents(store, "0") == ["1", "2", "3"]
        assert store.verify() == []

    def test_a_retry_loses_nothing_and_moves_when_it_is_done(self, store: SessionStepStore) -> None:
        store.commit("s", said(4))
        old = store.session_end("s")
        attempt = store.branch_at("s", 3)
        store.commit("s", [message("better")], branch_id=attempt, expect_last=3)
        assert contents(store, "s") == ["1", "2", "3", "4"]
        assert contents(store, "s", branch_id=attempt) == ["1", "2", "3", "better"]
        assert store.session_end("s", branch_id=attempt) == (attempt, 4)
        store.adopt("s", attempt, expect_branch=old.branch_id)
        assert contents(store, "s") == ["1", "2", "3", "better"]
        assert contents(store, "s", branch_id=old.branch_id) == ["1", "2", "3", "4"]
        with pytest.raises(SequenceConflictError):
            store.adopt("s", attempt, expect_branch=old.branch_id)
        first, second = store.attempts("s")
        assert (first.branch_id, first.forked_at, first.messages) == (old.branch_id, 0, 4)
        assert (second.branch_id, second.forked_at, second.messages) == (attempt, 3, 1)
        assert (first.reason, second.reason) == ("start", "retry")
        assert (first.current, second.current) == (False, True)
        store.adopt("s", old.branch_id)
        assert contents(store, "s") == ["1", "2", "3", "4"]
        assert store.verify() == []

    def test_a_branch_belongs_to_one_session(self, store: SessionStepStore) -> None:
        store.commit("s", said(2))
        store.commit("t", said(2))
        foreign = store.session_end("t").branch_id
        asks: list[Callable[[int], object]] = [
            lambda branch: store.adopt("s", branch),
            lambda branch: store.commit("s", [message()], branch_id=branch),
            lambda branch: store.messages("s", branch_id=branch),
            lambda branch: store.session_end("s", branch_id=branch),
        ]
        for ask in asks:
            for branch in (foreign, 10**6, -1, 10**30, -(10**30)):
                with pytest.raises(SequenceConflictError):
                    ask(branch)
        assert contents(store, "t") == ["1", "2"]

    def test_deleting_hides_in_this_session_only(self, store: SessionStepStore) -> None:
        store.commit("s", said(5))
        fork = store.fork("s", 4)
        assert store.hide_from("s", 3) == 3
        assert contents(store, "s") == ["1", "2"]
        assert contents(store, fork) == ["1", "2", "3", "4"]
        assert store.hide_from("s", 3) == store.hide_from("s", 10**30) == 0
        store.commit("s", [message("three")])
        assert contents(store, "s") == ["1", "2", "three"]
        assert store.hide_from("s", -5) == 3
        assert contents(store, "s") == []
        store.commit("s", [message("anew")])
        assert contents(store, "s") == ["anew"]
        assert [tried.reason for tried in store.attempts("s")] == ["start", "delete", "delete"]
        assert store.verify() == []

    def test_a_thousand_retries_stay_at_depth_two(self, store: SessionStepStore) -> None:
        store.commit("s", said(4))
        for n in range(50):
            attempt = store.branch_at("s", 3)
            store.commit("s", [message(f"try {n}")], branch_id=attempt)
            store.adopt("s", attempt)
        assert contents(store, "s") == ["1", "2", "3", "try 49"]
        assert len(store.attempts("s")) == 51
        assert store.verify() == []

    def test_a_session_means_its_lineage(self, store: SessionStepStore) -> None:
        for n in range(1, 5):
            store.commit("s", [message(str(n))], [step(id=f"s{n}")])
        store.fork("s", 2, "fork")
        store.commit("fork", [message("3'")], [step(id="f3")])
        store.commit("s", [message("5")], [step(id="s5")])
        assert of_session(store, "s") == ["s1", "s2", "s3", "s4", "s5"]
        assert of_session(store, "fork") == ["s1", "s2", "f3"]
        store.fork("fork", 3, "fork2")
        assert of_session(store, "fork2") == ["s1", "s2", "f3"]
        assert of_session(store, "fork2", scope="*") == ["s1", "s2", "f3"]
        assert of_session(store, "nobody") == []
        assert in_scope(store) == ["s1", "s2", "s3", "s4", "f3", "s5"]

    def test_steps_recorded_without_messages_go_by_name(self, store: SessionStepStore) -> None:
        store.append([step(id="before", session_id="s"), step(id="else", session_id="t")])
        assert of_session(store, "s") == ["before"]
        store.commit("s", said(2))
        store.append([step(id="after", session_id="s")])
        batch = {"batch0": "s", "nowhere": None, "batch1": "s", "named": "t"}
        store.append([step(id=name, session_id=session) for name, session in batch.items()])
        assert of_session(store, "t") == ["else", "named"]
        assert of_session(store, "s") == ["before", "after", "batch0", "batch1"]
        store.fork("s", 2, "fork")
        assert of_session(store, "fork") == [], "they work towards message 3"
        store.commit("s", [message("3")])
        store.fork("s", 3, "fork3")
        assert of_session(store, "fork3") == ["after", "batch0", "batch1"]
        store.append([step(id="after", session_id="s", outputs={"n": 1})], replace=True)
        assert of_session(store, "fork3") == ["batch0", "batch1", "after"], "it keeps its place"
        assert store.stats()["sessions"] == 4

    def test_abandoned_steps_hide_like_a_scope(self, store: SessionStepStore) -> None:
        store.commit("s", said(2), [step(id="a1")])
        store.commit("s", [message("3")], [step(id="a3"), step(id="trial", scope="compile:x")])
        old = store.session_end("s").branch_id
        attempt = store.branch_at("s", 2)
        store.commit("s", [message("three")], [step(id="b3")], branch_id=attempt)
        assert (in_scope(store), in_scope(store, "abandoned")) == (["a1", "a3"], ["b3"])
        store.adopt("s", attempt)
        assert in_scope(store) == of_session(store, "s") == ["a1", "b3"]
        assert in_scope(store, "abandoned") == ["a3", "trial"]
        assert in_scope(store, "*") == ["a1", "a3", "trial", "b3"]
        assert in_scope(store, "compile:x") == ["trial"]
        hidden = store.read(store.hidden_rows().abandoned.tolist()).values()
        assert ids(list(hidden)) == ["a3", "trial"]
        assert ids(store.get(["a3"])) == ["a3"]
        store.adopt("s", old)
        assert in_scope(store) == ["a1", "a3"]
        store.fork("s", 3, "fork")
        store.hide_from("s", 1)
        assert in_scope(store) == of_session(store, "fork") == ["a1", "a3"], "the fork reads them"
        assert of_session(store, "s") == []
        assert store.verify() == []

    def test_a_position_tells_when_branches_may_hide_other_steps(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", said(2), [step(id="a1")])
        begun = store.frontier().position.branch
        store.commit("s", [message("3")], [step(id="a3")])
        assert store.frontier().position.branch == begun, "an append hides nothing"
        seen = [begun]
        for move in (
            lambda: store.adopt("s", store.branch_at("s", 1)),
            lambda: store.hide_from("s", 1),
            lambda: store.fork("s", 0, "fork"),
            lambda: store.delete_session("s"),
        ):
            before = store.hidden_rows().abandoned.tolist()
            move()
            if store.hidden_rows().abandoned.tolist() != before:
                assert store.frontier().position.branch > seen[-1]
            seen.append(store.frontier().position.branch)
        assert len(set(seen)) > 2, seen

    def test_vacuum_removes_what_no_session_reads(self, store: SessionStepStore) -> None:
        store.commit("s", said(3), [step(id="kept")])
        store.commit("s", said(2, 4), [step(id="gone", run_id="r")])
        store.save_message_tokens({found.id: 1 for found in store.messages("s")}, "c")
        store.fork("s", 4, "fork")
        store.hide_from("s", 3)
        under_way = store.branch_at("s", 1)
        store.commit("s", [message("trying")], [step(id="try")], branch_id=under_way)
        store.vacuum()
        assert contents(store, "s") == ["1", "2"]
        assert contents(store, "fork") == ["1", "2", "3", "4"]
        assert contents(store, "s", branch_id=under_way) == ["1", "trying"]
        assert store.stats()["messages"] == 5
        assert in_scope(store, "*") == ["kept", "gone", "try"]
        store.delete_session("fork")
        store.vacuum()
        assert store.stats()["messages"] == 3
        assert in_scope(store, "*") == ["kept", "try"]
        assert store.runs(limit=9) == []
        store.adopt("s", under_way)
        assert contents(store, "s") == ["1", "trying"]
        assert store.verify() == []

    def test_an_attempt_given_up_by_deleting_its_session_goes_too(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", said(2))
        store.commit("s", [message("x")], branch_id=store.branch_at("s", 1))
        assert store.delete_session("s") == (3, 0)
        assert store.stats()["messages"] == 0
        assert store.verify() == []

    def test_deleting_a_session_leaves_what_forks_read(self, store: SessionStepStore) -> None:
        store.commit("s", said(2), [step(id="a")])
        store.commit("s", said(2, 3), [step(id="b")], idempotency_key="k")
        store.fork("s", 2, "fork")
        store.fork("fork", 1, "twig")
        assert store.delete_session("s") == (2, 1)
        assert store.delete_session("s") == (0, 0)
        with pytest.raises(UnknownSessionError):
            store.messages("s")
        assert contents(store, "fork") == ["1", "2"]
        assert of_session(store, "fork") == ["a"]
        assert of_session(store, "s") == [], "what is left belongs to the fork"
        store.commit("s", said(2, 3), idempotency_key="k")
        assert contents(store, "s") == ["3", "4"], "a new session, a new key"
        assert len(store.attempts("s")) == 1
        assert store.delete_session("fork") == (1, 0), "the twig reads on to 1"
        assert contents(store, "twig") == ["1"]
        assert store.stats()["messages"] == 3
        assert store.verify() == []

    def test_deleting_a_session_by_a_user_leaves_steps_of_others(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", said(2), [step(id="own", user_id="bob"), step(id="nobodys")])
        store.commit("s", said(1, 3), [step(id="hers", user_id="ann", run_id="r")])
        attempt = store.branch_at("s", 1)
        store.commit("s", [message("x")], [step(id="tried", user_id="ann")], branch_id=attempt)
        store.fork("s", 2, "fork")
        store.commit("s", said(1, 4), [step(id="read", user_id="ann")])
        begun = store.frontier().position.branch
        assert store.delete_session("s", by="bob") == (3, 0)
        assert store.frontier().position.branch > begun
        assert of_session(store, "fork") == ["own", "nobodys"]
        assert of_session(store, "s") == ["hers", "tried", "read"]
        assert in_scope(store) == ["own", "nobodys", "hers", "tried", "read"]
        assert [run.run_id for run in store.runs(limit=9)] == ["r"]
        assert counted(store).items() <= store.stats().items()
        assert store.delete_session("fork", by="bob") == (2, 2)
        store.vacuum()
        assert in_scope(store) == ["hers", "tried", "read"]
        assert store.verify() == []
        store.commit("s", said(1))
        assert of_session(store, "s") == ["hers", "tried", "read"]

    def test_deleting_a_session_takes_hidden_attempts_that_need_its_messages(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", said(3))
        store.fork("s", 2, "fork")
        store.commit("fork", [message("own")], [step(id="o", session_id="fork")])
        store.hide_from("fork", 1)
        store.commit("fork", [message("new")])
        assert len(store.attempts("fork")) == 2
        assert store.delete_session("s") == (4, 1)
        assert store.verify() == []
        assert [attempt.current for attempt in store.attempts("fork")] == [True]
        assert contents(store, "fork") == ["new"]

    def test_a_message_is_rewritten_where_it_stands(self, store: SessionStepStore) -> None:
        store.commit("s", said(3))
        store.fork("s", 2, "fork")
        old = store.messages("s")[1]
        store.save_message_tokens({old.id: 7}, "c")
        new = message("other")
        assert store.rewrite_messages({old.id: new, "unknown": message("x")}) == 1
        assert contents(store, "fork") == ["1", "other"]
        assert [kept.sequence for kept in store.messages("s")] == [1, 2, 3]
        assert store.place_of(old.id) is None
        assert store.place_of(new.id) == ("s", 2)
        assert store.message_tokens([old.id, new.id], "c") == {}
        assert store.verify() == []

    def test_the_steps_of_an_attempt(self, store: SessionStepStore) -> None:
        store.commit("s", said(1), [step(id="a")])
        attempt = store.branch_at("s", 1)
        store.commit("s", [message("try")], [step(id="b")], branch_id=attempt)
        assert store.pinned_steps("s") == [(1, "a")]
        assert store.pinned_steps("s", branch_id=attempt) == [(1, "a"), (2, "b")]
        assert store.pinned_steps("unknown") == []

    def test_places_are_noted_once_and_of_each_namespace(
        self, store: SessionStepStore, other: SessionStepStore
    ) -> None:
        store.note_place("/b.runs")
        store.note_place("/a.runs")
        store.note_place("/b.runs")
        assert {"/a.runs", "/b.runs"} <= set(store.places())
        assert len(store.places()) == len(set(store.places()))
        assert "/a.runs" not in other.places()

    def test_clear_forgets_sessions_and_never_reuses_a_branch(
        self, store: SessionStepStore
    ) -> None:
        store.commit("s", said(3), [step()], idempotency_key="k")
        before = store.session_end("s")
        store.clear()
        assert store.sessions(limit=9) == []
        assert store.find(EVERYTHING, limit=9) == []
        store.commit("s", said(3), idempotency_key="k")
        assert store.session_end("s").branch_id > before.branch_id
        assert store.verify() == []
