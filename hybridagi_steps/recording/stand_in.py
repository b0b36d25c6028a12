"""StandIn: an object in the place of a user's function, for as long as its answers are to be heard.

DSPy tells callbacks neither what an optimiser's metric says nor what a reward function does.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from inspect import signature
from typing import Any

_OWN = {"__copy__", "__deepcopy__", "__reduce_ex__"}


class StandIn:
    """Stands for a function, and has another one call it.

    All else is the function's own: attributes that are read and set, its class to `isinstance`,
    what it equals. Copies stand for copies; a pickle is the function's.

    Args:
        function: The function, or any object that is called like one.
        call: Gets the function and what it is to be called with, and returns what it gave.
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
