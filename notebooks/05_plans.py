# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Plans
#
# A requirement is cut into small steps. Each step sees what it needs and nothing else; steps that
# do not need each other run side by side; a failure stops only what depends on it; every token is
# counted. The notebook runs a real task on a small repository, with tests that were written before
# the plan. It runs offline: the model replays answers that were written by hand.

# %%
import tempfile
from pathlib import Path

from matplotlib.figure import Figure

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.planning.example_tasks import replaying_lm, task, tasks
from hybridagi_steps.planning.worker import Finished
from hybridagi_steps.workspace.workspace import Workspace

memory = hs.StepMemory(":memory:", embedder="wordllama")
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1. A requirement becomes a plan
#
# The planner writes a text that people can read, too. It is parsed and checked before anything
# runs: unknown dependencies, circles and artifacts that nobody makes are refused by name.

# %%
bug = task("fix_pagination")
print(bug.requirement)

# %%
bug.copy_workspace(folder / "paging")
workspace = Workspace(folder / "paging", commands=bug.commands, state=folder / "state")
orchestrator = hs.Orchestrator(workspace=workspace, memory=memory, lm=replaying_lm(bug))
plan = orchestrator.make_plan(bug.requirement)
plan

# %%
try:
    hs.Plan.parse("PLAN: x\nSTEP: a\nGOAL: g\nDEPENDENCIES: b\nSTEP: b\nGOAL: g\nDEPENDENCIES: a")
except errors.InvalidPlanError as error:
    print(error)

# %% [markdown]
# ## 2. Run it
#
# Before: the acceptance test fails. The orchestrator makes the plan, gives each step a copy of the
# workspace, and merges what a step changed when it has succeeded.

# %%
print("accepted before:", bug.accept(workspace.root).exit_code == 0)
result = orchestrator.run(requirements=bug.requirement)
print("accepted after: ", bug.accept(workspace.root).exit_code == 0)
print(result)

# %%
result

# %% [markdown]
# What a step was told, whole: the requirement, its goal, what earlier steps handed on, its files.

# %%
call = next(call for call in result.token_usage.calls if call.part == "fix_pages")
print(call.messages[1]["content"])

# %% [markdown]
# ## 3. What memory knows of it
#
# A plan is a program like any other: it can be searched, shown as a tree, and drawn as a waterfall.

# %%
memory.run(result.run_id)

# %%
hs.plots.timeline(memory, result.run_id)

# %%
for hit in memory.search("pages get lost at the end", k=3):
    print(f"{hit.score:.2f}  {hit.step.step_type:<12} {str(hit.step.inputs)[:80]}")

# %% [markdown]
# ## 4. What it saves
#
# All six tasks that ship with the library, each checked by its acceptance test. The same answers
# are counted three times: with the full history in every prompt, with its last messages, and as
# they were. The full history is spared what it would hold twice, and needs no planning.

# %%
compared = {}
for each in tasks():
    place = folder / each.name
    each.copy_workspace(place)
    own = Workspace(place, commands=each.commands, state=folder / f"{each.name}.state")
    done = hs.Orchestrator(workspace=own, lm=replaying_lm(each)).run(each.requirement)
    compared[each.name] = done.comparison
    accepted = each.accept(place).exit_code == 0
    print(f"{each.name:<20} accepted {accepted}, saving {done.comparison.saving:.0%}")

# %%
figure = Figure(figsize=(9, 3.6), layout="constrained")
axes = figure.subplots()
rivals = {"full_history": "full history", "last_messages": "last 6", "ours": "small steps"}
for number, (key, label) in enumerate(rivals.items()):
    heights = [getattr(found, key) for found in compared.values()]
    axes.bar([n + 0.27 * number for n in range(len(heights))], heights, 0.25, label=label)
axes.set_xticks([n + 0.27 for n in range(len(compared))], [n.replace("_", "\n") for n in compared])
axes.set_ylabel("tokens of the whole plan (replay)")
axes.legend()
figure

# %% [markdown]
# ## 5. When steps fail
#
# A function may carry steps out in place of a model. Here one step cannot be done: what depends on
# it is skipped, the rest is done, and the workspace holds nothing of the failed step.


# %%
async def execute(work, place):
    if work.step.id == "fix_pages":
        place.write("half.txt", "half done")
        raise errors.ArtifactError("the bug is somewhere else")
    return Finished(summary="done", artifacts=dict.fromkeys(work.step.artifacts, "x"))


careful = hs.Orchestrator(executor=execute, workspace=workspace, memory=memory, max_replans=0)
failed = careful.run(requirements=bug.requirement, plan=plan)
print(failed)
print("half.txt is there:", workspace.exists("half.txt"))

# %%
failed

# %%
hs.plots.outcomes(memory)

# %% [markdown]
# ## 6. Learn from what worked
#
# A planner with a memory is shown the most similar plan that has succeeded.

# %%
from hybridagi_steps.planning.generator import similar_plan

print(similar_plan(memory, "The listing loses its last page")[:300])
