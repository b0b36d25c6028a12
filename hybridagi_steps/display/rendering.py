"""Renders the templates of this room; jinja2 is loaded when something is shown."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, **values: object) -> str:
    """Return a template's HTML; every value is escaped."""
    html = _environment().get_template(name).render(**values)
    return html.encode("utf-8", "replace").decode()  # a notebook cannot store lone surrogates


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined

    from hybridagi_steps.display.templates import STYLE, TEMPLATES

    environment = Environment(
        autoescape=True,
        loader=DictLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = STYLE  # pyright: ignore[reportArgumentType]
    return environment
