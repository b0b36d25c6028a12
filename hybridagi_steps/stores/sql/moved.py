"""A namespace that has moved: the database itself refuses to write it, to whoever asks.

A process that was opened at the old place may go on for days, and what it acknowledged there would
be lost. So triggers refuse every change of what is recorded, also those of earlier versions; they
are made when a namespace moves, and cost nobody anything before. What is derived may be written
still. Clearing gives the space back and leaves the refusal.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable

from hybridagi_steps.errors import StorageBusyError
from hybridagi_steps.stores.sql.copied_rows import CopiedTables
from hybridagi_steps.stores.sql.tables import Connection

RECORDED = "agent_step message session branch run revocation prompt".split()  # noqa: SIM905 - names read better so
_PAUSE_SECONDS = 0.1


class MovedTables(CopiedTables):
    """A namespace that may be somewhere else by now."""

    @abstractmethod
    def _refusing(self, place: str | None) -> Iterable[str]:
        """Return statements that refuse changes of the namespace; None: that allow them again."""

    def moved_to(self) -> str | None:
        """Return where the namespace has moved; None: nowhere."""
        with self._db.asking() as connection:
            return self._noted(connection, self._moved_key)

    def refuse_writes(self, place: str | None) -> None:
        """Refuse all that is written from now on, since it has moved; None: allow it again.

        What others had begun to write is committed when this returns, or was refused.

        Raises:
            StorageBusyError: Others held the tables for longer than the timeout.
            MissingGrantError: The role does not own the tables.
        """
        give_up = time.monotonic() + self._db.patience.seconds
        while True:
            try:
                with self._db.writing(synced=True) as connection:
                    return self._refuse(connection, place)
            except StorageBusyError:
                if time.monotonic() >= give_up:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def clear(self) -> None:
        """Delete everything of this namespace; one that has moved stays so."""
        with self._db.writing() as connection:
            place = self._noted(connection, self._moved_key)
            if place is not None:
                self._refuse(connection, None)
            self._forget_all(connection)
            if place is not None:
                self._refuse(connection, place)

    @property
    def _moved_key(self) -> str:
        return f"moved:{self._namespace}"

    def _refuse(self, connection: Connection, place: str | None) -> None:
        for statement in self._refusing(place):
            connection.execute(statement)
        self._note(connection, self._moved_key, place)
