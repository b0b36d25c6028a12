"""Compaction that destroys nothing: a message that stands for others, and names them.

A summary is a Step like any other. Stored at the end of a session it takes the place of the
messages it names whenever a context is built; these stay in the session, can be found, and
`expand` puts them back. It speaks as a user and is fenced as data: a summary of what anybody said
must never become an instruction.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.messages.fences import fenced
from hybridagi_steps.messages.units import Unit, Units, message_units, unit_text
from hybridagi_steps.records.excerpts import extractive_summary
from hybridagi_steps.records.json_reading import as_list
from hybridagi_steps.records.message import SUMMARY_OF, MessageRole, Step

Summarise = Callable[[str], str]
"""A text in, a shorter text out."""


def compact(
    messages: Iterable[Step], *, keep: int = 6, summarise: Summarise = extractive_summary
) -> Step:
    """Return a message that stands for all but the last units of a conversation.

    Args:
        messages: The conversation; it stays as it is. Earlier summaries in it are taken up.
        keep: Newest units that are not summarised.
        summarise: Makes the text; by default the fragments that matter, without a language model.

    Raises:
        InvalidSettingError: There is nothing older than the last `keep` units, or `summarise`
            returned no text.
    """
    given = list(messages)
    units = message_units(given).units
    older = units[: max(0, len(units) - keep)]
    if not older:
        raise InvalidSettingError(
            f"the conversation has {len(units)} units and {keep} are kept: nothing to compact."
        )
    known = {message.id for message in given}
    ids = [m.id for unit in older for m in unit.messages if m.id in known]
    text = _summary_text(summarise, "\n\n".join(map(unit_text, older)))
    about = f"{len(ids)} earlier messages"
    last = older[-1].messages[-1]
    return Step(
        session_id=last.session_id,
        role=MessageRole.USER,
        content=fenced("summary", text, of=about, first=ids[0], last=ids[-1]),
        metadata={SUMMARY_OF: _all_ids(ids, given)},
    )


def expand(messages: Iterable[Step], originals: Iterable[Step] = ()) -> list[Step]:
    """Return a conversation with the messages that summaries stand for, and no summary.

    Args:
        messages: A conversation with summaries in it. What stands beside its summary stays where it
            is; what does not is put in the summary's place.
        originals: Where the messages are that are not beside their summary.
    """
    given = list(messages)
    beside = {message.id for message in given}
    elsewhere = {message.id: message for message in originals if message.id not in beside}
    found: dict[str, Step] = {}
    for message in given:
        named = summarised(message)
        held = (elsewhere.get(step_id) for step_id in named)
        shown = [step for step in held if step is not None] if named else [message]
        found.update((step.id, step) for step in shown if not summarised(step))
    return list(found.values())


def summarised(message: Step) -> list[str]:
    """Return the ids of the messages that a message stands for; none if it is no summary."""
    return [str(step_id) for step_id in as_list((message.metadata or {}).get(SUMMARY_OF))]


def replaced(units: Units) -> tuple[Units, dict[str, str]]:
    """Return units with the summaries among them in the place of what they stand for.

    Returns:
        The units; and for each message that is not shown the summary that stands for it.
    """
    if not units.summaries:
        return units, {}
    standing: dict[str, str] = {}
    summaries: dict[str, Unit] = {}
    seen: set[str] = set()
    for unit in units:
        own = unit.messages[0].id
        if ids := summarised(unit.messages[0]):
            summaries[own] = unit
            standing |= {step_id: own for step_id in ids if step_id in seen}
        seen.update(message.id for message in unit.messages)
    shown: list[Unit] = []
    placed: set[str] = set()
    for unit in units:
        top = unit.messages[0].id
        while top in standing:  # a summary may stand for earlier summaries
            top = standing[top]
        if top not in placed:
            shown.append(summaries.get(top, unit))
        if top in summaries:
            placed.add(top)
    return Units(shown), standing


def _summary_text(summarise: Summarise, text: str) -> str:
    """Return what a summariser makes of a text, or refuse what is no summary."""
    made: Any = summarise(text)
    if isinstance(made, str) and made.strip():
        return made
    if inspect.iscoroutine(made):
        made.close()
        hint = "give a function that is not async, such as lambda text: asyncio.run(…)"
    else:
        hint = "give a function from a text to a shorter one"
    got = "a blank text" if isinstance(made, str) else type(made).__name__
    raise InvalidSettingError(f"summarise returned {got}, not a summary; {hint}.")


def _all_ids(ids: list[str], messages: Sequence[Step]) -> list[str]:
    """Return ids with those that summaries among them stand for, each once."""
    by_id = {message.id: message for message in messages}
    found: dict[str, None] = {}
    for step_id in ids:
        for inner in summarised(by_id[step_id]):
            found[inner] = None
        found[step_id] = None
    return list(found)
