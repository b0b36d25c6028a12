"""Messages in half their room: what a long session keeps of those that nobody looks at now.

A `Step` takes 540 bytes before it says anything, nearly all for the names of fields that are None.
Kept are its other values in a tuple behind their names, which messages of one kind share; a `Step`
is made again in a microsecond. What is nested in one is shared by all that are made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

from hybridagi_steps.records.json_values import unvalidated
from hybridagi_steps.records.message import Step

KeptMessage: TypeAlias = "tuple[Any, ...]"
"""Names of fields, and the value of each."""

_NOTHING: dict[str, Any] = dict.fromkeys(Step.model_fields)
_names: dict[tuple[str, ...], tuple[str, ...]] = {}


def kept(message: Step) -> KeptMessage:
    """Return what a message says, to be kept."""
    values = {name: value for name, value in vars(message).items() if value is not None}
    names = tuple(values)
    return (_names.setdefault(names, names), *values.values())


def restored(message: KeptMessage) -> Step:
    """Return the message that was kept."""
    names, *values = message
    return unvalidated(Step, _NOTHING | dict(zip(names, values, strict=True)))


class KeptMessages(Sequence[Step]):
    """A list of kept messages; each is made again when it is asked for."""

    def __init__(self, messages: Sequence[KeptMessage]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        """Return one, or some in a list."""
        if isinstance(index, slice):
            return [*map(restored, self._messages[index])]
        return restored(self._messages[index])

    def __iter__(self) -> Iterator[Step]:
        """Yield all in order."""
        return map(restored, self._messages)

    def values(self, name: str) -> Iterator[Any]:
        """Yield the value of a field in each, without making any."""
        for names, *values in self._messages:
            yield values[names.index(name)] if name in names else None
