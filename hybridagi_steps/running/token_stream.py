"""Tokens of a DSPy program: which fields are listened to, and what arrives from them.

DSPy's own listeners find a field inside the text of an answer. Ours listen anew to each answer of a
predictor, know adapters by their family and not by their name, read JSON as JSON, and pass on
reasoning and tool calls that arrive beside the text.
"""

# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, cast

import dspy
from dspy.streaming import StatusMessageProvider, StreamListener, StreamResponse
from pydantic_core import from_json

_FAMILIES: dict[Any, str] = {
    dspy.XMLAdapter: "XMLAdapter",
    dspy.JSONAdapter: "JSONAdapter",
    dspy.ChatAdapter: "ChatAdapter",
}
"""XML and JSON first: they are chat adapters by descent."""


CLOSING_TOOLS = ("finish", "submit")
"""Tools by which DSPy's agents say that they are done; no message tells of them."""


class Piece(NamedTuple):
    """Something a model said, before its answer was complete."""

    key: tuple[int, int]
    """The predictor, and which of its answers."""
    content: str | None
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None


class Silent(StatusMessageProvider):
    """No status messages: from a tool on an event loop they would block it."""

    def tool_start_status_message(self, instance: Any, inputs: dict[str, Any]) -> None:
        """Say nothing."""

    def tool_end_status_message(self, outputs: Any) -> None:
        """Say nothing."""


class JSONField:
    """One text field of a JSON object that is still being written.

    DSPy's listener gives the characters of the JSON, quotes and escapes included; a reader wants
    the text that they mean.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._written = ""
        self._given = ""

    def grow(self, more: str) -> str:
        """Return what a piece of the object adds to the field."""
        self._written += more
        begins = self._written.find("{")
        if begins < 0:
            return ""
        try:
            fields = from_json(self._written[begins:], allow_partial="trailing-strings")
        except ValueError:  # cut in the middle of an escape, or no JSON at all
            return ""
        value = fields.get(self._name) if isinstance(fields, dict) else None
        if not isinstance(value, str) or not value.startswith(self._given):
            return ""
        added = value[len(self._given) :]
        self._given = value
        return added


class FieldListener(StreamListener):
    """Listens to one field of one predictor; to reasoning and tool calls only when it has none.

    Args:
        predict: The predictor.
        field: The output field; None passes on what arrives beside the text.
    """

    def __init__(self, predict: Any, field: str | None) -> None:
        super().__init__(field or "", predict=predict, predict_name="", allow_reuse=True)
        self._field = field
        self._answer_id: Any = None
        self._answers = 0
        self._hidden: set[Any] = set()
        self._json = JSONField(field or "")

    def receive(self, chunk: Any) -> Piece | None:
        """Return what a chunk adds, None when that is nothing yet."""
        if not chunk.choices:
            return None
        if self._answers == 0 or chunk.id != self._answer_id:
            self._listen_anew(chunk.id)
        choice = chunk.choices[0]
        content = self._text_of(chunk) if self._field else None
        if choice.finish_reason and self._field:
            content = _joined(content, self._rest())
        return self._piece(
            content,
            getattr(choice.delta, "reasoning_content", None),
            getattr(choice.delta, "tool_calls", None),
        )

    def finalize(self) -> Piece | None:
        """Return what was still held."""
        return self._piece(self._rest() if self._field else None, None, None)

    def _piece(self, content: Any, reasoning: Any, tool_calls: Any) -> Piece | None:
        calls = self._shown([_plain(call) for call in tool_calls or []])
        if not (content or reasoning or calls):
            return None
        return Piece((id(self.predict), self._answers), content or None, reasoning or None, calls)

    def _shown(self, pieces: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """Return pieces of calls without those by which an agent says that it is done."""
        for piece in pieces:
            if (piece.get("function") or {}).get("name") in CLOSING_TOOLS:
                self._hidden.add(piece.get("index"))
        return [piece for piece in pieces if piece.get("index") not in self._hidden] or None

    def _text_of(self, chunk: Any) -> str | None:
        adapter = dspy.settings.adapter or dspy.ChatAdapter()
        family = next((f for kind, f in _FAMILIES.items() if isinstance(adapter, kind)), None)
        if family is None:
            return None
        if family == "JSONAdapter":
            return self._json.grow(chunk.choices[0].delta.content or "")
        self.adapter_identifiers[type(adapter).__name__] = self.adapter_identifiers[family]
        return _text(super().receive(chunk))

    def _rest(self) -> str | None:
        return _text(super().finalize())

    def _listen_anew(self, answer_id: Any) -> None:
        self._answer_id = answer_id
        self._answers += 1
        self._hidden = set()
        self._json = JSONField(self.signature_field_name)
        fresh = StreamListener(self.signature_field_name, predict=self.predict, predict_name="")
        for name in (
            "field_start_queue",
            "field_end_queue",
            "stream_start",
            "stream_end",
            "cache_hit",
            "json_adapter_state",
            "value_started",
            "held_whitespace",
        ):
            setattr(self, name, getattr(fresh, name))


class Voice(NamedTuple):
    """A predictor whose words are shown, and in which field they stand."""

    predict: Any
    field: str | None


def voices_of(program: Any, output_field: str | None) -> list[Voice]:
    """Return each predictor of a program that says something to be shown.

    DSPy finds them by walking through all that a module holds, its history of LM calls included;
    so this is asked once and not for each run.

    Args:
        program: A DSPy module.
        output_field: The field that is the answer, wherever it is an open text; None listens to no
            answer.
    """
    thinking = {
        id(module.react): "next_thought" if isinstance(module, dspy.ReAct) else None
        for _, module in program.named_sub_modules()
        if isinstance(module, dspy.ReAct | dspy.ReActV2)
    }
    voices: list[Voice] = []
    for _, predict in program.named_predictors():
        outputs = predict.signature.output_fields
        if id(predict) in thinking:
            voices.append(Voice(predict, thinking[id(predict)]))
        elif output_field in outputs and outputs[output_field].annotation is str:
            voices.append(Voice(predict, output_field))
    return voices


def streamed(
    call: Callable[..., Awaitable[Any]], listeners: list[FieldListener]
) -> Callable[..., AsyncIterator[Any]]:
    """Return a program whose pieces come while it runs, and what it gave at the end.

    Args:
        call: Runs the program.
        listeners: What to listen to.

    Returns:
        A function that yields `Piece`s, then one `dspy.Prediction` with the result as `given`.
    """

    async def program(**inputs: Any) -> Any:
        return dspy.Prediction(given=await call(**inputs))

    # DSPy looks for predictors by name here; our listeners bring theirs.
    program.named_predictors = list
    return dspy.streamify(
        cast("Any", program),
        status_message_provider=Silent(),
        stream_listeners=cast("Any", listeners),
    )


def _text(response: Any) -> str | None:
    chunk = response.chunk if isinstance(response, StreamResponse) else None
    return chunk if isinstance(chunk, str) else None


def _joined(*texts: str | None) -> str | None:
    return "".join(text for text in texts if text) or None


def _plain(call: Any) -> dict[str, Any]:
    if isinstance(call, dict):
        return dict(call)
    return call.model_dump(exclude_none=True) if hasattr(call, "model_dump") else dict(vars(call))
