"""Where steps are kept. `open_store` finds the back-end that serves an address.

Back-ends are dotted paths, imported on first use; others join through the entry-point group
`hybridagi_steps.stores` (name = scheme, value = a callable like `SqliteStepStore`). An address
without a scheme is a file. Nothing here knows what a store does.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from hybridagi_steps.errors import UnsupportedAddressError

if TYPE_CHECKING:
    from hybridagi_steps.protocols import StepStore

__all__ = ["ENTRY_POINT_GROUP", "Durability", "open_store"]

Durability = Literal["normal", "full"]
"""`normal`: an acknowledged step survives kill -9. `full`: it survives a power loss, too."""

ENTRY_POINT_GROUP = "hybridagi_steps.stores"
"""Where other packages announce their back-ends."""

_MEMORY, _FILE = ":memory:", "file"
_BACKENDS = {
    _MEMORY: "hybridagi_steps.stores.in_memory:InMemoryStepStore",
    _FILE: "hybridagi_steps.stores.sqlite:SqliteStepStore",
}
_NOT_YET = dict.fromkeys(("postgresql", "postgres"), "PostgreSQL")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(
    address: str, *, namespace: str = "default", durability: Durability = "full"
) -> StepStore:
    """Open the store at an address, creating it where there is none.

    Args:
        address: `:memory:`, the path of a file, or `scheme://…` of an installed back-end.
        namespace: Whose steps; namespaces never see each other.
        durability: What an acknowledged step survives; an in-memory store survives nothing.

    Raises:
        UnsupportedAddressError: No back-end serves the address.
        StorageError: The file is not a step memory, newer, damaged, or cannot be opened.
    """
    return _backend(address)(address, namespace=namespace, durability=durability)


def _backend(address: str) -> Any:
    found = _SCHEME.match(address)
    scheme = found[1].lower() if found else _MEMORY if address == _MEMORY else _FILE
    if found and scheme == _FILE:
        raise _unsupported(address, "give the path itself, without file://.")
    if scheme in _BACKENDS:
        module, _, name = _BACKENDS[scheme].partition(":")
        return getattr(import_module(module), name)
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        return entry_point.load()
    if scheme in _NOT_YET:
        raise _unsupported(address, f"{_NOT_YET[scheme]} is not supported by this release.")
    raise _unsupported(address, "use a file path, ':memory:' or install a back-end for it.")


def _unsupported(address: str, why: str) -> UnsupportedAddressError:
    scheme = address.partition("://")[0]
    return UnsupportedAddressError(f"no store serves {scheme}:// addresses: {why}")
