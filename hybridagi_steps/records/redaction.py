"""Redaction of JSON data: every text, keys included, without what may not be kept.

What a secret is only the caller's function knows; here stands which texts it gets to see: those in
base64 as what they say, those in JSON as their values, and none by which steps and messages are
read.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from uuid import UUID

import orjson

from hybridagi_steps.errors import InvalidStepError
from hybridagi_steps.records.agent_step import as_id
from hybridagi_steps.records.json_values import transformed
from hybridagi_steps.records.provenance import RECALLED, recalled_by

Redact = Callable[[str], str]
"""Takes what a program said, returns what may be kept of it."""

_PAYLOADS = frozenset(("data", "file_data"))
"""Keys under which providers put the bytes of a picture, a sound or a file."""
_CONVENTION = _PAYLOADS | frozenset(
    """inputs outputs metadata purpose tool arguments args result observation program options choice
    reasoning error type message repairs truncated redaction_failed joins step steps messages role
    content score value left_out recalled source kind format name at before""".split()  # noqa: SIM905 - a paragraph reads better than its quotes
)
"""Keys by which steps are read; none of them is a secret."""
_DATA_URL = re.compile(r"(data:[^,\s]*;base64,)([A-Za-z0-9+/_-]+={0,2})")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{6,}={0,2}")
_READABLE = re.compile(rb"[ -~]{6,}")
"""What a person would read in the bytes of a picture: comments, titles, places."""
_URL_SAFE = str.maketrans("-_", "+/")
_REMOVED = b64encode(b"[redacted]").decode()
_STRUCTURE = frozenset(("id", "type", "tool_use_id", "index"))
"""Keys of tool calls and content parts whose values are no text of anybody."""
_NESTED = frozenset(("function", "content", "source", "image_url", "cache_control"))
"""Keys whose values are built in the same way."""
_KEYS = frozenset(
    """name arguments text thinking input url detail media_type data refusal annotations""".split()  # noqa: SIM905 - a paragraph reads better than its quotes
)
"""Other keys by which providers read a message; none of them is a secret."""


def redacted(value: Any, redact: Redact) -> Any:
    """Return `value` with `redact` applied to every string in it, keys of dicts included.

    The keys by which a step is read (`purpose`, `result`, …) stay as they are. A text in base64, in
    a data URL too, is redacted as what it says; a picture or sound that holds such a text is left
    out.
    """

    def text(item: Any, path: str) -> Any:
        if not isinstance(item, str):
            return item
        return _text(redact, item, payload=path.rpartition(".")[2] in _PAYLOADS)

    def names(members: dict[str, Any], _: str) -> Iterator[str]:
        made = set[str]()
        twice: Counter[str] = Counter()
        for key in members:
            name = wanted = key if key in _CONVENTION else _text(redact, key)
            while name in made:
                twice[wanted] += 1
                name = f"{wanted}'{twice[wanted] + 1}"
            made.add(name)
            yield name

    return transformed(value, text, names)


def redacted_fields(fields: dict[str, Any], redact: Redact) -> dict[str, Any]:
    """Return a step's fields redacted, but for the UUIDs of what it recalled, which say nothing."""
    kept: dict[str, Any] = redacted(fields, redact)
    recalled = recalled_by(fields.get("metadata"))
    if not recalled or len(recalled) != len(kept["metadata"][RECALLED]):
        return kept
    pairs = zip(recalled, kept["metadata"][RECALLED], strict=True)
    ids = [name if isinstance(as_id(name), UUID) else said for name, said in pairs]
    return {**kept, "metadata": {**kept["metadata"], RECALLED: ids}}


def _text(redact: Redact, text: str, *, payload: bool = False) -> str:
    if "base64," in text:
        text = _DATA_URL.sub(lambda url: url[1] + _decoded(redact, url[2], payload=True), text)
    elif payload or (len(text) % 4 == 0 and _BASE64.fullmatch(text)):
        text = _decoded(redact, text, payload=payload)
    return _said(redact, text)


def _decoded(redact: Redact, text: str, *, payload: bool) -> str:
    """Return a base64 text without what `redact` takes out of what it stands for."""
    bare = "".join(text.split()).rstrip("=") if payload else text.rstrip("=")
    try:
        raw = b64decode(bare.translate(_URL_SAFE) + "=" * (-len(bare) % 4), validate=True)
    except ValueError:
        return text
    try:
        said = raw.decode()
    except UnicodeDecodeError:
        runs = [run.decode() for run in _READABLE.findall(raw)] if payload else []
        return text if all(_said(redact, run) == run for run in runs) else _REMOVED
    kept = _said(redact, said)
    return text if kept == said else b64encode(kept.encode(errors="replace")).decode()


def _said(redact: Redact, text: str) -> str:
    kept = redact(text)
    if not isinstance(kept, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidStepError(f"redact returned a {type(kept).__name__}; it must return a string.")
    return kept


def redacted_message(values: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """Return the fields of a message with `redact` applied to every text a person or model said."""
    metadata: dict[str, Any] = values.get("metadata") or {}
    links = {"agent_step_ids"} & metadata.keys()
    rest = {key: value for key, value in metadata.items() if key not in links}
    return {
        **{name: _redacted_part(value, redact) for name, value in values.items()},
        "metadata": {**{key: metadata[key] for key in links}, **redacted(rest, redact)} or None,
    }


def _redacted_part(value: Any, redact: Redact) -> Any:
    """Redact a part of a message, leaving alone what says how it is built."""
    if isinstance(value, list):
        return [_redacted_part(item, redact) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return redacted(value, redact)
    kept: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for key, item in cast("dict[str, Any]", value).items():
        if key in _STRUCTURE and not isinstance(item, dict | list):
            kept[key] = item
        elif key == "arguments" and isinstance(item, str):
            kept[key] = _redacted_json(item, redact)
        elif key in _NESTED:
            kept[key] = _redacted_part(item, redact)
        elif key in _KEYS:
            kept[key] = redacted({key: item}, redact).popitem()[1]
        else:
            unknown[key] = item
    return {**kept, **redacted(unknown, redact)}


def _redacted_json(text: str, redact: Redact) -> str:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return redacted(text, redact)
    if not isinstance(value, dict | list):
        return redacted(text, redact)
    kept = redacted(value, redact)
    return text if kept == value else orjson.dumps(kept).decode()
