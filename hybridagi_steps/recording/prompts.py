"""What a model is sent and gives back, as DSPy tells callbacks of it, as an `LMCall`.

Copied when the model is asked: a program may go on writing to its list of messages. Of the model's
own settings only those are kept that shape its answer, never keys, addresses or headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspy.lm15 import Request

from hybridagi_steps.recording.values import plain
from hybridagi_steps.records.json_values import transformed
from hybridagi_steps.records.prompts import SETTINGS, LMCall

_LONGEST_MEDIUM = 1_000
_PAYLOADS = ("data", "file_data")


def request_of(model: Any, inputs: Mapping[str, Any]) -> LMCall:
    """Return the request of a call that begins."""
    prompt, given = inputs.get("prompt"), {**getattr(model, "kwargs", {}), **(inputs["kwargs"])}
    messages = inputs.get("messages")
    if isinstance(prompt, Request):
        messages = [{"role": each.role, "parts": each.parts} for each in prompt.messages]
        if prompt.system:
            messages.insert(0, {"role": "system", "content": prompt.system})
        given |= {**_copied(prompt.config), "tools": prompt.tools}
    elif not messages:
        messages = [{"role": "user", "content": prompt}]
    settings = {name: given[name] for name in given if name in SETTINGS}
    return LMCall(
        lm=str(model.model) if hasattr(model, "model") else None,
        messages=_copied(messages),
        tools=_copied(given.get("tools") or []),
        settings=_copied({name: value for name, value in settings.items() if value is not None}),
    )


def with_answer(request: LMCall, outputs: object, exception: BaseException | None) -> LMCall:
    """Return a call whose model has answered, or failed."""
    error = None if exception is None else f"{type(exception).__name__}: {exception}"
    return request.model_copy(update={"completion": _copied(outputs), "error": error})


def _copied(value: object) -> Any:
    return transformed(plain(value, []), _without_medium)


def _without_medium(value: Any, path: str) -> Any:
    """Return a few words for a picture, a sound or a file, anything else as it is."""
    if not isinstance(value, str) or len(value) <= _LONGEST_MEDIUM:
        return value
    medium = value.startswith("data:") or path.rpartition(".")[2] in _PAYLOADS
    return f"<medium of {len(value):,} characters>" if medium else value
