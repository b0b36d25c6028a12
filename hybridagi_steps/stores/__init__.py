"""Where steps are kept. `open_store` finds the back-end that serves an address.

Back-ends are dotted paths, imported on first use; others join through the entry-point group
`hybridagi_steps.stores` (name = scheme, value = a callable like `SqliteStepStore`). An address
without a scheme is a file. Nothing here knows what a store does.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast, get_args

from hybridagi_steps.errors import InvalidSettingError, StorageError, UnsupportedAddressError
from hybridagi_steps.protocols import Durability
from hybridagi_steps.records.json_values import is_clean
from hybridagi_steps.stores.address import is_server, shown_address
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS, check_timeout

if TYPE_CHECKING:
    from hybridagi_steps.protocols import StoreBackend

__all__ = [
    "ENTRY_POINT_GROUP",
    "address_text",
    "is_served",
    "known_namespace",
    "open_store",
    "refuse_older",
]

ENTRY_POINT_GROUP = "hybridagi_steps.stores"
"""Where other packages announce their back-ends."""

MAX_NAMESPACE_LENGTH = 128
_NAMED = 10
"""How many namespaces an error names."""

_MEMORY, _FILE = ":memory:", "file"
_SQLITE = "hybridagi_steps.stores.sqlite:SqliteStepStore"
_POSTGRES = "hybridagi_steps.stores.postgres:PostgresStepStore"
_BACKENDS = {
    _MEMORY: _SQLITE,
    _FILE: _SQLITE,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(
    address: str,
    *,
    namespace: str = "default",
    durability: Durability = "full",
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> StoreBackend:
    """Open the store at an address, creating it where there is none.

    Args:
        address: `:memory:`, the path of a file, or `scheme://…` of an installed back-end.
        namespace: Whose steps; namespaces never see each other.
        durability: What an acknowledged step survives; an in-memory store survives nothing.
        timeout_seconds: How long a call waits for other writers; 0 to 86,400.
    """
    address = address_text(address)
    _check_namespace(namespace)
    if durability not in get_args(Durability):
        known = " or ".join(map(repr, get_args(Durability)))
        raise InvalidSettingError(f"durability is {known}; got {durability!r}.")
    check_timeout(timeout_seconds)
    return _backend(address)(
        address, namespace=namespace, durability=durability, timeout_seconds=timeout_seconds
    )


def refuse_older(address: str) -> None:
    """Refuse an address where opening would make or migrate something, as the source of a copy."""
    if (schema := _schema(address)) is None:
        return
    found, latest = schema.stored_version(address), schema.latest_version()
    if found == 0:
        raise StorageError(f"{shown_address(address)} holds no step memory.")
    if found < latest:
        raise StorageError(
            f"{shown_address(address)} has schema version {found}, this library writes {latest}; "
            "when nothing older writes to it any more, `hybridagi-steps stats` migrates it."
        )


def known_namespace(address: str, namespace: str | None) -> str:
    """Return a namespace that is there, any where None is asked for; opening would make another."""
    schema = _schema(address)
    found = None if schema is None else schema.stored_namespaces(address)
    if found is None or namespace in found:
        return namespace or "default"
    shown = shown_address(address)
    if not found:
        raise StorageError(f"{shown} holds no step memory; restore a backup, or import into it.")
    if namespace is None:
        return found[0]
    others = ", ".join(map(repr, found[:_NAMED])) + (", …" if len(found) > _NAMED else "")
    raise InvalidSettingError(f"{shown} has no namespace {namespace!r}; it has {others}.")


def _schema(address: str) -> Any:
    """Return what knows whether something is stored at an address; None of other packages."""
    module = _BACKENDS.get(_scheme(address), "").partition(":")[0]
    return import_module(f"{module}.schema") if module else None


def address_text(address: object) -> str:
    """Return an address as text."""
    text: Any = (
        os.fspath(cast("os.PathLike[Any]", address))
        if isinstance(address, os.PathLike)
        else address
    )
    if not isinstance(text, str):
        raise UnsupportedAddressError(
            f"an address is a text or a path, not {type(text).__name__}; "
            "give a file path or ':memory:'."
        )
    if not text or "\x00" in text or not _is_system_name(text):
        raise UnsupportedAddressError(
            f"{text[:80]!r} is no address: it is empty, or holds what no file name can; "
            "give a file path or ':memory:'."
        )
    return text


def _is_system_name(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _check_namespace(namespace: object) -> None:
    if not isinstance(namespace, str):
        raise InvalidSettingError(f"a namespace is a text, not {type(namespace).__name__}.")
    if not 0 < len(namespace) <= MAX_NAMESPACE_LENGTH:
        raise InvalidSettingError(
            f"a namespace has 1 to {MAX_NAMESPACE_LENGTH} characters; got {len(namespace):,}."
        )
    if not is_clean(namespace):
        raise InvalidSettingError(f"the namespace {namespace!r} holds NUL or a lone surrogate.")


def is_served(address: str) -> bool:
    """Tell whether some back-end takes an address, without loading it."""
    scheme = _scheme(address)
    return scheme in _BACKENDS or bool(entry_points(group=ENTRY_POINT_GROUP, name=scheme))


def _backend(address: str) -> Any:
    scheme = _scheme(address)
    if scheme == _FILE and is_server(address):
        raise _unsupported(address, "give the path itself, without file://.")
    if scheme in _BACKENDS:
        module, _, name = _BACKENDS[scheme].partition(":")
        return getattr(import_module(module), name)
    for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        return entry_point.load()
    raise _unsupported(address, "use a file path, ':memory:' or install a back-end for it.")


def _scheme(address: str) -> str:
    found = _SCHEME.match(address)
    return found[1].lower() if found else _MEMORY if address == _MEMORY else _FILE


def _unsupported(address: str, why: str) -> UnsupportedAddressError:
    scheme = address.partition("://")[0]
    return UnsupportedAddressError(f"no store serves {scheme}:// addresses: {why}")
