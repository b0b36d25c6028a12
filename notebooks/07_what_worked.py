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
# # What worked
#
# A memory that knows how its runs ended can tell which of them are stuck, how the like of a step
# went before, and which steps earned the score. All of it is counted from stored steps: no model is
# asked, and the notebook runs offline. The runs are real ones that travel in the package.

# %%
import hybridagi_steps as hs
from hybridagi_steps.exchange.shipped_runs import shipped_runs, shipped_steps

memory = hs.StepMemory(":memory:", embedder="wordllama")
memory.add(shipped_steps())
for run in shipped_runs():
    ended = [run[key] for key in ("reward", "em", "win") if key in run]
    if ended:
        memory.score(run["run_id"], float(ended[0]))
memory.runs(limit=5)

# %% [markdown]
# ## 1. Runs that are stuck
#
# The same call with the same result twice, the same call three times, or a short sequence that
# follows on itself. White space and digits of results do not count: a timestamp is no progress.

# %%
stuck = memory.run("toolbench-G1-69")
for loop in hs.find_loops(stuck):
    print(loop)

# %%
hs.plots.timeline(memory, "toolbench-G1-69")

# %% [markdown]
# How much does a loop say? Of the 15 scored runs of ToolBench those with a loop fail a little more
# often, and 15 are too few to say that they do. On your own runs it is one line.

# %%
tried = [run for run in memory.runs(limit=1000) if run.run_id.startswith("toolbench")]
looped = [run for run in tried if hs.find_loops(memory.run(run.run_id))]
for name, runs in (("all", tried), ("with a loop", looped)):
    failed = sum(run.score == 0 for run in runs)
    print(f"{name}: {failed} of {len(runs)} failed")

# %% [markdown]
# In a live run `hs.LoopGuard("stop")` is a hook that ends it; `"warn"` writes a line to the log.

# %% [markdown]
# ## 2. Runs that follow a pattern
#
# Types, statuses, tools; `->` for what follows, `...` for anything between. A pattern has a grammar
# of its own, so no text of yours becomes a regular expression.

# %%
for match in hs.find_runs(memory, "respond -> get_user_details -> ... -> transfer_to_human_agents"):
    print(match.run_id, match.score, " -> ".join(str(step.tool) for step in match.steps))

# %%
for sequence in hs.common_sequences(memory, n=(2, 4))[:6]:
    print(sequence)

# %% [markdown]
# ## 3. Will it end well?
#
# For each step of a run, the nearest past steps with the same action are looked up, and the share
# of those is counted whose run ended well. What came of the step itself plays no part.

# %%
found = hs.outlook(memory, memory.run("tau-airline-47-0"))
print(found)

# %%
worst = found.lowest[0]
print(worst.step.purpose[:100], "->", worst.action)
for hit in worst.neighbours[:4]:
    print(f"  {hit.score:.2f} {hit.step.run_id}: {hit.step.purpose[:80]}")

# %% [markdown]
# So a program can ask before it acts: a step that is only planned has no outputs.

# %%
before = memory.run("tau-airline-47-0").steps[3]
for tool in ("respond", "get_reservation_details"):
    inputs = {"purpose": before.purpose, "tool": tool, "arguments": {}}
    plan = hs.AgentStep(step_type="Action", parent_id=before.id, inputs=inputs)
    print(tool, hs.outlook(memory, plan).chance)

# %% [markdown]
# ## 4. How far to trust that
#
# Each task is left out in turn. Agreement says how often the most common action in like states was
# the one taken; outlook says how often a run ended well. On the diagonal, shares are what they say.

# %%
questions = hs.StepMemory(":memory:", embedder="wordllama")
for run in shipped_runs():
    if run["domain"] == "hotpotqa":
        # The last result of these runs tells the score: a memory must not learn from that.
        steps = [step for step in memory.run(run["run_id"]).steps if step.tool != "finish"]
        questions.add([step.model_copy(update={"score": None}) for step in steps])
        questions.score(run["run_id"], float(run["em"]))
trust = hs.reliability(questions)
print(trust)

# %%
trust.plot()

# %%
print(hs.reliability(memory, limit=30))

# %% [markdown]
# On the questions of HotpotQA the outlook is better than chance; on the last 30 runs, among them
# ToolBench's, it is not. That is why it is measured before it is relied on.

# %% [markdown]
# ## 5. Feedback and credit
#
# What can be seen of a run, as text for an optimiser such as GEPA. It says what it is not.

# %%
print(hs.trajectory_feedback("toolbench-G1-69", memory=memory))

# %%
tree = "toolbench-G1-57"
for policy in ("last", "path"):
    written = hs.credit(memory, tree, policy=policy)
    print(policy, {step_id.partition(":")[2]: score for step_id, score in written.items()})

# %% [markdown]
# ## 6. Hygiene
#
# Sequences that at least three good runs made alike become a procedure, which holds what they have
# in common and nothing else. A dry run stores nothing.

# %%
for procedure in memory.consolidate():
    print(procedure)

# %%
memory.pin(str(stuck.steps[0].id))
print("would be forgotten:", memory.forget({"run_id": "toolbench-G1-69"}, dry_run=True))
