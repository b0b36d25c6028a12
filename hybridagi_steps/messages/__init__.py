"""The adapter between what agents did and what language models read.

`to_messages` turns AgentSteps into Steps, `to_agent_steps` turns them back without loss;
`from_messages` reads OpenAI's and Anthropic's messages, `to_provider` writes them. Everything
written keeps a strict provider's rules, whatever was read: see `units` for what is repaired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.messages.agent_steps import to_agent_steps as to_agent_steps
    from hybridagi_steps.messages.agent_steps import to_messages as to_messages
    from hybridagi_steps.messages.provider_in import from_messages as from_messages
    from hybridagi_steps.messages.provider_out import AnthropicPrompt as AnthropicPrompt
    from hybridagi_steps.messages.provider_out import to_provider as to_provider
    from hybridagi_steps.messages.units import Unit as Unit
    from hybridagi_steps.messages.units import message_units as message_units


_NAMES = {
    "agent_steps": "to_agent_steps to_messages",
    "provider_in": "from_messages",
    "provider_out": "AnthropicPrompt to_provider",
    "units": "Unit message_units",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
