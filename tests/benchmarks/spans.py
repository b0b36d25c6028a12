"""Where each span of MLflow's autolog stands in a memory, when both watch the same runs.

Small programs of every kind run once under both callbacks. A span is found again by what it holds:
a tool's by name and result, a model's by the messages and the answer (`keep_prompts`), a
predictor's by the model call inside it and its output fields, a program's by its class; one that
leaves no step of its own is merged into that of what it wraps. What MLflow logs of evaluations is
found among `memory.trials()`. A span that is found nowhere is counted, and named below the table.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import dspy
import orjson
from dspy.primitives.local_interpreter import LocalInterpreter
from dspy.utils.exceptions import AdapterParseError

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm
from tests.benchmarks.conditions import conditions
from tests.benchmarks.peers import NOT_INSTALLED, TRACERS
from tests.benchmarks.tables import Table, number, print_json, print_tables

PREDICTOR, WRAPPER, PROGRAM = "`Predict.forward`", "`ChainOfThought.forward`", "`Program.forward`"
TOOL, MODEL, DIRECT = "`Tool.name`", "`LM.__call__`", "`LM.__call__` without a predictor"
FORMAT, PARSE, EVALUATION = "`Adapter.format`", "`Adapter.parse`", "run of an `Evaluate`"
CODE = "no span: code that runs"

MERGES = {
    PREDICTOR: "its Action or Decision; a ReAct turn's: the Action of the tool that it chose",
    WRAPPER: "merged into its predictor's step; `reasoning` is one of the outputs",
    PROGRAM: "`ProgramCall` … `ProgramEnd`",
    TOOL: "its Action",
    MODEL: "merged into its predictor's step: `metrics`; what it read in `memory.prompt_of(id)`",
    DIRECT: "an Action",
    FORMAT: "merged into its predictor's step: the messages of `memory.prompt_of(id)`",
    PARSE: "merged into its predictor's step: its outputs, and the completion before it was parsed",
    EVALUATION: "a trial, with its candidate's state: `memory.trials()`",
    CODE: "an Action of the tool `python`",
}
"""What is here for each kind of span; the documentation of recording has the same table."""

Question = Callable[[], object]


def report(json_output: bool = False, **options: Any) -> None:
    """Print where the spans stand; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables([_table(result)], result)


def measure() -> dict[str, Any]:
    """Return for each kind of span how many there were, and what was found nowhere here."""
    adapter = TRACERS[0].load()
    if adapter is None:
        return {**conditions(), "missing": f"MLflow {NOT_INSTALLED}"}
    seen: Counter[str] = Counter()
    nowhere: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        tracing = adapter(Path(folder), log_traces_from_compile=True, log_evals=True)
        try:
            for name, (ask, script) in programs().items():
                for kind, found in _compare(tracing, ask, script):
                    seen[kind] += 1
                    if not found:
                        nowhere.append(f"{name}: {kind}")
        finally:
            tracing.close()
    return {**conditions(), "spans": {kind: seen[kind] for kind in MERGES}, "nowhere": nowhere}


def _compare(tracing: Any, ask: Question, script: Any) -> Iterator[tuple[str, bool]]:
    """Run a program under both; yield the kind of each span, and whether it is found here."""
    traces, scores = len(tracing.traces()), len(tracing.scores())
    with (
        hs.StepMemory(":memory:", embedder="hashing") as memory,
        dspy.context(lm=scripted_lm(script), **tracing.dspy_settings()),
    ):
        with _in_silence(), hs.record(memory, keep_prompts=True) as run:
            ask()
        assert run.errors == []
        kept = Kept(memory)
    for spans in tracing.traces()[traces:]:
        yield from kept.places(spans)
    for score in tracing.scores()[scores:]:
        yield EVALUATION, _take(kept.scores, score)


@contextmanager
def _in_silence() -> Generator[None]:
    """Keep progress bars, and the log of what is to fail, from the screen."""
    logging.disable(logging.ERROR)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


class Kept:
    """The steps of a memory that spans can be found in, each place once."""

    def __init__(self, memory: hs.StepMemory) -> None:
        steps = list(memory.iter_steps())
        self.scores = Counter(trial.percent for trial in memory.trials() if trial.state)
        self._code = [step.arguments["code"] for step in steps if step.tool == "python"]
        self._programs = Counter(step.program for step in steps if step.step_type == "ProgramCall")
        self._tools = Counter(
            (step.tool, _text(step.result), step.status == "error") for step in steps if step.tool
        )
        self._asked = [(call, step) for step in steps for call in memory.prompt_of(step.id)]
        self._free = list(self._asked)

    def places(self, spans: Sequence[Any]) -> Iterator[tuple[str, bool]]:
        """Yield the kind of each span of a trace, and whether it is found."""
        below: dict[str | None, list[Any]] = {}
        for span in spans:
            below.setdefault(span.parent_id, []).append(span)
        asked = {span.span_id: self._asked_as(span) for span in spans if _is_model(span)}
        names = {span.span_id: span.name for span in spans}
        for span in spans:
            if span.name == PREDICTOR.strip("`"):
                yield from ((CODE, found) for found in self._ran(span))
            inside = [asked[each.span_id] for each in _within(span, below) if _is_model(each)]
            yield self._place(span, inside, names.get(span.parent_id))

    def _place(self, span: Any, inside: list[Any], parent: str | None) -> tuple[str, bool]:
        name, _, method = span.name.partition(".")
        failed = span.status.status_code.value == "ERROR"
        if _is_model(span):
            found = inside[0]
            return (MODEL, found is not None) if _of_predictor(parent) else (DIRECT, _alone(found))
        if method == "format":
            return FORMAT, any(call.messages == _json(span.outputs) for call, _ in self._asked)
        if method == "parse":
            return PARSE, self._parsed(span, failed)
        if name == "Tool":
            return TOOL, _take(self._tools, (method, _text(span.outputs), failed))
        if name in ("Predict", "ChainOfThought"):
            kind = PREDICTOR if name == "Predict" else WRAPPER
            return kind, bool(inside) and all(inside) and _holds(inside[-1][1], span, failed)
        return PROGRAM, _take(self._programs, name)

    def _asked_as(self, span: Any) -> Any:
        """Return the kept request of a model's span with its step; None: there is none."""
        given = _json(span.inputs)
        sent = given.get("messages") or [{"role": "user", "content": given.get("prompt")}]
        for place, (call, step) in enumerate(self._free):
            if call.messages == sent and call.completion == _json(span.outputs):
                del self._free[place]
                return call, step
        return None

    def _parsed(self, span: Any, failed: bool) -> bool:
        text = span.inputs["completion"]
        return any(
            _in(text, _text(call.completion)) and (failed or _holds(step, span, failed))
            for call, step in self._asked
        )

    def _ran(self, span: Any) -> Iterator[bool]:
        """Yield for each code that a predictor has written whether it is found as it ran."""
        for name in {"code", "generated_code"} & set(span.outputs or ()):
            run = next((code for code in self._code if code in span.outputs[name]), None)
            if run is not None:
                self._code.remove(run)
            yield run is not None


def _take(places: Counter[Any], place: object) -> bool:
    places[place] -= 1
    return places[place] >= 0


def _is_model(span: Any) -> bool:
    return span.name.endswith(".__call__")


def _of_predictor(parent: str | None) -> bool:
    return parent is not None and parent.startswith(("Predict.", "ChatAdapter.", "JSONAdapter."))


def _alone(found: Any) -> bool:
    """Whether a step is of a model that a program asked by itself."""
    return found is not None and not {"prompt", "messages"}.isdisjoint(found[1].arguments)


def _within(span: Any, below: dict[str | None, list[Any]]) -> Iterator[Any]:
    yield span
    for each in below.get(span.span_id, ()):
        yield from _within(each, below)


def _holds(step: hs.AgentStep, span: Any, failed: bool) -> bool:
    """Whether a step has what a span gave: each field, or its error."""
    if failed:
        return step.status == "error"
    kept = _text([step.inputs, step.outputs, step.metadata])
    return all(_in(value, kept) or _in(str(value), kept) for value in _json(span.outputs).values())


def _in(value: object, kept: str) -> bool:
    """Whether a value, or the words of a text, are in JSON text."""
    return (_text(value)[1:-1] if isinstance(value, str) else _text(value)) in kept


def _json(value: object) -> Any:
    return orjson.loads(orjson.dumps(value, default=str))


def _text(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS).decode()


def look_up(city: str) -> str:
    """Look up the weather of a city."""
    if city == "Nowhere":
        raise LookupError("no such city")
    return f"{city}: rain"


class Travel(dspy.Module):
    """Modules in modules, a decision, a tool and a model asked by hand."""

    def __init__(self) -> None:
        self.urgent = dspy.Predict("question -> urgent: bool")
        self.plan = _Plan()

    def forward(self, question: str) -> Any:
        """Decide, ask, and have a plan made."""
        self.urgent(question=question)
        dspy.settings.lm("Say hello.")
        return self.plan(question=question)


class _Plan(dspy.Module):
    def __init__(self) -> None:
        self.answer = dspy.ChainOfThought(
            "question, weather -> answer, mood: Literal['good', 'bad']"
        )
        self.look_up = dspy.Tool(look_up)

    def forward(self, question: str) -> Any:
        return self.answer(question=question, weather=self.look_up(city="Seattle"))


def programs() -> dict[str, tuple[Question, Any]]:
    """Return what is run, with what the model answers."""
    signature, asked = "question -> answer", {"question": "When do I fly?"}
    examples = [
        dspy.Example(question=text, answer="9:40").with_inputs("question") for text in ("A?", "B?")
    ]

    def right(example: Any, prediction: Any, trace: object = None) -> bool:
        return example.answer == prediction.answer

    def calls(program: Any) -> Question:
        return lambda: program(**asked)

    def fails() -> None:
        with suppress(AdapterParseError):
            dspy.Predict("question -> count: int")(**asked)

    looks = {
        "next_tool_name": ["look_up", "look_up", "finish"],
        "next_tool_args": [{"city": "Seattle"}, {"city": "Nowhere"}, {}],
    }
    coder = {"signature": signature, "interpreter_factory": LocalInterpreter}
    looking = "print(look_up(city='Oslo'))"
    answers = {"answer": ["9:40", "10:00", "9:40"]}
    return {
        "Predict": (calls(dspy.Predict(signature)), None),
        "Predict of a choice": (calls(dspy.Predict("question -> urgent: bool")), None),
        "an answer that cannot be read": (fails, {"count": "many"}),
        "ChainOfThought": (calls(dspy.ChainOfThought(signature)), None),
        "nested modules": (calls(Travel()), None),
        "ReAct": (calls(dspy.ReAct(signature, tools=[look_up])), looks),
        "ProgramOfThought": (
            calls(dspy.ProgramOfThought(**coder)),
            {"generated_code": ["```python\n1 / 0\n```", "```python\n1 + 1\n```"]},
        ),
        "CodeAct": (
            calls(dspy.CodeAct(tools=[look_up], **coder)),
            {"generated_code": f"```python\n{looking}\n```", "finished": True},
        ),
        "RLM": (
            calls(dspy.RLM(tools=[look_up], **coder)),
            {"code": f"{looking}\nSUBMIT(answer='9:40')"},
        ),
        "Evaluate": (
            lambda: dspy.Evaluate(devset=examples, metric=right, num_threads=1)(
                dspy.Predict(signature)
            ),
            answers,
        ),
        "BootstrapFewShot": (
            lambda: dspy.BootstrapFewShot(metric=right).compile(
                dspy.Predict(signature), trainset=examples
            ),
            answers,
        ),
        "BootstrapFewShotWithRandomSearch": (
            lambda: dspy.BootstrapFewShotWithRandomSearch(
                metric=right, num_candidate_programs=1, max_bootstrapped_demos=1, num_threads=1
            ).compile(dspy.Predict(signature), trainset=examples),
            answers,
        ),
    }


def _table(result: dict[str, Any]) -> Table:
    spans = result.get("spans", dict.fromkeys(MERGES))
    lost = Counter(place.partition(": ")[2] for place in result.get("nowhere", ()))
    rows = [
        [kind, here, number(spans[kind], 0), number(lost[kind] if "spans" in result else None, 0)]
        for kind, here in MERGES.items()
    ]
    notes = [result["missing"]] if "missing" in result else result["nowhere"]
    return Table("MLflow's spans here", ["MLflow's span", "", "spans", "nowhere"], rows, notes)
