"""What must hold among sessions, branches and messages; `verify` asks for rows that break it."""

from __future__ import annotations

_READ = """WITH RECURSIVE chain(branch_id, parent_id, below, last) AS (
    SELECT b.id, b.parent_id, b.fork_sequence, 9223372036854775807
    FROM session s JOIN branch b ON b.id = s.branch_id
    UNION ALL
    SELECT b.id, b.parent_id, b.fork_sequence, chain.below
    FROM chain JOIN branch b ON b.id = chain.parent_id AND b.id < chain.branch_id)
SELECT branch_id, max(last) AS last FROM chain GROUP BY branch_id"""

BRANCH_INVARIANTS = {
    "a branch with a gap, or one that does not begin after its fork": """SELECT b.id
        FROM branch b JOIN message m ON m.branch_id = b.id GROUP BY b.id
        HAVING min(m.sequence) <> b.fork_sequence + 1
            OR max(m.sequence) <> b.fork_sequence + count(*)""",
    "a message of no branch, or of another namespace": """SELECT m.row FROM message m WHERE NOT
        EXISTS (SELECT 1 FROM branch b WHERE b.id = m.branch_id AND b.namespace = m.namespace)""",
    "a branch that forks where its parent has no message of its own": """SELECT c.id FROM branch c
        LEFT JOIN message m ON m.branch_id = c.parent_id AND m.sequence = c.fork_sequence
        WHERE c.parent_id IS NOT NULL AND m.row IS NULL""",
    "a branch older than its parent, or of another namespace": """SELECT c.id FROM branch c
        JOIN branch p ON p.id = c.parent_id WHERE p.id >= c.id OR p.namespace <> c.namespace""",
    "a session that points at no branch of its own": """SELECT s.branch_id FROM session s
        WHERE NOT EXISTS (SELECT 1 FROM branch b WHERE b.id = s.branch_id
            AND b.namespace = s.namespace AND b.session_id = s.id AND b.pointed = 1)""",
    "a branch whose reach is not what sessions read": f"""SELECT b.id FROM branch b
        LEFT JOIN ({_READ}) r ON r.branch_id = b.id WHERE b.reach <> coalesce(r.last, 0)""",  # noqa: S608 - no value in it
    "a step pinned to no branch": """SELECT s.row FROM agent_step s WHERE s.branch_id IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM branch b
                        WHERE b.id = s.branch_id AND b.namespace = s.namespace)""",
    "tokens without a message": """SELECT message_row FROM message_token t WHERE NOT EXISTS
        (SELECT 1 FROM message m WHERE m.row = t.message_row)""",
}
