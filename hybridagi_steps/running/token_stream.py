"""Tokens of a DSPy program: which fields are listened to, and what arrives from them.

DSPy's own listeners find a field inside the text of an answer. Ours listen anew to each answer of a
predictor, know adapters by their family and not by their name, read JSON as JSON, and pass on
reasoning and tool calls that arrive beside the text.
"""

# pyright: reportAttributeAccessIssue=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dspy
from dspy.streaming import StreamListener, StreamResponse
from pydantic_core import from_json

_FAMILIES: dict[Any, str] = {
    dspy.XMLAdapter: "XMLAdapter",
    dspy.JSONAdapter: "JSONAdapter",
    dspy.ChatAdapter: "ChatAdapter",
}
"""XML and JSON first: they are chat adapters by descent."""
CLOSING_TOOLS = ("finish", "submit")
"""Tools by which DSPy's agents say that they are done; no message tells of them."""
_STATE = (
    "field_start_queue",
    "field_end_queue",
    "stream_start",
    "stream_end",
    "cache_hit",
    "json_adapter_state",
    "value_started",
    "held_whitespace",
)
"""What DSPy's listener knows of the answer that it listens to."""


class Piece(NamedTuple):
    """Something a model said, before its answer was complete."""

    key: tuple[int, int]
    """The predictor, and which of its answers."""
    content: str | None
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None


class Voice(NamedTuple):
    """A predictor whose words are shown, and in which field they stand."""

    predict: Any
    field: str | None


class TokenStream:
    """Takes what DSPy sends while a program runs, in the place of an open anyio stream.

    `dspy.streamify` passes each chunk through a queue to a task that reads it; here it is read
    where it arrives, on the event loop, also when a program's thread asked the model.

    Args:
        voices: Whose words are shown.
        show: Takes each piece.
    """

    def __init__(self, voices: Sequence[Voice], show: Callable[[Piece], None]) -> None:
        self.listeners = [FieldListener(voice.predict, voice.field) for voice in voices]
        self._show = show

    async def send(self, chunk: Any) -> None:
        """Show what a chunk adds, and let the reader take it before the next one comes."""
        speaker = getattr(chunk, "predict_id", None)  # status messages of DSPy have none
        for listener in self.listeners:
            if id(listener.predict) == speaker and (piece := listener.receive(chunk)) is not None:
                self._show(piece)
                await asyncio.sleep(0)

    def end(self) -> None:
        """Show what was still held."""
        for listener in self.listeners:
            if (piece := listener.finalize()) is not None:
                self._show(piece)


class FieldListener(StreamListener):
    """Listens to one field of one predictor; to reasoning and tool calls only when it has none.

    Args:
        predict: The predictor.
        field: The output field; None passes on what arrives beside the text.
    """

    def __init__(self, predict: Any, field: str | None) -> None:
        super().__init__(field or "", predict=predict, predict_name="", allow_reuse=True)
        self._field = field
        self._family: str | None = None
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
        choice, content = chunk.choices[0], None
        if self._family == "JSONAdapter":
            content = self._json.grow(choice.delta.content or "")
        elif self._family is not None:
            content = _text(super().receive(chunk))
        if choice.finish_reason and self._field:
            content = (content or "") + (_text(super().finalize()) or "")
        reasoning = getattr(choice.delta, "reasoning_content", None)
        calls = getattr(choice.delta, "tool_calls", None)
        shown = self._shown(calls) if calls else None
        if content or reasoning or shown:
            key = (id(self.predict), self._answers)
            return Piece(key, content or None, reasoning or None, shown)
        return None

    def finalize(self) -> Piece | None:
        """Return what was still held."""
        rest = _text(super().finalize()) if self._field else None
        return Piece((id(self.predict), self._answers), rest, None, None) if rest else None

    def _shown(self, pieces: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return pieces of calls without those by which an agent says that it is done."""
        plain = list(map(_plain, pieces))
        for piece in plain:
            if (piece.get("function") or {}).get("name") in CLOSING_TOOLS:
                self._hidden.add(piece.get("index"))
        return [piece for piece in plain if piece.get("index") not in self._hidden] or None

    def _listen_anew(self, answer_id: Any) -> None:
        """Forget the answer before, and look which adapter reads this one."""
        if self._answers:
            fresh = StreamListener(self.signature_field_name, predict=self.predict, predict_name="")
            for name in _STATE:
                setattr(self, name, getattr(fresh, name))
            self._hidden, self._json = set(), JSONField(self.signature_field_name)
        self._answer_id = answer_id
        self._answers += 1
        if self._field is None:
            return
        adapter = dspy.settings.adapter or dspy.ChatAdapter()
        self._family = next((f for kind, f in _FAMILIES.items() if isinstance(adapter, kind)), None)
        if self._family is not None:
            identifiers = self.adapter_identifiers
            identifiers[type(adapter).__name__] = identifiers[self._family]


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


def _text(response: Any) -> str | None:
    chunk = response.chunk if isinstance(response, StreamResponse) else None
    return chunk if isinstance(chunk, str) else None


def _plain(call: Any) -> dict[str, Any]:
    if isinstance(call, dict):
        return dict(call)
    return call.model_dump(exclude_none=True) if hasattr(call, "model_dump") else dict(vars(call))
