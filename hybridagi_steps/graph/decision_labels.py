"""Which option a language model meant: labels read out of whatever it answered.

"Ask User", "ask-user", `**ASK_USER**.` and "ASK_USER, since the date is missing" all mean ASK_USER.
An answer that names two options, or none, means nothing: it is better to ask again than to walk the
wrong way. Pure text in, label or None out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hybridagi_steps.graph.checks import label_key

FALLBACKS = ("OTHERWISE", "ELSE")
"""Labels of the edge that is taken when the model's answers are no option; never offered to it."""

_QUOTES = "\"'`*_“”„‘’«»「」『』（）【】()[]{}<> \t.,;:!。，、！；：．"
_LEAD = re.compile(
    r"^(?:(?:my|the)\s+)?(?:final\s+)?(?:answer|choice|decision|option|label|selected option)"
    r"(?:\s+is)?\s*[:=\-–—]?\s*",
    re.IGNORECASE,
)
_MARKED = re.compile(r"\*\*(.+?)\*\*|`(.+?)`|\"(.+?)\"|“(.+?)”")
_REASON = re.compile(
    r"^\s*(?:[.,;:!\n)–—。，、！；：．（）…-]|\(|because\b|since\b|as\b)", re.IGNORECASE
)


def fallback_of(labels: Sequence[str]) -> str | None:
    """Return the label of the fallback edge, None when there is none."""
    return next((label for label in labels if label.strip().upper() in FALLBACKS), None)


def offered(labels: Sequence[str]) -> list[str]:
    """Return the labels that a model may choose from: all but the fallback's."""
    fallback = fallback_of(labels)
    return [label for label in labels if label != fallback]


def chosen(answer: str, labels: Sequence[str]) -> str | None:
    """Return the label that an answer means, None when it means none, or more than one.

    Example:
        >>> chosen("Ask user, since no date was given.", ["ANSWER", "ASK_USER"])
        'ASK_USER'
        >>> chosen("Either is fine", ["ANSWER", "ASK_USER"]) is None
        True
    """
    keys = {label_key(label): label for label in labels}
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    if not lines:
        return None
    for text in (answer, lines[0], lines[-1]):
        if (label := _whole(text, keys)) is not None and _alone(label, answer, labels):
            return label
    for text in (lines[0], lines[-1]):
        label = _at_the_beginning(text, labels) or _at_the_beginning(_LEAD.sub("", text), labels)
        if label is not None and _alone(label, answer, labels):
            return label
    marked = {_whole("".join(groups), keys) for groups in _MARKED.findall(answer)} - {None}
    found = next(iter(marked), None)
    return found if len(marked) == 1 and found and _alone(found, answer, labels) else None


def _whole(text: str, keys: Mapping[str, str]) -> str | None:
    """Return the label that the whole text is, with or without "My answer is" before it."""
    bare = text.strip(_QUOTES) or text.strip()
    return keys.get(label_key(bare)) or keys.get(label_key(_LEAD.sub("", bare).strip(_QUOTES)))


def _at_the_beginning(text: str, labels: Sequence[str]) -> str | None:
    """Return the longest label that the text begins with, if a pause or a reason follows it."""
    text = text.lstrip(_QUOTES)
    for label in sorted(labels, key=len, reverse=True):
        words = [re.escape(word) for word in re.split(r"[\s_\-]+", label) if word]
        found = re.match(r"[\s_\-]+".join(words), text, re.IGNORECASE)
        if found is None:
            continue
        rest = text[found.end() :].lstrip("\"'`*_”’»)]}>」』】）")
        if not rest or _REASON.match(rest):
            return label
    return None


def _alone(label: str, answer: str, labels: Sequence[str]) -> bool:
    """Whether no other label is written out, letter for letter, in the answer."""
    for word in sorted(labels, key=len, reverse=True):
        pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
        if word != label and len(word) > 1 and re.search(pattern, answer):
            if word in label:
                continue
            return False
    return True
