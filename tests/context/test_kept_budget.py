"""The budget of a context is kept in tokens of cl100k_base, whoever counts."""

from __future__ import annotations

from itertools import groupby

import pytest

from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.token_counters import MessageCounter, is_estimate, token_counter


@pytest.mark.parametrize("counter", ["auto", "estimate"])
@pytest.mark.parametrize("budget", [1_000, 4_000])
def test_no_real_run_exceeds_the_budget_by_more_than_one_percent(
    real_steps: list[AgentStep], counter: str, budget: int
) -> None:
    exact = token_counter("auto")
    if is_estimate(exact):
        pytest.skip("no vocabulary on this machine")
    assert exact.counter_id == "tiktoken:cl100k_base"
    count, full = MessageCounter(exact), 0
    builder = ContextBuilder(budget=budget, counter=counter)
    for run_id, steps in groupby(real_steps, key=lambda step: step.run_id):
        context = builder.build(steps=[*steps])
        tokens = sum(map(count.message, context.messages))
        assert tokens <= 1.01 * budget, (run_id, tokens)
        assert context.receipt.counter_id == builder.counter.counter_id
        full += tokens > 0.5 * budget
    assert full >= 10, "of runs that fill it"
