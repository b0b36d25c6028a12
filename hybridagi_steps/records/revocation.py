"""Revocation: steps that were found untrustworthy, and all that descends from them, out of recall.

A plain value: what was revoked, why, when, and how much that hid. The store keeps the marks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


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
