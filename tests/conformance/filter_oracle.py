"""What a StepFilter means for one step, in plain Python, and steps and filters to try it on.

The filter of every back-end must agree with it; the filter index is compared with a store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import ge, gt, le, lt
from typing import Any, cast

from hypothesis import strategies as st

from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.store_values import REVOKED, UNREVOKED

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MOMENTS = st.integers(-2, 2).map(lambda n: NOON + timedelta(microseconds=n * 500_000))
FEW = st.sampled_from(["a", "b", "ä", ""])
IDS = [f"id-{n}" for n in range(8)]
SCALARS = st.none() | st.booleans() | st.integers(0, 1) | st.sampled_from([1.0, 0.5, "1", 2**64])
TEXTS = st.sampled_from(["a", "aä", "ba", "ä\x1aa", "\\u0000", 'b"a', "\na"])
STEPS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(IDS),
        "step_type": st.sampled_from(["Action", "Decision", "ProgramCall", "ProgramEnd"]),
        "inputs": st.none()
        | st.fixed_dictionaries({"tool": FEW | st.just(5), "program": FEW | st.just(None)}),
        "created_at": MOMENTS,
        "user_id": st.none() | FEW,
        "run_id": st.none() | FEW,
        "session_id": st.none() | FEW,
        "program_id": st.none() | st.sampled_from(IDS),
        "predictor": st.none() | FEW,
        "signature": st.none() | FEW,
        "scope": st.sampled_from([None, None, "compile:1", "abandoned"]),
        "status": st.sampled_from(["ok", "error"]),
        "score": st.none() | st.floats(0, 1),
        "metadata": st.none()
        | st.dictionaries(FEW, SCALARS | TEXTS | st.lists(SCALARS | TEXTS, max_size=2), max_size=2)
        | st.sampled_from([{"source": {"kind": "import", "name": "f"}}, {"format": "openai"}])
        | st.lists(st.sampled_from(IDS), max_size=2).map(lambda ids: {"recalled": ids}),
    }
)
BOUNDS = st.sampled_from([0, 1, 0.5, -1, 2**64, "", "a", "ä", "b"])
RANGES = st.dictionaries(
    st.sampled_from(["gt", "gte", "lt", "lte", "contains"]), BOUNDS, min_size=1, max_size=2
)
CRITERIA = (
    SCALARS
    | st.lists(SCALARS, min_size=1, max_size=3)
    | RANGES
    | st.sampled_from(["", "a", "aä"]).map(lambda text: {"prefix": text})
    | SCALARS.map(lambda value: {"contains": value})
)
PLAIN_FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "user_id": FEW | st.lists(FEW, min_size=1, max_size=3),
        "run_id": FEW | st.lists(FEW, min_size=1, max_size=3),
        "session_id": FEW,
        "program": FEW,
        "program_id": st.sampled_from(IDS),
        "step_types": st.lists(st.sampled_from(["Action", "ProgramCall"]), max_size=2),
        "tools": st.lists(FEW, max_size=2),
        "status": st.lists(st.sampled_from(["ok", "error", "partial"]), max_size=2),
        "min_score": st.floats(0, 1),
        "since": MOMENTS,
        "until": MOMENTS,
        "scope": st.sampled_from(["*", "compile:1", "abandoned", "revoked", "* but revoked"]),
        "exclude_run_id": st.lists(FEW, max_size=2),
        "metadata": st.dictionaries(FEW, CRITERIA, max_size=2),
        "sources": st.lists(st.sampled_from(["f", "openai", "import"]), max_size=2),
        "predictors": st.lists(FEW, max_size=2),
        "trust": st.sampled_from(["own", "team", "imported"]),
    },
)
NESTED = PLAIN_FILTERS | st.fixed_dictionaries(
    {}, optional={"any_of": st.lists(PLAIN_FILTERS, min_size=1, max_size=2), "user_id": FEW}
)
FILTERS: st.SearchStrategy[dict[str, Any]] = PLAIN_FILTERS | st.tuples(
    PLAIN_FILTERS, st.lists(NESTED, min_size=1, max_size=3), st.lists(NESTED, max_size=1)
).map(lambda parts: {**parts[0], "any_of": parts[1], "exclude": parts[2]})


def matching(
    steps: Sequence[AgentStep],
    where: StepFilter,
    *,
    run_scores: Mapping[str, float],
    revoked: Collection[str] = (),
) -> list[str]:
    """Return the ids of the steps that pass a filter, as they are stored.

    Args:
        steps: All that is stored, of sessions that have no messages.
        where: The filter.
        run_scores: What was said about runs.
        revoked: Ids of the steps that are revoked.
    """
    calls = {
        id_text(step.id)
        for step in steps
        if step.step_type == "ProgramCall" and _input(step, "program") == where.program
    }

    def ids(wheres: Iterable[StepFilter]) -> set[str]:
        inner = (matching(steps, each, run_scores=run_scores, revoked=revoked) for each in wheres)
        return {*chain.from_iterable(inner)}

    either, gone = ids(where.alternatives()), ids(where.excluded())
    return [
        id_text(step.id)
        for step in steps
        if _in_scope(step, where.scope, id_text(step.id) in revoked)
        and _passes(step, where)
        and _scored(step, where, run_scores)
        and _in_program(step, where, calls)
        and _has_metadata(step, where)
        and _from_source(step, where)
        and (where.any_of is None or id_text(step.id) in either)
        and id_text(step.id) not in gone
    ]


def _passes(step: AgentStep, where: StepFilter) -> bool:
    return (
        (where.run_id is None or step.run_id in where.runs)
        and (where.session_id is None or step.session_id == where.session_id)
        and (where.user_id is None or step.user_id in where.users)
        and (where.step_types is None or step.step_type in where.step_types)
        and (where.status is None or step.status in where.status)
        and (where.exclude_run_id is None or step.run_id not in where.exclude_run_id)
        and (where.since is None or step.created_at >= where.since)
        and (where.until is None or step.created_at < where.until)
        and (where.tools is None or _input(step, "tool") in where.tools)
        and (where.predictors is None or step.predictor in where.predictors)
    )


def _input(step: AgentStep, name: str) -> object:
    return (step.inputs or {}).get(name)


def _scored(step: AgentStep, where: StepFilter, run_scores: Mapping[str, float]) -> bool:
    score = step.score
    if score is None and step.run_id is not None:  # which may be the empty text
        score = run_scores.get(step.run_id)
    return where.min_score is None or (score is not None and score >= where.min_score)


def _in_scope(step: AgentStep, scope: str | None, revoked: bool) -> bool:
    if revoked:
        return scope in (REVOKED, EVERY_SCOPE)
    return scope in (EVERY_SCOPE, UNREVOKED, step.scope)


def _in_program(step: AgentStep, where: StepFilter, calls: Collection[str]) -> bool:
    if where.program_id is not None and step.program_id != str(where.program_id):
        return False
    named = step.step_type in ("ProgramCall", "ProgramEnd")
    return (
        where.program is None
        or (named and _input(step, "program") == where.program)
        or step.program_id in calls
    )


def _has_metadata(step: AgentStep, where: StepFilter) -> bool:
    held = step.metadata or {}
    return all(
        key in held and _meets(held[key], value) for key, value in (where.metadata or {}).items()
    )


def _meets(held: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        operators = cast("dict[str, Any]", wanted)
        return all(_compares(held, name, bound) for name, bound in operators.items())
    values = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    return any(_alike(held, value) for value in values)


def _compares(held: Any, name: str, bound: Any) -> bool:
    if name == "contains" and isinstance(held, list):
        return any(_alike(member, bound) for member in cast("list[Any]", held))
    texts = isinstance(held, str) and isinstance(bound, str)
    if name in ("contains", "prefix"):
        return texts and (held.startswith(bound) if name == "prefix" else bound in held)
    numbers = isinstance(held, int | float) and not isinstance(held, bool)
    if not texts and not (numbers and isinstance(bound, int | float)):
        return False
    compare: Any = {"gt": gt, "gte": ge, "lt": lt, "lte": le}[name]
    return bool(compare(held, bound))


def _alike(held: object, value: object) -> bool:
    """Whether two values are the same to JSON: `True` is not 1, while 1 is 1.0."""
    return isinstance(held, bool) is isinstance(value, bool) and held == value


def _from_source(step: AgentStep, where: StepFilter) -> bool:
    source = source_of(step.metadata)
    return (
        (where.sources is None or source in where.sources)
        and (where.trust in (None, "imported") or source is None)
        and (where.trust != "own" or step.user_id in (where.users or [None]))
    )
