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
# # Sessions
#
# A session is a conversation: messages in order, in the same memory as the steps of the program
# that answers. This notebook talks to an agent, watches it stream, retries, forks, cancels, and
# looks at what was kept. Nothing is ever lost by any of it. It runs offline.

# %%
import dspy

import hybridagi_steps as hs
from hybridagi_steps.testing import asked_fields, plausible_reply, request_text, scripted_lm

memory = hs.StepMemory(":memory:", embedder="wordllama")
repo = memory.repository()

# %% [markdown]
# ## 1. An agent, as DSPy has them
#
# It knows nothing of sessions. The scripted model looks the order up, then answers in a mood that
# changes from call to call.


# %%
def find_order(order_id: str) -> str:
    """Find an order by its id."""
    return f"{order_id}: a kettle, 40 dollars, returned on Monday"


MOODS = iter(["Your 40 dollars are on their way.", "Good news: 40 dollars, by Friday."] * 10)


def clerk(request):
    asked, told = asked_fields(request), request_text(request)
    if "next_tool_name" in asked:
        found = "observation_0" in told
        tool, values = ("finish", {}) if found else ("find_order", {"order_id": "A17"})
        thought = "That is all I need." if found else "I look the order up."
        return {"next_thought": thought, "next_tool_name": tool, "next_tool_args": values}
    if "answer" in asked:
        return {"reasoning": "It came back on Monday.", "answer": next(MOODS)}
    return plausible_reply(request)


dspy.configure(lm=scripted_lm(clerk, delay_seconds=0.2))
agent = dspy.ReAct("question -> answer", tools=[find_order])
runner = hs.StepRunner(agent, memory)

# %% [markdown]
# ## 2. Talk, and watch it stream
#
# One run is one stream of events. Deltas are pieces of a message; `STEP_COMPLETED` carries the
# whole message as it is stored.


# %%
async def talk(session, message):
    async for event in runner.run_stream(session, message):
        if event.type is hs.StepEventType.STEP_DELTA and event.delta:
            print(event.delta.content or "", end="|")
        elif event.type is not hs.StepEventType.METRICS_SNAPSHOT:
            print(f"\n[{event.number}] {event.type}", end=" ")


await talk("kettle", "I sent order A17 back. Where is my money?")

# %% [markdown]
# The messages of the session, and the steps behind them. They were stored together, and point at
# each other.

# %%
for step in await repo.get_steps("kettle"):
    called = [call["function"]["name"] for call in step.tool_calls or []]
    print(f"{step.sequence}  {step.role:<10} {called or step.content}")

# %%
run_id = (await repo.get_last_step("kettle")).run_id
memory.run(run_id)

# %%
hs.plots.timeline(memory, run_id)

# %% [markdown]
# The next turn hears the first one by itself: its messages stand in the prompt as messages.

# %%
answer = await runner.run("kettle", "And how long does that take?")
sent = dspy.settings.lm.requests[-1].messages
print([message.role for message in sent])

# %% [markdown]
# ## 3. Regenerate the last response
#
# The old answer stays: a retry is written to a branch of its own, and the session moves there when
# the new answer is complete. If it fails, nothing has changed.

# %%
steps = await repo.get_steps("kettle")
asked = next(step for step in reversed(steps) if step.is_user_step())
async for _ in hs.retry_from_sequence("kettle", asked.sequence, repo, runner):
    pass
for attempt in await repo.attempts("kettle"):
    print(attempt.reason, "after", attempt.forked_at, "- current" if attempt.current else "")

# %%
old, new = await repo.attempts("kettle")
compared = await hs.compare_branches(repo, "kettle", old.branch_id, new.branch_id)
print("shared:", compared.shared)
print("old:", compared.left.text[-60:])
print("new:", compared.right.text[-60:])

# %% [markdown]
# ## 4. Branch a conversation
#
# A fork shares what was said and costs one row, however long the session is.

# %%
other = await hs.fork_session("kettle", 1, repo)
await runner.run(other, "Rather send me a new kettle.")
print("kettle:", await repo.get_step_count("kettle"), "messages")
print("fork:  ", await repo.get_step_count(other), "messages")
print("after the first message:", [step.content for step in await repo.get_steps(other, 2, 2)])

# %% [markdown]
# A fork finds the steps of its ancestors, and none of its siblings.

# %%
found = memory.search("new kettle", where={"session_id": other}, k=3)
siblings = memory.search("new kettle", where={"session_id": "kettle"}, k=3)
print(any("new kettle" in str(hit.step.inputs) for hit in found))
print(any("new kettle" in str(hit.step.inputs) for hit in siblings))

# %% [markdown]
# ## 5. Limits, consent, cancellation
#
# A run that did not complete is never recorded as completed, and says why it ended.

# %%
strict = hs.StepRunnerConfig(consent=lambda request: request.tool != "find_order")
async for event in hs.StepRunner(agent, memory, config=strict).run_stream("strict", "A17?"):
    if event.type in (hs.StepEventType.TOOL_AUTH_DENIED, hs.StepEventType.RUN_FAILED):
        print(event.type, event.data)

# %%
short = hs.StepRunner(agent, memory, config=hs.StepRunnerConfig(max_steps=1))
async for event in short.run_stream("short", "Where is the money for A17?"):
    last = event
print(last.type, last.data["termination_reason"])

# %%
async for event in runner.run_stream("stopped", "Where is the money for A17?"):
    if event.type is hs.StepEventType.STEP_DELTA:
        await runner.cancel(event.run_id)
partial = await repo.get_last_step("stopped")
print(event.type, "- the last message:", partial.role, partial.metadata)

# %% [markdown]
# ## 6. What a model would read next
#
# The context of a session, under three budgets.

# %%
budgets = (200, 400, 2_000)
contexts = [hs.ContextBuilder(memory, budget=size).build(session_id="kettle") for size in budgets]
hs.plots.context_use(contexts)

# %%
contexts[1]

# %%
memory.close()

# %% [markdown]
# `hybridagi-steps serve --db steps.db --program package.module:name` puts all of this behind an
# HTTP service with a page.
