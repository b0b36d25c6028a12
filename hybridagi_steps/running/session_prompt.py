"""Earlier messages in a program's prompts, as the messages they are.

For one run the adapter that DSPy would use is replaced by one of the same kind that puts the
session between the demos and the request. So any signature hears the conversation, tool calls
included, and the program is not changed. A program with a StepMessages field of its own gets them
there instead. What a resumed turn has done already stands behind the request: the model goes on
from there.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, cast

import dspy
from dspy.clients.call_context import adapter_fallback_scope
from dspy.utils.exceptions import AdapterParseError

from hybridagi_steps.programs.adapters import NativeMessagesMixin

Messages = list[dict[str, Any]]
_GO_ON = "Go on from here."


class SessionSplice:
    """Mixed in before an adapter class: its prompts hold the session's messages."""

    before: Messages
    """Earlier messages, oldest first."""
    after: Messages
    """What the turn has done already."""
    plain: Any
    """The adapter without the session."""

    def format(
        self, signature: type[dspy.Signature], demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> Messages:
        """Return the messages with those of the session around the request."""
        own = cast("Messages", cast("Any", super()).format(signature, demos, inputs))
        request = [*own[:-1], *self.before, *own[-1:]]
        if not self.after:
            return request
        # The form asked for stands far up by now, so it is said once more.
        needed = getattr(self, "user_message_output_requirements", None)
        form = f"\n\n{needed(signature)}" if needed is not None else ""
        return [*request, *self.after, {"role": "user", "content": f"{_GO_ON}{form}"}]

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: Any, inputs: Any
    ) -> Any:
        """Ask a model; ask again as JSON when the answer cannot be read."""
        given = (lm, dict(lm_kwargs), signature, demos, inputs)
        with adapter_fallback_scope() as progress:
            try:
                return cast("Any", super()).__call__(lm, lm_kwargs, signature, demos, inputs)
            except AdapterParseError:
                if not self._asks_again(progress):
                    raise
                return self._make_json_adapter_fallback()(*given)

    async def acall(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: Any, inputs: Any
    ) -> Any:
        """Do so asynchronously."""
        given = (lm, dict(lm_kwargs), signature, demos, inputs)
        with adapter_fallback_scope() as progress:
            try:
                return await cast("Any", super()).acall(lm, lm_kwargs, signature, demos, inputs)
            except AdapterParseError:
                if not self._asks_again(progress):
                    raise
                return await self._make_json_adapter_fallback().acall(*given)

    def _asks_again(self, progress: Any) -> bool:
        # DSPy itself does not once a token was streamed, since it cannot take tokens back. A draft
        # can be called off, so streaming must not make a program less able.
        able = isinstance(self, dspy.ChatAdapter) and not isinstance(self, dspy.JSONAdapter)
        return able and progress.emitted and getattr(self, "use_json_adapter_fallback", False)

    def _make_json_adapter_fallback(self) -> Any:
        # When a chat answer cannot be read DSPy asks again through another adapter.
        plain = cast("Any", super())._make_json_adapter_fallback()  # noqa: SLF001
        return with_session(plain, self.before, self.after)


def with_session(adapter: Any, before: Messages, after: Messages) -> Any:
    """Return an adapter of the same kind whose prompts hold these messages.

    Args:
        adapter: DSPy's adapter; None is its default.
        before: Messages between demos and request.
        after: Messages behind the request.
    """
    plain = without_session(adapter) or dspy.ChatAdapter()
    spliced = copy.copy(plain)
    spliced.__class__ = _spliced_kind(type(plain))
    spliced.before, spliced.after, spliced.plain = before, after, plain
    return spliced


def without_session(adapter: Any) -> Any:
    """Return the adapter that was there before the session was added."""
    return adapter.plain if isinstance(adapter, SessionSplice) else adapter


@lru_cache(maxsize=64)
def _spliced_kind(kind: type[Any]) -> type[Any]:
    native = () if issubclass(kind, NativeMessagesMixin) else (NativeMessagesMixin,)
    return type(f"Session{kind.__name__}", (SessionSplice, *native, kind), {})
