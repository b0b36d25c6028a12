"""AgentSteps as messages, and back without loss.

A step that used a tool becomes an assistant's call and the tool's result; calls of one turn share
one assistant message. The outermost ProgramCall is what the user asked, and so is what a predictor
was asked that stands in no program; everything else is the assistant speaking. Each message says
which step it shows, and carries that step whole in its metadata, which no provider ever sees; so
the way back is exact. Messages without it (a chat from elsewhere) are read as the importers read
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from hybridagi_steps.errors import MessageError, StepsError
from hybridagi_steps.messages.conversation import Conversation, content_key, conversation_steps
from hybridagi_steps.messages.parts import call_id, field_lines, function_call, json_text, tool_name
from hybridagi_steps.messages.turns import openai_turns
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject, as_object
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.validation import Steps

CARRIED = "agent_steps"
"""Metadata key: the AgentSteps that a message carries, as JSON data."""
SHOWN = "agent_step_ids"
"""Metadata key: the AgentSteps whose calls an assistant message makes."""
IS_ERROR = "is_error"
"""Metadata key: a tool's result is an error."""

NO_RESULT = "(no result)"
INTERRUPTED = "Error: interrupted; no result was recorded."

_UNFINISHED = ("partial", "cancelled", "paused")
_NO_SESSION = "steps"

Record = TypeVar("Record")


def to_messages(
    agent_steps: Steps, *, session_id: str | None = None, carry: bool = True
) -> list[Step]:
    """Return AgentSteps as messages, in the order given.

    Ids of messages and calls follow from the steps' ids, so the same steps always give the same
    messages.

    Args:
        agent_steps: The steps of a run or of several, in order.
        session_id: The session of the messages; by default that of each step, else its run.
        carry: Whether each message carries its step whole, for `to_agent_steps`. Without it the
            messages only name their steps, which is enough where a memory holds them.

    Raises:
        MessageError: Something else than AgentSteps was given.
    """
    steps = _as_list(agent_steps)
    writer = _Writer(session_id, carry)
    start = 0
    while start < len(steps):
        end = _turn_end(steps, start)
        writer.write(steps[start:end])
        start = end
    return writer.messages


def to_agent_steps(messages: Iterable[Step]) -> list[AgentStep]:
    """Return the AgentSteps that messages show; what `to_messages` was given, exactly.

    Raises:
        MessageError: A message carries something that is no step, or is no message at all.
    """
    given = all_of(Step, messages, "Steps (messages)")
    carried = [_carried(message, place) for place, message in enumerate(given, start=1)]
    known = {id_text(step.id) for found in carried for step in found}
    steps: list[AgentStep] = []
    native: list[Step] = []
    for message, found in zip(given, carried, strict=True):
        if not found and not known.intersection(shown_steps(message)):
            native.append(message)
            continue
        steps += _read(native)
        native = []
        steps += found
    return steps + _read(native)


def shown_steps(message: Step) -> list[str]:
    """Return the ids of the AgentSteps that a message shows."""
    several: Any = (message.metadata or {}).get(SHOWN) or []
    one = [message.agent_step_id] if message.agent_step_id else []
    return one + [str(step_id) for step_id in several if str(step_id) not in one]


class _Writer:
    """Writes messages one turn after the other; knows what was said last."""

    def __init__(self, session_id: str | None, carry: bool) -> None:
        self.messages: list[Step] = []
        self._session_id, self._carry = session_id, carry
        self._asked = ""

    def write(self, turn: Sequence[AgentStep]) -> None:
        """Write a step, or several calls of one turn."""
        if turn[0].tool:
            self._calls(turn)
            return
        (step,) = turn
        role, text = _said(step)
        if (asked := _own_question(step)) and not self._just_asked(asked):
            self._add(step, "question", MessageRole.USER, carry=False, content=asked).metrics = None
        if role is MessageRole.USER:
            self._asked = text
        elif step.step_type == "ProgramEnd" and self._said_already(step, text):
            self._carry_on(self.messages[-1], step)
            return
        self._add(step, "message", role, content=text, reasoning_content=_reasoning(step))

    def _calls(self, turn: Sequence[AgentStep]) -> None:
        purposes = dict.fromkeys(step.purpose for step in turn)
        said = "\n".join(text for text in purposes if text.strip() and text != self._asked)
        calls = [_call(step) for step in turn]
        ids = [id_text(step.id) for step in turn]
        made = self._add(turn[0], "call", MessageRole.ASSISTANT, carry=False)
        made.content, made.tool_calls, made.metrics = said or None, calls, None
        if len(turn) > 1:
            made.agent_step_id, made.metadata = None, {SHOWN: ids}
        for step, call in zip(turn, calls, strict=True):
            text, failed = result_text(step)
            result = self._add(step, "result", MessageRole.TOOL, content=text)
            result.tool_call_id, result.name = call["id"], call["function"]["name"]
            if failed:
                result.metadata = {**(result.metadata or {}), IS_ERROR: True}

    def _just_asked(self, text: str) -> bool:
        last = self.messages[-1] if self.messages else None
        return last is not None and last.role is MessageRole.USER and last.content == text

    def _said_already(self, step: AgentStep, text: str) -> bool:
        """Whether a program ends with what its last step said."""
        last = self.messages[-1] if self.messages else None
        return (
            last is not None
            and last.role is MessageRole.ASSISTANT
            and last.run_id == step.run_id
            and last.content == text
        )

    def _add(
        self, step: AgentStep, part: str, role: MessageRole, *, carry: bool = True, **fields: Any
    ) -> Step:
        step_id = id_text(step.id)
        message = Step.model_construct(
            id=f"{step_id}:{part}",
            session_id=self._session_id or step.session_id or step.run_id or _NO_SESSION,
            run_id=step.run_id,
            role=role,
            agent_step_id=step_id,
            metrics=step.metrics,
            created_at=step.created_at,
            **fields,
        )
        if carry:
            self._carry_on(message, step)
        self.messages.append(message)
        return message

    def _carry_on(self, message: Step, step: AgentStep) -> None:
        """Let a message show a step too, and carry it if asked to."""
        metadata = dict(message.metadata or {})
        if message.agent_step_id != id_text(step.id):
            metadata[SHOWN] = [*shown_steps(message), id_text(step.id)]
        if self._carry:
            dumped = step.model_dump(mode="json", exclude_defaults=True)
            metadata[CARRIED] = [*metadata.get(CARRIED, []), dumped]
        message.metadata = metadata or None


def _as_list(steps: Steps) -> list[AgentStep]:
    if isinstance(steps, AgentStep):
        return [steps]
    return all_of(AgentStep, getattr(steps, "steps", steps), "AgentSteps")


def all_of(
    kind: type[Record], given: object, wanted: str, error: type[StepsError] = MessageError
) -> list[Record]:
    """Return records as a list."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        name = type(cast("object", given)).__name__
        raise error(f"a list of {wanted} is wanted, not {name}.")
    records = list(cast("Iterable[Any]", given))
    for place, record in enumerate(records, start=1):
        if not isinstance(record, kind):
            hint = "; from_messages reads provider messages" if kind is Step else ""
            raise error(
                f"item {place}: a list of {wanted} is wanted, not {type(record).__name__}{hint}."
            )
    return records


def _turn_end(steps: Sequence[AgentStep], start: int) -> int:
    """Return where the turn that begins here ends: after several calls only if they were joined.

    Steps with one parent may also be attempts one after the other (a tree search); what follows a
    parallel turn names all of its calls. At the end of the list nobody can say, and they are taken
    for one turn.
    """
    first, end = steps[start], start + 1
    if not first.tool:
        return end
    while end < len(steps) and steps[end].tool and _same_place(first, steps[end]):
        end += 1
    if end - start == 1 or end == len(steps):
        return end
    joins: Any = (steps[end].metadata or {}).get("joins") or []
    before = {id_text(step_id) for step_id in (*joins, steps[end].parent_id) if step_id}
    return end if before.issuperset(id_text(s.id) for s in steps[start:end]) else start + 1


def _same_place(one: AgentStep, other: AgentStep) -> bool:
    return (one.parent_id, one.run_id, one.program_id) == (
        other.parent_id,
        other.run_id,
        other.program_id,
    )


def _call(step: AgentStep) -> JsonObject:
    return function_call(call_id(step.id), tool_name(step.tool), json_text(step.arguments))


def result_text(step: AgentStep) -> tuple[str, bool]:
    """Return what a tool gave back as text, and whether that is an error."""
    outputs = step.outputs or {}
    if (error := outputs.get("error")) and step.result is None:
        return f"Error: {error_text(error)}", True
    if step.result is not None:
        return json_text(step.result) or NO_RESULT, step.status == "error"
    if outputs and not outputs.keys() <= {"result", "observation"}:
        return field_lines(outputs), step.status == "error"
    return (INTERRUPTED, True) if step.status in _UNFINISHED else (NO_RESULT, False)


def _said(step: AgentStep) -> tuple[MessageRole, str]:
    """Return who says what in the message of a step without a tool."""
    kind, outcome = str(step.step_type), _outcome(step)
    if kind == "ProgramCall":
        return _program_call(step)
    if kind == "ProgramEnd":
        name = step.program or "program"
        inner = f"End of {name}: {outcome}" if step.program_id else outcome
        return MessageRole.ASSISTANT, inner if outcome else f"End of {name}."
    if kind == "Decision" and step.status == "ok":
        choice = json_text((step.outputs or {}).get("choice", ""))
        return MessageRole.ASSISTANT, f"Decision: {step.purpose}\nChoice: {choice}"
    return MessageRole.ASSISTANT, outcome or step.purpose or NO_RESULT


def _own_question(step: AgentStep) -> str:
    """Return what a predictor was asked that no program was called for: its fields."""
    asks_alone = step.program_id is None and step.step_type in ("Action", "Decision")
    return field_lines(step.arguments) if asks_alone else ""


def _program_call(step: AgentStep) -> tuple[MessageRole, str]:
    name, asked = step.program or "program", field_lines(step.arguments)
    if step.program_id is None:
        return MessageRole.USER, asked or step.purpose or f"Run {name}."
    told = "\n".join(text for text in (step.purpose, asked) if text)
    return MessageRole.ASSISTANT, f"Call {name}: {told}" if told else f"Call {name}."


def _outcome(step: AgentStep) -> str:
    outputs = step.outputs or {}
    if error := outputs.get("error"):
        return f"Error: {error_text(error)}"
    spoken = {key: value for key, value in outputs.items() if key != "reasoning"} or outputs
    return field_lines(spoken) if spoken else ""


def _reasoning(step: AgentStep) -> str | None:
    outputs = step.outputs or {}
    reasoning = outputs.get("reasoning")
    return reasoning if isinstance(reasoning, str) and len(outputs) > 1 else None


def error_text(error: object) -> str:
    """Return what an error says: its type and message, else all of it."""
    fields = as_object(error)
    parts = [str(fields[key]) for key in ("type", "message") if fields.get(key)]
    return ": ".join(parts) or json_text(error)


def _carried(message: Step, place: int) -> list[AgentStep]:
    dumped: Any = (message.metadata or {}).get(CARRIED) or []
    try:
        return [AgentStep.model_validate(fields) for fields in dumped]
    except (ValidationError, TypeError) as error:
        raise MessageError(
            f"message {place} ({message.id}): metadata.{CARRIED} holds no steps: {error}"
        ) from error


def _read(messages: list[Step]) -> list[AgentStep]:
    """Return messages that carry no steps as an importer reads them."""
    if not messages:
        return []
    native = [message.to_message_dict() for message in messages]
    key = content_key([[message.id for message in messages], native])
    session = messages[0].session_id
    try:
        conversation = Conversation(openai_turns(native), key=key, session_id=session)
        return [step for step, _ in conversation_steps(conversation)]
    except BadRecordError as error:
        raise MessageError(f"{messages[0].id} and after: {error}") from error
