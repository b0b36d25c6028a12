"""What every memory answers at the edges of what can be asked: the same error, or the same steps.

The edges are asked of a StepMemory, since it is there that callers' values are looked at, whatever
store is behind it. Each question has one answer here, so all stores give that one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from hybridagi_steps import AgentStep, ContextBuilder, StepMemory
from hybridagi_steps.errors import (
    InvalidFilterError,
    InvalidQueryError,
    InvalidSettingError,
    InvalidStepError,
    SequenceConflictError,
    UnknownRunError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.records.message import Step
from hybridagi_steps.sessions.repository import compare_branches

NO_NUMBERS: list[Any] = [None, "3", True, 1.5, float("nan"), float("inf"), b"3", [1]]
HUGE = [2**63 - 1, 2**63, 2**64, 10**400]
NO_IDS: list[Any] = [None, 3, True, 1.5, b"3", ["s"]]
ODD_TEXTS = [
    "",
    "\x00",
    "a\x00b",
    "\ud800",
    "x" * 129,
    "x" * 200_000,
    "\n",
    " ",
    "'; DROP",
    "\u202e",
]


def acted(number: int, **fields: Any) -> AgentStep:
    inputs = {"purpose": f"find the {number}", "tool": "look"}
    metadata = {"n": number, **{f"k{key}": key for key in range(number % 2 * 3_000)}}
    return AgentStep.model_validate(
        {"step_type": "Action", "inputs": inputs, "metadata": metadata, **fields}
    )


def told(memory: StepMemory, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    del memory
    return asyncio.run(call(*args))


class EdgeContract:
    """The subclass gives a `memory`, empty, with the hashing embedder."""

    @pytest.fixture
    def filled(self, memory: StepMemory) -> StepMemory:
        memory.add([acted(n, run_id=f"run{n}", session_id="s") for n in range(40)])
        said = [{"role": "user", "content": str(n)} for n in range(3)]
        asyncio.run(memory.repository().append("s", said))
        return memory

    # Pages

    @pytest.mark.parametrize("number", HUGE)
    def test_a_huge_page_is_everything_and_a_huge_offset_nothing(
        self, filled: StepMemory, number: int
    ) -> None:
        repo = filled.repository()
        assert len(filled.find(limit=number).steps) == 40
        assert len(filled.find(offset=number).steps) == 0
        assert len(filled.find({"run_id": "run1"}, limit=number, newest_first=True).steps) == 1
        assert len(filled.runs(limit=number)) == 40
        assert filled.runs(offset=number) == []
        assert len(filled.search("find", number, where={"kinds": "step"})) == 40
        assert len(asyncio.run(repo.sessions(limit=number))) == 1
        assert asyncio.run(repo.sessions(offset=number)) == []

    @pytest.mark.parametrize("number", [*NO_NUMBERS, -1], ids=repr)
    def test_a_page_is_a_whole_number(self, filled: StepMemory, number: Any) -> None:
        repo = filled.repository()
        for name in ("limit", "offset"):
            with pytest.raises(InvalidQueryError, match=name):
                filled.find(**{name: number})
            with pytest.raises(InvalidQueryError, match=name):
                filled.runs(**{name: number})
            with pytest.raises(InvalidQueryError, match=name):
                asyncio.run(repo.sessions(**{name: number}))
        with pytest.raises(InvalidQueryError, match="k is"):
            filled.search("find", number)

    # Ids

    @pytest.mark.parametrize("value", NO_IDS, ids=repr)
    def test_an_id_is_a_text_or_a_uuid(self, filled: StepMemory, value: Any) -> None:
        asked: list[Callable[[Any], Any]] = [
            filled.exist,
            filled.parents,
            filled.children,
            filled.run,
            lambda run_id: filled.score(run_id, 1.0),
        ]
        if not isinstance(value, list):
            asked += [filled.get, filled.delete]
        for call in asked:
            with pytest.raises(InvalidQueryError, match="UUID"):
                call(value)
        several = () if isinstance(value, list) else ("run_id", "user_id")
        for key in ("session_id", "program", "scope", *several):
            if value is not None and not isinstance(value, bytes):  # bytes are read as a text
                with pytest.raises(InvalidFilterError, match=key):
                    filled.find({key: value})

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: f"{text[:6]!a}-{len(text)}")
    def test_odd_names_are_names_that_nothing_has(self, filled: StepMemory, text: str) -> None:
        repo = filled.repository()
        for key in ("session_id", "run_id", "user_id", "program", "program_id", "scope", "tools"):
            assert filled.find({key: text}).steps == []
        assert len(filled.find({"exclude_run_id": text}).steps) == 40
        assert filled.find({"metadata": {text: 1}}).steps == []
        assert filled.find({"metadata": {"n": text}}).steps == []
        for ask in (filled.get, filled.parents, filled.children, filled.run):
            assert ask(text).steps == []
        assert not filled.exist(text)
        assert asyncio.run(repo.get_steps(text)) == []
        assert asyncio.run(repo.get_last_step(text)) is None
        assert asyncio.run(repo.get_step_count(text)) == 0
        assert asyncio.run(repo.delete_steps(text, 1)) == 0
        for call, args in ((repo.get_step, (1,)), (repo.fork, (1,)), (repo.attempts, ())):
            with pytest.raises(UnknownSessionError):
                told(filled, call, text, *args)
        with pytest.raises(UnknownRunError):
            filled.score(text, 1.0)

    @pytest.mark.parametrize("text", ["", "\x00", "a\x00b", "\ud800", "x" * 129], ids=ascii)
    def test_what_cannot_be_a_name_is_not_written(self, filled: StepMemory, text: str) -> None:
        repo = filled.repository()
        message = {"role": "user", "content": "hello"}
        with pytest.raises(InvalidStepError):
            asyncio.run(repo.append(text, message))
        with pytest.raises(InvalidStepError):
            asyncio.run(repo.append("s", message, idempotency_key=text))
        with pytest.raises(InvalidStepError):
            asyncio.run(repo.fork("s", 1, text))
        for field in ("run_id", "session_id", "user_id", "parent_id", "program_id", "id"):
            with pytest.raises(InvalidStepError):
                filled.add(acted(1, **{field: text}))

    def test_a_step_that_an_earlier_version_pickled_is_kept(self, filled: StepMemory) -> None:
        old = acted(1, id="old", run_id="r")
        del vars(old)["predictor"], vars(old)["signature"]
        filled.add([old, acted(2, run_id="r")])
        assert [found.predictor for found in filled.get_steps("old")] == [None]

    # Sessions

    @pytest.mark.parametrize("value", NO_IDS, ids=repr)
    def test_the_name_of_a_session_is_a_text(self, filled: StepMemory, value: Any) -> None:
        repo, message = filled.repository(), {"role": "user", "content": "hello"}
        calls: list[tuple[Any, tuple[Any, ...]]] = [
            (repo.get_steps, ()),
            (repo.get_step, (1,)),
            (repo.get_last_step, ()),
            (repo.get_step_count, ()),
            (repo.delete_steps, (1,)),
            (repo.fork, (1,)),
            (repo.branch_at, (1,)),
            (repo.adopt, (1,)),
            (repo.attempts, ()),
        ]
        for call, args in calls:
            with pytest.raises(InvalidSettingError, match="a text"):
                told(filled, call, value, *args)
        with pytest.raises(InvalidStepError, match="a text"):
            asyncio.run(repo.append(value, message))
        if value is not None:
            with pytest.raises(InvalidStepError, match="a text"):
                asyncio.run(repo.fork("s", 1, value))
            with pytest.raises(InvalidStepError, match="a text"):
                asyncio.run(repo.append("s", message, idempotency_key=value))

    @pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
    def test_a_sequence_is_a_whole_number(self, filled: StepMemory, number: Any) -> None:
        repo, message = filled.repository(), {"role": "user", "content": "hello"}
        calls = [repo.get_step, repo.delete_steps, repo.fork, repo.branch_at, repo.adopt]
        asked: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            *((lambda call=call: call("s", number)) for call in calls),
            lambda: compare_branches(repo, "s", number, number),
            lambda: repo.save_step(
                Step.model_construct(session_id="q", role="user", content="x", sequence=number)
            ),
        ]
        if number is not None:
            asked += [
                lambda: repo.get_steps("s", number),
                lambda: repo.get_steps("s", None, number),
                lambda: repo.append("s", message, expect_last=number),
                lambda: repo.commit("s", message, branch_id=number),
                lambda: repo.adopt("s", 1, expect_branch=number),
            ]
        for ask in asked:
            with pytest.raises(InvalidSettingError, match="whole number"):
                asyncio.run(ask())
        assert asyncio.run(repo.get_step_count("s")) == 3

    @pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**400, -1, 0, -(2**70)])
    def test_a_sequence_may_be_one_that_is_not_there(self, filled: StepMemory, number: int) -> None:
        repo, message = filled.repository(), {"role": "user", "content": "hello"}
        for call in (repo.get_step, repo.fork, repo.branch_at):
            if number == 0 and call is not repo.get_step:
                continue  # before the first message: an empty line
            with pytest.raises(UnknownSequenceError):
                told(filled, call, "s", number)
        assert len(asyncio.run(repo.get_steps("s", number))) == (3 if number < 1 else 0)
        assert len(asyncio.run(repo.get_steps("s", 1, number))) == (0 if number < 1 else 3)
        for ask in (
            lambda: repo.append("s", message, expect_last=number),
            lambda: repo.commit("s", message, branch_id=number),
            lambda: repo.adopt("s", number),
            lambda: compare_branches(repo, "s", number, number),
        ):
            with pytest.raises(SequenceConflictError):
                asyncio.run(ask())

    # Filters

    @pytest.mark.parametrize("keys", [101, 2_000, 20_000])
    def test_a_filter_may_ask_for_many_metadata_keys(self, filled: StepMemory, keys: int) -> None:
        wanted: dict[str, Any] = {f"k{key}": key for key in range(min(keys, 3_000))}
        found = filled.find({"metadata": wanted}).steps
        assert len(found) == 20
        assert len(filled.search("find", 40, where={"metadata": wanted})) == 20
        for name, value in (("k7", "7"), ("k7", True), ("k7", 7.5), ("other", None), ("\ud800", 1)):
            assert filled.find({"metadata": {**wanted, name: value}}).steps == []
        assert len(filled.find({"metadata": {**wanted, "k7": 7.0}}).steps) == 20
        absent = {f"a{key}": key for key in range(keys)}
        assert filled.find({"metadata": absent}).steps == []

    def test_values_of_every_kind_are_found_among_many(self, memory: StepMemory) -> None:
        values: dict[str, Any] = {f"k{key}": key for key in range(150)}
        values |= {
            "yes": True,
            "no": False,
            "nothing": None,
            "half": 0.5,
            "text": "é\n'\"",
            "one": 1,
        }
        memory.add(acted(0, metadata=values))
        assert len(memory.find({"metadata": values}).steps) == 1
        for name in ("yes", "no", "nothing", "half", "text", "one"):
            for other in (True, False, None, 0.25, "é", 2):
                if other is not values[name]:
                    assert memory.find({"metadata": {**values, name: other}}).steps == []

    @pytest.mark.parametrize("number", [*HUGE, -(2**63) - 1, float("inf"), float("nan")], ids=repr)
    def test_metadata_may_be_compared_with_any_number(
        self, filled: StepMemory, number: Any
    ) -> None:
        assert filled.find({"metadata": {"n": number}}).steps == []

    def test_a_score_is_a_number(self, filled: StepMemory) -> None:
        with pytest.raises(InvalidFilterError, match="min_score"):
            filled.find({"min_score": True})
        for value in (True, "1", None, float("nan"), 10**400, -(10**5_000)):
            with pytest.raises(InvalidStepError):
                filled.score("run1", value)  # pyright: ignore[reportArgumentType]

    def test_contexts_are_of_sessions_and_recall_any_number(self, filled: StepMemory) -> None:
        said = {"role": "user", "content": "find"}
        told(filled, filled.repository().append, "s", said)
        assert ContextBuilder(filled, k=10**30).build(session_id="s").messages
        for session_id in NO_IDS[1:]:
            with pytest.raises(InvalidSettingError, match="the id of a session"):
                ContextBuilder(filled).build(session_id=session_id)

    def test_excluding_many_runs_takes_linear_time(self, filled: StepMemory) -> None:
        """A tenth of the runs, more than one by one, against a hundred thousand."""

        def seconds(count: int) -> float:
            runs = [f"run{n}" for n in range(30)] + [f"other{n}" for n in range(count)]
            began = time.process_time()
            rest: dict[str, Any] = {"exclude_run_id": runs, "kinds": "step"}
            assert len(filled.search("find", 40, where=rest)) == 10
            more = {**rest, "tools": ["look"], "scope": "*"}
            assert len(filled.search("find", 40, where=more)) == 10
            assert len(filled.find(more).steps) == 10
            return time.process_time() - began

        filled.search("find")
        few = min(seconds(10_000) for _ in range(3))
        assert min(seconds(100_000) for _ in range(2)) < 30 * few + 0.2

    # Lineage

    def test_no_step_is_its_own_parent(self, filled: StepMemory) -> None:
        own = uuid4()
        filled.add([acted(1, id="own", parent_id="own"), acted(2, id=own, parent_id=str(own))])
        for stored in filled.get(["own", own]).steps:
            assert stored.parent_id is None
            assert stored.metadata is not None
            assert stored.metadata["repairs"] == [f"parent_id: {stored.id} cut, it led in a circle"]
            assert stored.metadata["n"]
            assert filled.parents(stored.id).steps == filled.children(stored.id).steps == []

    def test_lineages_in_a_circle_end(self, filled: StepMemory) -> None:
        filled.add([acted(1, id=f"c{n}", parent_id=f"c{(n + 1) % 3}") for n in range(3)])
        assert [step.id for step in filled.parents("c0").steps] == ["c1", "c2"]
        hits = filled.search("find", 43, expand="parents")
        assert {len(hit.context) for hit in hits} <= {0, 1, 2}
