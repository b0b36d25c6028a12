"""Markdown: what an assistant said as HTML that may stand in the page.

markdown-it-py parses and escapes: HTML in a text is shown as text, and only what leads to another
page or to a mail is a link: none runs something or acts in the page itself. Images are links here,
since the page loads nothing from elsewhere, and no style is written, which its content policy
forbids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from hybridagi_steps.records.message import Step

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

LONGEST = 50_000
"""Characters; a longer text stays as it is."""
_LEADS_OUT = re.compile("https?://|mailto:", re.IGNORECASE)


def answers_html(steps: Iterable[Step]) -> dict[str, str]:
    """Return as HTML, by id, what the assistant says in these messages."""
    texts = {step.id: step.content for step in steps if step.is_assistant_step()}
    return {
        step_id: as_html(text)
        for step_id, text in texts.items()
        if isinstance(text, str) and 0 < len(text) <= LONGEST
    }


def as_html(text: str) -> str:
    """Return Markdown as HTML."""
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        token.attrs.pop("style", None)
        for part in token.children or ():
            if part.type == "link_open":
                part.attrs |= {"rel": "noopener noreferrer nofollow", "target": "_blank"}
    return parser.renderer.render(tokens, parser.options, {})


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False})
    parser.validateLink = lambda url: _LEADS_OUT.match(url) is not None
    return parser.enable(["table", "strikethrough"]).disable("image")
