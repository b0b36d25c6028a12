"""Commands that find and show steps. None of them changes a memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridagi_steps.cli.options import (
    DEFAULT_DB,
    AsJson,
    Db,
    Metadata,
    Namespace,
    NotRun,
    Rated,
    Run,
    Scope,
    Session,
    Since,
    Sources,
    Status,
    Tools,
    Trust,
    Types,
    Until,
    User,
    existing,
    step_filter,
)
from hybridagi_steps.errors import InvalidQueryError, UnknownSessionError, UnknownStepError
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter

if TYPE_CHECKING:
    from hybridagi_steps.memory import StepMemory
    from hybridagi_steps.records.agent_step import AgentStep
    from hybridagi_steps.records.filters import StepHit

_MANY = 2_000
"""Pending texts and vectors that take longer than people wait without a sign."""


def search(
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to look for.")] = None,
    like: Annotated[
        str | None, typer.Option("--like", help="Find steps like this one.", metavar="ID")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Most hits wanted.")] = 5,
    mode: Annotated[str, typer.Option("--mode", help="hybrid, dense or lexical.")] = "hybrid",
    expand: Annotated[
        str | None, typer.Option("--expand", help="Show parents, following or program too.")
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Least score of a hit, 0 to 1.")
    ] = None,
    run: Run = None,
    session: Session = None,
    user: User = None,
    types: Types = None,
    tools: Tools = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    scope: Scope = None,
    metadata: Metadata = None,
    sources: Sources = None,
    trust: Trust = None,
    rated: Rated = None,
    not_run: NotRun = None,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Find steps by meaning and words, or by likeness."""
    where = step_filter(
        run_id=run,
        session_id=session,
        user_id=user,
        step_types=types,
        tools=tools,
        status=status,
        since=since,
        until=until,
        scope=scope,
        metadata=metadata,
        sources=sources,
        trust=trust,
        min_score=rated,
        exclude_run_id=not_run,
    )
    if min_score is not None and not 0 <= min_score <= 1:
        raise typer.BadParameter(f"--min-score is a number from 0 to 1, not {min_score}.")
    if (text is None) == (like is None):
        raise typer.BadParameter("say what to look for: either TEXT or --like ID.")
    options: dict[str, Any] = {"where": where, "mode": mode, "expand": expand}
    options["min_score"] = min_score
    with existing(db, namespace) as memory:
        hits = _found(memory, text, like, k, options)
    _print_hits(hits, as_json=as_json)


def show(
    step_id: Annotated[
        str, typer.Argument(metavar="ID", help="A step or run, or the first 6 characters of one.")
    ],
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show a step with its kin, or a run as a tree."""
    from hybridagi_steps.cli import render as output
    from hybridagi_steps.cli import render as shown

    with existing(db, namespace) as memory:
        found = find(memory, step_id)
        if isinstance(found, list):
            if as_json:
                output.print_json([_data(step) for step in found])
            else:
                output.console().print(shown.run_tree(found))
            return
        parents, children = lineage(memory, found)
    if as_json:
        output.print_json(
            {
                "step": _data(found),
                "parents": [_data(step) for step in parents],
                "children": [_data(step) for step in children],
            }
        )
        return
    output.console().print(shown.step_page(found, parents, children))


def runs(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most runs shown.")] = 20,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Runs passed over.")] = 0,
    db: Db = DEFAULT_DB,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    from hybridagi_steps.cli import render as output
    from hybridagi_steps.cli import render as shown

    with existing(db, namespace) as memory:
        found = memory.runs(limit=limit, offset=offset)
        firsts = {str(step.id): step for step in memory.get_steps([r.first_step for r in found])}
        total = memory.stats()["runs"]
    if as_json:
        output.print_json([run._asdict() for run in found])
    elif not found:
        typer.echo("no runs.")
    else:
        output.console().print(shown.runs_table(found, firsts))
        if offset + len(found) < total:
            typer.echo(f"{len(found):,} of {total:,} runs; --offset {offset + limit} shows more.")


def _found(
    memory: StepMemory, text: str | None, like: str | None, k: int, options: dict[str, Any]
) -> list[StepHit]:

    if options["mode"] != "lexical":
        _index_watched(memory)
    if like is not None:
        return steps_like(memory, like, k, **options)
    return memory.search(text or "", k, **options)


def _index_watched(memory: StepMemory) -> None:
    """Index with a progress bar what the search would otherwise be silent about for long."""
    from hybridagi_steps.cli import render as output
    from hybridagi_steps.errors import DiskFullError, ReadOnlyStorageError

    counts = memory.stats()
    if counts["pending_texts"] + counts["pending_vectors"] < _MANY:
        return
    # Where nothing can be saved the search itself does without, and says so.
    with suppress(ReadOnlyStorageError, DiskFullError), output.progress("indexing") as watch:
        memory.flush(watch)


def _print_hits(hits: list[StepHit], *, as_json: bool) -> None:
    from hybridagi_steps.cli import render as output
    from hybridagi_steps.cli import render as shown

    if as_json:
        left_out = {"step": {"vector"}, "context": {"__all__": {"vector"}}}
        output.print_json([hit.model_dump(mode="json", exclude=left_out) for hit in hits])
    elif hits:
        output.console().print(shown.hits_table(hits))
    else:
        typer.echo("no steps found.")


def _data(step: AgentStep) -> dict[str, Any]:
    return step.model_dump(mode="json", exclude={"vector"})


SHORTEST_PREFIX = 6
_MOST_PARENTS = 1_000
_NAMED = 4


def find(memory: StepMemory, text: str) -> AgentStep | list[AgentStep]:
    """Return the step, or the steps of the run, that an id or its beginning names."""
    if exact := memory.get_steps([text]):
        return exact[0]
    if run := run_steps(memory, text):
        return run
    if len(text) < SHORTEST_PREFIX:
        raise UnknownStepError(text)
    return _by_prefix(memory, text)


def run_steps(memory: StepMemory, run_id: str) -> list[AgentStep]:
    """Return all steps of a run, by hop."""
    where = StepFilter(run_id=run_id, scope=EVERY_SCOPE)
    return sorted(memory.iter_steps(where), key=lambda step: step.hop)


def check_session(memory: StepMemory, session_id: str) -> None:
    """Check that a session is there: it has messages, or steps that name it."""
    try:
        memory.repository().store.session_end(session_id)
    except UnknownSessionError:
        where = StepFilter(session_id=session_id, scope=EVERY_SCOPE)
        if next(memory.iter_steps(where), None) is None:
            raise


def lineage(memory: StepMemory, step: AgentStep) -> tuple[list[AgentStep], list[AgentStep]]:
    """Return the steps that led to a step, nearest first, and those of its run that follow it.

    Only for a step outside any run is DSPy loaded.
    """
    parents: list[AgentStep] = []
    seen = {id_text(step.id)}
    here = step
    while here.parent_id is not None and len(parents) < _MOST_PARENTS:
        name = id_text(here.parent_id)
        found = [] if name in seen else memory.get_steps([name])
        if not found:
            break
        here = found[0]
        seen.add(name)
        parents.append(here)
    if step.run_id is None:
        return parents, list(memory.children(step.id).steps)
    kin = run_steps(memory, step.run_id)
    return parents, [other for other in kin if other.parent_id == step.id]


def steps_like(memory: StepMemory, text: str, k: int, **options: Any) -> list[StepHit]:
    """Search with the stored step that an id names, leaving out the step itself.

    Args:
        memory: Where to look.
        text: The step's id or its beginning.
        k: Most hits wanted; at least 1.
        options: What `StepMemory.search` takes.
    """
    if k < 1:
        raise InvalidQueryError(f"k is the number of hits wanted, at least 1; got {k}.")
    step = find(memory, text)
    if isinstance(step, list):
        raise InvalidQueryError(f"{text} is a run; --like needs the id of a step.")
    hits = memory.search(step, k + 1, **options)
    return [hit for hit in hits if hit.step.id != step.id][:k]


def _by_prefix(memory: StepMemory, prefix: str) -> AgentStep | list[AgentStep]:
    steps: list[str] = []
    runs: set[str] = set()
    for step in memory.iter_steps(StepFilter(scope=EVERY_SCOPE)):
        if (name := id_text(step.id)).startswith(prefix):
            steps.append(name)
        if step.run_id is not None and step.run_id.startswith(prefix):
            runs.add(step.run_id)
    if len(runs) == 1 and len(steps) != 1:
        return run_steps(memory, runs.pop())
    if len(steps) == 1:
        return memory.get_steps(steps)[0]
    if not steps and not runs:
        raise UnknownStepError(prefix)
    raise _ambiguous(prefix, [*steps, *sorted(runs)])


def _ambiguous(prefix: str, names: list[str]) -> UnknownStepError:
    error = UnknownStepError(prefix)
    some = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    error.args = (f"{len(names)} ids begin with {prefix!r}: {some}; type more of it.",)
    return error
