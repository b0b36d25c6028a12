"""Sessions as async callers have them, on both back-ends, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from conformance.samples import message, said, step

import hybridagi_steps as hs
from hybridagi_steps.errors import (
    InvalidSettingError,
    InvalidStepError,
    MessageError,
    SequenceConflictError,
    StepTooDeepError,
    StepTooLargeError,
    UnknownBranchError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.records.message import Step, StepMetrics
from hybridagi_steps.sessions.repository import SessionRepository, compare_branches, fork_session

SECRET = "hunter2"  # noqa: S105 - what redaction is to find


@pytest.fixture
def repo(memory: hs.StepMemory) -> SessionRepository:
    return memory.repository()


def beside(address: str) -> list[Path]:
    """Return a memory's file and all that lies beside it; none for one that has no file."""
    return list(Path(address).parent.iterdir()) if Path(address).exists() else []


def run(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)


def of(session_id: str, sequence: int, content: str = "x", role: str = "user") -> Step:
    return message(content, role, session_id=session_id, sequence=sequence)


def talk(repo: SessionRepository, count: int = 5, session_id: str = "s") -> None:
    run(repo.append(session_id, said(count)))


def texts(repo: SessionRepository, session_id: str, *asked: int | None) -> list[Any]:
    return [found.content for found in run(repo.get_steps(session_id, *asked))]


def test_the_calls_of_a_repository(repo: SessionRepository) -> None:
    run(repo.save_step(of("s", 1, "hello")))
    run(repo.save_steps_batch([of("s", 2, "hi", "assistant"), of("s", 3, "more")]))
    assert texts(repo, "s") == ["hello", "hi", "more"]
    assert texts(repo, "s", 2) == ["hi", "more"]
    assert texts(repo, "s", 2, 2) == ["hi"]
    last = run(repo.get_last_step("s"))
    assert (last.sequence, last.content, last.is_user_step()) == (3, "more", True)
    assert run(repo.get_step("s", 2)).content == "hi"
    assert run(repo.get_step_count("s")) == 3
    assert run(repo.delete_steps("s", start_seq=2)) == 2
    assert texts(repo, "s") == ["hello"]


def test_a_session_that_is_not_there_is_empty(repo: SessionRepository) -> None:
    assert run(repo.get_steps("nobody")) == []
    assert run(repo.get_last_step("nobody")) is None
    assert run(repo.get_step_count("nobody")) == run(repo.delete_steps("nobody", 1)) == 0
    assert run(repo.sessions()) == run(repo.save_steps_batch([])) == []
    for call in (repo.get_step("nobody", 1), fork_session("nobody", 1, repo)):
        with pytest.raises(UnknownSessionError):
            run(call)


def test_a_sequence_that_is_not_there(repo: SessionRepository) -> None:
    talk(repo, 2)
    for sequence in (0, -1, 3):
        with pytest.raises(UnknownSequenceError, match="1 to 2"):
            run(repo.get_step("s", sequence))
    with pytest.raises(UnknownSequenceError):
        run(fork_session("s", 3, repo))


@pytest.mark.parametrize("number", ["1", 1.5, None, True])
def test_what_is_no_sequence(repo: SessionRepository, number: Any) -> None:
    talk(repo)
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: fork_session("s", number, repo),
        lambda: repo.branch_at("s", number),
        lambda: repo.get_step("s", number),
        lambda: repo.delete_steps("s", number),
    ]
    for call in calls:
        with pytest.raises(InvalidSettingError, match="a sequence is a whole number"):
            run(call())
    assert run(repo.get_step_count("s")) == 5


@pytest.mark.parametrize("session_id", [None, 5, b"s", ["s"]])
def test_what_is_no_id_of_a_session(repo: SessionRepository, session_id: Any) -> None:
    talk(repo)
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: repo.get_steps(session_id),
        lambda: repo.get_step(session_id, 1),
        lambda: repo.get_last_step(session_id),
        lambda: repo.get_step_count(session_id),
        lambda: repo.delete_steps(session_id, 1),
        lambda: repo.fork(session_id, 1),
        lambda: repo.branch_at(session_id, 1),
        lambda: repo.adopt(session_id, 1),
        lambda: repo.attempts(session_id),
        lambda: compare_branches(repo, session_id, 1, 1),
    ]
    for call in calls:
        with pytest.raises(InvalidSettingError, match="the id of a session is a text"):
            run(call())
    assert run(repo.get_step_count("s")) == 5


@pytest.mark.parametrize("new_id", [5, "", "x" * 1_000, "half \ud800"])
def test_what_is_no_id_for_a_fork(repo: SessionRepository, new_id: Any) -> None:
    talk(repo)
    with pytest.raises(InvalidStepError, match="new_session_id"):
        run(repo.fork("s", 2, new_id))
    assert [known.session_id for known in run(repo.sessions())] == ["s"]


@pytest.mark.parametrize("number", ["1", 1.5, None, True])
def test_what_is_no_branch(repo: SessionRepository, number: Any) -> None:
    talk(repo)
    branch = run(repo.attempts("s"))[0].branch_id
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: repo.adopt("s", number),
        lambda: compare_branches(repo, "s", number, branch),
        lambda: compare_branches(repo, "s", branch, number),
    ]
    for call in calls:
        with pytest.raises(InvalidSettingError, match="a sequence is a whole number"):
            run(call())


def test_a_branch_that_goes_no_further_is_compared_too(repo: SessionRepository) -> None:
    talk(repo)
    was = run(repo.attempts("s"))[0].branch_id
    begun = run(repo.branch_at("s", 3))
    for left, right, more in ((was, begun, "left"), (begun, was, "right")):
        compared = run(compare_branches(repo, "s", left, right))
        shared = len(repo.store.messages("s", branch_id=begun))
        assert (compared.shared, 0 < shared < 5) == (shared, True)
        sides = {"left": compared.left, "right": compared.right}
        assert len(sides.pop(more).steps) == 5 - shared
        assert [side.steps for side in sides.values()] == [[]]


def test_a_conflict_is_told_in_words(repo: SessionRepository) -> None:
    talk(repo)
    end = repo.store.session_end("s")
    talk(repo, 1)
    words = f"ends at sequence 6 of branch {end.branch_id}, not at "
    for expected, told in ((end, f"5 of branch {end.branch_id}:"), (3, "3:")):
        with pytest.raises(SequenceConflictError, match=words + told):
            run(repo.append("s", said(1), expect_last=expected))


@pytest.mark.parametrize("sequence", [0, 1, 2, 4, -1])
def test_a_step_must_be_the_next_one(repo: SessionRepository, sequence: int) -> None:
    talk(repo, 2)
    with pytest.raises(SequenceConflictError):
        run(repo.save_step(of("s", sequence)))
    with pytest.raises(SequenceConflictError):
        run(repo.save_steps_batch([of("s", 3), of("s", 3 + sequence)][:: -1 if sequence else 1]))
    assert texts(repo, "s") == ["1", "2"]


def test_a_batch_is_of_one_session(repo: SessionRepository) -> None:
    with pytest.raises(InvalidStepError, match="one session"):
        run(repo.save_steps_batch([of("s", 1), of("t", 2)]))
    assert run(repo.sessions()) == []


def test_append_gives_sequences_and_takes_what_providers_take(repo: SessionRepository) -> None:
    stored = run(repo.append("s", [{"role": "user", "content": "a"}, of("other", 9, "b")]))
    assert [(one.session_id, one.sequence) for one in stored] == [("s", 1), ("s", 2)]
    stored = run(repo.append("s", {"role": "assistant", "content": "c"}, 2, "key"))
    assert run(repo.append("s", {"role": "assistant", "content": "c"}, 2, "key")) == stored
    with pytest.raises(SequenceConflictError):
        run(repo.append("s", {"role": "user", "content": "d"}, 2))
    assert texts(repo, "s") == ["a", "b", "c"]


def test_agent_steps_are_found_with_their_messages(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    run(repo.commit("s", said(2), [step(id="a", inputs={"purpose": "refund the ticket"})]))
    run(repo.commit("s", said(2, 3), [step(id="b", inputs={"purpose": "cancel the flight"})]))
    fork = run(fork_session("s", 2, repo))
    assert [
        hit.step.id for hit in memory.search("ticket", where={"session_id": fork, "kinds": "step"})
    ] == ["a"]
    assert {
        hit.step.id for hit in memory.search("flight", where={"session_id": fork, "kinds": "step"})
    } <= {"a"}
    run(repo.delete_steps("s", 3))
    for mode in ("hybrid", "dense", "lexical"):
        assert "b" not in {hit.step.id for hit in memory.search("cancel flight", mode=mode)}
    shown = memory.search("cancel the flight", where={"scope": "abandoned", "kinds": "step"})
    assert [hit.step.id for hit in shown] == ["b"]
    assert memory.search("cancel flight", where={"scope": "*"})[0].step.id == "b"
    assert "b" not in {
        hit.step.id for hit in memory.search("cancel flight", where={"exclude_run_id": "r"})
    }
    first = run(repo.attempts("s"))[0]
    run(repo.adopt("s", first.branch_id))
    assert memory.search("cancel flight")[0].step.id == "b"


def test_another_first_message_is_nobodys_history_until_it_is_adopted(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    run(repo.commit("s", message("q"), [step(id="a")]))
    again = run(repo.branch_at("s", 0))
    run(repo.commit("s", message("other q"), [step(id="b")], branch_id=again))
    assert [found.id for found in memory.find().steps] == ["a"]
    run(repo.adopt("s", again))
    assert [found.id for found in memory.find().steps] == ["b"]


def test_a_repository_over_a_bare_store_tells_of_steps_only_who_asked(
    memory: hs.StepMemory,
) -> None:
    told: list[int] = []
    store = memory.repository().store
    for repo in (SessionRepository(store), SessionRepository(store, stored=told.append)):
        run(repo.commit("s", message(), [step()]))
        run(repo.append("s", message()))
    assert (told, run(repo.get_step_count("s")), len(memory.find().steps)) == ([1], 4, 2)


def test_vectors_of_committed_steps_are_checked(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    with pytest.raises(hs.errors.DimensionMismatchError):
        run(repo.commit("s", said(1), [step(vector=[1.0, 2.0])]))
    assert run(repo.sessions()) == []
    assert memory.stats()["steps"] == 0


CALLING = [
    message("q"),
    message(
        None,
        "assistant",
        tool_calls=[{"id": "a", "type": "function"}, {"id": "b", "type": "function"}],
    ),
    message("1", "tool", tool_call_id="a"),
    message("2", "tool", tool_call_id="b"),
    message("done", "assistant"),
]


@pytest.mark.parametrize(("asked", "shared"), [(1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (0, 0)])
def test_a_fork_never_parts_calls_from_their_results(
    repo: SessionRepository, caplog: pytest.LogCaptureFixture, asked: int, shared: int
) -> None:
    run(repo.append("s", CALLING))
    with caplog.at_level(logging.WARNING, "hybridagi_steps"):
        fork = run(repo.fork("s", asked))
    assert (fork.sequence, fork.asked) == (shared, asked)
    assert run(repo.get_step_count(fork.session_id)) == shared
    assert bool(caplog.records) is (asked != shared)


def test_comparing_an_attempt_with_the_answer_it_replaced(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    def answer(text: str, tokens: int, run_id: str) -> Step:
        metrics = StepMetrics(input_tokens=10, output_tokens=tokens, cost=tokens / 100)
        return message(text, "assistant", run_id=run_id, metrics=metrics)

    run(repo.append("s", [message("q")]))
    old = run(repo.commit("s", answer("old", 5, "r1"), [step(run_id="r1", session_id="s")]))
    was = memory.repository().store.session_end("s").branch_id
    new = run(repo.branch_at("s", 1))
    run(repo.commit("s", answer("new", 7, "r2"), [step(run_id="r2")], branch_id=new))
    memory.score("r1", 0.25)
    memory.score("r2", 0.75)
    compared = run(compare_branches(repo, "s", was, new))
    assert compared.shared == 1
    left, right = compared.left, compared.right
    assert [one.id for one in left.steps] == [old[0].id]
    assert (left.text, right.text) == ("old", "new")
    assert (left.output_tokens, right.output_tokens, right.input_tokens) == (5, 7, 10)
    assert (left.cost, right.cost) == (0.05, 0.07)
    assert (left.score, right.score) == (0.25, 0.75)
    same = run(compare_branches(repo, "s", was, was))
    assert (same.shared, same.left.steps, same.left.cost, same.left.score) == (2, [], None, None)


def test_figures_of_an_attempt_add_up_over_its_messages(repo: SessionRepository) -> None:
    talk(repo, 1)
    was = repo.store.session_end("s").branch_id
    metered = [StepMetrics(input_tokens=tokens, cost=tokens / 4) for tokens in (1, 2, 4)]
    answers = [message("a", "assistant", metrics=metrics) for metrics in metered]
    run(repo.append("s", [*answers, message("thanks")]))
    left = run(compare_branches(repo, "s", was, run(repo.branch_at("s", 1)))).left
    assert (left.input_tokens, left.cost, left.output_tokens) == (7, 1.75, None)


@pytest.mark.parametrize("page", [{"limit": -1}, {"offset": -1}, {"limit": "9"}])
def test_what_is_no_page(repo: SessionRepository, page: dict[str, Any]) -> None:
    with pytest.raises(hs.errors.InvalidQueryError):
        run(repo.sessions(**page))


# -- what may be stored


def test_what_json_cannot_hold_is_repaired_with_a_note(repo: SessionRepository) -> None:
    values: dict[str, Any] = {"content": "a\ud800b\x00", "metadata": {"n": math.nan, 1: {"x"}}}
    metrics = StepMetrics(cost=math.inf, output_tokens=3)
    odd = message().model_copy(update={**values, "metrics": metrics})
    run(repo.append("s", [odd, {"role": "user", **values}]))
    for found in run(repo.get_steps("s")):
        assert found.content == "a\ufffdb\ufffd"
        assert (found.metadata["n"], found.metadata["1"]) == (None, ["x"])
        noted = " ".join(found.metadata["repairs"])
        assert "content" in noted
        assert "nan" in noted
    assert run(repo.get_step("s", 1)).metrics == StepMetrics(output_tokens=3)
    assert odd.content == "a\ud800b\x00", "what was given is not changed"


def test_a_time_without_a_zone_is_local_time(repo: SessionRepository) -> None:
    moment = message().created_at.astimezone().replace(tzinfo=None)
    run(repo.append("s", message(created_at=moment)))
    assert run(repo.get_step("s", 1)).created_at == moment.astimezone()


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"role": "robot", "content": "x"}, MessageError),
        ({"content": "x"}, MessageError),
        ("hello", InvalidStepError),
        ([5], InvalidStepError),
        (5, InvalidStepError),
        (None, InvalidStepError),
        (message(id=""), InvalidStepError),
        (message(id="x" * 129), InvalidStepError),
        (message(run_id="\ud800"), InvalidStepError),
        (message("x" * 9_000_000), StepTooLargeError),
        (message(metadata={"x": _nested(70)}), StepTooDeepError),
        (message().model_copy(update={"content": 5}), InvalidStepError),
        (message().model_copy(update={"tool_calls": "x"}), InvalidStepError),
        (message().model_copy(update={"role": "robot"}), InvalidStepError),
        (message().model_copy(update={"metrics": {"cost": 1}}), InvalidStepError),
        (message().model_copy(update={"name": 5}), InvalidStepError),
    ],
)
def test_what_cannot_be_kept_is_refused_whole(
    repo: SessionRepository, bad: Any, error: type[Exception]
) -> None:
    alone = bad is None or isinstance(bad, list | str | int)
    given: Any = cast("Any", bad) if alone else [message("good"), bad]
    with pytest.raises(error):
        run(repo.append("s", given))
    assert run(repo.sessions()) == []


@pytest.mark.parametrize("name", ["", "x" * 129, "a\x00", "\ud800"])
def test_what_is_no_session_id(repo: SessionRepository, name: Any) -> None:
    with pytest.raises(InvalidStepError, match="session_id"):
        run(repo.append(name, message()))


def test_redaction_takes_every_text_and_leaves_the_form(address: str) -> None:
    def hide(text: str) -> str:
        return text.replace(SECRET, "***")

    calls = [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": json.dumps({SECRET: [SECRET, 1, "ü"]})},
        }
    ]
    full = message(
        [{"type": "text", "text": SECRET}, {"type": "x", "secret": {"id": SECRET}}],
        "assistant",
        tool_calls=calls,
        name=SECRET,
        content_for_user=SECRET,
        reasoning_content=f"because {SECRET}",
        metadata={SECRET: {"type": SECRET}, "agent_step_ids": ["a"]},
    )
    with hs.StepMemory(address, embedder="hashing", redact=hide) as memory:
        repo = memory.repository()
        run(repo.commit("s", full, [step(inputs={"purpose": SECRET})], idempotency_key="k"))
        run(repo.commit("s", full, [step(inputs={"purpose": SECRET})], idempotency_key="k"))
        [found] = run(repo.get_steps("s"))
        assert SECRET not in found.model_dump_json()
        assert SECRET not in str(list(memory.iter_steps()))
        [call] = found.tool_calls
        assert (call["id"], call["type"]) == ("c", "function")
        assert json.loads(call["function"]["arguments"]) == {"***": ["***", 1, "ü"]}
        assert found.metadata == {"***": {"type": "***"}, "agent_step_ids": ["a"]}
    for file in beside(address):
        assert SECRET.encode() not in file.read_bytes()


def test_a_redaction_that_fails_refuses_without_quoting(memory: hs.StepMemory) -> None:
    def broken(text: str) -> str:
        raise ValueError(text)

    repo = SessionRepository(memory.repository().store, redact=broken)
    with pytest.raises(InvalidStepError, match="ValueError") as caught:
        run(repo.append("s", message(SECRET)))
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert run(repo.sessions()) == []


# -- forgetting


def test_purging_a_session_erases_its_messages_too(
    memory: hs.StepMemory, repo: SessionRepository, address: str
) -> None:
    run(repo.commit("s", [message(SECRET)], [step(inputs={"purpose": SECRET})]))
    run(repo.commit("t", [message("other")], [step(id="t")]))
    memory.add(step(id="later", session_id="s"))
    memory.flush()
    assert memory.purge({"session_id": "s"}) == 3
    assert [found.session_id for found in run(repo.sessions())] == ["t"]
    assert [found.id for found in memory.iter_steps()] == ["t"]
    assert memory.verify() == []
    for file in beside(address):
        assert SECRET.encode() not in file.read_bytes()


def test_purging_a_fork_leaves_what_its_origin_reads(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    run(repo.commit("s", said(2), [step(id="a")]))
    fork = run(fork_session("s", 2, repo))
    run(repo.commit(fork, message("mine"), [step(id="b")]))
    assert memory.purge({"session_id": fork}) == 2
    assert texts(repo, "s") == ["1", "2"]
    assert [found.id for found in memory.iter_steps()] == ["a"]


def test_purging_a_user_erases_the_sessions_that_are_theirs(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    run(repo.commit("mine", said(2), [step(id="a", user_id="u")]))
    run(repo.commit("ours", said(2), [step(id="b", user_id="u"), step(id="c", user_id="v")]))
    assert memory.purge({"user_id": "u"}) == 4
    assert [found.session_id for found in run(repo.sessions())] == ["ours"]
    assert [found.id for found in memory.iter_steps()] == ["c"]


def test_further_conditions_pick_steps_and_leave_messages(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    run(repo.commit("s", said(2), [step(id="a", status="error"), step(id="b")]))
    assert memory.purge({"session_id": "s", "status": "error"}) == 1
    assert texts(repo, "s") == ["1", "2"]
    assert memory.stats()["messages"] == 2


def test_a_purge_of_something_else_leaves_attempts_alone(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    run(repo.commit("s", said(1)))
    run(repo.commit("s", [message("old answer")], [step(id="old", user_id="ann")]))
    old = run(repo.attempts("s"))[0].branch_id
    attempt = run(repo.branch_at("s", 1))
    run(repo.commit("s", [message("new answer")], [step(id="new")], branch_id=attempt))
    run(repo.adopt("s", attempt))
    memory.add(step(id="junk", run_id="junk"))
    assert memory.purge({"run_id": "junk"}) == 1
    assert {str(kept.id) for kept in memory.iter_steps({"scope": "*"})} == {"old", "new"}
    run(repo.adopt("s", old))
    assert texts(repo, "s")[-1] == "old answer"
    memory.vacuum()
    assert {str(kept.id) for kept in memory.iter_steps({"scope": "*"})} == {"old"}


# -- recording into a session


def test_recorded_steps_join_the_sessions_lineage(
    memory: hs.StepMemory, repo: SessionRepository
) -> None:
    talk(repo, 2)

    @hs.record_step(purpose="look up")
    def look_up() -> str:
        return "found"

    with hs.record(memory, session_id="s"):
        look_up()
    before, after = run(fork_session("s", 2, repo)), None
    run(repo.append("s", message("3", "assistant")))
    after = run(fork_session("s", 3, repo))
    assert len(memory.find({"session_id": "s"}).steps) == 1
    assert len(memory.find({"session_id": before}).steps) == 0
    assert len(memory.find({"session_id": after}).steps) == 1


# -- async


def test_many_tasks_leave_no_gap(repo: SessionRepository) -> None:
    async def everybody() -> None:
        async with anyio.create_task_group() as tasks:
            for n in range(40):
                tasks.start_soon(repo.append, "s", [message(str(n)), message(f"{n}'")])

    run(everybody())
    found = run(repo.get_steps("s"))
    assert [one.sequence for one in found] == list(range(1, 81))
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(f"{first.content}'" == second.content for first, second in pairs)


class _SlowStore:
    """A store whose commit takes its time and says when it is done."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def commit(self, *_: Any, **__: Any) -> list[Step]:
        self.begun.set()
        time.sleep(0.2)
        self.ended.set()
        return []


def _cancelled_natively(repo: SessionRepository) -> Callable[[], Coroutine[Any, Any, None]]:
    async def cancel() -> None:
        task = asyncio.create_task(repo.append("s", [message()]))
        while not repo.store.begun.is_set():  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    return cancel


def _cancelled_by_scope(repo: SessionRepository) -> Callable[[], Coroutine[Any, Any, None]]:
    async def cancel() -> None:
        async def once_begun(scope: anyio.CancelScope) -> None:
            while not repo.store.begun.is_set():  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
                await anyio.sleep(0.005)
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(once_begun, scope)
                await repo.append("s", [message()])

    return cancel


@pytest.mark.parametrize("cancelled", [_cancelled_natively, _cancelled_by_scope])
def test_a_cancelled_write_never_lands_later(cancelled: Any) -> None:
    store: Any = _SlowStore()

    async def scenario() -> bool:
        await cancelled(SessionRepository(store))()
        return store.ended.is_set()

    assert asyncio.run(scenario()), "the caller went on while the write was under way"


def test_a_write_that_waits_for_its_turn_is_dropped_when_cancelled(
    repo: SessionRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridagi_steps._concurrency.AT_ONCE", 1)
    slow: Any = _SlowStore()

    async def scenario() -> None:
        first = asyncio.create_task(SessionRepository(slow).append("x", [message()]))
        while not slow.begun.is_set():
            await asyncio.sleep(0.005)
        second = asyncio.create_task(repo.append("s", [message()]))
        await asyncio.sleep(0.02)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(0.05)

    asyncio.run(scenario())
    assert run(repo.get_step_count("s")) == 0


def test_a_repository_of_a_closed_memory_says_so(address: str) -> None:
    memory = hs.StepMemory(address, embedder="hashing")
    repo = memory.repository()
    memory.close()
    with pytest.raises(hs.errors.MemoryClosedError):
        run(repo.append("s", message()))
    with pytest.raises(hs.errors.MemoryClosedError):
        memory.repository()


def test_a_branch_that_is_not_there_is_named(repo: SessionRepository) -> None:
    talk(repo)
    branch = run(repo.attempts("s"))[0].branch_id
    with pytest.raises(UnknownBranchError, match=r"session 's' has no branch 999; its `attempts`"):
        run(compare_branches(repo, "s", branch, 999))
    with pytest.raises(SequenceConflictError):
        run(repo.adopt("s", 999))
