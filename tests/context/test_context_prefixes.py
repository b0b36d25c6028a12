"""Every context is one that a strict provider accepts: all prefixes of all real runs, and wrecks.

The budgets are small, middling and ample; where system prompt and newest unit do not fit, and only
there, the builder refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provider_double import check_anthropic, check_openai

from hybridagi_steps.context import Context, ContextBuilder
from hybridagi_steps.errors import ContextBudgetError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.messages import from_messages, message_units, to_messages, to_provider
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.token_counters import EstimatingCounter, MessageCounter

SYSTEM = "You are a helpful agent. Follow the policy."
BUDGETS = (500, 2_000, 8_000)
COUNTER = MessageCounter(EstimatingCounter())


def least(steps: list[Step]) -> int:
    """Return what system prompt and newest unit cost, counted from what goes out."""
    newest = message_units(steps).units[-1]
    sent = to_provider(newest.messages, system=SYSTEM)
    if newest.messages[0].role is not MessageRole.USER:
        sent.append({"role": "user", "content": "Continue."})
    return sum(map(COUNTER.message, sent))


def checked(context: Context, budget: int) -> None:
    check_openai(context.messages)
    check_anthropic(*context.for_provider("anthropic"))
    assert sum(map(COUNTER.message, context.messages)) == context.receipt.tokens <= budget


def contexts_of(steps: list[Step], given: list[Step] | list[AgentStep]) -> Iterator[int]:
    """Check the contexts of a history at every budget; yield 1 for each that was refused."""
    for budget in BUDGETS:
        builder = ContextBuilder(budget=budget, counter="estimate")
        needed = least(steps)
        if needed > budget:
            with pytest.raises(ContextBudgetError) as refused:
                builder.build(steps=given, system_prompt=SYSTEM)
            assert (refused.value.needed, refused.value.budget) == (needed, budget)
            yield 1
            continue
        context = builder.build(steps=given, system_prompt=SYSTEM)
        newest = to_provider(message_units(steps).units[-1].messages)
        assert context.messages[-len(newest) :] == newest
        checked(context, budget)


def test_every_prefix_of_every_shipped_run(real_steps: list[AgentStep]) -> None:
    runs: dict[str, list[AgentStep]] = {}
    prefixes = refused = 0
    for step in real_steps:
        run = runs.setdefault(str(step.run_id), [])
        run.append(step)
        refused += sum(contexts_of(to_messages(run, carry=False), run))
        prefixes += 1
    assert (len(runs), prefixes) == (138, 848)
    assert 0 < refused < prefixes


def test_every_prefix_of_the_native_messages_of_every_shipped_run(
    real_steps: list[AgentStep],
) -> None:
    sessions: dict[str, list[Step]] = {}
    for step in real_steps:
        native = (step.model_extra or {})["messages"]
        session = sessions.setdefault(str(step.run_id), [])
        # The ids of one run repeat from step to step; as one list they become unique.
        known = [s.to_message_dict() for s in session]
        session[:] = [*session, *from_messages([*known, *native])[len(session) :]]
    assert len(sessions) == 138
    for session in sessions.values():
        for end in range(1, len(session) + 1):
            refused = sum(contexts_of(session[:end], session[:end]))
            assert refused <= len(BUDGETS)


@cache
def conversations() -> list[list[Step]]:
    """The shipped runs as messages; no fixture, whose value a failing test would print."""
    runs: dict[str, list[AgentStep]] = {}
    for step in shipped_steps():
        runs.setdefault(str(step.run_id), []).append(step)
    return [to_messages(run, carry=False) for run in runs.values()]


@settings(max_examples=250, deadline=None)
@given(
    one=st.integers(0, 137),
    start=st.integers(0, 100),
    length=st.integers(1, 30),
    missing=st.sets(st.integers(0, 29), max_size=8),
    other=st.integers(0, 137),
    inserted=st.lists(st.integers(0, 30), max_size=12),
    doubled=st.booleans(),
)
def test_wrecked_histories(
    one: int,
    start: int,
    length: int,
    missing: set[int],
    other: int,
    inserted: list[int],
    doubled: bool,
) -> None:
    """Real conversations, cut at both ends, thinned out, interleaved with another, doubled."""
    whole = conversations()[one]
    cut = whole[start % len(whole) :][:length]
    history = [step for place, step in enumerate(cut) if place not in missing]
    for place, step in zip(inserted, conversations()[other], strict=False):
        history.insert(place, step)
    history += history[-2:] if doubled else []
    if history:
        refused = sum(contexts_of(history, history))
        assert refused <= len(BUDGETS)
