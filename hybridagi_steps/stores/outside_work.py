"""Work outside of a store: what queues and workspaces hold of it, erased with the rest.

Which queues there are the store has noted; a file is opened as SQLite's, an address as
PostgreSQL's. Whether a run is to go, the caller says.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hybridagi_steps.errors import StorageError
from hybridagi_steps.outside_files import QueuedRun, StateFolder, Whose, erase_from_queue, plan_runs
from hybridagi_steps.protocols import StoreBackend
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.stores.address import is_server, shown_address

_USER = re.compile(r"^[^@/?]*@|(?<=[?&])user=[^&]*&?")


def erase_outside(
    store: StoreBackend,
    steps: Iterable[AgentStep],
    gone: Callable[[QueuedRun], bool],
    address: str,
    whose: Whose,
) -> list[str]:
    """Erase from the queues that a memory knows of, the one beside its file, and workspace states.

    `steps` name the plans whose runs and states go.

    A queue on another server than the memory's is reached where its address needs no password. Of
    `whose` servers of the memory forget how often he asked, too. Those that could not be reached
    are returned.
    """
    plans = _plans_of(steps)
    planned = plan_runs(plans, whose.namespace)
    queues = {place: place for place in store.places()}
    if address.startswith("postgres"):
        own = _database(address)  # which other users have noted under theirs
        queues = {place: place for place in queues if _database(place) != own}
        queues[shown_address(address)] = address
    elif (own := Path(f"{address}.runs")).is_file():
        queues[str(own)] = str(own)
    unreached: dict[str, None] = {}
    for shown, place in queues.items():
        erase_from = partial(_erase_from_server, whose) if is_server(place) else _erase_from_file
        try:
            erase_from(place, lambda run: gone(run) or planned(run))
        except (OSError, sqlite3.Error, StorageError):
            unreached[shown] = None
    for key, state in plans.items():
        try:
            if state is not None:
                StateFolder(Path(state)).forget_run(key)
        except (OSError, ValueError):
            unreached[str(state)] = None
    return list(unreached)


def _database(address: str) -> str:
    """Return which database an address means, whoever opens it."""
    return _USER.sub("", shown_address(address).partition("://")[2])


def _erase_from_server(whose: Whose, address: str, gone: Callable[[QueuedRun], bool]) -> None:
    """Erase runs from the queues of a PostgreSQL database."""
    if find_spec("psycopg") is None:
        raise OSError("the extra postgres is not installed")
    from hybridagi_steps.stores.postgres.work_tables import erase_work

    erase_work(address, gone, whose)


def _erase_from_file(path: str, gone: Callable[[QueuedRun], bool]) -> None:
    erase_from_queue(Path(path), gone)


def texts_of(value: Any) -> set[str]:
    """Return the texts that are values in JSON, at any depth."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        value = [*cast("dict[str, Any]", value).values()]
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return set[str]().union(*map(texts_of, items))


def _plans_of(steps: Iterable[AgentStep]) -> dict[str, str | None]:
    """Return by the key of each plan's run that steps name the state folder of its workspace."""
    plans: dict[str, str | None] = {}
    for step in steps:
        notes = step.metadata or {}
        if isinstance(key := notes.get("plan_run"), str):
            plans[key] = plans.get(key) or str(notes.get("workspace") or "") or None
    return plans
