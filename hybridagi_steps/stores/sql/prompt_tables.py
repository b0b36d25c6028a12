"""Prompts in a database: kept, read, and forgotten with their steps.

Parts are stored when the first prompt has them and deleted with the last one that does; which have
them stands in `prompt_use`, so that no prompt needs to be read for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.stores.checksums import ChecksumError, damaged, row_checksum
from hybridagi_steps.stores.prompts import Prompt, hashes_in, packed, unpacked
from hybridagi_steps.stores.sql.steps import StepReading
from hybridagi_steps.stores.sql.tables import DERIVED, Connection, is_storable, many

_OF_STEPS = "namespace = :namespace AND step_id IN (SELECT value FROM json_each(:ids))"
_FORGET = (
    f"""DELETE FROM prompt_part WHERE namespace = :namespace AND hash IN
        (SELECT hash FROM prompt_use WHERE {_OF_STEPS})
        AND NOT EXISTS (SELECT 1 FROM prompt_use o WHERE o.namespace = prompt_part.namespace
            AND o.hash = prompt_part.hash
            AND o.step_id NOT IN (SELECT step_id FROM prompt WHERE {_OF_STEPS}))""",  # noqa: S608 - no value in it
    f"DELETE FROM prompt_use WHERE {_OF_STEPS}",  # noqa: S608 - no value in it
    f"DELETE FROM prompt WHERE {_OF_STEPS}",  # noqa: S608 - no value in it
)
_SOME = "SELECT 1 FROM prompt WHERE namespace = ? LIMIT 1"
_PROMPTED = "SELECT step_id FROM prompt WHERE namespace = ? ORDER BY step_id"
_IDS = "SELECT id FROM agent_step WHERE namespace = ? AND row IN (SELECT value FROM json_each(?))"
_PROMPTS = """SELECT step_id, body, checksum FROM prompt
    WHERE namespace = ? AND step_id IN (SELECT value FROM json_each(?))"""
_PARTS = """SELECT hash, body FROM prompt_part
    WHERE namespace = ? AND hash IN (SELECT value FROM json_each(?))"""
_ALL_PROMPTS = """SELECT namespace, step_id, body, checksum FROM prompt
    WHERE (namespace, step_id) > (?, ?) ORDER BY namespace, step_id LIMIT 100"""
_ALL_PARTS = """SELECT namespace, hash, body FROM prompt_part
    WHERE (namespace, hash) > (?, ?) ORDER BY namespace, hash LIMIT 100"""
_KEEP = "INSERT INTO prompt (namespace, step_id, body, checksum) VALUES (?, ?, ?, ?)"
_KEEP_PART = """INSERT INTO prompt_part (namespace, hash, body) VALUES (?, ?, ?)
    ON CONFLICT (namespace, hash) DO UPDATE SET body = excluded.body"""
_KEEP_USE = "INSERT INTO prompt_use (namespace, hash, step_id) VALUES (?, ?, ?)"
PROMPT_INVARIANTS = {
    "a prompt of a step that is gone": """SELECT p.step_id FROM prompt p WHERE NOT EXISTS
        (SELECT 1 FROM agent_step s WHERE s.namespace = p.namespace AND s.id = p.step_id)""",
    "a part of a prompt that no prompt has": """SELECT p.hash FROM prompt_part p WHERE NOT EXISTS
        (SELECT 1 FROM prompt_use u WHERE u.namespace = p.namespace AND u.hash = p.hash)""",
    "a prompt without one of its parts": """SELECT u.step_id FROM prompt_use u WHERE NOT EXISTS
        (SELECT 1 FROM prompt_part p WHERE p.namespace = u.namespace AND p.hash = u.hash)
        OR NOT EXISTS
        (SELECT 1 FROM prompt p WHERE p.namespace = u.namespace AND p.step_id = u.step_id)""",
}
"""What must hold among prompts and their steps; see `admin.INVARIANTS`."""


class PromptTables(StepReading):
    """Implements `PromptStore`; see stores/prompts.py for the contract."""

    def keep_prompts(self, prompts: Mapping[str, Prompt]) -> None:
        """Keep prompts of steps that are stored."""
        with self._db.writing(synced=False, beside=DERIVED) as connection:
            stored = self._rows_of(connection, [*prompts])
            kept = {step_id: prompts[step_id] for step_id in prompts if step_id in stored}
            self._forget_prompts(connection, [*kept])
            self._insert_prompts(connection, kept)

    def _insert_prompts(self, connection: Connection, prompts: Mapping[str, Prompt]) -> None:
        if not prompts:
            return
        key, parts = self._namespace, dict[str, bytes]()
        for prompt in prompts.values():
            parts.update(prompt.parts)
        # A part that is not whole any more is written anew.
        stored = connection.execute(_PARTS, (key, many(parts)))
        known = {name for name, part in stored if _is_whole(part, name)}
        fresh = [(key, name, packed(parts[name])) for name in parts if name not in known]
        connection.executemany(_KEEP_PART, fresh)
        uses = [(key, name, step_id) for step_id, each in prompts.items() for name in each.parts]
        connection.executemany(_KEEP_USE, uses)
        for step_id, prompt in prompts.items():
            checksum = row_checksum(step_id, prompt.body.decode())
            connection.execute(_KEEP, (key, step_id, packed(prompt.body), checksum))

    def _prompts_that_stay(
        self, connection: Connection, steps: Sequence[AgentStep]
    ) -> dict[str, Prompt]:
        """Return the prompts of steps that are about to be replaced by ones that say the same."""
        if not connection.execute(_SOME, (self._namespace,)).fetchone():
            return {}
        rows = self._rows_of(connection, [id_text(step.id) for step in steps])
        before = self._read(connection, [*rows.values()]).values()
        said = {old.id: (old.inputs, old.outputs) for old in before}
        same = [id_text(new.id) for new in steps if said.get(new.id) == (new.inputs, new.outputs)]
        found: dict[str, Prompt] = {}
        for step_id in same:
            with suppress(DamagedFileError):  # nobody can read it, so that nothing is lost
                found |= self._read_prompts(connection, [step_id])
        return found

    def _changed_prompts(self, connection: Connection) -> list[str]:
        """Return the steps and hashes of prompts and parts that are not as they were written."""
        changed: list[str] = []
        last: tuple[int, str] = (0, "")
        while rows := connection.execute(_ALL_PROMPTS, last).fetchall():
            last = rows[-1][:2]
            changed += [name for _, name, *row in rows if not _is_whole_body(name, *row)]
        last = (0, "")
        while rows := connection.execute(_ALL_PARTS, last).fetchall():
            last = rows[-1][:2]
            changed += [name for _, name, part in rows if not _is_whole(part, name)]
        return changed

    def prompts_of(self, step_ids: Sequence[str]) -> dict[str, Prompt]:
        """Return the prompts of steps."""
        with self._db.reading() as connection:
            return self._read_prompts(connection, step_ids)

    def _read_prompts(self, connection: Connection, step_ids: Sequence[str]) -> dict[str, Prompt]:
        found = connection.execute(_PROMPTS, self._prompts_asked(step_ids)).fetchall()
        return {row[0]: self._whole_prompt(connection, *row) for row in found}

    def _whole_prompt(
        self, connection: Connection, step_id: str, blob: Any, checksum: int
    ) -> Prompt:
        try:
            body = _body(step_id, blob, checksum)
            asked = (self._namespace, many(names := hashes_in(body)))
            parts = {n: unpacked(part, n) for n, part in connection.execute(_PARTS, asked)}
            if missing := set(names) - parts.keys():
                raise ChecksumError from KeyError(min(missing))
        except ValueError as error:
            raise damaged(f"{self._db.name}: the prompt of step {step_id!r}", error) from error
        return Prompt(body, parts)

    def prompted_steps(self) -> list[str]:
        """Return the ids of the steps that have a prompt."""
        with self._db.asking() as connection:
            return self._column(connection, _PROMPTED, self._namespace)

    def forget_prompts(self, step_ids: Sequence[str]) -> None:
        """Forget prompts of steps."""
        with self._db.writing() as connection:
            self._forget_prompts(connection, step_ids)

    def _forget_prompts_in(self, connection: Connection, rows: Sequence[int]) -> None:
        """Forget the prompts of steps that go, by their rows."""
        if connection.execute(_SOME, (self._namespace,)).fetchone():
            ids = self._column(connection, _IDS, self._namespace, many(rows))
            self._forget_prompts(connection, ids)

    def _forget_prompts(self, connection: Connection, step_ids: Sequence[str]) -> None:
        _, ids = self._prompts_asked(step_ids)
        if connection.execute(_PROMPTS, (self._namespace, ids)).fetchone():
            for statement in _FORGET:
                connection.execute(statement, {"namespace": self._namespace, "ids": ids})

    def _prompts_asked(self, step_ids: Sequence[str]) -> tuple[int, Any]:
        return self._namespace, many(filter(is_storable, map(id_text, step_ids)))


def _body(step_id: str, blob: Any, checksum: int) -> bytes:
    """Return the body of a prompt; ValueError when it is another than was written."""
    body = unpacked(blob)
    if row_checksum(step_id, body.decode()) != checksum:
        raise ChecksumError
    return body


def _is_whole_body(step_id: str, blob: Any, checksum: int) -> bool:
    with suppress(ValueError):
        return bool(_body(step_id, blob, checksum))
    return False


def _is_whole(part: Any, name: str) -> bool:
    with suppress(ValueError):
        return bool(unpacked(part, name))
    return False
