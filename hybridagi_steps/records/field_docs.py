"""Docstrings of a model's fields as descriptions of its JSON schema, read when one is asked for.

pydantic's `use_attribute_docstrings` reads and parses the source of a model as its class is made: a
third of the time that importing these records took, for descriptions that hardly a process shows.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel


def describe_fields(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the fields' docstrings to a JSON schema, as `json_schema_extra` of a model's config."""
    properties = schema.get("properties", {})
    for name, text in field_docs(model).items():
        if (shown := properties.get(name)) is not None:
            shown.setdefault("description", text)


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands below the fields of a model and those that it inherits, by name."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found.update(_own_docs(kind))
    return found


def _own_docs(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
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
