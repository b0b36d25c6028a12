"""The fields of a StepFilter: one declaration, from which everything that filters is derived.

The SQL of both back-ends, the filter index, the options of the command line, the parameters of HTTP
and MCP, and the table in the documentation read it, and searches what they may look at; so a field
is added by a line here and one in `StepFilter` for its type. Loads nothing: the command line's
`--help` needs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["text", "texts", "choice", "choices", "number", "time", "json", "filters"]
"""What a condition is given: one text or any of several; one or any of some words; a number; a
time; keys with plain values; filters."""

Operator = Literal["gt", "gte", "lt", "lte", "contains", "prefix"]
"""How a value of metadata is compared otherwise than for equality: a number or a text with a bound
of its kind, a text with what is in it, a list with a member, a text with what it begins with."""

Plain = str | int | float | bool | None
"""A value that a filter compares with."""
Criterion = Plain | list[Plain] | dict[Operator, Plain]
"""What a value of metadata has to be: this, one of these, or as all of some operators want it."""

StepKey = str
"""Names a value of a step that filters compare and that never changes: what a `FilterField` names,
and `program` (which a ProgramCall or ProgramEnd names), `call_id` (the id of a ProgramCall),
`created_at` and `scope`."""


class FilterField(NamedTuple):
    """One condition that a filter may set."""

    name: str
    """The key of `StepFilter`."""
    option: str
    """The command line's option."""
    kind: Kind
    help: str
    key: StepKey | None = None
    """The step key that must be one of the values; None: the condition has a meaning of its own."""
    in_body: bool = False
    """Whether the value lies in the step's JSON body, under `key`, and not in a column."""
    metavar: str | None = None
    wish: bool = False
    """Whether only answers must meet it. Else it is a fence: a search looks at nothing behind it,
    neither to show it nor to score or rank what it shows."""


FILTER_FIELDS = (
    FilterField(
        "session_id", "--session", "text", "Steps of this session's lineage.", metavar="ID"
    ),
    FilterField(
        "run_id", "--run", "texts", "Steps of this run, or of one of these.", "run_id", metavar="ID"
    ),
    FilterField(
        "program",
        "--program",
        "text",
        "Steps that call, end or stand directly inside a program of this name.",
        metavar="NAME",
    ),
    FilterField(
        "program_id",
        "--program-id",
        "text",
        "Steps directly inside this ProgramCall.",
        "program_id",
        metavar="ID",
    ),
    FilterField(
        "step_types",
        "--type",
        "choices",
        "Steps of these types: Action, Decision, ProgramCall or ProgramEnd.",
        "step_type",
        metavar="TYPE",
        wish=True,
    ),
    FilterField(
        "tools",
        "--tool",
        "texts",
        "Actions that used one of these tools.",
        "tool",
        metavar="NAME",
        wish=True,
    ),
    FilterField(
        "status",
        "--status",
        "choices",
        "Steps that ended like this: ok, error, partial or cancelled.",
        "status",
        wish=True,
    ),
    FilterField(
        "min_score",
        "--rated",
        "number",
        "Steps whose score, or whose run's score, is at least this.",
        wish=True,
    ),
    FilterField("since", "--since", "time", "Steps made at or after this time.", metavar="DATE"),
    FilterField("until", "--until", "time", "Steps made before this time.", metavar="DATE"),
    FilterField(
        "scope",
        "--scope",
        "text",
        "Trial runs of this scope, or everything (`*`); without it a user's own history.",
    ),
    FilterField(
        "exclude_run_id", "--not-run", "texts", "Not the steps of these runs.", metavar="ID"
    ),
    FilterField(
        "user_id",
        "--user",
        "texts",
        "Steps of this user, or of one of these.",
        "user_id",
        metavar="ID",
    ),
    FilterField(
        "metadata",
        "--metadata",
        "json",
        "Steps with these values of top-level metadata keys: a value, a list of which it is "
        "one, or an object of operators: gt, gte, lt, lte, contains, prefix.",
        metavar="KEY=VALUE",
        wish=True,
    ),
    FilterField(
        "sources",
        "--source",
        "texts",
        "Steps that came from one of these: a file's name, or `mcp`.",
        "source",
        metavar="NAME",
    ),
    FilterField(
        "predictors",
        "--predictor",
        "texts",
        "Steps that one of these DSPy predictors made.",
        "predictor",
        in_body=True,
        metavar="NAME",
        wish=True,
    ),
    FilterField(
        "signatures",
        "--signature",
        "texts",
        "Steps that predictors with one of these signatures made, whatever their instructions.",
        "signature",
        in_body=True,
        metavar="HASH",
        wish=True,
    ),
    FilterField(
        "trust",
        "--trust",
        "choice",
        "Least trust: `own` (recorded here by the user asked for), `team` (recorded here by "
        "anybody), `imported` (all).",
    ),
    FilterField(
        "kinds",
        "--kind",
        "choices",
        "What is searched: `step`, `message` (of sessions), or both, as without it. "
        "Where steps are listed, `message` alone is an error.",
        metavar="KIND",
        wish=True,
    ),
    FilterField(
        "exclude",
        "--exclude",
        "filters",
        "Not what matches this filter, or any of these; without a scope in every one.",
        metavar="KEY=VALUE",
    ),
    FilterField(
        "any_of",
        "--any-of",
        "filters",
        "What matches one of these filters, besides all else that is asked for.",
        metavar="KEY=VALUE",
    ),
)
"""In the order in which they are listed."""

_BREADTH = ("text", "texts", "choice", "choices")
WISHES = frozenset(field.name for field in FILTER_FIELDS if field.wish)
"""Conditions that only answers must meet."""
KEY_FIELDS = sorted((f for f in FILTER_FIELDS if f.key), key=lambda f: _BREADTH.index(f.kind))
"""Those that compare a step key; first those that leave least as a rule."""

_PATH = re.compile(r"\w+(\.\w+)+")


def is_several(value: object) -> bool:
    """Whether a value stands for any of its members."""
    return isinstance(value, list | tuple | set | frozenset)


def checked_criteria(metadata: Any) -> Any:
    """Return criteria of metadata, a list of one as that one; what is no mapping as it is.

    Raises:
        ValueError: One that no value could meet; it would match nothing, and say nothing.
    """
    if not isinstance(metadata, Mapping):
        return metadata
    criteria: dict[Any, Any] = {**metadata}
    return {key: _criterion(key, value) for key, value in criteria.items()}


def _criterion(key: object, value: Any) -> Any:
    if isinstance(key, str) and _PATH.fullmatch(key):
        raise ValueError(f"{key!r} is a path, and only top-level keys of metadata are compared")
    if (is_several(value) or isinstance(value, Mapping)) and not value:
        raise ValueError(f"{key!r} is compared with nothing; leave it out to let all pass")
    if isinstance(value, Mapping):
        operators: dict[Any, Any] = {**value}
        for name, bound in operators.items():
            _check_operator(key, name, bound)
        return operators
    values: list[Any] = list(value) if is_several(value) else [value]
    for each in values:
        if not isinstance(each, Plain):
            raise ValueError(
                f"the value of {key!r} is a text, a number, true, false or null, a list of these, "
                f"or operators with theirs, not {type(each).__name__} ({each!r:.60})"
            )
    return values if len(values) > 1 else values[0]


def _check_operator(key: object, name: object, bound: object) -> None:
    if name not in (known := get_args(Operator)):
        raise ValueError(f"unknown operator {name!r} for {key!r}; known: {', '.join(known)}")
    number = isinstance(bound, int | float) and not isinstance(bound, bool) and bound == bound
    if name == "contains":
        fits, takes = isinstance(bound, Plain), "a text, a number, true, false or null"
    elif name == "prefix":
        fits, takes = isinstance(bound, str), "a text"
    else:
        fits, takes = number or isinstance(bound, str), "a number or a text"
    if not fits:
        raise ValueError(f"{name!r} of {key!r} takes {takes}, not {bound!r:.60}")


def values_asked(metadata: Mapping[str, Criterion] | None) -> dict[str, list[Plain]]:
    """Return the keys that must have one of some values."""
    return {
        key: each if isinstance(each, list) else [each]
        for key, each in (metadata or {}).items()
        if not isinstance(each, dict)
    }


def operators_asked(metadata: Mapping[str, Criterion] | None) -> dict[str, dict[Operator, Plain]]:
    """Return the keys whose values are compared by operators, all of which must hold."""
    return {key: each for key, each in (metadata or {}).items() if isinstance(each, dict)}
