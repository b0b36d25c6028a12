"""Placement: which address holds which namespace, read from a file that people edit.

    default = "steps.db"

    [namespaces]
    team-a = "postgresql://user@one/steps"

`placement.toml#team-a` stands wherever an address may and means the namespace `team-a` there. It is
read when a memory is opened. Paths are relative to the file. Nothing here opens what an address
names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, cast

from hybridagi_steps.errors import InvalidSettingError, PlacementError
from hybridagi_steps.stores import address_text, is_served
from hybridagi_steps.stores.address import is_server, shown_address

DEFAULT_NAMESPACE = "default"
_PLACED = re.compile(r"(?P<file>.+\.toml)(?:#(?P<name>.*))?", re.DOTALL)


class Placement(NamedTuple):
    """Where namespaces are."""

    file: Path
    default: str | None
    """The address of those that are not named; None: there are no others."""
    namespaces: dict[str, str]

    def address_of(self, namespace: str) -> str:
        """Return where a namespace is; PlacementError: it is not named, and there is no default."""
        found = self.namespaces.get(namespace, self.default)
        if found is None:
            raise PlacementError(
                f'{self.file} does not say where {namespace!r} is: write {namespace} = "ADDRESS" '
                'below [namespaces], or default = "ADDRESS" in the first line.'
            )
        return found


def placed(address: str, namespace: str = DEFAULT_NAMESPACE) -> tuple[str, str]:
    """Return the address and the namespace that `placement.toml#name` means; others as they are.

    Raises:
        PlacementError: The file cannot be read, is no placement, or does not say where that is.
        InvalidSettingError: `namespace` names another one.
    """
    found = None if is_server(address) else _PLACED.fullmatch(address)
    if found is None:
        return address, namespace
    placement, name = read_placement(Path(found["file"])), found["name"]
    if not name:
        known = ", ".join(placement.namespaces) or "only a default"
        raise PlacementError(f"{address}: say which namespace, as FILE.toml#NAME; it has {known}.")
    if namespace not in (DEFAULT_NAMESPACE, name):
        raise InvalidSettingError(
            f"{address} names the namespace {name!r}, and namespace= {namespace!r}; name one."
        )
    return placement.address_of(name), name


def read_placement(file: Path) -> Placement:
    """Read a placement, and check every line of it; PlacementError says which one to mend."""
    import tomllib

    try:
        text = file.read_text("utf-8")
        told = tomllib.loads(text)
    except OSError as error:
        raise PlacementError(f"the placement {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # no UTF-8, no TOML, a name that stands twice: it says where
        raise PlacementError(f"{file} is no placement: {error}.") from error
    lines = text.splitlines()
    namespaces: Any = told.pop("namespaces", {})
    default = told.pop("default", None)
    if told:
        raise _wrong(
            file,
            lines,
            next(iter(told)),
            "is no key of a placement; these are default and [namespaces]",
        )
    if type(namespaces) is not dict:
        raise _wrong(file, lines, "namespaces", "is no table: write [namespaces] and lines below")
    named = cast("dict[str, Any]", namespaces)
    checked = {name: _checked(file, lines, name, value) for name, value in named.items()}
    return Placement(
        file, None if default is None else _checked(file, lines, "default", default), checked
    )


def _checked(file: Path, lines: list[str], name: str, address: Any) -> str:
    """Return an address of a file as it is opened: paths beside the file."""
    if not isinstance(address, str) or not address or address == ":memory:":
        raise _wrong(file, lines, name, "names no address: write a file or postgresql://…")
    if _PLACED.fullmatch(address) and not is_server(address):
        raise _wrong(file, lines, name, "names another placement; write the address itself")
    if not is_server(address):
        return address_text(str(file.absolute().parent / address))
    if not is_served(address):
        raise _wrong(file, lines, name, f"names {shown_address(address)}, which no store serves")
    return address


def _wrong(file: Path, lines: list[str], name: str, why: str) -> PlacementError:
    """Return what to raise for the line that gives a name its value."""
    begins = re.compile(rf"""\s*(?:\[\s*)?["']?{re.escape(name)}["']?\s*[=.\]]""")
    line = next((n for n, text in enumerate(lines, 1) if begins.match(text)), 1)
    return PlacementError(f"{file}, line {line}: {name} {why}.", line)
