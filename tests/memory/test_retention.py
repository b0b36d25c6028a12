"""What retention removes and what it leaves, in every kind of memory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidFilterError, InvalidSettingError
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.store_values import CALL_STEP, DENIALS, QUESTIONS, USER_QUESTIONS
from hybridagi_steps.stores import retention
from hybridagi_steps.stores.sql import branches

NOW = utc_now()


def ago(days: float) -> datetime:
    return NOW + timedelta(days=-days)


def step(name: str, days: float, **more: Any) -> hs.AgentStep:
    inputs = {"purpose": f"the {name} of old", "tool": more.pop("tool", "look")}
    return hs.AgentStep(
        id=name,
        step_type=hs.AgentStepType.Action,
        inputs=inputs,
        created_at=ago(days),
        status="ok",
        **more,
    )


def message(text: str, days: float, role: str = "user", **more: Any) -> hs.Step:
    return hs.Step(
        session_id="", role=hs.MessageRole(role), content=text, created_at=ago(days), **more
    )


def talk(memory: hs.StepMemory, name: str, days: float, **more: Any) -> None:
    """Store a session of two messages and a pinned AgentStep, all so many days old."""
    said = [message(f"{name} asks", days), message(f"{name} hears", days, "assistant")]
    store = memory.repository().store
    own = step(f"{name}-step", days, run_id=f"{name}-run", hop=1, **more)
    store.commit(name, said, [own], after=[1])


def ids(memory: hs.StepMemory) -> set[str]:
    return {str(each.id) for each in memory.iter_steps()}


def sessions(memory: hs.StepMemory) -> set[str]:
    return {each.session_id for each in memory.repository().store.sessions(limit=1_000)}


@pytest.fixture(params=["memory", "file", "postgres"])
def memory(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[hs.StepMemory]:
    address = {"memory": ":memory:", "file": str(tmp_path / "steps.db")}.get(request.param)
    address = address or request.getfixturevalue("postgres_database")
    with hs.StepMemory(address, embedder="hashing", namespace=uuid4().hex) as opened:
        yield opened
        assert opened.verify() == []


def test_runs_go_as_wholes(memory: hs.StepMemory) -> None:
    memory.add([step(f"old-{n}", 100 + n, run_id="old", hop=n) for n in range(3)])
    memory.add([step(f"long-{n}", 100 - 40 * n, run_id="long", hop=n) for n in range(3)])
    memory.add([step("alone", 91), step("young", 89)])
    memory.score("old", 0.5, "fine")
    memory.flush()
    planned = memory.retain(90, dry_run=True)
    assert len(ids(memory)) == 8
    done = memory.retain(days=90)
    assert ids(memory) == {"long-0", "long-1", "long-2", "young"}
    assert (done.runs, done.steps, done.sessions, done.messages) == (1, 4, 0, 0)
    assert done.kept == 1
    assert (planned.runs, planned.steps, planned.kept) == (1, 4, 1)
    assert planned.dry_run
    assert "old" not in memory.run_scores(["old"])
    assert {str(hit.step.id) for hit in memory.search("of old", k=9)} == ids(memory)
    again = memory.retain(days=90)
    assert (again.steps, again.kept) == (0, 1)


def test_a_session_goes_when_its_last_message_is_old(memory: hs.StepMemory) -> None:
    talk(memory, "old", 100)
    talk(memory, "going on", 100)
    store = memory.repository().store
    store.commit("going on", [message("and now?", 1)])
    planned, done = memory.retain(90, dry_run=True), memory.retain(90)
    assert sessions(memory) == {"going on"}
    assert ids(memory) == {"going on-step"}
    assert len(store.messages("going on")) == 3
    assert (done.sessions, done.messages, done.steps, done.kept) == (1, 2, 1, 1)
    assert (planned.sessions, planned.messages, planned.steps) == (1, 2, 1)
    assert not memory.search("old asks", mode="lexical", where={"session_id": "old"})


def test_a_fork_keeps_what_it_reads(memory: hs.StepMemory) -> None:
    talk(memory, "old", 100)
    store = memory.repository().store
    store.commit("old", [message("more", 99), message("and more", 99)])
    fork = asyncio.run(hs.fork_session("old", 3, memory.repository()))
    store.commit(fork, [message("another way", 1)])
    planned, done = memory.retain(90, dry_run=True), memory.retain(90)
    assert sessions(memory) == {fork}
    said = [each.content for each in store.messages(fork)]
    assert said == ["old asks", "old hears", "more", "another way"]
    assert ids(memory) == {"old-step"}
    assert (done.sessions, done.messages, done.steps) == (1, 1, 0)
    assert (planned.sessions, planned.messages, planned.steps) == (1, 1, 0)
    # The fork goes with all of it once it is old itself.
    assert memory.retain(0.5).messages == 4
    assert ids(memory) == sessions(memory) == set()


def test_a_fork_just_begun_is_not_old(memory: hs.StepMemory) -> None:
    talk(memory, "old", 100)
    fork = asyncio.run(hs.fork_session("old", 2, memory.repository()))
    memory.retain(90)
    assert sessions(memory) == {fork}
    assert len(memory.repository().store.messages(fork)) == 2


def test_a_dry_run_counts_forks_that_go_along(memory: hs.StepMemory) -> None:
    talk(memory, "old", 100)
    store = memory.repository().store
    fork = asyncio.run(hs.fork_session("old", 1, memory.repository()))
    store.commit(fork, [message("another way", 99)])
    where = {"until": utc_now() + timedelta(days=1)}
    planned, done = memory.retain(1e-9, where, dry_run=True), memory.retain(1e-9, where)
    assert (planned.sessions, planned.messages, planned.steps) == (2, 3, 1)
    assert (done.sessions, done.messages, done.steps) == (2, 3, 1)


@pytest.mark.parametrize("held", ["run", "session"])
def test_pinned_steps_keep_what_they_belong_to(memory: hs.StepMemory, held: str) -> None:
    memory.add([step("a-1", 100, run_id="a", hop=1), step("a-2", 100, run_id="a", hop=2)])
    talk(memory, "talk", 100)
    before = ids(memory)
    pinned = {"run": "a-2", "session": "talk-step"}[held]
    memory.pin(pinned)
    memory.retain(90)
    assert ids(memory) == {"run": {"a-1", "a-2"}, "session": {"talk-step"}}[held]
    memory.pin(pinned, pinned=False)
    memory.retain(90)
    assert ids(memory) == set() < before


def _all_at_once(units: retention.Units) -> Iterator[retention.Units]:
    yield units


def question(call: str, scope: str, **more: Any) -> hs.AgentStep:
    return hs.AgentStep(
        step_type=hs.AgentStepType.Decision,
        inputs={"purpose": "May pay run now?", "tool": "pay"},
        scope=scope,
        status="partial",
        created_at=ago(100),
        metadata={CALL_STEP: call},
        **more,
    )


@pytest.mark.parametrize("scope", [QUESTIONS, USER_QUESTIONS])
def test_a_question_of_consent_or_to_the_user_waits_for_its_answer(
    memory: hs.StepMemory, scope: str
) -> None:
    talk(memory, "talk", 100)
    store = memory.repository().store
    asked = question("call-1", scope, session_id="talk", run_id="talk-run")
    store.commit("talk", [], [asked])
    memory.retain(90)
    assert sessions(memory) == {"talk"}
    store.append([step("call-1", 100, session_id="talk")])  # its result
    memory.retain(90)
    assert sessions(memory) == ids(memory) == set()


def test_rules_go_with_their_session_alone(memory: hs.StepMemory) -> None:
    talk(memory, "talk", 100)
    rules = hs.ConsentRules(memory)
    for session, user in (("talk", None), (None, "ann")):
        rules.add("pay", allowed=False, session_id=session, user_id=user)
        rules.add("look", session_id=session, user_id=user)
    for rule in [
        *memory.iter_steps({"scope": "consent_rule"}),
        *memory.iter_steps({"scope": DENIALS}),
    ]:
        memory.update(rule.model_copy(update={"created_at": ago(100)}))
    memory.retain(90)
    assert {rule.user_id for rule in rules.list()} == {"ann"}
    assert len(rules.list()) == 2


def test_what_is_recorded_just_now_stays(memory: hs.StepMemory) -> None:
    memory.add(step("old", 100))
    with hs.record(memory, session_id="s") as run:
        memory.add(step("first", 100, run_id=run.id, hop=1))
        assert memory.retain(90).steps == 1
        assert ids(memory) == {"first"}
    memory.retain(90)
    assert "first" not in ids(memory)


def test_a_filter_names_runs_by_any_step(memory: hs.StepMemory) -> None:
    for run in "ab":
        memory.add(step(f"{run}-1", 100, run_id=run, hop=1))
        memory.add(step(f"{run}-2", 100, run_id=run, hop=2, tool="pay" if run == "b" else "look"))
    talk(memory, "paid", 100, tool="pay")
    talk(memory, "other", 100)
    done = memory.retain(90, {"tools": ["pay"]})
    assert ids(memory) == {"a-1", "a-2", "other-step"}
    assert sessions(memory) == {"other"}
    assert (done.runs, done.sessions) == (1, 1)


def test_exclude_keeps_whole_runs(memory: hs.StepMemory) -> None:
    for run in "ab":
        memory.add([step(f"{run}-1", 100, run_id=run), step(f"{run}-2", 100, run_id=run, tool=run)])
    talk(memory, "paid", 100, tool="a")
    memory.retain(90, {"exclude": {"tools": ["a"]}})
    assert ids(memory) == {"a-1", "a-2", "paid-step"}
    memory.retain(90, {"exclude_run_id": "a"})
    assert ids(memory) == {"a-1", "a-2"}
    memory.retain(90, hs.StepFilter(exclude=[{"min_score": 0.5}]))
    assert ids(memory) == set()


def test_a_user_loses_nothing_by_another(memory: hs.StepMemory) -> None:
    memory.add([step("a-1", 100, run_id="a", user_id="ann"), step("a-2", 100, run_id="a")])
    memory.add([step(f"{who}-b", 100, run_id="b", user_id=who) for who in ("ann", "bob")])
    memory.add([step("bob-alone", 100, user_id="bob")])
    talk(memory, "hers", 100, user_id="ann")
    talk(memory, "shared", 100, user_id="ann")
    memory.repository().store.commit("shared", [message("I too", 100, user_id="bob")])
    memory.retain(90, {"user_id": "ann"})
    assert ids(memory) == {"ann-b", "bob-b", "bob-alone", "shared-step"}
    assert sessions(memory) == {"shared"}
    memory.retain(90, {"user_id": ["ann", "bob"]})
    assert (ids(memory), sessions(memory)) == (set(), set())


def test_a_session_named_by_a_filter_goes_without_what_it_was_forked_from(
    memory: hs.StepMemory,
) -> None:
    talk(memory, "old", 100)
    store = memory.repository().store
    store.fork("old", 1, "fork")
    store.commit("fork", [message("another way", 100)])
    where = {"session_id": "fork", "until": utc_now() + timedelta(days=1)}
    memory.retain(1e-9, where)
    assert sessions(memory) == {"old"}
    assert ids(memory) == {"old-step"}


def test_kept_prompts_and_trial_runs_go_along(memory: hs.StepMemory) -> None:
    memory.add([step("old", 100, run_id="old", scope="trial"), step("new", 1)])
    call = LMCall(lm="x", messages=[{"role": "user", "content": "a secret"}], completion=["yes"])
    memory.keep_prompts({"old": [call], "new": [call]})  # pyright: ignore[reportArgumentType]
    memory.retain(90)
    store: Any = memory.repository().store
    assert store.prompted_steps() == ["new"]
    assert len(memory.prompt_of("new")) == 1


def test_a_title_goes_with_its_session(memory: hs.StepMemory) -> None:
    talk(memory, "talk", 100)
    asyncio.run(hs.describe_session(memory.repository(), "talk", title="a title"))
    memory.retain(90)
    assert ids(memory) == set()


def test_batches_are_whole_and_a_call_goes_on(
    memory: hs.StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_AT_ONCE", {"sessions": 2, "runs": 3, "steps": 4})
    for n in range(7):
        memory.add([step(f"{n}-{hop}", 100, run_id=f"r{n}", hop=hop) for hop in range(3)])
        memory.add(step(f"alone {n}", 100))
        talk(memory, f"talk {n}", 100)
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        left = {str(each.run_id) for each in memory.iter_steps() if each.run_id}
        assert all(len(memory.run_steps(run)) in (1, 3) for run in left)
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.retain(90, progress=stop)
    assert seen == [(2, 21), (4, 21), (6, 21), (7, 21), (10, 21)]
    assert len(ids(memory)) == 7 + 4 * 3
    done = memory.retain(90)
    assert (done.runs, done.steps, done.sessions) == (4, 19, 0)
    assert ids(memory) == sessions(memory) == set()


@pytest.mark.parametrize("between", ["a step", "a pin", "a message", "a fork", "a deletion"])
def test_what_changes_between_looking_and_removing_stays(
    memory: hs.StepMemory, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    memory.add([step("r-1", 100, run_id="r", hop=1), step("alone", 100)])
    talk(memory, "talk", 100)
    store: Any = memory.repository().store
    act = {
        "a step": lambda: memory.add(step("r-2", 0, run_id="r", hop=2)),
        "a pin": lambda: memory.pin(["alone", "r-1", "talk-step"]),
        "a message": lambda: store.commit("talk", [message("wait", 0)]),
        "a fork": lambda: store.fork("talk", 1, "fork"),
        "a deletion": lambda: store.delete_session("talk"),
    }[between]
    acts, writing = [act], store._db.writing

    def write(**options: Any) -> Any:
        if acts:
            acts.pop()()
        return writing(**options)

    monkeypatch.setattr(retention.Units, "batches", _all_at_once)
    monkeypatch.setattr(store._db, "writing", write)
    memory.retain(90)
    monkeypatch.undo()
    kept = {
        "a step": {"r-1", "r-2"},
        "a pin": {"alone", "r-1", "talk-step"},
        "a message": {"talk-step"},
        "a fork": set[str](),
        "a deletion": set[str](),
    }[between]
    assert ids(memory) == kept
    if between == "a message":
        assert [each.content for each in store.messages("talk")][-1] == "wait"
    if between == "a fork":
        assert [each.content for each in store.messages("fork")] == ["talk asks"]


def test_on_a_server_a_clock_that_is_ahead_makes_nothing_old(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hs.StepMemory(postgres_address, embedder="hashing") as memory:
        memory.add(step("new", 0))
        talk(memory, "talk", 0)
        store = memory.repository().store
        begun = store.branch_at("talk", 1)
        store.commit("talk", [message("an attempt under way", 0)], branch_id=begun)
        ahead = NOW + timedelta(days=400)
        monkeypatch.setattr(branches, "utc_now", lambda: ahead)
        kept = memory.retain(1)
        assert (kept.steps, kept.sessions) == (0, 0)
        assert kept.before < NOW
        memory.vacuum()
        assert ids(memory) == {"new", "talk-step"}
        assert len(store.messages("talk", branch_id=begun)) == 2


@pytest.mark.parametrize("days", [0, -1, math.nan, math.inf, True, "90", None, 10**9])
def test_bad_days_are_refused_before_anything_changes(days: Any) -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        memory.add(step("old", 100))
        with pytest.raises(InvalidSettingError, match="days"):
            memory.retain(days)
        with pytest.raises(InvalidFilterError):
            memory.retain(1, {"tool": "x"})
        assert ids(memory) == {"old"}


def test_what_was_removed_shows_itself() -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        memory.add(step("old", 100, run_id="r"))
        shown = memory.retain(90, dry_run=True)
        assert "would go: 1 steps and 0 messages of 0 sessions and 1 runs" in str(shown)
        assert "removed" in memory.retain(90)._repr_html_()  # pyright: ignore[reportPrivateUsage]
