"""Memories to be copied: one with all that a memory can hold, and all that a user sees of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from conformance.samples import said, step

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.protocols import StoreBackend
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.prompts import LMCall
from hybridagi_steps.records.store_values import Attempt
from hybridagi_steps.stores.prompts import PromptStore

EVERY_SCOPE = StepFilter(scope="*")
QUERIES = ("weigh red apples 7", "given", "hello", "weigh others")


def store_of(memory: StepMemory) -> StoreBackend:
    """Return what a memory stores in."""
    return memory.repository().store


def some_steps(word: str, count: int, **values: Any) -> list[AgentStep]:
    """Make steps of runs of four that tell of one another."""
    return [
        step(
            run_id=f"{word}-{n // 4}",
            hop=n % 4,
            inputs={"purpose": f"weigh {word} apples {n}", "tool": f"scale{n % 3}"},
            metadata={"n": n, "nul": "a\x00b\x1a"},
            **values,
        )
        for n in range(count)
    ]


def fill(memory: StepMemory, count: int = 60) -> None:
    """Store something of every kind."""
    store, steps = store_of(memory), some_steps("red", count, user_id="ann")
    memory.add(steps)
    memory.add(some_steps("trial", 5, scope="trial"))
    memory.add(step(inputs={"purpose": "given"}, vector=[0.5] + [0.25] * (_dimension(memory) - 1)))
    for name, user in (("talk", "ann"), ("chat \x1a", None), ("quiet", "bob")):
        store.commit(name, said(6), some_steps(name[0], 2), idempotency_key="once", user_id=user)
    store.commit("talk", [], idempotency_key="nothing")
    memory.add(some_steps("next", 2, session_id="talk"))
    fork = store.fork("talk", 3, "fork", user_id="ann")
    store.commit(fork, said(2), some_steps("forked", 2))
    store.fork(fork, 4, "fork of fork")
    for sequence in (2, 4, 4):
        branch = store.branch_at("talk", sequence)
        store.commit("talk", said(3), some_steps("retried", 2), branch_id=branch)
        store.adopt("talk", branch)
    store.branch_at("talk", 1, "under way")
    store.hide_from("quiet", 5)
    memory.score("red-1", 0.75, "good \x00")
    memory.score_steps({str(steps[7].id): 0.25})
    changed = steps[9].model_copy(update={"inputs": {"purpose": "weigh others"}})
    memory.update(changed)
    memory.delete([str(steps[11].id)])
    memory.revoke({"run_id": "red-3"}, reason="not ours")
    memory.reinstate(str(memory.revoke({"run_id": "red-4"}).id))
    calls = [
        LMCall(lm="m", messages=[{"role": "user", "content": "word " * 900}], completion="yes")
    ]
    memory.keep_prompts({str(each.id): calls for each in steps[:3]})


def _dimension(memory: StepMemory) -> int:
    return int(memory.embedder.dimension)


def everything(memory: StepMemory) -> dict[str, Any]:
    """Return all that a user sees, in the order it is seen in; numbers of branches aside."""
    store = store_of(memory)
    assert isinstance(store, PromptStore)
    ids = [str(each.id) for each in store.iter_steps(EVERY_SCOPE)]
    sessions = store.sessions(limit=1000)
    names = [each.session_id for each in sessions]
    runs = {each.run_id for each in memory.iter_steps() if each.run_id is not None}
    hidden = store.hidden_rows()
    return {
        "steps": [each.model_dump() for each in memory.get_steps(ids, vectors=True)],
        "scores": memory.run_scores(runs),
        "revocations": list(map(asdict, memory.revocations())),
        "hidden": [_ids_of(store, rows.tolist()) for rows in (hidden.abandoned, hidden.revoked)],
        "sessions": [
            {**asdict(each), "branch_id": None, "owner": store.session_owner(each.session_id)}
            for each in sessions
        ],
        "messages": {name: [m.model_dump() for m in store.messages(name)] for name in names},
        "attempts": {
            name: [_seen(store, name, each) for each in store.attempts(name)] for name in names
        },
        "pinned": {name: store.pinned_steps(name) for name in names},
        "prompts": {name: list(memory.prompt_of(name)) for name in store.prompted_steps()},
        "answers": [_answers(memory, query) for query in QUERIES],
    }


def _ids_of(store: StoreBackend, rows: list[int]) -> list[str]:
    return [str(each.id) for _, each in sorted(store.read(rows).items())]


def _seen(store: StoreBackend, session_id: str, attempt: Attempt) -> dict[str, Any]:
    messages = store.messages(session_id, branch_id=attempt.branch_id)
    seen = {**asdict(attempt), "ids": [each.id for each in messages]}
    del seen["branch_id"]
    return seen


def _answers(memory: StepMemory, query: str) -> list[tuple[str, float]]:
    memory.search(query, 1)
    with memory.searcher.exactly():  # codes of two indexes differ where they were made apart
        hits = memory.search(query, 10, where={"scope": "*"})
    return [(str(hit.step.id), round(hit.score, 6)) for hit in hits]
