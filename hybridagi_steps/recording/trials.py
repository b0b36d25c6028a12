"""Trial runs: what runs inside `compile` and `Evaluate` says what it tries, and how it was scored.

An optimiser runs a program hundreds of times, and none of that is the user's own history. A
`Recorded` program meets its recorder only inside such a run, too late to see that it began. So the
two DSPy classes that begin trials carry one callback of ours as a class attribute, where DSPy looks
for an instance's callbacks; it puts a `Level` into DSPy's settings, which DSPy carries into threads
and tasks. `Evaluate` gives its callbacks every result; an optimiser that runs programs by itself
tells nobody, so its metric is wrapped while it compiles; GEPA gets one more callback of its own.
"""

# ruff: noqa: ARG002 - the handlers' signatures are DSPy's
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple, cast
from weakref import ref

import dspy
import orjson
from dspy.teleprompt.teleprompt import Teleprompter
from dspy.utils.callback import BaseCallback

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.recording.attempts import (
    Evolution,
    EvolutionEvents,
    StandIn,
    read_score,
    stood_for,
)
from hybridagi_steps.recording.scopes import TRIALS, overriding
from hybridagi_steps.recording.step_shapes import prediction_in, program_state
from hybridagi_steps.recording.values import plain
from hybridagi_steps.records.provenance import ORIGIN
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.trials import PROGRAM_STATE, TRIAL_END

_LONGEST_ID = 200
_HASHED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_judging: ContextVar[bool] = ContextVar("hybridagi_steps_judging", default=False)
"""Whether a metric is at work: the models that it asks are no trial."""


def current_level() -> Level | None:
    """Return what is being tried here, None in the user's own history."""
    return dspy.settings.get(TRIALS)


class Known(NamedTuple):
    """An example that an optimiser or an evaluation was given."""

    example: str | None
    """Its `id` field; None when it has none, or shares its inputs with another one."""
    splits: frozenset[str]
    """Of `train`, `val` and `dev` those that it is in."""


@dataclass(slots=True, eq=False)
class Trial:
    """One run of a candidate on one example, which has ended and waits for its score."""

    example: str
    """The key of the example's inputs."""
    outputs: Any
    """What the program gave."""
    score: Callable[[float, str | None], None]
    """Stores the run's score; an error of it never reaches the optimiser."""
    thread: int = field(default_factory=threading.get_ident)


class Trials:
    """All that one outermost compilation or evaluation tries.

    An evaluation that nobody compiles with has no optimiser and no student.
    """

    def __init__(
        self, scope: str, optimiser: str | None, compile_id: str, student: Any = None
    ) -> None:
        self.scope, self.optimiser, self.compile_id = scope, optimiser, compile_id
        self.base = None if student is None else _hash(program_state(student))
        """The name of the state in which the student was given."""
        self.evolution = Evolution(compile_id)
        self._lock = ForkSafeLock()
        self._known: dict[str, Known] = {}
        self._seen: dict[tuple[int, str], Any] = {}
        self._programs: dict[int, tuple[ref[Any], str, str]] = {}
        self._numbers = count()
        self._told: set[str] = set()
        self._ended: list[Trial] = []

    def know(self, examples: object, split: str) -> None:
        """Remember examples, to tell by its inputs which one a call is for."""
        for example in cast("Iterable[Any]", examples) if isinstance(examples, list) else ():
            with self._lock:
                if (id(example), split) in self._seen:
                    continue
                self._seen[id(example), split] = example
            key, own = example_key(_inputs_of(example)), _own_id(example)
            with self._lock:
                known = self._known.get(key, Known(own, frozenset()))
                own = own if known.example == own else None
                self._known[key] = Known(own, known.splits | {split})

    def known(self, key: str) -> Known | None:
        """Return the example with these inputs."""
        return self._known.get(key)

    def candidate_of(self, program: Any, evaluation: str | None) -> Candidate:
        """Return what is tried of a program, its state when that was not told before.

        It keeps its name, whatever the optimiser does to it meanwhile. Without an evaluation that
        was given it the program itself is one.
        """
        with self._lock:
            held, name, own = self._programs.get(id(program), (None, "", ""))
            if evaluation is None and held is not None and held() is program:
                return Candidate(name, own, {})
            state = program_state(program)
            name = _hash(state)
            origin = self.evolution.origin(name, state)
            if evaluation is None:
                evaluation = f"{self.compile_id[:6]}.{next(self._numbers)}"
                self._programs[id(program)] = ref(program), name, evaluation
            told, _ = name in self._told, self._told.add(name)
            notes = {PROGRAM_STATE: state} | ({} if origin is None else {ORIGIN: origin})
            return Candidate(name, evaluation, {} if told else notes)

    def ended(
        self, example: str, outputs: object, score: Callable[[float, str | None], None]
    ) -> None:
        """Note what a trial gave: its score comes later."""
        with self._lock:
            self._ended.append(Trial(example, prediction_in(outputs), score))

    def score(self, example: Any, prediction: object, value: object, *, here: bool) -> None:
        """Store what a metric said of a prediction as the score of its run.

        The prediction is None or empty when the program failed; `here`: the run has just ended in
        this thread.
        """
        trial = self._taken(example_key(_inputs_of(example)), prediction_in(prediction), here)
        number, feedback = read_score(value)
        if trial is not None and number is not None:
            trial.score(number, feedback)

    def _taken(self, key: str, prediction: object, here: bool) -> Trial | None:
        """Return the trial that gave a prediction, else the last one on the same example."""
        with self._lock:
            own = [t for t in self._ended if t.outputs is prediction and prediction is not None]
            on_example = [t for t in self._ended if t.example == key]
            if here:
                thread = threading.get_ident()
                on_example = [t for t in reversed(on_example) if t.thread == thread]
            trial = next(iter([*own, *on_example]), None)
            if trial is not None:
                self._ended.remove(trial)
            return trial


class Candidate(NamedTuple):
    """One state of the program that an optimiser tries."""

    name: str
    """12 hexadecimal characters over its state."""
    evaluation: str
    """Names the evaluation that tries it."""
    notes: dict[str, Any]
    """Its state, of each predictor its instructions, what its fields say of themselves, and its
    demos; and what GEPA made it of. Empty when it is known."""


@dataclass(slots=True, eq=False)
class Level:
    """A compilation or an evaluation inside what is tried; the innermost one counts.

    Args:
        trials: All that is tried.
        callers: How many modules were being called when it began.
        program: What an evaluation runs.
        evaluation: Names the evaluation.
        validates: Whether the optimiser says that it validates with it.
        teaches: Whether it runs a teacher for demonstrations, and compares nothing.
    """

    trials: Trials
    callers: int
    program: Any = None
    evaluation: str | None = None
    validates: bool = False
    teaches: bool = False
    _candidate: Candidate | None = None

    @property
    def scope(self) -> str:
        """The scope of the steps inside."""
        return self.trials.scope

    def __deepcopy__(self, memo: dict[int, Any]) -> Level:
        return self

    def trial(
        self, subject: Any, arguments: Mapping[str, Any], redact: Redact | None
    ) -> tuple[dict[str, Any], str | None, dict[str, Any]]:
        """Return what an outermost call tries: its label, its example's key, its last step's notes.

        What is called with something else than an example's inputs, and what a metric asks, is part
        of the compilation and no trial: it has neither an example nor a candidate. What proposes
        instructions names its proposal.
        """
        label: dict[str, Any] = dict.fromkeys(("candidate", "split", "example", "evaluation"))
        label |= {"optimiser": self.trials.optimiser, "compile_id": self.trials.compile_id}
        label |= {"teacher": False, "base": False}
        callers = list(dspy.settings.caller_modules or ())[self.callers :]
        outermost = callers[0] if callers else subject
        key = example_key(arguments)
        known = None if _judging.get() else self.trials.known(key)
        evaluated = isinstance(self.program, dspy.Module)
        if known is None or (evaluated and outermost is not self.program):
            evolution = self.trials.evolution
            if evolution.reflects:
                return label | {"proposal": evolution.proposal}, None, {TRIAL_END: True}
            return label, None, {}
        candidate = self._candidate
        if candidate is None:
            program = outermost if self.evaluation is None else self.program
            candidate = self.trials.candidate_of(program, self.evaluation)
            if self.evaluation is not None:
                self._candidate = candidate._replace(notes={})
        hashed = key if redact is None else example_key(arguments, redact)
        label.update(
            candidate=candidate.name,
            split=self._split(known.splits),
            example=known.example or hashed,
            evaluation=candidate.evaluation,
            teacher=self.teaches,
            base=candidate.name == self.trials.base,
        )
        return label, key, {TRIAL_END: True, **candidate.notes}

    def _split(self, splits: frozenset[str]) -> str:
        if "train" in splits and not self.validates:
            return "train"
        return "val" if splits & {"train", "val"} else "dev"


class TrialMarker(BaseCallback):
    """Names the outermost evaluation or compilation for everything inside, and reads scores."""

    def __init__(self) -> None:
        self._entered: dict[str, tuple[Level, AbstractContextManager[None]]] = {}
        self._lock = ForkSafeLock()
        self._compiling: dict[int, tuple[Any, dict[str, Any] | None, set[str]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TrialMarker:
        return self

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Enter `evaluate:<id>`, or an evaluation inside what is tried."""
        level = self._enter(call_id, f"evaluate:{call_id}", None)
        devset = inputs.get("devset")
        level.trials.know(instance.devset if devset is None else devset, "dev")
        level.program, level.evaluation = inputs.get("program"), call_id[:12]
        metadata: Mapping[str, Any] = inputs.get("callback_metadata") or {}
        level.validates = str(metadata.get("metric_key", "")).startswith("eval_")

    def on_compile_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Enter `compile:<optimiser>:<id>`, and have its metric tell what it says."""
        name = type(instance).__name__
        student = inputs.get("student")
        level = self._enter(call_id, f"compile:{name}:{call_id}", name, student)
        level.teaches = isinstance(instance, dspy.BootstrapFewShot)
        keywords: list[dict[str, Any]] = [
            each for each in inputs.values() if isinstance(each, dict)
        ]
        for given in (inputs, *keywords):  # those that a `**kwargs` took stand in a dict
            for split in ("train", "val"):
                level.trials.know(given.get(f"{split}set"), split)
        with self._lock:
            self._wrap(call_id, instance)

    def on_evaluate_end(
        self, call_id: str, outputs: Any | None, exception: BaseException | None = None
    ) -> None:
        """Store the scores of an evaluation's runs, and leave it."""
        level = self._leave(call_id)
        if level is not None and outputs is not None:
            for example, prediction, value in outputs.results:
                level.trials.score(example, prediction, value, here=False)

    def on_compile_end(
        self, call_id: str, outputs: Any | None, exception: BaseException | None = None
    ) -> None:
        """Leave it, and give the optimiser its metric back."""
        self._leave(call_id)
        with self._lock:
            self._unwrap(call_id)

    def _wrap(self, call_id: str, optimiser: Any) -> None:
        """Have an optimiser's metric tell, and GEPA; threads may compile with one optimiser."""
        if known := self._compiling.get(id(optimiser)):
            known[-1].add(call_id)
            return
        metric, options = (getattr(optimiser, name, None) for name in ("metric", "gepa_kwargs"))
        if isinstance(options, dict):
            given = cast("dict[str, Any]", options)
            callbacks = [*(given.get("callbacks") or ()), EvolutionEvents()]
            optimiser.gepa_kwargs = {**given, "callbacks": callbacks}
        elif callable(metric) and stood_for(metric) is metric:
            optimiser.metric = StandIn(metric, _judged)
        else:
            return
        self._compiling[id(optimiser)] = optimiser, options, {call_id}

    def _unwrap(self, call_id: str) -> None:
        """Give an optimiser its own back when nobody compiles with it any more."""
        for key, (optimiser, options, calls) in list(self._compiling.items()):
            calls.discard(call_id)
            if not calls:
                del self._compiling[key]
                if options is None:
                    optimiser.metric = stood_for(optimiser.metric)
                else:
                    optimiser.gepa_kwargs = options

    def _enter(self, call_id: str, scope: str, optimiser: str | None, student: Any = None) -> Level:
        outer = current_level()
        trials = Trials(scope, optimiser, call_id, student) if outer is None else outer.trials
        level = Level(trials, len(dspy.settings.caller_modules or ()))
        block = overriding(**{TRIALS: level})
        block.__enter__()
        self._entered[call_id] = level, block
        return level

    def _leave(self, call_id: str) -> Level | None:
        level, block = self._entered.pop(call_id, (None, None))
        if block is not None:
            block.__exit__(None, None, None)
        return level


def _judged(metric: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Ask a metric, and store what it says as the score of the run it says it of."""
    level, token = current_level(), _judging.set(True)
    value: Any = dspy.Prediction(score=0.0)
    example, prediction = (*args, None, None)[:2]
    tells = level is not None and len(args) > 1
    try:
        value = metric(*args, **kwargs)
    except Exception as error:
        # An Evaluate says itself what such a run counts.
        tells = tells and level is not None and level.evaluation is None
        value["feedback"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        _judging.reset(token)
        if tells and level is not None:
            level.trials.score(example, prediction, value, here=True)
    return value


def watch_trials() -> None:
    """Let DSPy's evaluations and optimisers tell of their trials; twice changes nothing."""
    for begins_trials in (dspy.Evaluate, Teleprompter):
        known: list[Any] = getattr(begins_trials, "callbacks", [])
        if not any(isinstance(callback, TrialMarker) for callback in known):
            begins_trials.callbacks = [*known, TrialMarker()]


def example_key(inputs: Mapping[str, Any], redact: Redact | None = None) -> str:
    """Return 12 hexadecimal characters over an example's inputs."""
    copied: dict[str, Any] = plain(dict(inputs), [])
    return _hash(copied if redact is None else redacted(copied, redact))


def _hash(value: object) -> str:
    return sha256(orjson.dumps(value, default=str, option=_HASHED)).hexdigest()[:12]


def _inputs_of(example: Any) -> dict[str, Any]:
    """Return the inputs that a program is called with; none of what is no example."""
    if not isinstance(example, dspy.Example) or not getattr(example, "_input_keys", None):
        return {}
    return dict(example.inputs().items())


def _own_id(example: Any) -> str | None:
    found = example.get("id") if isinstance(example, dspy.Example) else None
    return None if found is None else str(found)[:_LONGEST_ID]
