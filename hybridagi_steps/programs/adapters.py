"""DSPy adapters that write steps as the text of their templates, marked as data, without vectors.

They do for signatures that take an AgentStepList, a QueryWithSteps or plain AgentSteps what the
prompt type `StepContext` does under any adapter. `StepMessages` goes the other way: past messages
stay messages, tool calls and results included, and the native adapters put them before the current
request. All adapter code stands in this module: this is what changes most between releases of DSPy.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self, cast

import dspy
from pydantic import model_validator

from hybridagi_steps.context.builder import Context
from hybridagi_steps.context.layout import recalled_in
from hybridagi_steps.dspy_types import (
    AgentStepList,
    PastMessages,
    Query,
    QueryList,
    QueryWithSteps,
    StepContext,
)
from hybridagi_steps.messages.provider_in import from_messages
from hybridagi_steps.messages.provider_out import to_provider
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import Step

RETRIES = "hybridagi_steps_max_retries"
"""DSPy's setting that says how often a client asks a refusing provider again."""


@contextmanager
def retrying(lm: object, max_retries: int) -> Generator[None]:
    """Have what runs in the block ask `lm`, and every client so often again and no oftener.

    A call is repeated where it is made, by DSPy's client, which heeds what the provider says of
    when; nothing around it repeats that, or the two would multiply.
    """
    with overriding(**{RETRIES: max_retries}), overriding(lm=with_retries(lm)):
        yield


def with_retries(lm: object) -> Any:
    """Return a client that asks as often again as the block around allows.

    A twin, since others use the client, too; its history is shared. Clients that are not DSPy's
    own stay as they are.
    """
    retries = dspy.settings.get(RETRIES)
    if retries is None or not isinstance(lm, dspy.LM) or lm.num_retries == retries:
        return lm
    twin = copy.copy(lm)
    twin.num_retries = retries
    return twin


class StepsAdapterMixin:
    """Makes any DSPy adapter write steps and queries as text, in inputs and in demos.

    Put it before the adapter: `class MyAdapter(StepsAdapterMixin, dspy.ChatAdapter)`.
    """

    def format(
        self,
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Return the messages, steps and queries written as text."""
        written = [{key: _written(demo[key]) for key in demo} for demo in demos]
        values = {key: _written(value) for key, value in inputs.items()}
        return cast("Any", super()).format(signature, written, values)

    def _make_json_adapter_fallback(self) -> dspy.JSONAdapter:
        # When a chat answer cannot be read DSPy asks again through a plain JSONAdapter, which
        # would write the steps as JSON after all.
        plain = cast("Any", super())._make_json_adapter_fallback()  # noqa: SLF001
        return self._json_adapter(
            use_native_function_calling=plain.use_native_function_calling,
            parallel_tool_calls=plain.parallel_tool_calls,
        )

    @property
    def _json_adapter(self) -> type[dspy.JSONAdapter]:
        return StepsJSONAdapter


class StepsChatAdapter(StepsAdapterMixin, dspy.ChatAdapter):
    """DSPy's chat adapter with steps as text."""


class StepsJSONAdapter(StepsAdapterMixin, dspy.JSONAdapter):
    """DSPy's JSON adapter with steps as text."""


class StepsXMLAdapter(StepsAdapterMixin, dspy.XMLAdapter):
    """DSPy's XML adapter with steps as text."""


class StepMessages(PastMessages):
    """Past messages in a prompt, as messages: `past: StepMessages = dspy.InputField()`.

    Made of a context, of Steps, or of provider messages: `predict(past=StepMessages.of(context))`.
    The native adapters send them as they are, before the current request; any other adapter writes
    them as text. Whatever they are made of, they keep a strict provider's rules.
    """

    @model_validator(mode="before")
    @classmethod
    def _from_messages(cls, value: object) -> Any:
        messages = _provider_messages(value)
        return value if messages is None else {"messages": messages, "recalled": _quoted(value)}

    @classmethod
    def of(cls, messages: object) -> Self:
        """Return messages of any of the kinds above as a prompt value.

        Raises:
            MessageError: Something in a list is no message.
            pydantic.ValidationError: This is no list of messages.
        """
        # Outside of validation, which would wrap the error.
        native = _provider_messages(messages)
        if native is None:
            return cls.model_validate(messages)
        return cls(messages=native, recalled=_quoted(messages))


class NativeMessagesMixin(StepsAdapterMixin):
    """Makes a DSPy adapter send StepMessages as messages: system, demos, these, current request.

    Steps and queries are written as text, as with `StepsAdapterMixin`. A signature without such a
    field is formatted as ever.
    """

    def format(
        self,
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Return the messages, past ones in their place."""
        names = [
            name
            for name, field in signature.input_fields.items()
            if StepMessages.extract_custom_type_from_annotation(field.annotation)
        ]
        if not names:
            return super().format(signature, demos, inputs)
        past: list[dict[str, Any]] = []
        for name in names:
            signature = signature.delete(name)
            if inputs.get(name) is not None:
                past += StepMessages.of(inputs[name]).messages
        demos = [{key: demo[key] for key in demo if key not in names} for demo in demos]
        inputs = {key: value for key, value in inputs.items() if key not in names}
        return _spliced(super().format(signature, demos, inputs), past)

    @property
    def _json_adapter(self) -> type[dspy.JSONAdapter]:
        return NativeJSONAdapter


class NativeChatAdapter(NativeMessagesMixin, dspy.ChatAdapter):
    """DSPy's chat adapter with past messages as messages and steps as text."""


class NativeJSONAdapter(NativeMessagesMixin, dspy.JSONAdapter):
    """DSPy's JSON adapter with past messages as messages and steps as text."""


def _spliced(prompt: list[dict[str, Any]], past: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a prompt with past messages before its last user message.

    What they say as system joins the prompt's own system message: providers take it there only.
    """
    system = [message["content"] for message in past if message["role"] == "system"]
    said = [message for message in past if message["role"] != "system"]
    if system:
        head = {**prompt[0], "content": "\n\n".join([prompt[0]["content"], *system])}
        prompt = [head, *prompt[1:]]
    asks = prompt[-1]["role"] == "user"
    return [*prompt[:-1], *said, prompt[-1]] if asks else [*prompt, *said]


def _provider_messages(value: object) -> list[dict[str, Any]] | None:
    """Return what StepMessages are made of as sound messages; None if it is nothing of the kind."""
    if isinstance(value, Context):
        return value.messages
    given = cast("dict[str, Any]", value).get("messages") if isinstance(value, dict) else value
    if not isinstance(given, list | tuple):
        return None
    items = cast("list[Any]", given)
    if not all(isinstance(item, Step) for item in items):
        items = from_messages(items)
    return to_provider(items)


def _quoted(value: Any) -> list[str]:
    """Return the ids of the steps that messages quote, as far as they say so."""
    if isinstance(value, Context):
        return value.recalled
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get("recalled") or []
    return recalled_in(item for item in value if isinstance(item, Step))


def _written(value: object) -> Any:
    """Return a value as it should stand in a prompt; what is no step or query stays as it is."""
    if isinstance(value, AgentStepList | QueryWithSteps | AgentStep | StepHit):
        return StepContext.of(value)
    if isinstance(value, Query):
        return value.query
    if isinstance(value, QueryList):
        return [query.query for query in value.queries]
    if isinstance(value, list) and value:
        items = cast("list[Any]", value)
        if all(isinstance(item, AgentStep | StepHit) for item in items):
            return StepContext.of(items)
    return value
