"""Contexts and their receipts as HTML for notebooks: what goes out, what stays behind, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridagi_steps.display.rendering import render

MAX_SHOWN = 200
"""Lines shown at most of what was kept, and of what was dropped."""

_LONGEST_TEXT = 4_000

_STYLES = {"user": "call", "assistant": "action", "tool": "decision", "system": "end"}


def receipt_html(receipt: Mapping[str, Any]) -> str:
    """Return a receipt as HTML.

    Args:
        receipt: Its plain data: tokens, budget, counter, estimated, kept, dropped, notes.
    """
    return _page([], receipt)


def context_html(messages: Sequence[Mapping[str, Any]], receipt: Mapping[str, Any]) -> str:
    """Return a context as HTML: its messages, and the receipt folded below.

    Args:
        messages: In OpenAI's form.
        receipt: Its plain data.
    """
    return _page([_message(message) for message in messages], receipt)


def _page(messages: list[dict[str, str]], receipt: Mapping[str, Any]) -> str:
    about = "about " if receipt["estimated"] else ""
    title = f"{about}{receipt['tokens']:,} of {receipt['budget']:,} tokens · {receipt['counter']}"
    sections = [
        (f"{len(entries):,} {name}", entries[:MAX_SHOWN], max(0, len(entries) - MAX_SHOWN))
        for name in ("kept", "dropped")
        if (entries := receipt[name])
    ]
    notes = receipt["notes"][:MAX_SHOWN]
    return render("context", title=title, messages=messages, sections=sections, notes=notes)


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else str(content)
    calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in _calls(message)]
    text = "\n".join(part for part in (text, *calls) if part)
    role = str(message["role"])
    return {
        "role": role,
        "style": _STYLES.get(role, "end"),
        "line": " ".join(text[:400].split()),
        "text": text[:_LONGEST_TEXT] + (" …" if len(text) > _LONGEST_TEXT else ""),
    }


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []
