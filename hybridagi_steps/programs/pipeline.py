"""Pipeline: a DSPy module that runs others in order, each on what those before it gave, by name.

Its parts are its attributes: optimisers, saving and recording know them by their names. What each
takes and gives is checked before the first one runs, as far as signatures tell.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import dspy

from hybridagi_steps.errors import InvalidSettingError


class Pipeline(dspy.Module):
    """Modules, or functions, that run in the order in which they were added.

    Each is called with those of the inputs, and of all that was given so far, that it takes; what
    the last one gives is the answer.

    Example:
        `hs.Pipeline(shorten=dspy.Predict("text -> gist"), name=dspy.Predict("gist -> title"))`
    """

    def __init__(self, **modules: Callable[..., Any]) -> None:
        super().__init__()
        self.order: list[str] = []
        for name, module in modules.items():
            self.add(name, module)

    def add(self, name: str, module: Callable[..., Any]) -> Self:
        """Add a module that runs after all others.

        Args:
            name: What it is called in errors, steps and saved states.
            module: A DSPy module, or a function that returns a Prediction or a dict.

        Raises:
            InvalidSettingError: The name is taken or none, or nothing can be called.
        """
        if not name.isidentifier() or name.startswith("_") or hasattr(self, name):
            raise InvalidSettingError(f"{name!r:.80} is no name for a module, or is taken.")
        if not callable(module):
            raise InvalidSettingError(f"{name} is no module: {module!r:.80} cannot be called.")
        setattr(self, name, module)
        self.order.append(name)
        return self

    def forward(self, **inputs: Any) -> dspy.Prediction:
        """Run all modules.

        Raises:
            InvalidSettingError: There are none; one lacks an input, or gives no named values.
        """
        self._check(inputs)
        given: dict[str, Any] = {}
        for name in self.order:
            module = getattr(self, name)
            given = _named(name, module(**_arguments(name, module, inputs)))
            inputs |= given
        return dspy.Prediction(**given)

    async def aforward(self, **inputs: Any) -> dspy.Prediction:
        """Run all modules; as `forward`."""
        self._check(inputs)
        given: dict[str, Any] = {}
        for name in self.order:
            module = getattr(self, name)
            call = module.acall if isinstance(module, dspy.Module) else module
            answer = call(**_arguments(name, module, inputs))
            given = _named(name, await answer if inspect.isawaitable(answer) else answer)
            inputs |= given
        return dspy.Prediction(**given)

    def _check(self, inputs: Mapping[str, Any]) -> None:
        """Refuse what would fail in the middle, as far as signatures tell what is given."""
        if not self.order:
            raise InvalidSettingError("the pipeline has no modules; add() some.")
        known = dict(inputs)
        for name in self.order:
            module = getattr(self, name)
            _arguments(name, module, known)
            if (signature := _signature(module)) is None:
                return
            known |= dict.fromkeys(signature.output_fields)


def _arguments(name: str, module: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a module takes of the values that are known."""
    if (signature := _signature(module)) is not None:
        needed, takes = set(signature.input_fields), set(signature.input_fields)
    else:
        method = module.forward if isinstance(module, dspy.Module) else module
        parameters = inspect.signature(method).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return dict(known)
        takes = {each.name for each in parameters}
        needed = {each.name for each in parameters if each.default is each.empty}
    if missing := sorted(needed - known.keys()):
        raise InvalidSettingError(
            f"{name} takes {', '.join(missing)}, which is no input of the pipeline, and no module "
            f"before it gives; there are {', '.join(known) or 'none'}."
        )
    return {each: known[each] for each in takes & known.keys()}


def _signature(module: Any) -> Any:
    """Return the signature of one of DSPy's own modules."""
    found = getattr(module, "signature", None) or getattr(
        getattr(module, "predict", None), "signature", None
    )
    return found if hasattr(found, "input_fields") else None


def _named(name: str, answer: object) -> dict[str, Any]:
    """Return what a module gave, by name."""
    if isinstance(answer, dspy.Prediction | Mapping):
        return dict(cast("Mapping[str, Any]", answer).items())
    raise InvalidSettingError(
        f"{name} gave {answer!r:.80}; give a dspy.Prediction or a dict, so that it has names."
    )
