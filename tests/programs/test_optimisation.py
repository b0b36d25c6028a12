"""DSPy's optimisers on our agents: the compiled copy is better, lasts, and leaves recall alone."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.parallelizer import ParallelExecutor

import hybridagi_steps as hs
from hybridagi_steps.programs import Action, Decision, GraphProgram
from hybridagi_steps.programs.tools import PastActionSearch, Predict
from hybridagi_steps.testing import Reply, ScriptedLM, asked_fields, plausible_reply, scripted_lm

pytestmark = pytest.mark.filterwarnings(
    # Optuna marks the sampler that MIPROv2 asks for as experimental.
    "ignore::optuna.exceptions.ExperimentalWarning",
)

HINT = "Answer with care"
EXAMPLES = [
    dspy.Example(query=f"question {n}", answer="right").with_inputs("query") for n in range(6)
]


def pupil(request: Any) -> Reply:
    """Answer right only with the hint in the instructions or an example to go by."""
    reply = plausible_reply(request)
    asked = asked_fields(request)
    if any(name.endswith("_instruction") for name in asked):
        return dict.fromkeys(asked, HINT)
    taught = HINT in str(request.system) or len(request.messages) > 1
    if "answer" in asked and isinstance(reply, dict):
        return {**reply, "answer": "right" if taught else "wrong"}
    return reply


def master(request: Any) -> Reply:
    """Answer right always."""
    reply = plausible_reply(request)
    return {**reply, "answer": "right"} if isinstance(reply, dict) and "answer" in reply else reply


def flow() -> GraphProgram:
    """A program that decides, recalls and answers."""
    program = GraphProgram(name="main", description="Answer from experience")
    program.add(Decision("known", "Check the question", "Can it be answered?"))
    program.add(Action("recall", "PastActionSearch", "Recall", "{{ query }}", ["query"], "past"))
    program.add(Action("reply", "Predict", "Answer", "{{ query }} {{ past }}", ["query", "past"]))
    program.connect("start", "known").connect("known", "recall", label="YES")
    program.connect("known", "end", label="NO").connect("recall", "reply").connect("reply", "end")
    return program.build()


class Graph(dspy.Module):
    """The interpreter, its answer under the name that the metric reads."""

    def __init__(self, memory: hs.StepMemory) -> None:
        super().__init__()
        tools = [Predict(), PastActionSearch()]
        self.agent = hs.GraphInterpreter(flow(), tools=tools, memory=memory)

    def forward(self, query: str) -> Any:
        """Run the program."""
        return dspy.Prediction(answer=self.agent(query=query).final_answer)


class Recalling(dspy.Module):
    """An agent that looks up past steps before it answers."""

    def __init__(self, memory: hs.StepMemory) -> None:
        super().__init__()
        self.retrieve = hs.StepRetriever(memory, k=2)
        self.reply = dspy.Predict("query, past: list[str] -> answer")

    def forward(self, query: str) -> Any:
        """Recall and answer."""
        return self.reply(query=query, past=self.retrieve(query).passages)


def graph(memory: hs.StepMemory) -> Any:
    """An agent made of a graph program."""
    return Graph(memory)


def recalling(memory: hs.StepMemory) -> Any:
    """A recorded agent with a retriever."""
    return hs.Recorded(Recalling(memory), memory)


def right(example: Any, prediction: Any, *_: Any) -> float:
    """Whether the answer is right."""
    return float(example.answer == prediction.answer)


def told(
    example: Any, prediction: Any, trace: Any = None, name: Any = None, part: Any = None
) -> Any:
    """Whether the answer is right, in words."""
    score = right(example, prediction)
    return dspy.Prediction(score=score, feedback="Right." if score else "Take more care.")


def bootstrap(agent: Any, _: ScriptedLM) -> Any:
    """Demos from runs of a model that knows better."""
    optimiser = dspy.BootstrapFewShot(
        metric=right,
        max_bootstrapped_demos=2,
        max_labeled_demos=0,
        teacher_settings={"lm": scripted_lm(master)},
    )
    return optimiser.compile(agent, trainset=EXAMPLES)


def mipro(agent: Any, lm: ScriptedLM) -> Any:
    """Instructions proposed by a model."""
    pytest.importorskip("optuna", reason="MIPROv2 searches with optuna (dspy[optuna])")
    optimiser = dspy.MIPROv2(
        metric=right, auto="light", num_threads=2, prompt_model=lm, verbose=False
    )
    return optimiser.compile(agent, trainset=EXAMPLES, valset=EXAMPLES)


def gepa(agent: Any, lm: ScriptedLM) -> Any:
    """Instructions rewritten from feedback."""
    optimiser = dspy.GEPA(metric=told, max_metric_calls=60, reflection_lm=lm, num_threads=2)
    return optimiser.compile(agent, trainset=EXAMPLES, valset=EXAMPLES)


def simba(agent: Any, _: ScriptedLM) -> Any:
    """Demos and rules from the best of several runs."""
    optimiser = dspy.SIMBA(metric=right, bsize=3, num_candidates=2, max_steps=2, num_threads=2)
    return optimiser.compile(agent, trainset=EXAMPLES)


@pytest.fixture
def lm() -> Iterator[ScriptedLM]:
    """A model that answers right only when it was taught."""
    for name in ("dspy", "optuna"):
        logging.getLogger(name).setLevel(logging.ERROR)
    model = scripted_lm(pupil)
    with dspy.context(lm=model):
        yield model


@pytest.mark.parametrize("make", [graph, recalling], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    ("compiled_by", "improves"),
    [(bootstrap, True), (mipro, True), (gepa, True), (simba, False)],
    ids=["BootstrapFewShot", "MIPROv2", "GEPA", "SIMBA"],
)
def test_a_compiled_agent_is_better_and_lasts(
    make: Callable[[hs.StepMemory], Any],
    compiled_by: Callable[[Any, ScriptedLM], Any],
    improves: bool,
    lm: ScriptedLM,
    tmp_path: Path,
) -> None:
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        agent = make(memory)
        assert agent(query="question 0").answer == "wrong"
        own = {str(step.id) for step in memory.find(limit=10_000).steps}

        compiled = compiled_by(agent, lm)

        found = {str(step.id) for step in memory.find(limit=10_000).steps}
        assert found == own, "trial runs show in recall"
        scopes = {(step.scope or "").split(":")[0] for step in memory.iter_steps()}
        assert "compile" in scopes, "trial runs were not recorded"
        answer = compiled(query="question 0").answer
        assert answer == "right" or not improves

        compiled.save(tmp_path / "agent.json")
        loaded = make(memory)
        loaded.load(tmp_path / "agent.json")
        assert loaded(query="question 0").answer == answer
        copied = compiled.deepcopy()
        executor = ParallelExecutor(num_threads=8, disable_progress_bar=True)
        queries = [f"question {n}" for n in range(24)]
        answers = executor.execute(lambda query: copied(query=query).answer, queries)
        assert answers == [answer] * 24


def test_a_bare_thread_pool_runs_a_compiled_agent(lm: ScriptedLM) -> None:
    memory = hs.StepMemory(":memory:", embedder="hashing")
    compiled = bootstrap(graph(memory), lm)

    def run(number: int) -> str:
        with dspy.context(lm=lm):
            return compiled(query=f"question {number}").answer

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(run, range(24))) == {"right"}
