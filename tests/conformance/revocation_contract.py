"""What every store promises about trust: where steps come from, and how they are revoked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.samples import (
    SessionStepStore,
    ids,
    message,
    said,
    save_pending,
    step,
)
from hybridagi_steps.errors import UnknownRevocationError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter

CHATS = {"kind": "import", "format": "openai", "name": "chats.jsonl"}


def recalling(*sources: str, **values: Any) -> AgentStep:
    return step(metadata={"recalled": list(sources)}, **values)


def seen(store: SessionStepStore, scope: str | None = None) -> list[str]:
    return ids(store.find(StepFilter(scope=scope), limit=1000))


class RevocationContract:
    """`revoke`, `reinstate`, `revocations`, and filters by source and trust."""

    def matching(self, store: SessionStepStore, **where: Any) -> list[str]:
        return ids(store.find(StepFilter.of(where), limit=1000))

    def test_sources_and_trust(self, store: SessionStepStore) -> None:
        odd: list[Any] = ["web", {"kind": 5}, {"name": "x"}, ["import"], None]
        store.append(
            [
                step(id="ann", user_id="ann"),
                step(id="bob", user_id="bob"),
                step(id="nobody"),
                step(id="file", user_id="ann", metadata={"source": CHATS}),
                step(id="mcp", metadata={"source": {"kind": "mcp", "name": ""}}),
                step(id="before", metadata={"format": "langgraph"}),
                step(id="tagged", user_id="bob", metadata={"format": "mine"}),
                *(
                    step(id=f"o{n}", user_id="odd", metadata={"source": v})
                    for n, v in enumerate(odd)
                ),
            ]
        )
        own = [f"o{n}" for n in range(len(odd))]
        here = ["ann", "bob", "nobody", "tagged", *own]
        assert self.matching(store, trust="imported") == self.matching(store)
        assert self.matching(store, trust="team") == here
        assert self.matching(store, trust="own") == ["nobody"]
        assert self.matching(store, trust="own", user_id="ann") == ["ann"]
        assert self.matching(store, trust="team", user_id="ann") == ["ann"]
        assert self.matching(store, trust="own", user_id="odd") == own
        assert self.matching(store, sources="chats.jsonl") == ["file"]
        assert self.matching(store, sources=["mcp", "langgraph", "\ud800"]) == ["mcp", "before"]
        assert self.matching(store, sources=[]) == []

    def test_a_revoked_step_takes_its_descendants_along(self, store: SessionStepStore) -> None:
        inside = {"program_id": "call", "run_id": "r"}
        store.append(
            [
                step(id="poison", metadata={"source": CHATS}),
                step(id="outer", step_type="ProgramCall"),
                step(id="call", step_type="ProgramCall", program_id="outer"),
                step(id="before", **inside),
                recalling("poison", "gone", id="quotes", **inside),
                step(id="end", step_type="ProgramEnd", **inside),
                step(id="outer end", step_type="ProgramEnd", program_id="outer"),
                recalling("end", id="echo"),
                recalling("before", id="other"),
                step(id="no list", metadata={"recalled": "poison"}),
                step(id="no ids", metadata={"recalled": [1, None, {"poison": "poison"}]}),
                step(id="elsewhere", outputs={"recalled": ["poison"]}),
                recalling("poison", id="trial", scope="compile:1"),
            ]
        )
        everything = seen(store)
        kept = ["before", "other", "no list", "no ids", "elsewhere"]
        hidden = ["poison", "outer", "call", "quotes", "end", "outer end", "echo"]
        asked = StepFilter(sources=["chats.jsonl"], scope="*")
        tried = store.revoke(asked, None, dry_run=True)
        assert (tried.id, sorted(tried.step_ids)) == (None, sorted([*hidden, "trial"]))
        assert (tried.matched, tried.descended) == (1, 7)
        assert (seen(store), store.revocations()) == (everything, [])
        done = store.revoke(asked, "it lied")
        assert done.id is not None
        assert sorted(done.step_ids) == sorted(tried.step_ids)
        assert seen(store) == kept
        assert seen(store, "revoked") == [*hidden, "trial"]
        assert seen(store, "compile:1") == []
        assert seen(store, "* but revoked") == kept
        assert seen(store, "*") == [*everything, "trial"], "for keeping the memory"
        revoked = store.read(store.hidden_rows().revoked.tolist()).values()
        assert ids(list(revoked)) == [*hidden, "trial"]
        assert ids(store.get(["poison", "echo"])) == ["poison", "echo"]
        [listed] = store.revocations()
        assert (listed.id, listed.reason, listed.undone_at) == (done.id, "it lied", None)
        assert listed.where == {"sources": ["chats.jsonl"], "scope": "*"}
        assert (listed.matched, listed.descended) == (1, 7)
        undone = store.reinstate(done.id)
        assert undone.undone_at is not None
        assert seen(store) == everything
        assert store.hidden_rows().revoked.tolist() == []
        assert sorted(undone.step_ids) == sorted([*hidden, "trial"])
        listed = replace(undone, step_ids=[])
        assert store.revocations() == [listed]
        assert store.reinstate(done.id) == listed, "twice is harmless, and brings nothing back"
        assert store.verify() == []

    def test_descendants_stored_later_are_hidden_too(self, store: SessionStepStore) -> None:
        store.append([step(id="call", step_type="ProgramCall"), step(id="poison", user_id="eve")])
        done = store.revoke(StepFilter(user_id="eve"), None)
        assert seen(store) == ["call"]
        store.append([recalling("poison", id="a", program_id="call")])
        assert seen(store) == []
        store.append([recalling("a", id="b"), step(id="fresh", user_id="eve")])
        store.append([recalling("fresh", id="c")])
        assert seen(store) == ["fresh", "c"], "what matches later is not revoked"
        assert store.revocations()[0].descended == 3
        save_pending(store)  # whoever saves words marks what came since
        store.append([recalling("b", id="d"), recalling("a", "b", "d", id="e")])
        store.append([step(id="end", step_type="ProgramEnd", program_id="call")])
        assert seen(store) == ["fresh", "c"]
        assert ids(list(store.read(store.hidden_rows().revoked.tolist()).values())) == [
            "call", "poison", "a", "b", "d", "e", "end",
        ]  # fmt: skip
        assert store.revocations()[0].descended == 6
        assert store.reinstate(str(done.id)).descended == 6
        assert len(seen(store)) == 9

    def test_two_revocations_hide_a_step_until_both_are_undone(
        self, store: SessionStepStore
    ) -> None:
        store.append([step(id="a"), step(id="b"), recalling("a", "b", id="both")])
        first = store.revoke(StepFilter(metadata={"recalled": 1}, scope="*"), None)
        assert (first.id, first.matched, store.revocations()) == (None, 0, [])
        store.append([step(id="x", user_id="u"), step(id="y", run_id="r")])
        store.append([recalling("x", "y", id="xy")])
        one = store.revoke(StepFilter(user_id="u"), None)
        two = store.revoke(StepFilter(run_id="r"), None)
        assert seen(store) == ["a", "b", "both"]
        assert store.reinstate(str(one.id)).step_ids == ["x"]
        assert seen(store) == ["a", "b", "both", "x"]
        assert sorted(store.reinstate(str(two.id)).step_ids) == ["xy", "y"]
        assert seen(store) == ["a", "b", "both", "x", "y", "xy"]
        assert [each.undone_at is None for each in store.revocations()] == [False, False]

    def test_marks_follow_their_steps(self, store: SessionStepStore) -> None:
        store.append([step(id="poison", user_id="eve"), recalling("poison", id="child")])
        store.append([recalling("child", id="grandchild"), step(id="good")])
        done = store.revoke(StepFilter(user_id="eve"), "of Eve")
        store.append([step(id="child", outputs={"n": 1})], replace=True)
        assert seen(store) == ["good"], "a step that is replaced stays revoked"
        store.delete(["poison", "child"])
        store.vacuum()
        assert seen(store) == ["good"], "what descended stays hidden without its source"
        assert [each.id for each in store.revocations()] == [done.id]
        store.delete(["grandchild"])
        assert store.revocations() == [], "none is left that it could hide"
        store.append([step(id="grandchild")])
        assert seen(store) == ["good", "grandchild"]
        undone = store.revoke(StepFilter(user_id="ann"), None)
        assert undone.id is None
        store.append([step(id="ann", user_id="ann")])
        again = store.revoke(StepFilter(user_id="ann"), "of Ann")
        store.reinstate(str(again.id))
        store.delete(["ann"])
        assert len(store.revocations()) == 1, "the record of what was undone stays"
        store.forget_revocations(StepFilter(user_id="bob"))
        assert len(store.revocations()) == 1
        store.forget_revocations(StepFilter(user_id="ann"))
        assert store.revocations() == []
        assert store.verify() == []

    def test_a_position_tells_when_steps_are_revoked(self, store: SessionStepStore) -> None:
        store.append([step(id="a", user_id="eve")])
        places = [store.frontier().position.branch]
        done = store.revoke(StepFilter(user_id="eve"), None)
        places.append(store.frontier().position.branch)
        store.reinstate(str(done.id))
        places.append(store.frontier().position.branch)
        assert places == sorted(set(places))

    def test_clearing_forgets_revocations(self, store: SessionStepStore) -> None:
        store.append([step(id="a", user_id="eve")])
        done = store.revoke(StepFilter(user_id="eve"), None)
        store.clear()
        assert store.revocations() == []
        with pytest.raises(UnknownRevocationError, match=str(done.id)):
            store.reinstate(str(done.id))
        with pytest.raises(UnknownRevocationError):
            store.reinstate("\ud800")
        store.append([step(id="a", user_id="eve")])
        assert seen(store) == ["a"]
        store.append([recalling("poison", id="b")])
        assert store.revoke(StepFilter(user_id="eve"), None).matched == 1

    def test_abandoned_and_revoked_are_apart(self, store: SessionStepStore) -> None:
        store.commit("s", said(2), [step(id="a1")])
        store.commit("s", [message("3")], [step(id="a3"), step(id="bad", user_id="eve")])
        store.hide_from("s", 3)
        assert seen(store, "abandoned") == ["a3", "bad"]
        store.revoke(StepFilter(user_id="eve", scope="*"), None)
        assert seen(store, "abandoned") == ["a3"]
        assert seen(store, "revoked") == ["bad"]
        assert seen(store) == ["a1"]
        assert seen(store, "* but revoked") == ["a1", "a3"]
        hidden = store.hidden_rows()
        assert (len(hidden.abandoned), len(hidden.revoked)) == (2, 1)
