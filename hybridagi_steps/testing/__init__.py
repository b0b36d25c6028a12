"""Doubles for tests: scripted language models, which answer without a network.

Each is loaded on first use, since the models need DSPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.testing.language_models import Script as Script
    from hybridagi_steps.testing.language_models import ScriptedLM as ScriptedLM
    from hybridagi_steps.testing.language_models import replay_lm as replay_lm
    from hybridagi_steps.testing.language_models import scripted_lm as scripted_lm
    from hybridagi_steps.testing.plausible_replies import Reply as Reply
    from hybridagi_steps.testing.plausible_replies import ToolCall as ToolCall
    from hybridagi_steps.testing.plausible_replies import asked_fields as asked_fields
    from hybridagi_steps.testing.plausible_replies import plausible_reply as plausible_reply
    from hybridagi_steps.testing.plausible_replies import request_text as request_text


_NAMES = {
    "language_models": "Script ScriptedLM replay_lm scripted_lm",
    "plausible_replies": "Reply ToolCall asked_fields plausible_reply request_text",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
