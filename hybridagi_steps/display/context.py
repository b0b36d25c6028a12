"""Contexts and their receipts as HTML for notebooks: what goes out, what stays behind, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_SHOWN = 200
"""Lines shown at most of what was kept, and of what was dropped."""

_LONGEST_TEXT = 4_000

_PAGE = """{{ style }}
<div class="hs">
<div class="hs-head">{{ title }}</div>
{% if messages %}
<div class="hs-list">
{% for message in messages %}
<div class="hs-step"><details><summary>
<span class="hs-mark" aria-hidden="true">›</span>
<span class="hs-chip hs-{{ message.style }}">{{ message.role }}</span>
<span class="hs-rest">{{ message.line }}</span>
</summary><div class="hs-body"><pre class="hs-text">{{ message.text }}</pre></div></details></div>
{% endfor %}
</div>
{% endif %}
{% for name, entries, hidden in sections %}
<details class="hs-around"{{ " open" if loop.first and not messages }}><summary>
<span class="hs-mark" aria-hidden="true">›</span>{{ name }}</summary>
{% for entry in entries %}
<div class="hs-rank"><span class="hs-title">{{ entry.id }}</span>
<span class="hs-why" title="{{ entry.why }}">{{ entry.why }}</span>
<span class="hs-facts">{{ "{:,}".format(entry.tokens) }}</span></div>
{% endfor %}
{% if hidden %}<div class="hs-more">… and {{ "{:,}".format(hidden) }} more</div>{% endif %}

</details>
{% endfor %}
{% for note in notes %}<div class="hs-more">{{ note }}</div>
{% endfor %}
</div>
"""

_STYLES = {"user": "call", "assistant": "action", "tool": "decision", "system": "end"}


def receipt_html(receipt: Mapping[str, Any]) -> str:
    """Return a receipt as HTML.

    Args:
        receipt: Its plain data: tokens, budget, counter, estimated, kept, dropped, notes.
    """
    return _render([], receipt)


def context_html(messages: Sequence[Mapping[str, Any]], receipt: Mapping[str, Any]) -> str:
    """Return a context as HTML: its messages, and the receipt folded below.

    Args:
        messages: In OpenAI's form.
        receipt: Its plain data.
    """
    return _render([_message(message) for message in messages], receipt)


def _render(messages: list[dict[str, str]], receipt: Mapping[str, Any]) -> str:
    about = "about " if receipt["estimated"] else ""
    title = f"{about}{receipt['tokens']:,} of {receipt['budget']:,} tokens · {receipt['counter']}"
    sections = [
        (f"{len(entries):,} {name}", entries[:MAX_SHOWN], max(0, len(entries) - MAX_SHOWN))
        for name in ("kept", "dropped")
        if (entries := receipt[name])
    ]
    page = _environment().from_string(_PAGE)
    html = page.render(
        title=title, messages=messages, sections=sections, notes=receipt["notes"][:MAX_SHOWN]
    )
    return html.encode("utf-8", "replace").decode()  # a notebook cannot store lone surrogates


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


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    from hybridagi_steps.display.templates import STYLE

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["style"] = STYLE  # pyright: ignore[reportArgumentType]
    return environment
