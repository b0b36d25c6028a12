-- Whose a session is; the empty text: of several users, NULL: nobody's. One of before is the only
-- user's whom steps name, its own and those of what it was forked from: what a fork reads of them was
-- not always noted, so all count. A row that changes has no checksum until it is written again.
ALTER TABLE session ADD COLUMN user_id TEXT COLLATE "C";
CREATE INDEX session_of_user ON session (namespace, user_id, written) WHERE user_id IS NOT NULL;
WITH RECURSIVE source (namespace, session, name) AS (
    SELECT namespace, id, id FROM session
    UNION
    SELECT c.namespace, c.session, s.forked_from FROM source c
    JOIN session s ON s.namespace = c.namespace AND s.id = c.name WHERE s.forked_from <> ''),
line (namespace, session, branch, parent, below, last) AS (
    SELECT s.namespace, s.id, b.id, b.parent_id, b.fork_sequence, 9223372036854775807
    FROM session s JOIN branch b ON b.namespace = s.namespace AND b.session_id = s.id
    UNION
    SELECT l.namespace, l.session, b.id, b.parent_id, b.fork_sequence, l.below
    FROM line l JOIN branch b ON b.id = l.parent AND b.id < l.branch),
step (namespace, row, session_id, user_id) AS MATERIALIZED (
    SELECT namespace, row, session_id, user_id FROM agent_step WHERE user_id IS NOT NULL),
named (namespace, session_id, user_id) AS MATERIALIZED (
    SELECT DISTINCT namespace, session_id, user_id FROM step WHERE session_id IS NOT NULL),
users (namespace, session, user_id) AS (
    SELECT c.namespace, c.session, n.user_id
    FROM source c JOIN named n ON n.namespace = c.namespace AND n.session_id = c.name
    UNION
    SELECT l.namespace, l.session, k.user_id
    FROM line l JOIN agent_step a ON a.namespace = l.namespace AND a.branch_id = l.branch
        AND a.sequence <= l.last
    JOIN step k ON k.row = a.row),
whose (namespace, session, one, other) AS (
    SELECT namespace, session, min(user_id), max(user_id) FROM users
    WHERE user_id IS NOT NULL GROUP BY namespace, session)
UPDATE session SET checksum = NULL, user_id = CASE WHEN one = other THEN one ELSE '' END
FROM whose WHERE whose.namespace = session.namespace AND whose.session = session.id;
