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
# # Record and search
#
# A DSPy program forgets everything when it returns. With `hybridagi_steps` each program call, tool
# call, prediction and decision becomes a *step* that stays, and that any later program can find.
#
# This notebook records an agent, looks at what it did, searches among several hundred real steps
# of other agents, and hands what it finds to a prompt. It runs offline: the model answers from a
# script. With your own model, write `dspy.configure(lm=dspy.LM("openai/…"))` instead.

# %%
import dspy

import hybridagi_steps as hs
from hybridagi_steps.testing import request_text, scripted_lm

# %% [markdown]
# A memory is one SQLite file. Here `":memory:"` keeps it in this process, so that nothing is left
# behind; `hs.StepMemory("steps.db")` would make it durable.

# %%
memory = hs.StepMemory(":memory:", embedder="wordllama")

# %% [markdown]
# ## 1. Record an agent
#
# A travel desk with two tools. Nothing in it knows about the memory.

# %%
BOOKINGS = {"HAT042": {"flight": "Boston to Seattle", "status": "cancelled", "paid": 120}}


def find_booking(code: str) -> dict:
    """Look up a booking by its code."""
    return BOOKINGS[code]


def refund(code: str, dollars: int) -> str:
    """Refund a booking."""
    return f"{dollars} dollars for {code} go back to the card"


class TravelDesk(dspy.Module):
    def __init__(self):
        super().__init__()
        self.agent = dspy.ReAct("request -> answer", tools=[find_booking, refund])
        self.close_case = dspy.Predict("request, answer -> solved: bool")

    def forward(self, request):
        answer = self.agent(request=request).answer
        return self.close_case(request=request, answer=answer)


# %% [markdown]
# The script of the model: it mistypes the code once, corrects itself, and pays. Each reply takes a
# quarter of a second, as if somebody were thinking.

# %%
model = scripted_lm(
    [
        {
            "next_thought": "Find the booking of the customer.",
            "next_tool_name": "find_booking",
            "next_tool_args": {"code": "HAT024"},
        },
        {
            "next_thought": "No such booking: two digits were swapped.",
            "next_tool_name": "find_booking",
            "next_tool_args": {"code": "HAT042"},
        },
        {
            "next_thought": "The airline cancelled this flight, so the fare goes back.",
            "next_tool_name": "refund",
            "next_tool_args": {"code": "HAT042", "dollars": 120},
        },
        {"next_thought": "Done.", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "Refunded.", "answer": "Your 120 dollars are on their way."},
        {"solved": True},
    ],
    delay_seconds=0.25,
)

# %% [markdown]
# `hs.record` is all it takes. Whatever runs in the block is recorded as one run; errors of the
# program pass through, errors of the recording never reach the program.

# %%
with dspy.context(lm=model), hs.record(memory, session_id="notebook") as run:
    TravelDesk()(request="My flight HAT042 was cancelled. I want my money back.")

print(len(run.steps.steps), "steps;", "recording errors:", run.errors)

# %% [markdown]
# ## 2. Look at it
#
# Steps show themselves as a tree: what a program did stands inside the program. Open a row to see
# inputs, outputs, tokens and time.

# %%
run.steps

# %% [markdown]
# The same run over time. The failed look-up is hatched; the thin bars are programs.

# %%
hs.plots.timeline(memory, run.id)

# %% [markdown]
# A run can be scored. Its steps show the score from then on, and searches can ask for it.

# %%
run.score(1.0, feedback="the customer was happy")

# %% [markdown]
# ## 3. A past worth searching
#
# The package ships real recorded runs of other agents: airline service, multi-hop questions, APIs,
# software. Adding them is one call; embedding happens at the first search.

# %%
from hybridagi_steps.exchange.shipped_runs import shipped_steps

memory.add(shipped_steps())
f"{memory.stats()['steps']:,} steps in {memory.stats()['runs']:,} runs"

# %% [markdown]
# ## 4. Search
#
# By **meaning**: nobody in these runs has to have said "luggage".


# %%
def show(hits):
    for hit in hits:
        step = hit.step
        about = step.purpose or step.program
        print(f"{hit.score:.2f}  {step.tool or step.step_type:<24}  {about[:80]}")


show(memory.search("how much luggage may a passenger bring", k=3, mode="dense"))

# %% [markdown]
# By **words**: exact names, codes and numbers.

# %%
show(memory.search("HAT042", k=3, mode="lexical"))

# %% [markdown]
# By both, which is the default. A hit says why it matched and carries the whole step.

# %%
hits = memory.search("give the money back for a cancelled flight", k=5)
hits[0]

# %% [markdown]
# **Filters** work inside the search, so that `k` hits are `k` hits. A misspelt key is an error, not
# an empty result.

# %%
where = {"tools": ["send_certificate", "refund"], "status": "ok"}
show(memory.search("compensation", k=3, where=where))

# %%
show(memory.search("solve the case of a customer", k=3, where={"min_score": 1.0}))

# %% [markdown]
# **More like this**: a step is a query, too. Here, what others did that resembles our refund.

# %%
refunded = next(step for step in run.steps.steps if step.tool == "refund")
show(memory.search(refunded, k=3, where={"exclude_run_id": [run.id]}))

# %% [markdown]
# **Expand**: what came after a hit is often what one wants to know. Unfold "around it" below.

# %%
memory.search("look up the reservation of a customer", k=1, expand="following")[0]

# %% [markdown]
# ## 5. Rerank
#
# Rerankers reorder hits: by outcome, by age, by difference from each other, by a model. This one
# trades likeness to the question for variety: compare the two lists.

# %%
question = "search for the director of a film"
found = memory.search(question, k=20)
show(found[:4])

# %%
show(hs.rerankers.MaximalMarginalRelevance(0.4).rerank(question, found)[:4])

# %% [markdown]
# ## 6. Past steps in a program
#
# A retriever is a DSPy module, and past steps are an input field of type `hs.StepContext`. The run
# that is being recorded is never part of what it recalls.


# %%
class Advice(dspy.Signature):
    """Advise a colleague, using past steps where they help."""

    question: str = dspy.InputField()
    past: hs.StepContext = dspy.InputField()
    advice: str = dspy.OutputField()


class Colleague(dspy.Module):
    def __init__(self, memory):
        super().__init__()
        self.recall = hs.StepRetriever(memory, k=2, reranker=hs.rerankers.Outcome())
        self.advise = dspy.Predict(Advice)

    def forward(self, question):
        return self.advise(question=question, past=self.recall(question).as_context())


# %%
adviser = scripted_lm([{"advice": "Refund the fare: the airline cancelled, as for HAT042."}])
with dspy.context(lm=adviser), hs.record(memory, session_id="notebook") as second:
    told = Colleague(memory)(question="A flight was cancelled by the airline. What is due?")
told.advice

# %% [markdown]
# This is what the model was asked. The steps are text between marks, and never vectors.

# %%
print(request_text(adviser.requests[-1]))

# %% [markdown]
# ## 7. The whole memory
#
# A map: each point is a step, placed by the meaning of its text. Programs of one kind lie together.


# %%
def origin(step):
    return (step.metadata or {}).get("domain", "this notebook")


hs.plots.embedding_map(memory, color_by=origin)

# %% [markdown]
# And what the tools were used for, with how it ended.

# %%
hs.plots.outcomes(memory, {"session_id": "notebook"})

# %%
stats = memory.stats()
{key: stats[key] for key in ("steps", "runs", "embedded", "text_only", "dimension")}

# %%
memory.close()

# %% [markdown]
# ## Where to go from here
#
# * `hybridagi-steps demo` shows the same on the command line.
# * `hs.Recorded(program, memory)` records a program wherever DSPy copies, streams or optimises it.
# * The documentation has a page on each part: `sphinx-build -W .github/docs build/docs`.
