"""A language model that replays the turns of a shipped task, whichever step asks first.

Steps of a plan run side by side, so what a model is asked next is not known. This one reads from
the prompt which step is being worked on and which turn it is at, and answers with that turn. It
answers a request for a plan with the task's plan.
"""

from __future__ import annotations

import re
from typing import Any

from hybridagi_steps.planning.example_tasks import Task
from hybridagi_steps.testing import Reply, ScriptedLM, ToolCall

_STEP = re.compile(r"^# Step (\S+) \(", re.MULTILINE)


def replaying_lm(task: Task, **options: Any) -> ScriptedLM:
    """Return a model that carries out a task's plan as it was written down.

    Args:
        task: The task.
        options: What `ScriptedLM` takes.
    """
    turns: dict[str, list[Reply]] = {}
    for turn in task.replay():
        calls = [ToolCall(call.name, call.arguments, call.id) for call in turn.calls]
        said = turn.message.get("content")
        turns.setdefault(turn.step, []).append([*([said] if said else []), *calls])

    def answer(request: Any) -> Reply:
        brief = next((m.text or "" for m in request.messages if _STEP.search(m.text or "")), None)
        if brief is None:
            return {"plan": task.plan_text()}
        found = _STEP.search(brief)
        assert found is not None  # noqa: S101 - the brief was chosen by it
        said = sum(message.role == "assistant" for message in request.messages)
        known = turns.get(found[1], [])
        if said >= len(known):
            return IndexError(f"{task.name} has {len(known)} turns of step {found[1]}")
        return known[said]

    options.setdefault("model", f"replay/{task.name}")
    return ScriptedLM(answer, **options)
