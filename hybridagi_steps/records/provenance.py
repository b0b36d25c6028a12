"""Provenance: where a step comes from, and what was recalled into its prompt, as metadata says it.

`metadata.source` says that a step came from outside: `kind` (`import`, `mcp`, `client`), and of an
import `format`, `name` (the file), `at` (UTC) and `before` (what the file itself said). A step that
was recorded here has no such key. `metadata.recalled` lists ids of steps and messages.
`metadata.origin` says of what an optimiser made the program that a run tries.

A `Revocation` takes a source and all that descends from it out of recall; stores keep the marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast

SOURCE, RECALLED = "source", "recalled"
"""The keys of `metadata`."""
RECALLED_MORE = "recalled_more"
"""Its key for how many more ids were recalled than are listed."""
WITHIN = "within"
"""Its key for the id of the Action whose tool made a step, which no program around it did."""
CHAT_FORMATS = (
    "anthropic", "dspy", "langchain", "langgraph", "mlflow", "openai", "otlp", "toolbench",
)  # fmt: skip
"""What `metadata.format` says of a step that was imported before imports wrote their source."""
ORIGIN = "origin"
"""Its key for the origin of a candidate."""
_LONGEST_HISTORY = 5


def source_of(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the name of where a step came from, else its kind; None when it was recorded here."""
    if not metadata:
        return None
    source = metadata.get(SOURCE)
    if isinstance(source, dict):
        kind, name = cast("dict[str, Any]", source).get("kind"), cast("Any", source).get("name")
        if isinstance(kind, str):
            return name if isinstance(name, str) and name else kind
    known = metadata.get("format")
    return known if isinstance(known, str) and known in CHAT_FORMATS else None


def from_outside(metadata: Mapping[str, Any] | None, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that say where they came from, whatever they said of it themselves."""
    before = (metadata or {}).get(SOURCE)
    if before is None:
        return {**(metadata or {}), SOURCE: dict(source)}
    return {**(metadata or {}), SOURCE: {**source, "before": _cut(before, _LONGEST_HISTORY)}}


def recalled_by(metadata: Mapping[str, Any] | None) -> list[str]:
    """Return the ids of what stood in a step's prompt."""
    found = (metadata or {}).get(RECALLED)
    if not isinstance(found, list):
        return []
    return [step_id for step_id in cast("list[Any]", found) if isinstance(step_id, str)]


def _cut(before: object, kept: int) -> Any:
    """Return a history without what lies further back than so many imports."""
    if not isinstance(before, dict) or "before" not in before:
        return cast("Any", before)
    history = cast("dict[str, Any]", before)
    rest = {key: value for key, value in history.items() if key != "before"}
    return {**rest, "before": _cut(history["before"], kept - 1)} if kept > 1 else rest


@dataclass(frozen=True, slots=True)
class Revocation:
    """One revocation, in force or undone."""

    id: str | None
    """Its id; None of a dry run, and of one that matched nothing: those are not kept."""
    where: dict[str, Any]
    """The filter that named the source."""
    reason: str | None
    """Why, in the words of who revoked it."""
    created_at: datetime
    """When, UTC."""
    matched: int
    """Steps that the filter matched."""
    descended: int
    """Steps that were hidden because they descend from those, later ones included."""
    undone_at: datetime | None = None
    """When it was taken back, UTC; None as long as it is in force."""
    step_ids: list[str] = field(default_factory=list[str])
    """In the answer of `revoke` ids of the steps it hides, those matched first; in the answer of
    `reinstate` of those that no revocation hides any more; else empty."""
    messages: int = 0
    """Messages of sessions that it hides: those the filter matches and those that show a hidden
    step; of one that is undone none."""
    message_ids: list[str] = field(default_factory=list[str])
    """Ids of messages, likewise."""


class CandidateOrigin(NamedTuple):
    """What GEPA made a candidate of."""

    iteration: int
    """The one that first proposed it; 0 for the student."""
    parents: list[str]
    """Candidates: one of a proposal, two of a merge, none of the student."""
    proposal: dict[str, str]
    """The instructions in which it differs from its (first) parent, by predictor."""
    reflections: list[str]
    """The runs in which a model proposed them, as far as they were recorded."""

    def __str__(self) -> str:
        if self.parents[1:]:
            return f"merge with {', '.join(self.parents[1:])}"
        return "; ".join(f"{name}: {text}" for name, text in self.proposal.items())


def candidate_origin(
    noted: Mapping[str, Any] | None,
    state: Mapping[str, Any] | None,
    proposers: Mapping[str, Mapping[str, Mapping[str, Any]]],
    proposed: Mapping[str, int],
) -> CandidateOrigin | None:
    """Return what `metadata.origin` says of a candidate in this state.

    Args:
        noted: What stands there.
        state: Its predictors with their instructions.
        proposers: By proposal, the outputs of the runs in which a model was asked, by their ids.
        proposed: How many candidates a proposal made; of several each has the runs that gave its
            instructions.
    """
    if noted is None or state is None:
        return None
    proposal = {str(name): str(state[name]["instructions"]) for name in noted["changed"]}
    texts = {text.strip() for text in proposal.values()}
    own = [
        run_id
        for run_id, outputs in proposers.get(noted["proposal"], {}).items()
        if proposed[noted["proposal"]] == 1 or texts & {str(v).strip() for v in outputs.values()}
    ]
    return CandidateOrigin(noted["iteration"], noted["parents"], proposal, own)
