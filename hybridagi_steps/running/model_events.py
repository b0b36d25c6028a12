"""Model events of a run: calls of language models, their tokens, the tools that they ask for.

The run's recorder tells of calls. Tokens are read where they arrive, out of the texts that DSPy's
adapters have models write; each answer of a predictor is listened to anew.
"""

# pyright: reportAttributeAccessIssue=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import anyio.from_thread
import dspy
from dspy.utils.callback import ACTIVE_CALL_ID
from pydantic_core import from_json

from hybridagi_steps.messages.parts import is_call_id
from hybridagi_steps.recording.react_loop import closing_tool
from hybridagi_steps.recording.scopes import RUN, override
from hybridagi_steps.recording.usage import MeteringCallback, Usage
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.streaming import Piece
from hybridagi_steps.running.turn import ToolTurn

CLOSING_TOOLS = ("finish", "submit")
"""Tools by which DSPy's agents say that they are done; no message tells of them."""


class SpendingCallback(MeteringCallback):
    """Counts what a run's models cost, where nothing is recorded."""

    def __init__(self, run: ActiveRun) -> None:
        super().__init__()
        self._run = run

    def begin(self, inputs: dict[str, Any]) -> None:  # noqa: ARG002 - the signature is the meter's
        """Count the call."""
        self._run.meter.ask()

    def end(self, begun: None, usage: Usage, outputs: object, exception: object) -> None:  # noqa: ARG002
        """Add what it cost."""
        if exception is None:
            self._run.meter.answered(usage)


class RunObserver:
    """Holds a run to its limits and tells its hooks of model calls; a `CallObserver`.

    Recorders of runs around this one see its calls too: those are none of their own.
    """

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._used_ids: set[str] = set()
        self._texts: dict[str | None, str] = {}

    def model_starts(self, inputs: Mapping[str, Any]) -> None:
        """Stop here when the run was stopped or has spent what it may; else count and tell."""
        run = self._run
        if dspy.settings.get(RUN) is not run:
            return
        run.check_limits()
        if not _reaches_event_loop():
            override(send_stream=None)  # DSPy would fail to send pieces, and the call with it
        run.meter.ask()
        run.tell_now("on_model_start", _messages(inputs))
        run.check()
        run.switch.call_begins()

    def model_ended(
        self, usage: Usage, text: str, outputs: object, exception: BaseException | None
    ) -> None:
        """Count the call, note what was answered and tell."""
        run = self._run
        if dspy.settings.get(RUN) is not run:
            return
        run.switch.call_ended()
        if exception is None:
            run.meter.answered(usage)
            self._texts[ACTIVE_CALL_ID.get()] = text
        run.tell_now("on_model_end", outputs)

    def module_ended(self, call_id: str, outputs: object, exception: BaseException | None) -> None:
        """Note the tools that a predictor asks for."""
        text = self._texts.pop(call_id, None)
        if exception is not None or not isinstance(outputs, dspy.Prediction):
            return
        if calls := self._calls(outputs):
            thought = outputs.get("next_thought")
            if thought is None or isinstance(thought, str):
                # Beside native calls DSPy drops the text; it is what the model said.
                self._run.turn.announce(calls, thought or text, None)
            else:
                self._run.turn.announce(calls, None, str(getattr(thought, "content", thought)))

    def _calls(self, outputs: dspy.Prediction) -> list[ToolTurn]:
        name = outputs.get("next_tool_name")
        if isinstance(name, str):
            arguments = outputs.get("next_tool_args")
            asked = [ToolTurn(name, dict(arguments) if isinstance(arguments, dict) else {})]
        else:
            fields = [outputs[key] for key in outputs.keys()]  # noqa: SIM118 - no dict
            natives = [value for value in fields if isinstance(value, dspy.ToolCalls)]
            asked = [self._turn(call) for value in natives for call in value.tool_calls]
        return [call for call in asked if call.name not in CLOSING_TOOLS]

    def _turn(self, call: Any) -> ToolTurn:
        """Return a call with the provider's id, unless that is none or used before."""
        turn = ToolTurn(str(call.name), dict(call.args or {}))
        call_id = getattr(call, "id", None)
        if isinstance(call_id, str) and is_call_id(call_id) and call_id not in self._used_ids:
            turn.call_id = call_id
            self._used_ids.add(call_id)
        return turn


def _reaches_event_loop() -> bool:
    """Whether pieces can be sent from here: on an event loop, or in a worker thread of one.

    Threads that a program or `dspy.Parallel` starts are neither.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:
            return False
        except (asyncio.CancelledError, CancelledError):
            return True
    return True


def _messages(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    named: Any = inputs.get("messages") or (inputs.get("kwargs") or {}).get("messages")
    if isinstance(named, list):
        return named
    prompt = inputs.get("prompt")
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []


class Voice(NamedTuple):
    """A predictor whose words are shown, and in which field they stand."""

    predict: object
    field: str | None


def voices_of(program: dspy.Module, output_field: str | None) -> list[Voice]:
    """Return each predictor of a program that says something to be shown.

    DSPy finds them by walking through all that a module holds, its history of LM calls included;
    so this is asked once and not for each run.

    Args:
        program: A DSPy module.
        output_field: The field that is the answer, wherever it is an open text; None listens to no
            answer.
    """
    thinking = {
        id(module.react): "next_thought" if closing == "finish" else None
        for _, module in program.named_sub_modules()
        if (closing := closing_tool(module)) is not None
    }
    voices: list[Voice] = []
    for _, predict in program.named_predictors():
        outputs = predict.signature.output_fields
        if id(predict) in thinking:
            voices.append(Voice(predict, thinking[id(predict)]))
        elif output_field in outputs and outputs[output_field].annotation is str:
            voices.append(Voice(predict, output_field))
    return voices


class TokenStream:
    """Takes what DSPy sends while a program runs, in the place of an open anyio stream.

    `dspy.streamify` passes each chunk through a queue to a task that reads it; here it is read
    where it arrives, on the event loop, also when a program's thread asked the model.

    Args:
        voices: Whose words are shown.
        show: Takes each piece; tells whether its reader was woken.
    """

    def __init__(self, voices: Sequence[Voice], show: Callable[[Piece], bool]) -> None:
        self.listeners = [AnswerListener(voice) for voice in voices]
        self._show = show

    async def send(self, chunk: Any) -> None:
        """Show what a chunk adds; a reader that was woken takes it before the next one comes."""
        speaker = getattr(chunk, "predict_id", None)  # status messages of DSPy have none
        for listener in self.listeners:
            if id(listener.predict) != speaker or (piece := listener.receive(chunk)) is None:
                continue
            if self._show(piece):
                await asyncio.sleep(0)

    def end(self) -> None:
        """Show what was still held."""
        for listener in self.listeners:
            if (piece := listener.rest()) is not None:
                self._show(piece)


class AnswerListener:
    """Listens to the answers of one predictor.

    Without a field it passes on what arrives beside the text, reasoning and tool calls, only.
    """

    def __init__(self, voice: Voice) -> None:
        self.predict, self._field = voice
        self._answer_id: object = None
        self._answers = 0
        self._text: FieldReader | None = None
        self._hidden: set[object] = set()

    def receive(self, chunk: Any) -> Piece | None:
        """Return what a chunk adds, None when that is nothing yet."""
        choice = next(iter(chunk.choices), None)  # once: DSPy makes them anew each time
        if choice is None:
            return None
        if self._answers == 0 or chunk.id != self._answer_id:
            self._answer_id, self._answers = chunk.id, self._answers + 1
            self._text, self._hidden = self.reader(), set()
        delta, text, content = choice.delta, self._text, ""
        if text is not None:
            content = text.grow(delta.content or "")
            if choice.finish_reason:
                content += text.rest()
        reasoning = getattr(delta, "reasoning_content", None)
        calls = getattr(delta, "tool_calls", None)
        shown = self._shown(calls) if calls else None
        if content or reasoning or shown:
            return Piece((id(self.predict), self._answers), content or None, reasoning, shown)
        return None

    def reader(self) -> FieldReader | None:
        """Return what reads the field out of what the adapter in use has models write."""
        adapter, field = dspy.settings.adapter, self._field
        if field is None:
            return None
        if isinstance(adapter, dspy.XMLAdapter):
            return FieldReader(f"<{field}>", f"</{field}>", r"<(/\w*)?$")
        if isinstance(adapter, dspy.JSONAdapter):
            return JSONFieldReader(field)
        if adapter is None or isinstance(adapter, dspy.ChatAdapter):
            marker = r"\[\[ ## \w+ ## \]\]"
            return FieldReader(f"[[ ## {field} ## ]]", marker, r"\[(\[[ #\w]*\]?)?$")
        return None

    def rest(self) -> Piece | None:
        """Return what was still held."""
        rest = self._text.rest() if self._text is not None else ""
        return Piece((id(self.predict), self._answers), rest, None, None) if rest else None

    def _shown(self, pieces: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return pieces of calls without those by which an agent says that it is done."""
        plain = list(map(_plain, pieces))
        for piece in plain:
            if (piece.get("function") or {}).get("name") in CLOSING_TOOLS:
                self._hidden.add(piece.get("index"))
        return [piece for piece in plain if piece.get("index") not in self._hidden] or None


class FieldReader:
    """Reads one text field out of an answer that is still being written.

    Args:
        begins: What stands before the field.
        ends: What stands behind it.
        may_end: What may turn out to be the beginning of `ends`: it waits.
    """

    def __init__(self, begins: str, ends: str, may_end: str) -> None:
        self._begins, self._ends, self._may_end = begins, ends, may_end
        self._written = ""
        self._inside = self._over = self._given = False

    def grow(self, more: str) -> str:
        """Return what a piece of the answer adds to the field."""
        if self._over:
            return ""
        self._written += more
        if not self._inside:
            _, begins, inside = self._written.partition(self._begins)
            if not begins:
                return ""
            self._inside, self._written = True, inside
        if (ends := re.search(self._ends, self._written)) is not None:
            self._over = True
            return self._taken(ends.start())
        ready = self._written.rstrip()  # what is blank may be the end, too
        if (waits := re.search(self._may_end, ready)) is not None:
            ready = ready[: waits.start()].rstrip()
        return self._taken(len(ready)) if ready else ""

    def rest(self) -> str:
        """Return what waited, the answer being over."""
        if self._over or not self._inside:
            return ""
        self._over = True
        return self._taken(len(self._written))

    def _taken(self, length: int) -> str:
        """Return the text up to there, without blanks around the whole."""
        text, self._written = self._written[:length], self._written[length:]
        text = text if self._given else text.lstrip()
        self._given = self._given or bool(text)
        return text.rstrip() if self._over else text


class JSONFieldReader(FieldReader):
    """Reads one text field out of a JSON object that is still being written."""

    def __init__(self, name: str) -> None:
        super().__init__("", "", "")
        self._name = name
        self._text = ""

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
        if not isinstance(value, str) or not value.startswith(self._text):
            return ""
        added = value[len(self._text) :]
        self._text = value
        return added

    def rest(self) -> str:
        """Return nothing: no part of a JSON text waits."""
        return ""


def _plain(call: Any) -> dict[str, Any]:
    if isinstance(call, dict):
        return dict(call)
    return call.model_dump(exclude_none=True) if hasattr(call, "model_dump") else dict(vars(call))
