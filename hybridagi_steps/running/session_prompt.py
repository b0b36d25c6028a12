"""Earlier messages in a program's prompts, as the messages they are.

For one run the adapter that DSPy would use is replaced by one of the same kind that puts the
session between the demos and the request. So any signature hears the conversation, tool calls
included, and the program is not changed. A program with a StepMessages field of its own gets them
there instead. A resumed turn stands there, too, its question first: what the program does from then
on is part of its request and so comes after it.
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

from hybridagi_steps.messages.provider_out import EMPTY
from hybridagi_steps.programs.adapters import NativeMessagesMixin

Messages = list[dict[str, Any]]
_GO_ON = "Go on from here."


class SessionSplice:
    """Mixed in before an adapter class: its prompts hold the session's messages."""

    before: Messages
    """Earlier messages, oldest first."""
    after: Messages
    """What a turn that was cut off has done since its question; empty for a new turn."""
    question: str
    """What such a turn answers."""
    plain: Any
    """The adapter without the session."""

    def format(
        self, signature: type[dspy.Signature], demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> Messages:
        """Return the messages, those of the session before the request."""
        own = cast("Messages", cast("Any", super()).format(signature, demos, inputs))
        place = self._request_place(own, signature, demos, inputs)
        head, request = own[:place], own[place:]
        if not self.after:
            return [*head, *self.before, *request]
        asked = {"role": "user", "content": self.question or EMPTY}
        return [*head, *self.before, asked, *self.after, *_gone_on(request)]

    def _request_place(self, own: Messages, signature: Any, demos: Any, inputs: Any) -> int:
        """Return where the request begins; what an agent has done since is part of it."""
        fields = signature.input_fields.items()
        told = [name for name, field in fields if field.annotation is dspy.History]
        if all(inputs.get(name) is None for name in told):
            return len(own) - 1
        return 1 + len(cast("Any", self).format_demos(signature, demos))

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
        return with_session(plain, self.before, self.after, self.question)


def with_session(
    adapter: Any, before: Messages, after: Messages | None = None, question: str = ""
) -> Any:
    """Return an adapter of the same kind whose prompts hold these messages before the request.

    Args:
        adapter: DSPy's adapter; None is its default.
        before: Earlier messages.
        after: What a turn that was cut off has done; may grow while the adapter is used.
        question: What such a turn answers.
    """
    plain = without_session(adapter) or dspy.ChatAdapter()
    spliced = copy.copy(plain)
    spliced.__class__ = _spliced_kind(type(plain))
    spliced.before, spliced.plain = before, plain
    spliced.after, spliced.question = [] if after is None else after, question
    return spliced


def without_session(adapter: Any) -> Any:
    """Return the adapter that was there before the session was added."""
    return adapter.plain if isinstance(adapter, SessionSplice) else adapter


def _gone_on(request: Messages) -> Messages:
    """Return a request that says that the turn above is to be gone on with."""
    first = request[0] if request else {}
    content = first.get("content")
    if first.get("role") != "user" or not content:
        return [{"role": "user", "content": _GO_ON}, *request]
    if isinstance(content, str):
        said: Any = f"{_GO_ON}\n\n{content}"
    else:
        said = [{"type": "text", "text": _GO_ON}, *content]
    return [{**first, "content": said}, *request[1:]]


@lru_cache(maxsize=64)
def _spliced_kind(kind: type[Any]) -> type[Any]:
    native = () if issubclass(kind, NativeMessagesMixin) else (NativeMessagesMixin,)
    return type(f"Session{kind.__name__}", (SessionSplice, *native, kind), {})
