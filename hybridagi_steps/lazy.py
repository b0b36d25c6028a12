"""What is loaded on first use: public names (PEP 562), and the docstrings of records' fields.

So importing a package costs nothing, and importing a record does not read its source.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from textwrap import dedent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def lazy_names(
    package: str,
    names: Mapping[str, str],
    root: str | None = None,
    needs: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names live in its modules.

    A type checker is told the same by imports `X as X`, which say that a name is public.

    Args:
        package: The package's `__name__`.
        names: What each module has, with blanks between; the root's own modules stand under "".
        root: The package that the modules are in; None for the package itself.
        needs: The foreign package without which a name cannot be loaded: then it is not listed,
            which `help` relies on.
    """
    homes = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if not home:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(f"{root or package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        missing = {name for name, foreign in (needs or {}).items() if find_spec(foreign) is None}
        own = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted(own | (homes.keys() - missing))

    return load, listed, sorted(homes)


def public_name(name: str, room: str = "") -> Any:
    """Return what a name of this package, or of one of its rooms, stands for; loaded on first use.

    For a method that is a shortcut to a room above its own, by the door that users take.
    """
    return getattr(import_module(f"hybridagi_steps{room and '.'}{room}"), name)


def describe_fields(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the fields' docstrings to a JSON schema, as `json_schema_extra` of a model's config.

    pydantic's `use_attribute_docstrings` reads and parses the source of a model as its class is
    made: a third of the time that importing the records took.
    """
    properties = schema.get("properties", {})
    for name, text in field_docs(model).items():
        if (shown := properties.get(name)) is not None:
            shown.setdefault("description", text)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands below the fields of a model and those that it inherits, by name."""
    from pydantic import BaseModel

    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found.update(_own_docs(kind))
    return found


def _own_docs(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    import ast
    import inspect

    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # made without a file: nothing stands below its fields
        return
    [made] = ast.parse(dedent(source)).body
    for field, below in pairwise(made.body if isinstance(made, ast.ClassDef) else ()):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
            case _:
                pass
