"""The reference as a page that a repository shows: `python -m tests.reference` writes it.

What stands in it, and in which order, is said by the directives of `api.md`, which Sphinx reads;
the texts are the docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, get_type_hints

import pydantic

from hybridagi_steps import errors
from hybridagi_steps.lazy import field_docs
from tests.pages import DOCS

PAGE = DOCS / "reference.md"
_HEAD = """# Reference

The names of `import hybridagi_steps as hs`, from their docstrings: `python -m tests.reference`
writes this page, and a test holds it to the code. [Errors](errors.md).
"""
_DIRECTIVE = re.compile(
    r"^(?P<title>## .+)$|^\.\. auto(?P<kind>\w+):: (?P<name>\S+)\n(?P<options>(?:   :.*\n)*)", re.M
)
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example|Reference|Attributes):$")
_ENTRY = re.compile(r"^    (\*{0,2}[\w, *.]+): (.*)$")


def reference() -> str:
    """Return the page."""
    spec = (DOCS / "api.md").read_text("utf-8")
    parts = [_HEAD]
    for found in _DIRECTIVE.finditer(spec):
        if found["title"]:
            parts.append(f"\n{found['title']}\n")
        else:
            parts += _entry(found["name"], found["options"])
    parts.append(f"\n## Errors\n\n```text\n{_tree()}\n```\n")
    return "".join(parts)


def _entry(name: str, options: str) -> Iterator[str]:
    """Yield what the page says of one name."""
    thing = _loaded(name)
    if isinstance(thing, ModuleType):
        yield f"\n{_told(thing)}"
        listed = re.search(r":members: (.+)", options)
        for member in listed[1].split(", ") if listed else ():
            yield from _entry(f"{name}.{member}", "   :members:\n")
        return
    short = re.sub(r"^hybridagi_steps\.", "hs.", name)
    yield f"\n### {short}\n\n{_signature(short, thing)}{_told(thing)}"
    if not inspect.isclass(thing):
        return
    init = vars(thing).get("__init__")
    if inspect.isfunction(init) and init.__doc__:
        yield f"\n{_told(init)}"
    listed = re.search(r":members:(.*)", options)
    wanted = (listed[1] if listed else "").replace(",", " ").split()
    if issubclass(thing, pydantic.BaseModel):
        yield from _fields(thing)
    for member, value in _members(thing).items() if listed else ():
        if (member in wanted if wanted else not member.startswith("_")) and _is_call(value):
            called: object = getattr(value, "__func__", value)
            if inspect.getdoc(called):
                yield f"\n#### {short.rpartition('.')[2]}.{member}\n\n"
                yield f"{_signature(member, called)}{_told(called)}"


def _loaded(name: str) -> Any:
    """Return what a dotted name means."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        home, _, last = name.rpartition(".")
        return getattr(_loaded(home), last)


def _members(kind: type[object]) -> dict[str, object]:
    """Return what a class has of its own and of the parts it is made of, but for records."""
    homes = [
        home
        for home in kind.__mro__
        if home is kind
        or (home.__module__.startswith("hybridagi_steps") and not hasattr(home, "model_fields"))
    ]
    return {name: value for home in homes for name, value in vars(home).items()}


def _is_call(value: object) -> bool:
    return isinstance(value, classmethod | staticmethod) or inspect.isroutine(value)


def _signature(name: str, thing: Any) -> str:
    """Return a call as code, its types as the source has them; none for records."""
    if bool(inspect.isclass(thing)) and (
        issubclass(thing, pydantic.BaseModel) or not inspect.isroutine(thing.__init__)
    ):
        return ""
    try:
        shown = inspect.signature(thing)
    except (TypeError, ValueError):  # built-in constructors tell no signature
        return ""
    parameters = [
        each.replace(annotation=_as_written(each.annotation))
        for each in shown.parameters.values()
        if each.name not in ("self", "cls")
    ]
    gives = _as_written(shown.return_annotation)
    text = str(shown.replace(parameters=parameters, return_annotation=gives))
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)
    text = text.removesuffix(" -> None") if bool(inspect.isclass(thing)) else text
    if len(text) + len(name) > 88:
        text = re.sub(r"^\((.*)\)( -> .*)?$", _in_lines, text)
    return f"```text\n{name}{text}\n```\n\n"


class _Written(str):
    """An annotation as its source has it."""

    __slots__ = ()
    __repr__ = str.__str__


def _as_written(annotation: Any) -> Any:
    return _Written(annotation) if isinstance(annotation, str) else annotation


def _in_lines(match: re.Match[str]) -> str:
    """Put each parameter on a line of its own; commas in brackets part nothing."""
    depth, parts = 0, [""]
    for letter in match[1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    lines = "".join(f"    {part.strip()},\n" for part in parts)
    return f"(\n{lines}){match[2] or ''}"


def _told(thing: object) -> str:
    """Return a docstring as Markdown: sections as lists, code as it is."""
    lines: list[str] = []
    section = ""
    for line in (inspect.getdoc(thing) or "").split("\n"):
        if found := _SECTION.match(line):
            section = found[1]
            lines += [f"**{section}**", ""]
        elif section in ("Args", "Raises") and (entry := _ENTRY.match(line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif section and line.startswith("    "):
            code = section == "Example" and ">>>" in (inspect.getdoc(thing) or "")
            entry = section in ("Args", "Raises")
            lines.append(line if code else f"  {line.strip()}" if entry else line.strip())
        else:
            section = section if not line else ""
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def _fields(model: type[pydantic.BaseModel]) -> Iterator[str]:
    """Yield a table of a record's fields."""
    below = field_docs(model)
    texts = {k: v.description or below.get(k, "") for k, v in model.model_fields.items()}
    if not any(texts.values()):
        return
    yield "\n| field | type | |\n| --- | --- | --- |\n"
    kinds = get_type_hints(model)  # without what validates them
    for name in filter(texts.get, texts):
        plain = _is_plain(kinds[name])
        shown = kinds[name].__name__ if plain else str(kinds[name]).replace("typing.", "")
        shown = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", shown).replace("|", "\\|")
        about = " ".join(texts[name].split()).replace("|", "\\|")
        yield f"| `{name}` | {shown} | {about} |\n"


def _is_plain(annotation: object) -> bool:
    return isinstance(annotation, type) and not hasattr(annotation, "__args__")


def _tree() -> str:
    """Return the tree of errors, as their module draws it."""
    drawn = re.search(r"^    StepsError\n(?:    .*\n)+", errors.__doc__ or "", re.MULTILINE)
    assert drawn is not None
    return inspect.cleandoc(drawn[0])


if __name__ == "__main__":
    PAGE.write_text(reference(), "utf-8")
