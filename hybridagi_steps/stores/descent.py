"""What descends from steps: the walk that every store does alike, and revocations as stored text.

A step descends from what its `metadata.recalled` names. The call of a program descends from the
steps directly inside, since its answer came out of them, and its end from the call. Where links are
read is the store's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.provenance import RECALLED, recalled_by

Kin = Callable[[Sequence[str]], Iterable[str]]
"""Returns the ids of steps that are linked to some."""


def descendants(seeds: Iterable[str], *links: Kin) -> list[str]:
    """Return ids with those of all that descends from them, each once, nearest first."""
    found = dict.fromkeys(seeds)
    edge = list(found)
    while edge:
        near = dict.fromkeys(step_id for link in links for step_id in link(edge))
        edge = [step_id for step_id in near if step_id not in found]
        found.update(dict.fromkeys(edge))
    return list(found)


def recallers(recalled: Iterable[tuple[str, Sequence[str]]]) -> Kin:
    """Return the link from steps to those whose prompts held them.

    Args:
        recalled: Ids of steps, each with the ids that it recalled.
    """
    by_source: dict[str, list[str]] = {}
    for step_id, sources in recalled:
        for source in sources:
            by_source.setdefault(source, []).append(step_id)
    return lambda ids: [found for step_id in ids for found in by_source.get(step_id, ())]


def recalled_ids(text: str | None) -> list[str]:
    """Return the ids in a step's `metadata.recalled`, as the database gives it."""
    if text is None or not text.startswith("["):
        return []
    return recalled_by({RECALLED: orjson.loads(text)})


def kept_filter(where: StepFilter) -> dict[str, Any]:
    """Return the conditions of a filter as they are kept with a revocation."""
    return where.model_dump(mode="json", exclude_none=True)


def filter_text(where: dict[str, Any]) -> str:
    """Return a kept filter as text."""
    return orjson.dumps(where).decode()


def filter_keys(text: str) -> dict[str, Any]:
    """Return a kept filter from its text."""
    return orjson.loads(text)


def names_owner(where: dict[str, Any], gone: StepFilter) -> bool:
    """Tell whether a kept filter names the user or the session that is being purged."""
    purged = {"user_id": gone.user_id, "session_id": gone.session_id}
    return any(name is not None and where.get(key) == name for key, name in purged.items())
