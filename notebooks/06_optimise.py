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
# # Learning from steps
#
# Runs that were recorded make the next answer better, and the next optimisation. This notebook
# takes ten real runs of an airline's service agent, asks what the agent does next, and lets DSPy's
# optimisers work with and without a memory. A canary shows that no answer leaks. It runs offline:
# the model imitates the nearest demonstration, as small models do, and learns from nothing else.

# %%
import contextlib
import io
import re
import sys
from typing import Literal

import dspy
import matplotlib.pyplot as plt

import hybridagi_steps as hs
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.testing import asked_fields, plausible_reply, scripted_lm

dspy.disable_logging()
memory = hs.StepMemory(":memory:", embedder="wordllama")

# %% [markdown]
# ## 1. A program and what it did
#
# `NextTool` says which tool the agent uses next, from what was said last and what happened before.
# `case` tells which customer it is about.

# %%
steps = [step for step in shipped_steps() if (step.metadata or {}).get("domain") == "airline"]
tools = tuple(sorted({step.tool for step in steps}))


class Choose(dspy.Signature):
    """Choose the next tool of an airline's service agent."""

    case: str = dspy.InputField()
    said: str = dspy.InputField()
    before: str = dspy.InputField()
    tool: Literal[tools] = dspy.OutputField()


class NextTool(dspy.Module):
    """Chooses the next tool."""

    def __init__(self):
        super().__init__()
        self.choose = dspy.Predict(Choose)

    def forward(self, case, said, before):
        return self.choose(case=case, said=said, before=before)


# %%
def state_of(step):
    """Return what the agent knew before a step."""
    past = {other.id: other for other in steps}.get(step.parent_id)
    done = f"{past.tool} -> {str(past.result)[:200]}" if past else "nothing"
    said = (step.metadata or {}).get("last_user") or ""
    return {"case": step.run_id, "said": said, "before": done}


inputs = ("case", "said", "before")
examples = [dspy.Example(**state_of(s), tool=s.tool).with_inputs(*inputs) for s in steps]
for example in examples:
    with dspy.context(lm=scripted_lm([{"tool": example.tool}])), hs.record(memory):
        NextTool()(**example.inputs())
print(len(examples), "states of", len({example.case for example in examples}), "customers")
print("tools:", ", ".join(tools))

# %% [markdown]
# The memory now holds every one of those steps, the answers to all test questions included. Half of
# the customers are for training, half for validation; plain replies to the customer are half of all
# steps and easy to guess, so they are left out of what is judged.

# %%
cases = sorted({example.case for example in examples})
train = [example for example in examples if example.case in cases[::2]]
val = [e for e in examples if e.case in cases[1::2] and e.tool != "respond"]
print(len(train), "training examples,", len(val), "validation examples")


def right(gold, given, *_):
    return float(gold.tool == given.tool)


# %% [markdown]
# ## 2. Experience at call time
#
# The model copies the demonstration next to the question; without one it replies to the customer.

# %%
SHOWN = re.compile(r"\[\[ ## tool ## \]\]\n(\w+)")


def imitator(request):
    """Copy the nearest demonstration; write any instruction that is asked for."""
    asked = asked_fields(request)
    if "tool" not in asked:
        named = any(name.endswith("_instruction") for name in asked)
        return dict.fromkeys(asked, "Look it up first.") if named else plausible_reply(request)
    shown = "\n".join(message.text or "" for message in request.messages[:-1])
    seen = SHOWN.findall(shown)
    return {"tool": seen[-1] if seen else "respond"}


lm = scripted_lm(imitator)
dspy.configure(lm=lm)

# %% [markdown]
# `group` says which runs know each other's answers: those of the same customer. Inside `Evaluate`
# nothing is recalled without it.

# %%
skilled = hs.WithExperience(NextTool(), memory, k=3, group=lambda inputs: inputs["case"])


def score(program):
    """Return the share of right answers and how often the model was asked for each."""
    before = len(lm.requests)
    judge = dspy.Evaluate(devset=val, metric=right, display_progress=False, num_threads=2)
    return judge(program).score / 100, (len(lm.requests) - before) / len(val)


table = {"zero-shot": score(NextTool()), "WithExperience": score(skilled)}
for name, (share, calls) in table.items():
    print(f"{name:<16} {share:.2f} right, {calls:.0f} call of the model each")

# %% [markdown]
# What a call saw stands in its receipt, and in the steps that it left.

# %%
with hs.record(memory, scope="shown here") as run:
    answer = skilled(**val[0].inputs())
print(f"{val[0].said[:90]} -> {answer.tool}")
print(skilled.last_recall())

# %%
run

# %% [markdown]
# ## 3. The canary
#
# The memory knows every answer. Does a prompt hold it? A step of the same customer in the prompt is
# a leak, whatever it says. In everyday use that is just what should be recalled; in an evaluation
# none may be there, and `group` keeps them out, in the ranking as well.


# %%
def leaks(program, everyday=False):
    """Return how many prompts for a customer showed another step of the same customer."""
    before = len(lm.requests)
    if everyday:
        for example in val:
            program(**example.inputs())
    else:
        score(program)
    marks = [re.findall(r"case ## \]\]\n(\S+)", str(r.messages).replace("\\n", "\n"))
             for r in lm.requests[before:]]  # fmt: skip
    return sum(cases[-1] in cases[:-1] for cases in marks)


everyday = leaks(skilled, everyday=True)
fenced = leaks(skilled)
only_inputs = leaks(hs.WithExperience(NextTool(), memory, group="inputs"))
with contextlib.redirect_stderr(sys.stdout):  # it warns that a group is missing
    no_group = leaks(hs.WithExperience(NextTool(), memory))
print(f"everyday use: {everyday} of {len(val)} prompts hold a step of the same customer")
print(f'evaluated with group="inputs": {only_inputs}, which is why groups have to be told')
print(f"evaluated with the customer as group: {fenced}")
print(f"evaluated without a group: {no_group}, since nothing is recalled")

# %%
figure, axes = plt.subplots(figsize=(6, 2.2))
ways = ["everyday", 'group="inputs"', "group=customer", "no group"]
axes.barh(ways[::-1], [no_group, fenced, only_inputs, everyday])
axes.set_xlabel(f"prompts of {len(val)} that hold a step of the same customer")
figure.tight_layout()
plt.close(figure)


class Shown:
    """A figure, as a picture."""

    def __init__(self, figure):
        self.figure = figure

    def _repr_png_(self):
        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=80)
        return drawn.getvalue()


Shown(figure)

# %% [markdown]
# ## 4. Optimisers, with a memory and without
#
# A program with experience is a program to every optimiser. Each of these is given the plain
# program and the one with experience.


# %%
def bootstrap(student):
    return dspy.BootstrapFewShot(metric=right).compile(student, trainset=train)


def mipro(student):
    optimiser = dspy.MIPROv2(metric=right, auto="light", num_threads=2, verbose=False)
    return optimiser.compile(student, trainset=train, valset=val)


def told(gold, given, *_):
    return dspy.Prediction(score=right(gold, given), feedback=f"It was {gold.tool}.")


def gepa(student):
    settings = {"max_metric_calls": 60, "reflection_lm": lm, "num_threads": 2}
    return dspy.GEPA(metric=told, **settings).compile(student, trainset=train, valset=val)


# %%
compiled = {}
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for optimiser in (bootstrap, mipro, gepa):
        for name, student in (("", NextTool()), (" + experience", skilled)):
            recorded = hs.Recorded(student, memory)
            compiled[f"{optimiser.__name__}{name}"] = optimiser(recorded)
for name, program in compiled.items():
    table[name] = score(program)
    print(f"{name:<24} {table[name][0]:.2f} right")

# %% [markdown]
# The trials of a compilation are in the memory too, out of the way of ordinary recall. This is what
# MIPROv2 tried with experience, the best candidate first.

# %%
compilations = [trial for trial in memory.trials() if trial.optimiser == "MIPROv2"]
memory.trials(compilations[0].compile_id)

# %% [markdown]
# ## 5. Teleprompters of the memory
#
# `KNNSteps` is `WithExperience` under the usual face. `BootstrapFromMemory` takes fixed
# demonstrations of stored runs and asks no model; none of a validation customer's are among them.

# %%
before = len(lm.requests)
own = {"group": lambda inputs: inputs["case"]}
knn = hs.KNNSteps(memory, k=3, **own).compile(NextTool())
fixed = hs.BootstrapFromMemory(memory, max_demos=8, **own).compile(NextTool(), valset=val)
print(len(lm.requests) - before, "calls of the model to compile both")
table["KNNSteps"], table["BootstrapFromMemory"] = score(knn), score(fixed)
for source in fixed.provenance()["choose"][:3]:
    [step] = memory.get(source.step_id).steps
    print(source.origin, source.step_id, step.outputs["choice"], step.arguments["case"])

# %%
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.barh([*table][::-1], [share for share, _ in table.values()][::-1])
axes.set_xlabel(f"right tool, {len(val)} states of customers that were held out")
figure.tight_layout()
plt.close(figure)
Shown(figure)

# %% [markdown]
# A model that only imitates gains by the nearest example and by nothing else, so the figures say
# how good recall is, not how good the optimisers are. They are few: with so small a validation set
# a difference of one or two answers means nothing. `python -m tests.benchmarks learning` has the
# intervals.
#
# ## 6. Steps as data

# %%
trainset = hs.steps_to_examples(memory, "NextTool", ["tool"], limit=50)
demos = hs.steps_to_demos(memory, NextTool(), per_predictor=5)
print(len(trainset), "examples;", trainset[0].tool, dict(trainset.left_out))
print([demo.tool for demo in demos["choose"]], dict(demos.left_out))

# %%
memory.close()
