"""What every store promises that keeps prompts: stored once, read whole, gone with their steps."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.samples import NASTY, SessionStepStore, message, step
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.stores.prompts import Prompt, PromptStore, calls_of_prompt, prompt_of_calls

SYSTEM = {"role": "system", "content": "You are kind.\n" * 400}


def asked(*questions: str, **more: Any) -> LMCall:
    """A call behind a long system message."""
    said = [{"role": "user", "content": question} for question in questions]
    return LMCall(lm="scripted/x", messages=[SYSTEM, *said], completion=["yes"], **more)


def keep(store: Any, **calls: LMCall) -> dict[str, Prompt]:
    """Keep one call for each step."""
    prompts = {name: prompt_of_calls([call]) for name, call in calls.items()}
    store.keep_prompts(prompts)
    return prompts


def kept(store: Any, *names: str) -> dict[str, list[LMCall]]:
    """What is read of some steps."""
    return {name: calls_of_prompt(each) for name, each in store.prompts_of([*names]).items()}


def ids_of(store: Any) -> list[str]:
    """The steps that have a prompt."""
    return store.prompted_steps()


def forget(store: Any, *names: str) -> None:
    """Forget the prompts of some steps."""
    store.forget_prompts([*names])


class PromptContract:
    """`keep_prompts`, `prompts_of`, `forget_prompts`, and what takes a step's prompt along."""

    def parts(self, store: Any) -> int:
        """How many parts are stored."""
        with store._db.reading() as connection:  # pyright: ignore[reportPrivateUsage]
            count = "SELECT count(*) FROM prompt_part WHERE namespace = ?"
            return connection.execute(count, (store._namespace,)).fetchone()[0]  # pyright: ignore[reportPrivateUsage]

    def test_what_is_kept_is_read(self, store: SessionStepStore) -> None:
        assert isinstance(store, PromptStore)
        store.append([step(id="a"), step(id="b")])
        tools = [{"type": "function", "function": {"name": "f", "description": "é" * 5_000}}]
        call = asked(*NASTY, "z\n" * 9_000, tools=tools, settings={"temperature": 0.5})
        failed = LMCall(lm=None, messages=[{"role": "user", "content": None}], error="E: no")
        store.keep_prompts({"a": prompt_of_calls([call, failed])})
        assert kept(store, "a", "b", "nobody") == {"a": [call, failed]}
        assert ids_of(store) == ["a"]
        assert store.verify() == []

    def test_a_shared_beginning_is_stored_once(self, store: SessionStepStore) -> None:
        store.append([step(id=str(n)) for n in range(20)])
        turns = ["\n".join(f"turn {k}: {'word ' * 300}" for k in range(n)) for n in range(20)]
        keep(store, **{str(n): asked(turn) for n, turn in enumerate(turns)})
        before = self.parts(store)
        whole = {part for n in range(20) for part in prompt_of_calls([asked(turns[n])]).parts}
        assert before == len(whole)
        assert sum(map(len, turns)) > 8 * sum(len(turn) for turn in turns[-1:])
        assert before < 70, "each turn adds a few parts, not all of those before it again"
        assert kept(store, "19")["19"] == [asked(turns[19])]

    def test_a_prompt_goes_with_its_step(self, store: SessionStepStore) -> None:
        store.append([step(id="a"), step(id="b")])
        keep(store, a=asked("own words of a"), b=asked("own words of b"))
        shared = self.parts(store)
        assert store.delete(["a"]) == 1
        assert self.parts(store) == shared - 1
        assert kept(store, "a", "b") == {"b": [asked("own words of b")]}
        store.delete(["b"])
        assert self.parts(store) == 0
        assert ids_of(store) == []
        assert store.verify() == []

    def test_runs_are_known_inside_each_other(self, store: SessionStepStore) -> None:
        assert isinstance(store, PromptStore)
        outer = {"b": "a", "c": "b", "d": None, "e": "x"}
        for run, parent in outer.items():
            store.commit(f"session {run}", [message("said", run_id=run, parent_run_id=parent)])
        assert store.runs_inside({"a"}) == {"a", "b", "c"}
        assert store.runs_inside({"d"}) == {"d"}
        assert store.runs_inside(set()) == set()

    def test_two_that_say_the_same_go_one_by_one(self, store: SessionStepStore) -> None:
        store.append([step(id="a"), step(id="b")])
        keep(store, a=asked("same"), b=asked("same"))
        store.delete(["a"])
        assert kept(store, "b") == {"b": [asked("same")]}
        store.delete(["b"])
        assert self.parts(store) == 0

    def test_a_step_that_is_not_there_gets_none(self, store: SessionStepStore) -> None:
        keep(store, gone=asked("never stored"))
        assert (kept(store, "gone"), self.parts(store)) == ({}, 0)

    def test_it_stays_as_long_as_the_step_says_the_same(self, store: SessionStepStore) -> None:
        store.append([step(id="a", inputs={"x": "old"})])
        keep(store, a=asked("q"))
        store.append([step(id="a", inputs={"x": "old"}, scope="apart")], replace=True)
        assert kept(store, "a") == {"a": [asked("q")]}
        store.append([step(id="a", inputs={"x": "cleaned by hand"}, scope="apart")], replace=True)
        assert (kept(store, "a"), self.parts(store)) == ({}, 0)

    def test_what_is_kept_again_takes_the_place(self, store: SessionStepStore) -> None:
        store.append([step(id="a")])
        keep(store, a=asked("first"))
        parts = self.parts(store)
        keep(store, a=asked("second"))
        assert kept(store, "a") == {"a": [asked("second")]}
        assert self.parts(store) == parts

    def test_forgetting_and_clearing(
        self, store: SessionStepStore, other: SessionStepStore
    ) -> None:
        for each in (store, other):
            each.append([step(id="a")])
            keep(each, a=asked("q"))
        forget(store, "a", "nobody")
        assert (kept(store, "a"), kept(other, "a")) == ({}, {"a": [asked("q")]})
        keep(store, a=asked("q"))
        store.clear()
        assert (kept(store, "a"), kept(other, "a")) == ({}, {"a": [asked("q")]})

    def test_a_deleted_session_takes_them_along(self, store: SessionStepStore) -> None:
        store.commit("s", [message("hello")], [step(id="a", session_id="s")])
        keep(store, a=asked("q"))
        store.delete_session("s")
        assert self.parts(store) == 0
        assert store.verify() == []

    @pytest.mark.parametrize("table", ["prompt", "prompt_part"])
    def test_damage_is_found(self, store: SessionStepStore, table: str) -> None:
        from hybridagi_steps.errors import DamagedFileError

        store.append([step(id="a")])
        keep(store, a=asked("q"))
        with store._db.writing() as connection:  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
            [blob] = connection.execute(f"SELECT body FROM {table} LIMIT 1").fetchone()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            changed = bytes(blob)[:-1] + b"?"  # pyright: ignore[reportUnknownArgumentType]
            connection.execute(f"UPDATE {table} SET body = ? WHERE body = ?", (changed, blob))  # pyright: ignore[reportUnknownMemberType]
        with pytest.raises(DamagedFileError, match="the prompt of step 'a'"):
            kept(store, "a")
        assert any("a prompt, or a part of one" in line for line in store.verify())
        store.append([step(id="b")])
        keep(store, b=asked("q"))
        assert kept(store, "b") == {"b": [asked("q")]}, "a damaged part is not shared"
        [before] = store.get(["a"])
        store.append([before.model_copy(update={"scope": "apart"})], replace=True)
        store.forget_prompts(["a"])  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        assert store.verify() == []
