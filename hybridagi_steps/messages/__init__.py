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

_HOMES: dict[str, str | None] = {
    "AnthropicPrompt": "provider_out",
    "Unit": "units",
    "from_messages": "provider_in",
    "message_units": "units",
    "to_agent_steps": "agent_steps",
    "to_messages": "agent_steps",
    "to_provider": "provider_out",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
