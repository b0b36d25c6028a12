"""Attempts: what BestOfN, Refine, MultiChainComparison and GEPA tried, and which of it they chose.

DSPy tells a callback of each attempt, but neither of its reward nor of what an optimiser's metric
says: a `StandIn` for the function hears it. While a recorded BestOfN or Refine
runs, its reward function tells what it says; the program gives back the very object that an attempt
gave, which shows the one that was chosen. The others end in a scope, as trials do: whoever recalls
is not told of a loser as if it had won. GEPA says in callbacks of its own what
each of its candidates was made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import count
from typing import Any, cast

import dspy

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.recording.scopes import TRIALS
from hybridagi_steps.recording.step_shapes import module_arguments
from hybridagi_steps.records.agent_step import AgentStep

_OWN = {"__copy__", "__deepcopy__", "__reduce_ex__"}


class StandIn:
    """Stands for a function, and has another one call it, which gets both and returns what it gave.

    All else is the function's own: attributes that are read and set, its class to `isinstance`,
    what it equals. Copies stand for copies; a pickle is the function's.
    """

    __slots__ = ("_call", "_function")

    def __init__(self, function: Callable[..., Any], call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have the function called."""
        return object.__getattribute__(self, "_call")(stood_for(self), *args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN:
            return object.__getattribute__(self, name)
        if name == "__signature__":
            return signature(stood_for(self))
        return getattr(stood_for(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(stood_for(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(stood_for(self), name)

    def __eq__(self, other: object) -> bool:
        return stood_for(self) == stood_for(other)

    def __hash__(self) -> int:
        return hash(stood_for(self))

    def __repr__(self) -> str:
        return repr(stood_for(self))

    def __copy__(self) -> StandIn:
        return StandIn(copy(stood_for(self)), object.__getattribute__(self, "_call"))

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        copied = deepcopy(stood_for(self), memo)
        return StandIn(copied, object.__getattribute__(self, "_call"))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return stood_for, (stood_for(self),)


def stood_for(function: Any) -> Any:
    """Return the function that another one stands for, any other itself."""
    stands = type(function) is StandIn
    return object.__getattribute__(function, "_function") if stands else function


ATTEMPTS = "attempts"
"""The key of a ProgramEnd's metadata that lists attempts: step, reward, whether it was chosen."""
_TRIES_AGAIN: Any = (dspy.BestOfN, dspy.Refine)

_lock = ForkSafeLock()
_watched: dict[int, list[Attempts]] = {}


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt: what it gave, and the steps it left."""

    outputs: Any
    steps: list[AgentStep]
    reward: float | None = None


@dataclass(slots=True, eq=False)
class Attempts:
    """The attempts of one call."""

    program: Any
    ended: list[Attempt] = field(default_factory=list[Attempt])

    @classmethod
    def of(cls, program: Any) -> Attempts | None:
        """Begin to watch a program that tries several times; None of any other."""
        if not issubclass(type(program), _TRIES_AGAIN):
            return None
        attempts = cls(program)
        with _lock:
            known = _watched.setdefault(id(program), [])
            if not known:
                program.reward_fn = StandIn(program.reward_fn, partial(_rewarding, known))
            known.append(attempts)
        return attempts

    def close(self) -> None:
        """Give the program its own reward function back, once nobody watches it."""
        with _lock:
            known = _watched[id(self.program)]
            known.remove(self)
            if not known:
                del _watched[id(self.program)]
                self.program.reward_fn = stood_for(self.program.reward_fn)

    def rewarded(self, prediction: object, reward: Any) -> None:
        """Note the reward of the attempt that gave `prediction`."""
        for attempt in reversed(self.ended):
            if attempt.outputs is prediction:
                attempt.reward = float(reward)
                return

    def told(self, chosen: object) -> tuple[list[dict[str, Any]], list[Attempt]]:
        """Return what metadata say of the attempts, and those that lost."""
        tried = [attempt for attempt in self.ended if attempt.reward is not None]
        listed = [
            {
                "step": str(attempt.steps[-1].id) if attempt.steps else None,
                "reward": attempt.reward,
                "chosen": attempt.outputs is chosen,
            }
            for attempt in tried
        ]
        return listed, [attempt for attempt in tried if attempt.outputs is not chosen]


def compared(program: Any, inputs: Mapping[str, Any], outputs: Any) -> list[dict[str, Any]]:
    """Return the answers that a MultiChainComparison was given, and which it came to agree with."""
    if not issubclass(type(program), dspy.MultiChainComparison) or outputs is None:
        return []
    name: str = program.last_key
    given = module_arguments(program, inputs).get("completions") or ()
    answers = [str(each.get(name)) for each in given]
    return [
        {"answer": answer, "chosen": answer == str(outputs.get(name)), "reward": None}
        for answer in answers
    ]


def _rewarding(watching: list[Attempts], reward: Callable[..., Any], *args: Any) -> Any:
    """Ask a reward function, and tell whoever watches what it says."""
    value = reward(*args)
    with _lock:
        for attempts in watching:
            attempts.rewarded(args[-1], value)
    return value


def read_score(value: object) -> tuple[float | None, str | None]:
    """Return what a metric said as DSPy reads it: a number and words, None for what is neither.

    A bool is 0 or 1; a Prediction or mapping has `score` and perhaps `feedback`; None, NaN and
    whatever is no number leave a run unscored.
    """
    told: Any = value
    feedback: object = None
    if isinstance(value, dspy.Example | Mapping):
        feedback, value = told.get("feedback"), told.get("score")
    if isinstance(value, str | bytes | None) or not hasattr(type(value), "__float__"):
        return None, None
    number = float(cast("Any", value))
    words = None if feedback is None else str(feedback)
    return (number, words) if math.isfinite(number) else (None, None)


class Evolution:
    """The candidates of one GEPA compilation and what each was made of, from GEPA's events.

    GEPA numbers its candidates and names a proposal by nothing; here a candidate is known by the
    instructions of its predictors.
    """

    def __init__(self, compile_id: str) -> None:
        self._proposals = (f"{compile_id[:6]}.p{number}" for number in count())
        self._names: dict[frozenset[tuple[str, str]], str] = {}
        self._begin(None)

    def _begin(self, iteration: int | None, pool: Sequence[Mapping[str, str]] = ()) -> None:
        self.proposal: str | None = None
        """Names the proposals of this iteration, once a model is asked for them."""
        self.reflects = False
        """Whether what runs now is to propose instructions."""
        self._iteration, self._pool = iteration, pool
        self._parents: list[Sequence[int]] = []

    def origin(self, name: str, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a candidate in this state was made of; None outside of GEPA, and if unknown.

        The first one is the student's own. Of several that one iteration proposes, each differs
        least from its own parent.
        """
        texts = {predictor: str(of["instructions"]) for predictor, of in state.items()}
        self._names.setdefault(frozenset(texts.items()), name)
        if self._iteration is None or (self._iteration and not self._parents):
            return None
        families = [[self._pool[index] for index in indices] for indices in self._parents]
        changes = [[n for n in texts if n in of[0] and of[0][n] != texts[n]] for of in families]
        nearest = min(range(len(families)), key=lambda n: len(changes[n]), default=None)
        family = [] if nearest is None else families[nearest]
        ancestors = [{n: of[n] for n in texts if n in of} for of in family]
        parents = [self._names.get(frozenset(of.items())) for of in ancestors]
        return {
            "iteration": self._iteration,
            "parents": [parent for parent in parents if parent is not None],
            "changed": [] if nearest is None else changes[nearest],
            "proposal": self.proposal,
        }

    def on_optimization_start(self, _: Any) -> None:
        """The student is evaluated next."""
        self._begin(0)

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        """Candidates are made of those in GEPA's pool."""
        self._begin(event["iteration"], event["state"].program_candidates)

    def on_proposal_start(self, _: Any) -> None:
        """A model is asked for instructions."""
        self.proposal, self.reflects = self.proposal or next(self._proposals), True

    def on_evaluation_start(self, event: Mapping[str, Any]) -> None:
        """One that is not in the pool yet is a new candidate, whose parents are."""
        self.reflects = False
        if event["candidate_idx"] is None:
            self._parents.append(event["parent_ids"])

    def on_iteration_end(self, _: Any) -> None:
        """Nobody proposes any more."""
        self.reflects = False

    def on_optimization_end(self, _: Any) -> None:
        """What comes next is not of GEPA."""
        self._begin(None)


class EvolutionEvents:
    """Stands among GEPA's callbacks for the `Evolution` of whatever compilation runs here."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return getattr(dspy.settings.get(TRIALS).trials.evolution, name)
