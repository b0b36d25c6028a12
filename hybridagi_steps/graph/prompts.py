"""Filling in the prompts of graph programs, where a missing variable is an error.

What a template may ask for is decided by its language; here is decided what a variable looks like
in it: steps as their text, marked as data; dicts and lists as JSON.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import Template, TemplateError, Undefined

from hybridagi_steps.display.view import plural
from hybridagi_steps.dspy_types import AgentStepList, QueryWithSteps, StepContext
from hybridagi_steps.errors import PromptError
from hybridagi_steps.graph.nodes import PROVIDED
from hybridagi_steps.graph.prompt_language import PromptEnvironment
from hybridagi_steps.messages.fences import inert
from hybridagi_steps.recording.values import plain
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.json_values import transformed

_KEPT_TEMPLATES = 2048
_MOST_CHARACTERS = 2_000_000


def rendered(
    template: str,
    variables: Mapping[str, Any],
    var_in: Sequence[str],
    where: str,
    *,
    for_model: bool = True,
) -> tuple[str, str]:
    """Fill in a prompt; return it, and as it may be remembered.

    There a note with their ids stands where recalled steps stood, so that old experience is not
    stored again as new. The prompt may use `var_in` of the run's variables, besides `query` and
    `objective`. When it fails `where` is named, such as "the prompt of main.answer". If a language
    model reads it (`for_model`), no mark of a chat template acts in what is filled in.
    """
    missing = [name for name in var_in if name not in variables]
    if missing:
        raise PromptError(
            f"{where} needs the variable {missing[0]!r}, which nothing has set; an Action sets it "
            f"with var_out, a caller with agent(query=…, {missing[0]}=…)."
        )
    names = {*var_in, *PROVIDED}
    values = {name: variables[name] for name in names if name in variables}
    filled = _compiled(_TO_PROMPT, template, where)
    shown = transformed(values, functools.partial(_standing, shown_text))
    if shown is not values:
        noted = transformed(values, functools.partial(_standing, recorded_text))
        remembered, values = _filled(filled, noted, where), shown
    else:
        remembered = _filled(filled, values, where)
        if not for_model or inert(remembered) == remembered:
            return remembered, remembered
    if for_model:
        filled = _compiled(_TO_MODEL, template, where)
    return _filled(filled, values, where), remembered


def shown_text(value: object) -> str:
    """Return how a variable stands in a prompt."""
    if isinstance(value, str | Undefined | _Recalled):
        return str(value)  # raises when nothing has set it, or when it may not be read
    if isinstance(value, AgentStepList | QueryWithSteps | AgentStep | StepHit | StepContext):
        return StepContext.of(value).format()
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    return _json(value)


def recorded_text(value: object) -> str:
    """Return how a variable stands in what is remembered: recalled steps as a note of their ids.

    Example:
        >>> recorded_text(AgentStepList(steps=[]))
        '[no recalled steps]'
    """
    noted = transformed(value, _noted)
    if noted is value:
        return shown_text(value)
    return noted if isinstance(noted, str) else _json(noted)


def history_text(steps: Sequence[AgentStep], recalled: Mapping[str, QueryWithSteps]) -> str:
    """Return past steps of a run as text for a prompt.

    What a step has `recalled` stands there by its id: the step itself keeps ids only.
    """
    shown: list[AgentStep] = []
    for step in steps:
        if (found := recalled.get(str(step.id))) is not None:
            texts = [str(each) for each in found.steps]
            step = step.model_copy(update={"outputs": {"result": texts}})
        shown.append(step)
    return StepContext(steps=shown).format()


@dataclass(frozen=True, slots=True)
class _Recalled:
    """Steps as a template sees them: a text, for filters too, that has a length and parts."""

    value: Any
    text: Callable[[Any], str]

    def __str__(self) -> str:
        return self.text(self.value)

    def __len__(self) -> int:
        return len(self._parts())

    def __iter__(self) -> Iterator[_Recalled]:
        return (_Recalled(part, self.text) for part in self._parts())

    def _parts(self) -> Sequence[Any]:
        if isinstance(self.value, list | tuple):
            return cast("Any", self.value)  # pyright: ignore[reportUnknownMemberType]
        return _steps_of(self.value) or []


def _standing(text: Callable[[object], str], value: object, _: str) -> Any:
    """Return steps as a template sees them, all else as it is."""
    return value if _steps_of(value) is None else _Recalled(value, text)


def _noted(value: object, _: str) -> Any:
    """Return a note in the place of a step, or of a list of steps alone."""
    steps = _steps_of(value)
    if steps is None:
        return value
    ids = ", ".join(str(step.id) for step in steps)
    return f"[{plural(len(steps), 'recalled step')}: {ids}]" if steps else "[no recalled steps]"


def _steps_of(value: object) -> list[AgentStep] | None:
    """Return the steps that a value is made of, None when it is made of something else too."""
    if isinstance(value, AgentStep):
        return [value]
    if isinstance(value, StepHit):
        return [value.step]
    if isinstance(value, AgentStepList | QueryWithSteps | StepContext):
        return list(value.steps)
    if not isinstance(value, list | tuple) or not value:
        return None
    found: list[AgentStep] = []
    for item in cast("Sequence[object]", value):
        if (steps := _steps_of(item)) is None:
            return None
        found += steps
    return found


def _json(value: object) -> str:
    if not isinstance(value, dict | list | tuple):
        value = plain(value, [])
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=shown_text)
    except (TypeError, ValueError):
        return json.dumps(plain(value, []), ensure_ascii=False, default=str)


def _finalized_for_model(value: object) -> str:
    text = shown_text(value)
    return text if isinstance(value, _Recalled) else inert(text)  # steps have a fence of their own


_TO_PROMPT, _TO_MODEL = PromptEnvironment(shown_text), PromptEnvironment(_finalized_for_model)


@functools.lru_cache(maxsize=_KEPT_TEMPLATES)
def _compiled(environment: PromptEnvironment, template: str, where: str) -> Template:
    try:
        return environment.from_string(template)
    except (TemplateError, RecursionError, SyntaxError) as error:
        raise PromptError(f"{where} cannot be read: {error}") from error


def _filled(template: Template, values: Mapping[str, Any], where: str) -> str:
    """Render in pieces, so that a prompt that would grow without end is stopped."""
    pieces: list[str] = []
    left = _MOST_CHARACTERS
    try:
        for piece in template.generate(values):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise PromptError(f"{where} grew over {_MOST_CHARACTERS:,} characters.")
    except PromptError:
        raise
    except Exception as error:  # whatever an expression in a prompt can raise
        raise PromptError(f"{where} cannot be filled in: {error}") from error
    return "".join(pieces)
