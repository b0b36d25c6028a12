"""Commits to sessions in a database: messages and their AgentSteps, all or none.

A commit is one transaction: look the key up, check where the session ends, write the messages and
their AgentSteps. Who else writes waits at a lock, so sequences have no gap and no duplicate. Where
a database can tell that a session still stands where it was seen last, that is one statement.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.errors import NotAllowedError, StepsError, UnknownSessionError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.message import Step, utc_now
from hybridagi_steps.records.store_values import BranchPosition, SessionState
from hybridagi_steps.stores.body import Written, decode_message, encode_message
from hybridagi_steps.stores.checksums import damaged
from hybridagi_steps.stores.commits import (
    check_end,
    check_names,
    check_repeated,
    first_and_last,
    first_user,
    refuse_twice,
)
from hybridagi_steps.stores.sql.lineage import (
    OPEN_END,
    Link,
    Row,
    SessionRow,
    change_session,
    checked_rows,
    checked_session,
    foreign_branch,
    in_range,
    insert_session,
    links,
    new_branch,
    own_rows,
    take_number,
    tip_of,
)
from hybridagi_steps.stores.sql.tables import Connection, is_storable
from hybridagi_steps.stores.sql.writing import StepWriting

_OF_STATE = 15  # columns that it has of the session
_USED = """SELECT branch_id, first, last FROM append_key
    WHERE namespace = ? AND session_id = ? AND key = ?"""
_USE = "INSERT INTO append_key VALUES (?, ?, ?, ?, ?, ?)"


def session_state_query(user: str) -> str:
    """Return SQL for all that a turn must know of a session, in one statement.

    `user` is SQL of the user that a row `a` of `agent_step` names. Of `step_view` SQLite would walk
    all rows, not those that an index finds.
    """
    return f"""WITH state AS MATERIALIZED (
        SELECT s.branch_id AS tip, s.created_at, s.updated_at, s.forked_from, s.forked_at,
            s.user_id, s.checksum, b.id AS branch, b.session_id AS owner, b.fork_sequence AS fork,
            coalesce((SELECT max(sequence) FROM message WHERE branch_id = b.id), b.fork_sequence),
            n.epoch, coalesce((SELECT max(seq) FROM tombstone WHERE namespace = n.id), 0),
            (SELECT min({user}) FROM agent_step a WHERE a.namespace = s.namespace
                AND a.branch_id = b.id AND a.sequence > :users_after),
            (SELECT max({user}) FROM agent_step a WHERE a.namespace = s.namespace
                AND a.branch_id = b.id AND a.sequence > :users_after)
        FROM session s JOIN namespace n ON n.id = s.namespace
        LEFT JOIN branch b ON b.id = coalesce(CAST(:branch AS BIGINT), s.branch_id)
        WHERE s.namespace = :namespace AND s.id = :session)
    SELECT state.*, m.sequence, m.id, CAST(m.said AS BLOB), CAST(m.body AS BLOB), m.said_checksum,
        m.checksum
    FROM state LEFT JOIN message m
        ON m.branch_id = state.branch AND m.sequence > :after AND state.fork <= :after
    ORDER BY m.sequence"""  # noqa: S608 - columns are ours


SESSIONS_KNOWN = 1_000
"""Sessions of which a store remembers where they stand."""


class Expected(NamedTuple):
    """What a commit finds, if nobody else has written to its session since it was seen."""

    seen: SessionRow
    """The session as it was seen last."""
    changed: SessionRow
    """The same after the commit."""
    end: BranchPosition


class Commit(NamedTuple):
    """What is to be added to a session."""

    session_id: str
    written: list[tuple[str, Written]]
    """The messages with their ids."""
    steps: list[AgentStep]
    step_ids: list[str]
    places: Sequence[int]
    """After how many of the messages each step stands."""
    branch_id: int | None
    expect_last: int | BranchPosition | None
    idempotency_key: str | None
    user_id: str | None
    """Who asks; None: whoever may."""
    owner: str | None
    """Whose the session becomes if it is nobody's."""
    times: tuple[str, str] | None
    """When the first and the last of messages were said that keep their times."""

    def rows(self, last: int) -> list[Row]:
        """Return the messages as they follow on the sequence `last`."""
        return [Row(at, name, *parts) for at, (name, parts) in enumerate(self.written, last + 1)]

    def pins(self, end: BranchPosition) -> list[BranchPosition]:
        """Return where the steps stand, if the messages follow on `end`."""
        return [end._replace(sequence=end.sequence + 1 + place) for place in self.places]


class SessionCommits(StepWriting):
    """Writes what `SessionStore` commits; see protocols.py for the contract."""

    _session_state: str
    """What `session_state_query` returns."""

    def commit(
        self,
        session_id: str,
        messages: Sequence[Step],
        agent_steps: Sequence[AgentStep] = (),
        *,
        after: Sequence[int] | None = None,
        branch_id: int | None = None,
        expect_last: int | BranchPosition | None = None,
        idempotency_key: str | None = None,
        user_id: str | None = None,
        keep_times: bool = False,
    ) -> list[Step]:
        """Add messages and AgentSteps at the end, all or none."""
        check_names(session_id, messages, idempotency_key)
        own = {"session_id": session_id}
        steps = [
            step.model_copy(update=own) if step.session_id is None else step for step in agent_steps
        ]
        new = Commit(
            session_id,
            [(message.id, encode_message(message)) for message in messages],
            steps,
            [id_text(step.id) for step in steps],
            [0] * len(steps) if after is None else after,
            branch_id,
            expect_last,
            idempotency_key,
            user_id,
            user_id or first_user(messages, agent_steps),
            first_and_last(messages) if keep_times else None,
        )
        refuse_twice([message.id for message in messages])
        refuse_twice(new.step_ids)
        if (last := self._commit_known(new)) is None:
            last = self._commit_read(new)
        if not isinstance(last, int):
            return last
        return [
            message.model_copy(update={**own, "sequence": sequence})
            for sequence, message in enumerate(messages, last + 1)
        ]

    def _commit_known(self, new: Commit) -> int | None:  # noqa: ARG002 - a hook
        """Commit to a session whose end is known, and return that; None where it is not."""
        return None

    @cached_property
    def _known(self) -> dict[str, tuple[SessionRow, int]]:
        """Sessions as they were seen last, each with where it ends."""
        return {}

    def _know(self, session_id: str, session: SessionRow, last: int) -> None:
        """Hear where a session stands, and where it ends."""
        if len(self._known) >= SESSIONS_KNOWN:
            self._known.clear()
        self._known[session_id] = session, last

    def _expected(self, new: Commit) -> Expected | None:
        """Return what a commit is to find, None where that is not known or not what it wants."""
        if (found := self._known.get(new.session_id)) is None:
            return None
        (seen, last), end = found, BranchPosition(found[0].branch_id, found[1])
        owner = new.owner if seen.user_id is None else seen.user_id
        if (
            new.times is not None
            or new.branch_id not in (None, end.branch_id)
            or new.expect_last not in (None, end, last)
            or new.user_id not in (None, owner)
        ):
            return None
        changed = seen._replace(user_id=owner, updated_at=utc_now().isoformat())
        return Expected(seen, changed, end)

    def _claimed(self, connection: Connection, new: Commit) -> Expected | None:  # noqa: ARG002 - a hook
        """Change a session's row if it is as expected; None where that has to be read."""
        return None

    def _commit_read(self, new: Commit) -> int | list[Step]:
        """Commit where a session ends; return that, or what the key stored."""
        session_id, key = new.session_id, new.idempotency_key
        alone = any(step.vector is not None for step in new.steps)  # as `append` does
        with self._db.writing(beside=None if alone else session_id) as connection:
            if (claimed := self._claimed(connection, new)) is not None:
                session, end = claimed.changed, claimed.end
                self._insert(connection, new, end)
            else:
                session, end = self._session_to_write(connection, new)
                if session.user_id is None:
                    session = session._replace(user_id=new.owner)
                if new.user_id is not None and session.user_id != new.user_id:
                    raise NotAllowedError.of_session(session_id)
                if key is not None:
                    used = self._used(connection, session_id, key, [one for _, one in new.written])
                    if used is not None:
                        return used
                check_end(session_id, end, new.expect_last)
                self._insert(connection, new, end)
                if not new.written:
                    take_number(connection)
                at = new.times and new.times[1]
                session = change_session(connection, self._namespace, session_id, session, at)
        if end.branch_id == session.branch_id:
            self._know(session_id, session, end.sequence + len(new.written))
        return end.sequence

    def _insert(self, connection: Connection, new: Commit, end: BranchPosition) -> None:
        """Insert the messages and steps of a commit behind an end, and its key."""
        for row in new.rows(end.sequence):
            self._insert_message(connection, end.branch_id, row)
        if new.steps:
            pins = dict(zip(new.step_ids, new.pins(end), strict=True))
            self._insert_all(connection, new.step_ids, new.steps, pins)
        if (key := new.idempotency_key) is not None:
            place = (end.branch_id, end.sequence + 1, end.sequence + len(new.written))
            connection.execute(_USE, (self._namespace, new.session_id, key, *place))

    @contextmanager
    def _readable(self, session_id: str) -> Generator[None]:
        """Say so when what the database gave us is no message."""
        try:
            yield
        except StepsError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(f"{self._db.name}: a message of session {session_id!r}", error) from error

    def _state(
        self,
        connection: Connection,
        session_id: str,
        branch_id: int | None,
        after: int | None = None,
        users_after: int | None = None,
    ) -> tuple[SessionRow, SessionState] | None:
        """Return a session and where it, or its branch, stands; None when it is unknown."""
        if not is_storable(session_id):
            return None
        after = OPEN_END if after is None else after
        asked: dict[str, int | str | None] = {
            "namespace": self._namespace,
            "session": session_id,
            "branch": branch_id and in_range(branch_id),
            "after": after,
            "users_after": OPEN_END if users_after is None else users_after,
        }
        found = connection.execute(self._session_state, asked).fetchall()
        if not found:
            return None
        tip, *known = found[0][:7]
        branch, owner, _, last, epoch, tombstone, *users = found[0][7:_OF_STATE]
        session = checked_session(self._namespace, session_id, tip, *known)
        if branch_id not in (None, tip) and owner != session_id:
            raise foreign_branch(session_id, branch_id)
        if branch is None:
            raise damaged(f"the branch {tip}", "it is not there")
        new = [row[_OF_STATE:] for row in found if row[_OF_STATE] is not None]
        messages = [
            decode_message(row.written, row.id, session_id, row.sequence)
            for row in checked_rows(Link(branch, after + 1, last), new)
        ]
        if branch == tip:
            self._know(session_id, session, last)
        names = frozenset(name for name in users if name is not None)
        erasures = (self._restarts, epoch, tombstone)
        return session, SessionState(BranchPosition(branch, last), erasures, names, messages)

    def _session_to_write(
        self, connection: Connection, new: Commit
    ) -> tuple[SessionRow, BranchPosition]:
        """Return a session that is being written, and its end; an unknown one is created."""
        if (found := self._state(connection, new.session_id, new.branch_id)) is not None:
            return found[0], found[1].end
        if new.branch_id is not None:
            raise UnknownSessionError(new.session_id)
        begun = new.times and new.times[0]
        session = self._create_session(connection, new.session_id, user_id=new.owner, begun=begun)
        return session, BranchPosition(session.branch_id, 0)

    def _create_session(
        self,
        connection: Connection,
        session_id: str,
        *,
        shares: BranchPosition | None = None,
        forked_from: str | None = None,
        user_id: str | None,
        begun: str | None = None,
    ) -> SessionRow:
        """Add a session, empty or sharing messages with another.

        Who says when it was `begun` says by `change_session` when it was written last.
        """
        reason = "start" if forked_from is None else "fork"
        branch = new_branch(
            connection, self._namespace, session_id, shares, reason=reason, pointed=True
        )
        now, forked_at = utc_now().isoformat(), shares.sequence if shares else None
        times = (now, now) if begun is None else (begun, "")
        row = SessionRow(branch, *times, forked_from, forked_at, user_id)
        insert_session(connection, self._namespace, session_id, row)
        return row

    def _used(
        self, connection: Connection, session_id: str, key: str, given: Sequence[Written]
    ) -> list[Step] | None:
        """Return what an earlier commit stored under this key; None when the key is new."""
        found = connection.execute(_USED, (self._namespace, session_id, key)).fetchone()
        if found is None:
            return None
        link = Link(*found)
        stored = list(own_rows(connection, link))
        whole = len(stored) == link.last - link.first + 1
        check_repeated(
            session_id,
            key,
            [row.written for row in stored],
            given,
            visible=whole and self._is_read(connection, session_id, link),
        )
        return [decode_message(row.written, row.id, session_id, row.sequence) for row in stored]

    def _is_read(self, connection: Connection, session_id: str, link: Link) -> bool:
        """Whether a session has what a commit stored, or it is an attempt under way."""
        if link.last < link.first:
            return True
        tip = tip_of(connection, self._namespace, session_id)
        owners = [] if tip is None else links(connection, tip, link.last, link.last)
        if owners and owners[0].branch_id == link.branch_id:
            return True
        sql = "SELECT 1 FROM branch WHERE id = ? AND pointed = 0"
        return connection.execute(sql, (link.branch_id,)).fetchone() is not None
