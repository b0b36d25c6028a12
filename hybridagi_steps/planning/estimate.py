"""Estimate: what a plan will cost beside one conversation, before any of its steps is begun.

The prompts are made as they will be, of the files as they are now; what models and tools will say
is taken to be as long as in the tasks that ship with the library. Chooses the files that prompts
begin with, too, since that is known at the same moment and for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.planning.comparison import Comparison, compare
from hybridagi_steps.planning.executor import StepExecutor
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.planning.step_prompts import make_brief, shared_files, shared_text
from hybridagi_steps.planning.usage import LMCall
from hybridagi_steps.workspace.workspace import Workspace

TURNS = 2
"""Answers of the model for a step, the one that ends it included."""
_ANSWER_TOKENS, _RESULT_TOKENS, _ARTIFACT_TOKENS = 170, 50, 30
"""Medians of the six tasks, rounded."""
_WORD = "word "
"""About one token with every counter."""


def files_to_share(
    executor: StepExecutor, requirement: str, plan: Plan, workspace: Workspace | None
) -> dict[str, str]:
    """Return the files with which the prompts of all steps begin, so that a cache keeps them."""
    if workspace is None or len(plan.steps) < 2:
        return {}
    told = [executor.work.signature.instructions, shared_text(requirement, {})]
    known = [json.dumps(executor.schemas(workspace)), *told]
    missing = executor.cache_minimum - sum(map(executor.counter.count, known))
    named = [path for step in plan.steps for path in dict.fromkeys(step.files)]
    return shared_files(named, workspace, executor.counter, missing)


def estimated(
    executor: StepExecutor,
    requirement: str,
    plan: Plan,
    workspace: Workspace | None,
    *,
    shared: Mapping[str, str],
    spent: Sequence[LMCall] = (),
) -> Comparison:
    """Return what a plan will cost; `spent` are calls that were made for it already."""
    system = "\n\n".join([executor.work.signature.instructions, shared_text(requirement, shared)])
    schemas, calls = executor.schemas(workspace), list(spent)
    for step in plan.steps:
        makers = (plan.step(name) for name in step.dependencies)
        seen = {f"{m.id}.{n}": _WORD * _ARTIFACT_TOKENS for m in makers for n in m.artifacts}
        try:
            brief = make_brief(step, seen, workspace, counter=executor.counter, shared=shared)
        except WorkspaceError:  # a step before it makes the file, or it will fail
            unread = step.model_copy(update={"files": []})
            brief = make_brief(unread, seen, workspace, counter=executor.counter)
        messages = [_message("system", system), _message("user", brief.text)]
        for _ in range(TURNS):
            answer = _message("assistant", _WORD * _ANSWER_TOKENS)
            call = LMCall(part=step.id, messages=messages, tools=schemas, answer=answer)
            call.fresh, call.files = brief.rest, {**shared, **brief.files}
            calls.append(call)
            messages = [*messages, answer, _message("tool", _WORD * _RESULT_TOKENS)]
    order = [step.id for step in plan.steps]
    return compare(calls, order, executor.counter).model_copy(update={"kind": "estimate"})


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
