"""Steps, trees of steps, search hits and contexts as HTML for notebooks.

Knows plain dicts only (`step.model_dump(mode="json")`), so that any part of the library may show
what it holds without a cycle. The HTML has no script and loads nothing, every text in it is
escaped, and long lists and values are cut with a note of how much is hidden. Colours are tints of
the page's own, so that light and dark themes both work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridagi_steps.display.templates import render
from hybridagi_steps.display.titles import as_text
from hybridagi_steps.display.view import (
    call_view,
    hit_view,
    plural,
    run_view,
    session_view,
    step_view,
    tree_view,
)

__all__ = [
    "context_html",
    "hits_html",
    "memory_html",
    "prompt_html",
    "receipt_html",
    "runs_html",
    "sessions_html",
    "step_html",
    "steps_html",
]

MAX_SHOWN = 200
"""Steps, hits or lines of a receipt shown at most; the rest is counted."""
_LONGEST_TEXT = 4_000

_STYLES = {"user": "call", "assistant": "action", "tool": "decision", "system": "end"}


def step_html(step: Mapping[str, Any]) -> str:
    """Return one step as HTML, its inputs and outputs unfolded.

    Args:
        step: An AgentStep as JSON data; unknown keys are ignored, missing ones left out.
    """
    return render("step", nodes=[step_view(step)], opened=True, title="", hidden=0)


def steps_html(steps: Sequence[Mapping[str, Any]], *, title: str | None = None) -> str:
    """Return steps as a collapsible tree: what a program did stands inside the program.

    Args:
        steps: AgentSteps as JSON data, in the order to show.
        title: The heading; by default the number of steps.
    """
    heading = plural(len(steps), "step") if title is None else title
    nodes = tree_view(steps[:MAX_SHOWN])
    hidden = max(0, len(steps) - MAX_SHOWN)
    return render("step", nodes=nodes, opened=False, title=heading, hidden=hidden)


def hits_html(hits: Sequence[Mapping[str, Any]]) -> str:
    """Return search hits, best first, as a list: score, why, the step, what stands around it."""
    shown = [hit_view(rank, hit) for rank, hit in enumerate(hits[:MAX_SHOWN], start=1)]
    return _listed("hit", len(hits), "hits", hits=shown)


def runs_html(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return runs as a list: what each was asked, its steps and errors, when it began."""
    return _listed("run", len(runs), "runs", runs=list(map(run_view, runs[:MAX_SHOWN])))


def sessions_html(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return sessions as a list: how each begins, what it holds, when it was written."""
    shown = list(map(session_view, sessions[:MAX_SHOWN]))
    return _listed("session", len(sessions), "runs", runs=shown)


def _listed(noun: str, count: int, template: str, **shown: object) -> str:
    title = plural(count, noun) if count else f"no {noun}s"
    return render(template, title=title, hidden=max(0, count - MAX_SHOWN), **shown)


def memory_html(title: str, stats: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what a memory holds as HTML: counts and sizes by name, and runs."""
    numbers = {name: f"{n:,}" if isinstance(n, int) else as_text(n) for name, n in stats.items()}
    shown = [
        {"id": text, "title": name.replace("_", " "), "status": "", "errors": "", "facts": ""}
        for name, text in numbers.items()
        if text
    ]
    held = render("runs", runs=shown, title=title, hidden=0)
    return held + (runs_html(runs) if runs else "")


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


def prompt_html(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return what a model saw as HTML: of each call the messages, and last what came back.

    Args:
        calls: LMCalls as JSON data.
    """
    return "".join(
        render(
            "context",
            title=title,
            messages=[_message(message) for message in messages],
            sections=[],
            notes=[f"tools: {tools}"] if tools else [],
        )
        for title, messages, tools in map(call_view, calls)
    )


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
