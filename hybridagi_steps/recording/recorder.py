"""StepRecorder: the DSPy callback that notices calls and has their steps written.

DSPy reports the start and the end of every call, with the id of the call around it. Models,
adapters and interpreters leave no step, yet are followed too: what they call must still find who
called it. Starts and ends may come late, twice, or from other threads; what begins after the
recording was closed is not taken up, what was in flight then is told to its end.
"""


# ruff: noqa: ARG002 - the handlers' signatures are DSPy's
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol
from uuid import UUID

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.primitives.code_interpreter import FinalOutput
from dspy.utils.callback import ACTIVE_CALL_ID, BaseCallback

from hybridagi_steps.errors import RecordingError
from hybridagi_steps.recording import step_shapes as shapes
from hybridagi_steps.recording.attempts import Attempts
from hybridagi_steps.recording.call_steps import (
    ASKED,
    CODE,
    CallSteps,
    Doing,
    FunctionStep,
    ReActLoop,
    asks_by_itself,
)
from hybridagi_steps.recording.call_tree import (
    Call,
    CallTree,
    Labels,
    Run,
    Strand,
    Tried,
    current_strand,
    parent_and_joins,
    settle,
)
from hybridagi_steps.recording.scopes import active_callbacks, current_scope
from hybridagi_steps.recording.step_writer import (
    KeepPrompts,
    Memory,
    StepWriter,
    check_memory,
    note_late_call,
    note_problem,
    taken_step_id,
)
from hybridagi_steps.recording.trials import current_level, watch_trials
from hybridagi_steps.recording.usage import StreamClock, Usage, UsageListener
from hybridagi_steps.recording.values import request_of, with_answer
from hybridagi_steps.recording_hooks import Recalled, RunInFlight, listen, watch
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import new_id
from hybridagi_steps.records.prompts import LMCall

P = ParamSpec("P")
watch_trials()


def _guarded(handler: Callable[Concatenate[StepRecorder, P], object]) -> Callable[..., None]:
    """Keep what goes wrong in a handler from the program, and its values from DSPy's log."""

    @functools.wraps(handler)
    def guarded(recorder: StepRecorder, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            handler((recorder.here if recorder.closed else None) or recorder, *args, **kwargs)
        except Exception as error:
            note_problem(recorder.errors, "a call could not be read", error)

    return guarded


class CallObserver(Protocol):
    """Is told of the calls that a recorder sees, after what is recorded of them."""

    def model_starts(self, inputs: Mapping[str, Any]) -> None:
        """A model is about to be asked; what is no Exception keeps it from being asked."""
        ...

    def model_ended(
        self, usage: Usage, text: str, outputs: object, exception: BaseException | None
    ) -> None:
        """It has answered with a text, or failed."""
        ...

    def module_ended(self, call_id: str, outputs: object, exception: BaseException | None) -> None:
        """A program or a predictor has ended."""
        ...


_Asked = tuple[Any, UsageListener | None, StreamClock | None, LMCall | None]
"""A model that was asked, what hears of its answer, and what it was asked."""


class _Recording:
    """What recorders of one memory share: the calls in flight and the way to the memory."""

    def __init__(self, writer: StepWriter, *, stores: bool = True) -> None:
        self.stores = stores
        """Whether its steps are stored at once, not kept for whoever knows of the run."""
        self.observer: CallObserver | None = None
        self.tree = CallTree()
        self.writer = writer
        self.steps = CallSteps(writer)
        self.models: dict[str, _Asked] = {}


class StepRecorder(BaseCallback):
    """Records every DSPy call it sees into a memory.

    Use it for a whole process: `dspy.configure(callbacks=[hs.StepRecorder(memory)])`. Each
    outermost call is a run of its own. Copies are the recorder itself; a pickle reopens the memory.

    Args:
        memory: Where steps go.
        session_id: The session the steps belong to.
        user_id: Whose history it is.
        tags: Kept in each step's metadata.
        scope: Marks steps as trials, hidden unless asked for.
        keep_prompts: Whether what models are sent and give is kept, too: `memory.prompt_of(id)`.

    Attributes:
        errors: What recording failed at; empty when all is well.

    Raises:
        InvalidMemoryError: `memory` has no `add` and `run`, or keeps no prompts.
        InvalidStepError: A label that no step can carry.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        tags: Mapping[str, Any] | None = None,
        scope: str | None = None,
        keep_prompts: bool = False,
    ) -> None:
        labels = Labels.of(session_id, user_id, tags, scope, keep_prompts)
        self._begin(_Recording(StepWriter(check_memory(memory, keep_prompts=keep_prompts))), labels)

    def _begin(self, shared: _Recording, labels: Labels, run: Run | None = None) -> None:
        self.errors: list[RecordingError] = [] if run is None else run.problems
        self._labels = labels
        self._shared = shared
        self.run = run
        """The run that all steps belong to, None when each outermost call is its own."""
        self.closed = False
        """Whether its block was left: it takes up no new call, and ends those in flight."""
        self.replaces: tuple[StepRecorder, ...] = ()
        """Recorders that this one hides."""
        if shared.stores:
            watch(self)

    def runs_in_flight(self) -> Iterator[RunInFlight]:
        """Yield the run of its block, and those of its calls."""
        if self.run is not None and not self.closed:
            yield self.run.in_flight(self._labels, self._labels.scope)
        for call in list(self._shared.tree.values()):
            if call.run is not None:
                yield call.run.in_flight(call.labels, call.scope)

    @property
    def memory(self) -> Any:
        """Where steps go."""
        return self._shared.writer.memory

    @property
    def active_run(self) -> Run | None:
        """The run that the running code belongs to, None outside of any call."""
        parent = self._parent()
        return (parent.run if parent is not None else None) or self.run

    @property
    def user_id(self) -> str | None:
        """Whose steps it writes, those of the runs it has joined included; None if nobody's."""
        return self._labels.user_id

    @property
    def active_scope(self) -> str | None:
        """The scope of what begins here, None in the user's own history."""
        return self._scope_below(self._parent())

    @property
    def step_before(self) -> UUID | None:
        """The id of the step that the running call follows."""
        call = self._parent()
        return None if call is None else parent_and_joins(call.followed)[0]

    @property
    def calls_in_flight(self) -> int:
        """How many calls have begun and not ended."""
        return len(self._shared.tree) + len(self._shared.models)

    def for_run(self, labels: Labels) -> StepRecorder:
        """Return a recorder for one run: the one that is active here, else a new one.

        It shares this recorder's calls in flight, so that both agree on who called whom.
        """
        settle()
        active = self._shared.tree.get(ACTIVE_CALL_ID.get())
        run = self._run_below(active) or Run(_strand(), [])
        outer = active.labels if active is not None else self._labels
        return StepRecorder._made(self._shared, labels.over(outer), run)

    @property
    def here(self) -> StepRecorder | None:
        """What records a call that begins here: this, or once it is closed what it stands for."""
        parent = self._parent() if self.closed else None
        run = parent.run if parent is not None else None
        if not self.closed or (run is not None and self.run in (run, run.outer)):
            return self
        return next((each.here for each in self.replaces if each.here is not None), None)

    def hides(self, other: object) -> bool:
        """Whether this one, inside `other`, records what that would."""
        same = isinstance(other, StepRecorder) and other.memory is self.memory
        return same and other is not self and self.here is not None

    @classmethod
    def of_new_run(cls, memory: Memory, labels: Labels) -> StepRecorder:
        """Return a recorder of one run that begins here."""
        settle()
        return cls._made(
            _Recording(StepWriter(memory)), labels, Run(_strand(), [], current_level())
        )

    def observed_by(self, observer: CallObserver) -> None:
        """Tell `observer` of the calls that this recorder sees, and all that share them."""
        self._shared.observer = observer

    @classmethod
    def handing_to(
        cls,
        keep: Callable[[AgentStep], Any],
        memory: Memory,
        labels: Labels,
        keep_prompts: KeepPrompts,
    ) -> StepRecorder:
        """Return a recorder of one new run that hands its steps to `keep` in place of storing them.

        They are as they would have been stored; whatever joins the run on `memory` joins this one.
        """
        shared = _Recording(StepWriter(memory, keep, keep_prompts), stores=False)
        return cls._made(shared, labels, Run(_strand(), []))

    @classmethod
    def _made(cls, shared: _Recording, labels: Labels, run: Run | None) -> StepRecorder:
        recorder = cls.__new__(cls)
        recorder._begin(shared, labels, run)  # noqa: SLF001 - of this class
        return recorder

    def __copy__(self) -> StepRecorder:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> StepRecorder:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.memory, self._labels)

    @_guarded
    def on_module_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Begin a program or a predictor."""
        name, parent = type(instance).__name__, self._parent()
        if _covers(parent, instance):
            self._pass_through(call_id)
            if parent is not None and isinstance(instance, dspy.Predict):
                parent.maker = shapes.maker_of(instance, inputs)
        elif isinstance(instance, dspy.Predict):
            call = self._open(call_id, parent, instance, inputs, Doing("predict", name))
            if call is not None:
                call.maker = shapes.maker_of(instance, inputs)
        elif _adds_no_step(type(instance)):
            self._pass_through(call_id)
        else:
            doing = Doing("program", name, loop=ReActLoop.of(instance))
            call = self._open(call_id, parent, instance, inputs, doing)
            if call is not None:
                doing.attempts = Attempts.of(instance)
                arguments = shapes.module_arguments(instance, inputs)
                self._shared.steps.begin_program(call, shapes.purpose_of(instance), arguments)

    @_guarded
    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Begin a tool."""
        parent = self._parent()
        if _covers(parent, instance):
            self._pass_through(call_id)
            return
        arguments: Mapping[str, Any] = inputs.get("kwargs") or {}
        call = self._open(call_id, parent, instance, arguments, Doing("tool", str(instance.name)))
        if call is not None:
            call.step_id = taken_step_id() or new_id()
            self._shared.writer.copy_inputs(call)

    @_guarded
    def on_function_start(
        self, call_id: str, step: FunctionStep, arguments: dict[str, Any]
    ) -> None:
        """Begin a plain function that takes part."""
        parent = self._parent()
        if self._shared.steps.is_of_tool(parent, step):
            self._pass_through(call_id)
            return
        call = self._open(call_id, parent, step, arguments, Doing("function", step.name))
        if call is None:
            return
        call.notes, call.watch = step.notes, step.watch
        if step.kind == "program":
            self._shared.steps.begin_program(call, step.purpose, arguments)
            return
        call.step_id = new_id()
        if step.function is not None:
            self._shared.writer.copy_inputs(call)

    @_guarded
    def on_interpreter_execute_start(
        self, call_id: str, instance: object, inputs: dict[str, Any]
    ) -> None:
        """Begin a piece of code that a program has written."""
        given = self._shared.steps.code_given(self._parent(), inputs)
        if given is None:
            self._pass_through(call_id)
        else:
            self.on_function_start(call_id, CODE, given)

    def on_interpreter_execute_end(
        self, call_id: str, outputs: object, exception: BaseException | None = None
    ) -> None:
        """End it."""
        given = outputs.output if isinstance(outputs, FinalOutput) else outputs
        self._on_end(call_id, given, exception)

    @_guarded
    def on_lm_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Remember which model is asked; a program that asks it by itself leaves a step."""
        observer = self._shared.observer
        if observer is not None:
            observer.model_starts(inputs)
        parent = self._parent()
        if asks_by_itself(parent):
            asked = shapes.asked_of_model(inputs)
            taken = self._open(call_id, parent, ASKED, asked, Doing("function", ""))
        else:
            taken = self._pass_through(call_id)
        if taken or observer is not None:
            call = self._shared.tree.get(call_id)
            kept = call is not None and call.labels.keep_prompts
            request = request_of(instance, inputs) if kept else None
            # Whoever observes the calls reads their stream, and says when it began.
            clock = StreamClock.if_streamed() if observer is None else None
            self._shared.models[call_id] = instance, UsageListener.if_needed(), clock, request

    @_guarded
    def on_lm_end(
        self, call_id: str, outputs: object, exception: BaseException | None = None
    ) -> None:
        """Add what it cost to the step it was asked for."""
        found = self._shared.models.pop(call_id, (None, None, None, None))
        model, listener, clock, request = found
        call = self._shared.tree.pop(call_id, None)
        for each in (clock, listener):
            if each is not None:
                each.close()
        if model is None:
            return
        usage, text = Usage.of_call(model, outputs, listener), shapes.answer_text(outputs)
        usage.first_token_ms = None if clock is None else clock.first_token_ms
        if call is not None and isinstance(call.state, Doing):
            call.state.add_answer(usage, text)
            if request is not None:
                call.state.prompts.append(with_answer(request, outputs, exception))
            if call.subject is ASKED and call.call_id == call_id:
                self._shared.steps.end(call, shapes.answer_of_model(outputs), exception)
        if (observer := self._shared.observer) is not None:
            observer.model_ended(usage, text, outputs, exception)

    @_guarded
    def on_evaluate_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Set an evaluation's steps apart."""
        self._set_apart(call_id, f"evaluate:{call_id}")

    @_guarded
    def on_compile_start(self, call_id: str, instance: object, inputs: dict[str, Any]) -> None:
        """Set an optimiser's trials apart."""
        self._set_apart(call_id, f"compile:{type(instance).__name__}:{call_id}")

    def on_module_end(
        self, call_id: str, outputs: object, exception: BaseException | None = None
    ) -> None:
        """End a program or a predictor."""
        around = self._shared.tree.get(call_id)
        if around is not None and around.call_id != call_id:
            self._shared.steps.keep_reasoning(around, outputs)
        self._on_end(call_id, outputs, exception)
        if (observer := self._shared.observer) is not None:
            observer.module_ended(call_id, outputs, exception)

    @_guarded
    def _on_end(
        self, call_id: str, outputs: object, exception: BaseException | None = None
    ) -> None:
        """End a call, and write its last step if it leaves any."""
        call = self._shared.tree.close(call_id)
        if call is None:
            return
        run, tried = call.run, call.run.tried if call.run is not None else None
        if run is None or tried is None or tried.call_id != call_id:
            self._shared.steps.end(call, outputs, exception)
            return
        call.notes = {**call.notes, **tried.notes}
        self._shared.steps.end(call, outputs, exception)
        if tried.example:
            run.tries.trials.ended(tried.example, outputs, self._scored(run))

    def _scored(self, run: Run) -> Callable[[float, str | None], None]:
        """Return what stores the score of a run; an error of it is a problem of the recording."""

        def score(value: float, feedback: str | None) -> None:
            store = getattr(self.memory, "score", None)
            try:
                if store is not None:
                    store(run.id, value, feedback)
            except Exception as error:
                note_problem(run.problems, "a trial's score was not stored", error)

        return score

    on_tool_end = on_function_end = on_evaluate_end = on_compile_end = _on_end
    on_adapter_format_end = on_adapter_parse_end = _on_end
    on_interpreter_tool_call_end = _on_end

    def note_recalled(self, recalled: Recalled) -> None:
        """Note what was handed to the running code: to the call it is in, else to the block."""
        if (call := self._parent()) is not None:
            call.note_recalled(recalled)
        elif (run := self.run) is not None:
            run.recalled.update((name, None) for name, of in recalled.items() if of != run.id)

    def annotate(self, metadata: Mapping[str, Any]) -> bool:
        """Add to the metadata of the step under way; False: there is none."""
        call = self._parent()
        if call is None or not isinstance(call.state, Doing):
            return False
        call.notes = {**call.notes, **metadata}
        return True

    def _parent(self) -> Call | None:
        return self._shared.tree.get(ACTIVE_CALL_ID.get())

    def _open(
        self,
        call_id: str,
        parent: Call | None,
        subject: object,
        inputs: Mapping[str, Any],
        doing: Doing,
    ) -> Call | None:
        """Begin a call that leaves steps."""
        if self._shared.writer.thread.busy:
            return None
        if self.closed and self.here is None:
            note_late_call(self.errors)
            return None
        strand = _strand()
        if parent is None:
            settle()
        run = self._run_below(parent) or Run(strand, self.errors)
        if run.tries is not None and run.tried is None:
            self._try(run, call_id, subject, inputs)
        call = self._shared.tree.open(
            call_id,
            subject,
            inputs,
            parent=parent,
            run=run,
            strand=strand,
            labels=self._labels,
            scope=self._scope_below(parent),
        )
        call.state = doing
        if parent is not None and isinstance(parent.state, Doing):
            if parent.state.kind in ("tool", "function") and parent.step_id is not None:
                call.within = str(parent.step_id)
            if parent.state.attempts:
                call.attempt = []
        return call

    def _try(self, run: Run, call_id: str, subject: object, inputs: Mapping[str, Any]) -> None:
        """Let a trial run say what its outermost call tries."""
        arguments = inputs
        if isinstance(subject, dspy.Module):
            arguments = shapes.module_arguments(subject, inputs)
        redact = getattr(self.memory, "redact", None)
        try:
            label, example, notes = run.tries.trial(subject, arguments, redact)
        except Exception as error:
            note_problem(run.problems, "what a trial tries could not be read", error)
            return
        run.notes = {"trial": label}
        run.tried = Tried(call_id, example or "", notes)

    def _pass_through(self, call_id: str, *_: object, **__: object) -> bool:
        """Follow a call that leaves no step."""
        tree = self._shared.tree
        parent = None if self._shared.writer.thread.busy else tree.get(ACTIVE_CALL_ID.get())
        if parent is not None:
            tree[call_id] = parent
        return parent is not None

    _on_level_start = _guarded(_pass_through)
    on_adapter_format_start = on_adapter_parse_start = _on_level_start
    on_interpreter_tool_call_start = _on_level_start

    def _set_apart(self, call_id: str, scope: str) -> None:
        if self.here is None:
            return
        parent = self._parent()
        run = self.run if parent is None else parent.run
        scope = self._scope_below(parent) or scope
        self._shared.tree.set_apart(call_id, parent=parent, run=run, strand=_strand(), scope=scope)

    def _scope_below(self, parent: Call | None) -> str | None:
        above = parent.scope if parent is not None else None
        return above or self._labels.scope or current_scope()

    def _run_below(self, parent: Call | None) -> Run | None:
        """Return the run of what begins below `parent`; an outermost call of a trial is its own."""
        run = self.run if parent is None else parent.run or self.run
        if parent is not None and parent.state is not None:
            return run
        level = current_level()
        if level is None or (run is not None and run.tries is level):
            return run
        return Run(_strand(), self.errors, level, run)


def active_run_ids(memory: object) -> list[str]:
    """Return the ids of the runs that the running code is being recorded into, in `memory`.

    What recalls from a memory leaves these out: a run has nothing to learn from itself.
    """
    runs = [recorder.active_run for recorder in active_recorders() if recorder.memory is memory]
    return list(dict.fromkeys(run.id for run in runs if run is not None))


def _note_recalled(recalled: Recalled) -> None:
    for recorder in active_recorders():
        recorder.note_recalled(recalled)


def user_recorded_for(memory: object) -> str | None:
    """Return the user of the active recording, those into `memory` first; None if none has one."""
    recorders = sorted(active_recorders(), key=lambda recorder: recorder.memory is not memory)
    return next((each.user_id for each in recorders if each.user_id is not None), None)


listen(_note_recalled, user_recorded_for)


def active_recorders() -> list[StepRecorder]:
    """Return the recorders that a call which begins here is told to."""
    found = [each.here for each in active_callbacks() if isinstance(each, StepRecorder)]
    return [each for each in found if each is not None]


def _covers(caller: Call | None, instance: object) -> bool:
    """Whether the step of a call tells what `instance` does inside it."""
    step = caller.subject if caller is not None else None
    return isinstance(step, FunctionStep) and any(part is instance for part in step.own)


def _adds_no_step(kind: type[Any]) -> bool:
    """Whether a module is a mere wrapper, or an interpreter that tells of its own programs."""
    silent = getattr(kind, "adds_no_step", False) or getattr(kind, "records_itself", False)
    return kind is dspy.ChainOfThought or silent


def _strand() -> Strand:
    return current_strand(thread_local_overrides.get())


def _reopened(memory: Memory, labels: Labels) -> StepRecorder:
    names = {"session_id": labels.session_id, "user_id": labels.user_id, "scope": labels.scope}
    kept = labels.keep_prompts
    return StepRecorder(memory, tags=labels.tags, keep_prompts=kept, **names)
