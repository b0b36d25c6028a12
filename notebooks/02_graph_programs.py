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
# # Graph programs
#
# A graph program says what an agent does, as a graph: an *Action* uses a tool, a *Decision* asks a
# question and goes the way of the answer. The language model fills in the steps; which step comes
# next is yours to say. Every node it visits becomes a step in the memory.
#
# The notebook draws a program, runs it, breaks it, teaches it, and ends with an agent that asks a
# thing once and remembers it. It runs offline: the models answer from scripts.

# %%
from contextlib import redirect_stderr
from io import StringIO

import dspy

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.programs import Action, Decision, GraphProgram
from hybridagi_steps.programs.tools import AskUser, FunctionTool, Speak
from hybridagi_steps.testing import asked_fields, plausible_reply, request_text, scripted_lm

memory = hs.StepMemory(":memory:", embedder="wordllama")

# %% [markdown]
# ## 1. Draw a program
#
# A refund desk. It may ask back, it looks the order up, and somebody has to decide whether the
# money goes back.

# %%
desk = GraphProgram("main", "Refund an order, or say why not")
desk.add(Decision("clear", "Check the request", "Does {{ query }} name an order?"))
desk.add(Action("ask", "AskUser", "Ask back", "Ask which order is meant", var_out="said"))
desk.add(Action("look", "find_order", "Find the order", "Find: {{ query }}", var_out="order"))
desk.add(Decision("due", "Decide on the refund", "Is a refund due for {{ order }}?", ["order"]))
desk.add(Action("pay", "refund", "Give the money back", "Refund {{ order.id }}", ["order"]))
desk.add(Action("tell", "Speak", "Tell the customer", "Tell what was done about: {{ query }}"))
desk.connect("start", "clear")
desk.connect("clear", "look", label="CLEAR").connect("clear", "ask", label="ASK_USER")
desk.connect("ask", "clear").connect("look", "due")
desk.connect("due", "pay", label="YES").connect("due", "tell", label="NO")
desk.connect("pay", "tell").connect("tell", "end")
desk.build()

# %% [markdown]
# `build` checks the whole graph before anything runs, and says all that is wrong at once.

# %%
draft = GraphProgram("draft")
draft.add(Decision("sure", "Check", "Is it {{ sure"))
draft.add(Action("look", "Predict", "Look it up", "Look up {{ facts }}"))
draft.connect("start", "sure").connect("sure", "look", label="NO")
try:
    draft.build()
except errors.InvalidProgramError as error:
    print(error)

# %% [markdown]
# ## 2. Run it
#
# Tools are functions, DSPy or MCP tools, or those that come with the library. The arguments of a
# function are checked by its annotations.

# %%
ORDERS = {"A17": {"id": "A17", "item": "kettle", "dollars": 40, "returned": True}}


def find_order(order_id: str) -> dict:
    """Find an order by its id."""
    return ORDERS[order_id]


def refund(order_id: str) -> str:
    """Give the money for an order back."""
    return f"{ORDERS[order_id]['dollars']} dollars refunded"


tools = [FunctionTool(find_order), FunctionTool(refund), Speak(), AskUser(lambda _: "It is A17.")]
agent = hs.GraphInterpreter(desk, tools=tools, memory=memory)

# %% [markdown]
# The model of this run is careful in its own way: it asks back first, and words its decisions
# freely. "Ask user." is read as `ASK_USER`; an answer that is no option would be asked again.

# %%
replies = [
    {"choice": "Ask user."},
    {"question": "Which order do you mean?"},
    {"choice": "CLEAR"},
    {"arguments": {"order_id": "A17"}},
    {"choice": "Yes, since it was returned"},
    {"arguments": {"order_id": "A17"}},
    {"message": "Your 40 dollars for the kettle are on their way."},
]
with dspy.context(lm=scripted_lm(replies, delay_seconds=0.2)):
    out = agent(query="I sent my kettle back and want my money")
print(out.finish_reason, "-", out.final_answer)

# %% [markdown]
# `program_trace` holds what happened, as typed steps with parent links. The memory has them, too.

# %%
out.program_trace

# %%
hs.plots.timeline(memory, out.program_trace.steps[0].run_id)

# %% [markdown]
# What goes wrong is neither raised nor lost: the failing step is kept, and the run says so.

# %%
with dspy.context(lm=scripted_lm([{"choice": "CLEAR"}, {"arguments": {"order_id": "B99"}}])):
    failed = agent(query="Refund B99")
print(failed.finish_reason, "-", failed.error.type, failed.error.message)
print([f"{step.step_type}: {step.status}" for step in failed.program_trace.steps])

# %% [markdown]
# ## 3. As text
#
# Programs are kept in files, compared in reviews, and written by models. Any prompt comes back
# exactly.

# %%
text = desk.to_cypher()
print(text[:500], "…")
GraphProgram.from_cypher(text, name="main") == desk

# %%
try:
    GraphProgram.from_cypher("CREATE\n(pay:Action {tol: 'refund'})")
except errors.ProgramTextError as error:
    print(error)

# %% [markdown]
# ## 4. Teach it
#
# Every node has a predictor of its own, named after the node; what a teleprompter learns for one
# node stays with it. This model answers right only when it is shown examples.


# %%
def pupil(request):
    reply = plausible_reply(request)
    if "message" in asked_fields(request):
        reply = {"message": "Paid." if len(request.messages) > 1 else "Hm?"}
    return reply


def teacher(request):
    reply = plausible_reply(request)
    return {"message": "Paid."} if "message" in asked_fields(request) else reply


def answered(_example, prediction, *_):
    return prediction.final_answer == "Paid."


answering = GraphProgram("main", "Answer").add(Action("tell", "Speak", "Answer", "{{ query }}"))
answering.connect("start", "tell").connect("tell", "end")
untaught = hs.GraphInterpreter(answering, tools=[Speak()], memory=memory)
examples = [dspy.Example(query=f"order {n}").with_inputs("query") for n in range(8)]

# %%
with dspy.context(lm=scripted_lm(pupil)), redirect_stderr(StringIO()):  # no progress bar here
    learning = dspy.BootstrapFewShot(
        metric=answered,
        max_labeled_demos=0,
        teacher_settings={"lm": scripted_lm(teacher)},
    )
    taught = learning.compile(untaught, trainset=examples)
    before, after = (
        sum(answered(e, a(query=e.query)) for e in examples) for a in (untaught, taught)
    )
print(f"right before: {before} of {len(examples)}, after: {after}")
print({name: len(predictor.demos) for name, predictor in taught.named_predictors()})

# %% [markdown]
# The trial runs of the optimiser were recorded, and are kept apart: recall never sees them unless
# they are asked for.

# %%
counts = {scope or "own": 0 for scope in (None, "compile")}
for step in memory.iter_steps():
    counts[(step.scope or "own").split(":")[0]] += 1
counts

# %% [markdown]
# ## 5. An agent that remembers
#
# Four agents come with the package, as programs to read and to change. `episodic_recall` asks the
# user what it does not know, and recalls the answer in a later run.

# %%
from hybridagi_steps.graph.interpreter import ready_programs

ready_programs("episodic_recall")[0]

# %%
asked = []


def user(question):
    asked.append(question)
    return "The door code is 4711."


def forgetful(request):
    """Knows what stands in its prompt, and nothing else."""
    fields, told = asked_fields(request), request_text(request)
    known = "4711" in told
    if "choice" in fields:
        return {"choice": "KNOWN" if known else "NEW"}
    return {"message": "It is 4711."} if "message" in fields else plausible_reply(request)


recalling = hs.ready_agent("episodic_recall", tools=[AskUser(user)], memory=memory)
with dspy.context(lm=scripted_lm(forgetful)):
    for _ in range(2):
        print(recalling(query="What is the door code?").final_answer, "| asked:", len(asked))

# %% [markdown]
# The second run asked nobody. What all these programs used, and how it ended:

# %%
hs.plots.outcomes(memory)

# %%
memory.close()
