"""What contexts are made of: tokens kept, by where they come from, and tokens left out."""

# matplotlib leaves its keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.plots.canvas import GREY, PALETTE, axes_for, finish, nothing_to_show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hybridagi_steps.context.builder import Context
    from hybridagi_steps.context.receipt import Receipt

_WRITTEN = {"system": "system prompt", "opening": "opening", "recalled": "recalled"}
"""Entries of a receipt that are no message of the session."""
_KINDS = ("system prompt", "opening", "messages", "recalled")
_LEFT_OUT = "left out"


def context_use(contexts: Context | Iterable[Context], ax: Axes | None = None) -> Axes:
    """Draw the tokens of contexts as bars, one for each: what is in it, and what it leaves out.

    Args:
        contexts: One context or several, such as one session's at different budgets.
        ax: Where to draw; by default a new figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidSettingError: What was given is no context.
    """
    receipts = _receipts(contexts)
    axes = axes_for(ax, 9.0, 1.2 + 0.5 * max(1, len(receipts)))
    if not receipts:
        return nothing_to_show(axes, "no context")
    places = range(len(receipts))
    begun = [0] * len(receipts)
    for kind, colour in zip((*_KINDS, _LEFT_OUT), (*PALETTE[:4], GREY), strict=True):
        widths = [_tokens(receipt, kind) for receipt in receipts]
        if not any(widths):
            continue
        out = kind == _LEFT_OUT
        look: dict[str, Any] = {"hatch": "///", "edgecolor": "white"} if out else {}
        axes.barh(places, widths, left=begun, height=0.7, color=colour, label=kind, **look)
        begun = [start + width for start, width in zip(begun, widths, strict=True)]
    for place, receipt in zip(places, receipts, strict=True):
        axes.plot([receipt.budget] * 2, [place - 0.4, place + 0.4], color="black", lw=1.5)
    axes.set_yticks(places, [f"{receipt.budget:,}" for receipt in receipts])
    axes.invert_yaxis()
    axes.set_ylabel("budget")
    estimated = any(receipt.estimated for receipt in receipts)
    axes.set_xlabel("tokens (estimated)" if estimated else "tokens")
    return finish(axes, "What the contexts are made of; the mark is the budget", legend="tokens of")


def _receipts(contexts: Context | Iterable[Context]) -> list[Receipt]:
    drawn = [contexts] if hasattr(contexts, "receipt") else contexts
    if not isinstance(drawn, Iterable):
        raise InvalidSettingError(f"contexts are drawn here, not {type(contexts).__name__}.")
    receipts = [getattr(context, "receipt", None) for context in drawn]
    found = [receipt for receipt in receipts if receipt is not None]
    if len(found) < len(receipts):
        raise InvalidSettingError("one of these is no context: ContextBuilder.build() makes them.")
    return found


def _tokens(receipt: Receipt, kind: str) -> int:
    if kind == _LEFT_OUT:
        return sum(entry.tokens for entry in receipt.dropped)
    entries: Sequence[tuple[str, int]] = [(entry.id, entry.tokens) for entry in receipt.kept]
    return sum(tokens for name, tokens in entries if _WRITTEN.get(name, "messages") == kind)
