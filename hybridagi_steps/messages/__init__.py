"""The adapter between what agents did and what language models read.

`to_messages` turns AgentSteps into Steps, `to_agent_steps` turns them back without loss;
`from_messages` reads OpenAI's and Anthropic's messages, `to_provider` writes them. Everything
written keeps a strict provider's rules, whatever was read: see `units` for what is repaired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.messages.agent_steps import to_agent_steps, to_messages
    from hybridagi_steps.messages.provider_in import from_messages
    from hybridagi_steps.messages.provider_out import AnthropicPrompt, to_provider
    from hybridagi_steps.messages.units import Unit, message_units

__all__ = [
    "AnthropicPrompt",
    "Unit",
    "from_messages",
    "message_units",
    "to_agent_steps",
    "to_messages",
    "to_provider",
]

_NAMES = {
    "agent_steps": "to_agent_steps to_messages",
    "provider_in": "from_messages",
    "provider_out": "AnthropicPrompt to_provider",
    "units": "Unit message_units",
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
