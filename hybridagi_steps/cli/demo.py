"""`hybridagi-steps demo`: the whole library in a quarter of a minute, offline."""

from __future__ import annotations

from hybridagi_steps.cli.options import Db, Namespace

DEMO_DB = "steps-demo.db"


def demo(db: Db = DEMO_DB, namespace: Namespace = "default") -> None:
    """See it all at work: offline, no key."""
