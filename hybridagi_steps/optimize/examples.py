"""Runs as data: examples for a trainset, and conversations for fine-tuning."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import dspy
import orjson

from hybridagi_steps.errors import InvalidSettingError, UnknownProgramError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.optimize.demos import (
    Examples,
    LeftOut,
    LeftOutError,
    check_whole,
    collapsed,
    demos_of,
    newest,
    steps_of,
    steps_to_demos,
    unwrapped,
    with_provenance,
)
from hybridagi_steps.optimize.exclusion import Exclusions, Learnable, learnable
from hybridagi_steps.outside_files import replacing
from hybridagi_steps.recording.step_shapes import signature_key
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE
from hybridagi_steps.records.step_identity import BOOKKEEPING
from hybridagi_steps.validation import Where, whole_number

_AT_ONCE = 500
_EVERYTHING = 2**62


def steps_to_examples(
    memory: StepMemory,
    program: str | dspy.Module,
    outputs: Sequence[str] | None = None,
    *,
    where: Where = None,
    min_score: float | None = None,
    exclude: Exclusions = None,
    limit: int | None = None,
) -> Examples:
    """Return what a program was asked and what it answered, as examples for DSPy.

    Args:
        memory: Where its runs are.
        program: The class of the program, as its ProgramCalls name it, or the program: a predictor
            alone, or a `GraphInterpreter`, too.
        outputs: Names of the outputs that an example must have; None: all but its trajectory.
        where: Which ends of the program may be used; by default those of the user that the run
            around it names, and where none is named everybody's, without trials.
        min_score: Least score of the run; one without a score is not used then.
        exclude: What `hs.exclude` names.
        limit: Most examples.

    Returns:
        Examples with their inputs marked, the newest first; of near duplicates (same outputs, and
        inputs that differ in case and white space only) the newest stands. `left_out` counts the
        others by reason; `dspy_step_id` and `dspy_run_id` say where one comes from.

    Raises:
        UnknownProgramError: No step of the memory is of a program of that name.
        InvalidSettingError: `program` is neither, `outputs` is one text, or `limit` is below 1.
        InvalidFilterError: An unknown key in `where`.
    """
    name = program if isinstance(program, str) else class_of(program)
    if isinstance(outputs, str):
        raise InvalidSettingError(f"outputs is a list of names, such as [{outputs!r}].")
    most = _EVERYTHING if limit is None else whole_number("limit", limit, 1)
    left_out = LeftOut()
    usable = learnable(memory, where, exclude, min_score)
    found = Examples(
        collapsed(runs_as_examples(usable, program, outputs, left_out), most), left_out
    )
    if not found and not left_out:
        predict = bare_predictor(program)
        own_steps: dict[str, Any] = (
            {"program": name}
            if predict is None
            else {"signatures": [signature_key(predict.signature)]}
        )
        with unnoted():
            own = memory.find({**own_steps, "scope": EVERY_SCOPE}, limit=1).steps
            calls = [] if own else memory.find({"step_types": ["ProgramCall"]}, limit=1_000).steps
        if not own:
            raise UnknownProgramError(name, sorted({step.program or "" for step in calls}))
    return found


def to_finetune(
    memory: StepMemory,
    path: str | os.PathLike[str],
    program: dspy.Module,
    *,
    where: Where = None,
    min_score: float | None = None,
    exclude: Exclusions = None,
    per_predictor: int | None = None,
) -> int:
    """Write what a program's predictors did well as conversations, one JSON object a line.

    Each line is `{"messages": […]}`, as `dspy.BootstrapFinetune` makes its data and OpenAI's API
    takes it. The file is written whole or not at all; its owner alone can read it.

    Args:
        memory: Where the program's runs are.
        path: The file; replaced if it is there.
        program: Whose predictors, signatures and instructions count, as they are now.
        where: As for `steps_to_demos`, and so all that follows.
        min_score: Least score of a step or its run.
        exclude: What `hs.exclude` names.
        per_predictor: Most lines of each predictor.

    Returns:
        How many lines were written.

    Raises:
        InvalidSettingError: `program` is no `dspy.Module`, or a limit below 1.
        InvalidFilterError: An unknown key in `where`.
        OSError: The file cannot be written.
    """
    demos = steps_to_demos(
        memory,
        program,
        where=where,
        min_score=min_score,
        exclude=exclude,
        per_predictor=per_predictor,
    )
    adapter: Any = dspy.settings.adapter or dspy.ChatAdapter()
    target, count = Path(path), 0
    agents: list[tuple[str, Any]] = [*program.named_sub_modules(dspy.ReActV2)]
    tools = {id(agent.react): [*agent.tools.values()] for _, agent in agents}
    with replacing(target) as file:
        for name, predict in program.named_predictors():
            for demo in demos[name]:
                inputs = dict(demo.inputs())
                if id(predict) in tools:
                    inputs["tools"] = tools[id(predict)]
                sides = {"inputs": inputs, "outputs": dict(demo.labels())}
                told = adapter.format_finetune_data(predict.signature, demos=[], **sides)
                file.write(orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE))
                count += 1
    return count


def class_of(program: object) -> str:
    """Return how ProgramCalls name a program."""
    if not isinstance(program, dspy.Module):
        raise InvalidSettingError(
            f'program is the name of a class, such as "Agent", or a program, not {program!r:.80}.'
        )
    shown = unwrapped(program)
    return getattr(shown, "told_as", None) or type(shown).__name__


def bare_predictor(program: object) -> Any:
    """Return the predictor that a program is, without any module around it; None: it is none."""
    shown = unwrapped(program) if isinstance(program, dspy.Module) else None
    return shown if isinstance(shown, dspy.Predict) else None


def runs_as_examples(
    usable: Learnable,
    program: str | dspy.Module,
    outputs: Sequence[str] | None,
    left_out: LeftOut,
) -> Iterator[dspy.Example]:
    """Yield a program's runs as examples, the newest first; a predictor's own are its steps."""
    predict = bare_predictor(program)
    if predict is None:
        name = program if isinstance(program, str) else class_of(program)
        yield from ended_runs(usable, name, outputs, left_out)
        return
    signature = predict.signature
    required = set(signature.output_fields if outputs is None else outputs)
    missing = next(iter(sorted(required - {*signature.output_fields})), None)
    omitted = {*signature.output_fields} - required
    steps = steps_of(usable, class_of(program), predict)
    for example in demos_of(steps, predict, usable.memory, left_out):
        if missing is None:
            yield example.without(*omitted).with_inputs(*signature.input_fields)
        else:
            left_out[f"no {missing}"] += 1


def ended_runs(
    usable: Learnable, program: str, outputs: Sequence[str] | None, left_out: LeftOut
) -> Iterator[dspy.Example]:
    """Yield a program's runs as examples, the newest first; count those that are none."""
    ends = newest(usable, program=program, step_types=[AgentStepType.ProgramEnd])
    while page := list(islice(ends, _AT_ONCE)):
        calls = usable.memory.get_steps(sorted({str(end.program_id) for end in page}))
        by_id = {id_text(call.id): call for call in calls}
        for end in page:
            try:
                yield _example(end, by_id.get(str(end.program_id)), outputs)
            except LeftOutError as reason:
                left_out[str(reason)] += 1


def _example(end: AgentStep, call: AgentStep | None, outputs: Sequence[str] | None) -> dspy.Example:
    if call is None or not call.arguments:
        raise LeftOutError("no inputs")
    for step in (end, call):
        check_whole(step)
    given = {key: value for key, value in (end.outputs or {}).items() if key not in BOOKKEEPING}
    wanted = [*given] if outputs is None else outputs
    if missing := [name for name in wanted if name not in given]:
        raise LeftOutError(f"no {missing[0]}")
    answered = {name: given[name] for name in wanted if name not in call.arguments}
    if not answered:
        raise LeftOutError("no outputs")
    return with_provenance(end, {**call.arguments, **answered}).with_inputs(*call.arguments)
