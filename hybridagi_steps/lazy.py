"""Public names loaded on first use (PEP 562), so that importing a package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(
    package: str,
    homes: Mapping[str, str | None],
    root: str | None = None,
    needs: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names live in its modules.

    Args:
        package: The package's `__name__`.
        homes: The module of each name, relative to the root; None when the name is a module.
        root: The package that the modules are in; None for the package itself.
        needs: The foreign package without which a name cannot be loaded: then it is not listed,
            which `help` relies on.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if home is None:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(f"{root or package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        missing = {name for name, foreign in (needs or {}).items() if find_spec(foreign) is None}
        own = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted(own | (homes.keys() - missing))

    return load, listed
