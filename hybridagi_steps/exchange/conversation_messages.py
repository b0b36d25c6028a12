"""The messages of an imported conversation as Steps: what a session is continued from.

Each turn becomes one message in OpenAI's form, linked to the AgentSteps that tell what was done.
They come in units: what is kept together, and what steps are pinned to, is a user's message, or an
assistant's with the results of its calls. A message that is a Step already stays the Step it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hybridagi_steps.exchange.records import as_list, as_object, stable_id
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics

if TYPE_CHECKING:
    from hybridagi_steps.exchange.conversation import Conversation, Turn

_ROLES = {"developer": "system", "function": "tool"}
_LEGACY_CALL = "function_call"
_SAID = ("role", "content", "refusal", "name", "tool_calls", "tool_call_id", _LEGACY_CALL)
_LONGEST_ID = 128


class MessageWriter:
    """Makes the messages of one conversation, unit by unit.

    Args:
        conversation: What is imported.
        run_id: The run that its AgentSteps belong to.
    """

    def __init__(self, conversation: Conversation, run_id: str) -> None:
        self._conversation, self._run_id = conversation, run_id
        self._links: dict[int, list[str]] = {}
        self._keys = _chain(conversation)
        self._legacy_call: str | None = None

    def key_of(self, turn: Turn) -> str:
        """Return what tells a turn from every other: what it says, and all before it."""
        return self._keys[id(turn)]

    def link(self, turn: Turn, step_id: str) -> None:
        """Note that an AgentStep tells what a turn says."""
        self._links.setdefault(id(turn), []).append(step_id)

    def messages(self, turns: Sequence[Turn]) -> list[Step]:
        """Return the messages of these turns; what they are linked to is known by now."""
        return [self._own_step(turn) or self._message(turn) for turn in turns]

    def _own_step(self, turn: Turn) -> Step | None:
        """Return a message that was written as a Step; None when it was not."""
        fields = as_object(turn.native)
        if not self._conversation.of_steps or not isinstance(fields.get("id"), str):
            return None
        linked = self._links.get(id(turn), [])
        place = {"session_id": self._session_id(), "run_id": fields.get("run_id") or self._run_id}
        try:
            step = Step.model_validate({**fields, **place})
        except ValidationError:
            return None
        if step.agent_step_id is None and len(linked) == 1:
            step.agent_step_id = linked[0]
        return step

    def _message(self, turn: Turn) -> Step:
        view = turn.view
        role = MessageRole(_ROLES.get(view["role"], view["role"]))
        linked = self._links.get(id(turn), [])
        metadata: dict[str, Any] = {"format": self._conversation.format}
        calls = self._calls(turn) if role is MessageRole.ASSISTANT else None
        if calls:
            metadata["agent_step_ids"] = linked
        fields: dict[str, Any] = {
            "id": self.key_of(turn),
            "session_id": self._session_id(),
            "run_id": self._run_id,
            "role": role,
            "content": _content(view.get("content") or view.get("refusal")),
            "tool_calls": calls,
            "tool_call_id": self._answered(turn) if role is MessageRole.TOOL else None,
            "name": _text(view.get("name")),
            "reasoning_content": _text(view.get("reasoning_content")),
            "agent_step_id": linked[0] if len(linked) == 1 else None,
            "metadata": metadata,
            "metrics": StepMetrics.model_validate(turn.metrics) if turn.metrics else None,
        }
        if made := turn.said_at or self._conversation.created_at:
            fields["created_at"] = made
        return Step(**fields)

    def _session_id(self) -> str:
        return self._conversation.session_id or self._run_id

    def _calls(self, turn: Turn) -> list[dict[str, Any]] | None:
        given: list[Any] = turn.view.get("tool_calls") or []
        calls = [_call(cast("dict[str, Any]", call)) for call in given]
        if legacy := turn.view.get(_LEGACY_CALL):
            self._legacy_call = f"call_{turn.place}"
            calls.insert(0, {"id": self._legacy_call, "type": "function", "function": legacy})
        return calls or None

    def _answered(self, turn: Turn) -> str | None:
        """Return the call that a result answers; in the oldest form it is the one before."""
        if turn.view["role"] == "function":
            return self._legacy_call
        return _short(_text(turn.view.get("tool_call_id")))


def _chain(conversation: Conversation) -> dict[int, str]:
    """Return a key for each turn, made of the one before and of what it says."""
    keys: dict[int, str] = {}
    key = conversation.key
    for turn in conversation.turns:
        named = (turn.native or {}).get("id"), (turn.native or {}).get("sequence")
        said = [turn.view.get(name) for name in _SAID]
        content = json.dumps([*named, *said], sort_keys=True, default=str)
        key = keys[id(turn)] = str(stable_id(key, content))
    return keys


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call whose arguments are text, as they are in OpenAI's form."""
    if isinstance(call.get("id"), str):
        call = {**call, "id": _short(call["id"])}
    function = as_object(call.get("function"))
    if "arguments" not in function or isinstance(function["arguments"], str):
        return call
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _content(given: Any) -> str | list[dict[str, Any]] | None:
    """Return a message's content in one of the two forms there are."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, list):
        return json.dumps(given, ensure_ascii=False)
    parts = as_list(given)
    first = as_object(parts[0]) if len(parts) == 1 else {}
    if first.keys() == {"type", "text"} and isinstance(first["text"], str):
        return first["text"]
    return [as_object(part) or {"type": "text", "text": str(part)} for part in parts]


def _short(call_id: str | None) -> str | None:
    """Return the id of a call, or for a longer one than can be kept what it always gives."""
    if call_id is None or len(call_id) <= _LONGEST_ID:
        return call_id
    return f"call_{stable_id(call_id).hex}"


def _text(given: Any) -> str | None:
    return given if isinstance(given, str) and given else None
