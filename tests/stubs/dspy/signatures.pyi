from typing import Any

from dspy import Signature

def make_signature(
    signature: str | dict[str, Any],
    instructions: str | None = None,
    signature_name: str = "StringSignature",
) -> type[Signature]: ...
