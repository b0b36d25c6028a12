"""A language model by its name, for callers that do not know DSPy, such as the command line."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import dspy


def named_model(name: str, api_base: str | None = None) -> Any:
    """Return a language model.

    Args:
        name: `provider/model`, as DSPy has it. Keys are read from the provider's own variables.
        api_base: Address of a server that speaks the provider's protocol.
    """
    if api_base is None:
        return dspy.LM(name)
    # Servers on one's own machine ask for no key, clients insist on one.
    return dspy.LM(name, api_base=api_base, api_key="none")
