"""What commands print for programs: JSON, without loading what draws tables."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridagi_steps.records.agent_step import AgentStep


def step_data(step: AgentStep) -> dict[str, Any]:
    """Return a step as JSON data, without its vector."""
    return step.model_dump(mode="json", exclude={"vector"})


def print_json(value: object) -> None:
    """Print a value as JSON, indented, as it is."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")
