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
# # Context and memory
#
# A conversation grows; what a language model may read does not. This notebook takes real customer
# service, one long shift of it, puts it into a session, and builds contexts of it: under budgets,
# with older steps recalled, with a summary that can be undone, for any provider. Everything comes
# with a receipt. It runs offline.

# %%
import dspy

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.testing import scripted_lm

memory = hs.StepMemory(":memory:", embedder="wordllama")

# %% [markdown]
# ## 1. What an agent did, as messages
#
# The airline runs that ship with the package: one shift of an agent, several customers, as typed
# steps. `to_messages` turns them into the messages a provider takes: a tool Action becomes a call
# and its result.

# %%
steps = [step for step in shipped_steps() if (step.metadata or {}).get("domain") == "airline"]
messages = hs.to_messages(steps)
print(len(steps), "steps,", len(messages), "messages")
for message in messages[2:6]:
    called = [call["function"]["name"] for call in message.tool_calls or []]
    print(f"{message.role:<10} {called or str(message.content)[:70]}")

# %% [markdown]
# Nothing is lost on the way: the messages become the same steps again.

# %%
hs.to_agent_steps(messages) == steps

# %% [markdown]
# ## 2. A session
#
# A session is a line of messages, numbered without a gap. It lives in the same memory as the steps.


# %%
async def store():
    repo = memory.repository()
    said = [message.to_message_dict() for message in messages]
    await repo.append("trip", hs.from_messages(said, session_id="trip"))
    return await hs.get_context_summary("trip", repo)


await store()

# %% [markdown]
# ## 3. A context under a budget
#
# The newest messages stay as they are; a call is never parted from its result. Older steps that
# matter for what is asked now are quoted as data. The receipt says what was kept, what was left out
# and why.

# %%
POLICY = "You are an airline agent. Check the policy before you change a booking."
builder = hs.ContextBuilder(memory, budget=1_500, recent=4, k=3)
context = builder.build(session_id="trip", system_prompt=POLICY, query="Which customer was silver?")
context

# %%
budgets = (600, 1_200, 2_400, 4_800, 9_600)
contexts = [
    hs.ContextBuilder(memory, budget=budget, recent=None, k=3).build(
        session_id="trip", system_prompt=POLICY
    )
    for budget in budgets
]
hs.plots.context_use(contexts)

# %% [markdown]
# The newest message always survives. A budget that cannot hold even that is an error with both
# numbers, never a silent cut.

# %%
try:
    hs.ContextBuilder(memory, budget=20).build(session_id="trip", system_prompt=POLICY)
except errors.ContextBudgetError as error:
    print(error)

# %% [markdown]
# ## 4. Histories that are not whole
#
# A crash leaves a call without its result, and providers refuse that. The context answers it with
# an error result of its own; the session stays as it is.

# %%
call = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
broken = [
    {"role": "user", "content": "Refund my ticket."},
    {"role": "assistant", "content": None, "tool_calls": [call]},
    {"role": "user", "content": "Are you still there?"},
]
repaired = hs.ContextBuilder(budget=500).build(steps=hs.from_messages(broken, session_id="broken"))
for message in repaired.messages:
    print(f"{message['role']:<10} {message.get('content') or 'calls refund'}")
print(repaired.receipt.notes)

# %% [markdown]
# The same context in Anthropic's form: system beside the messages, results inside a user's turn.

# %%
repaired.for_provider("anthropic").messages[-2:]

# %% [markdown]
# ## 5. Compaction that destroys nothing
#
# A summary is a message that names those it stands for. Appended to the session, it takes their
# place in every context; they stay where they are and can be put back.


# %%
async def compacted():
    await memory.repository().append("trip", builder.compact(session_id="trip"))


await compacted()
short = hs.ContextBuilder(memory, budget=4_800, recent=4, k=0).build(session_id="trip")
hs.plots.context_use([contexts[3], short])

# %%
summary = next(step for step in short.steps if (step.metadata or {}).get("summary_of"))
print(summary.content[:600])
print("stands for", len(short.expand(summary.id)), "messages")

# %% [markdown]
# ## 6. Past messages in a DSPy program
#
# An input field of type `hs.StepMessages` carries past messages to the model as messages: roles,
# calls and results stay what they are. It takes one of the native adapters.


# %%
class Answer(dspy.Signature):
    """Answer the customer."""

    history: hs.StepMessages = dspy.InputField()
    request: str = dspy.InputField()
    answer: str = dspy.OutputField()


model = scripted_lm([{"answer": "Your booking is being changed."}])
with dspy.context(lm=model, adapter=hs.NativeChatAdapter()):
    told = dspy.Predict(Answer)(history=hs.StepMessages.of(context), request="And now?")
print([message.role for message in model.requests[-1].messages])
told.answer

# %% [markdown]
# ## 7. Where the session's steps lie
#
# Steps recorded while somebody works in a session belong to it, and are found through it.

# %%
with hs.record(memory, session_id="trip") as run, dspy.context(lm=scripted_lm()):
    dspy.Predict("request -> category, urgent: bool")(request="Change my flight")
    dspy.ChainOfThought("category -> advice")(category="change")
run.steps

# %%
hs.plots.timeline(memory, run.id)

# %%
[step.purpose for step in memory.find({"session_id": "trip"}).steps]

# %%
memory.close()
