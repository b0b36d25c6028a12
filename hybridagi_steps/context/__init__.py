"""What of a session goes to a language model: messages under a token budget, with a receipt."""

from hybridagi_steps.context.builder import Context, ContextBuilder
from hybridagi_steps.context.compaction import compact, expand
from hybridagi_steps.context.receipt import Receipt, ReceiptEntry
from hybridagi_steps.context.session_messages import build_context_from_steps, get_context_summary

__all__ = [
    "Context",
    "ContextBuilder",
    "Receipt",
    "ReceiptEntry",
    "build_context_from_steps",
    "compact",
    "expand",
    "get_context_summary",
]
