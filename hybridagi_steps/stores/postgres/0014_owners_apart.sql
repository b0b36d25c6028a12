-- A message tells no words of another owner: those of lines in which several speak are made anew by
-- whoever searches next. Lines of one user, and memories without users, stay as they are.
-- `stale_text` notes the rows meanwhile.
INSERT INTO stale_text (namespace, row)
WITH RECURSIVE
step (namespace, run_id, session_id, user_id) AS MATERIALIZED (
    SELECT DISTINCT namespace, run_id, session_id, user_id FROM agent_step
    WHERE user_id IS NOT NULL),
shared (namespace) AS (
    SELECT namespace FROM session WHERE user_id IS NOT NULL UNION SELECT namespace FROM step),
spoken (namespace, branch, run_id, user_id, asks) AS MATERIALIZED (
    SELECT DISTINCT namespace, branch_id, substring(body from '"run_id":"((?:[^"\\]|\\.)*)"'),
        substring(body from '"user_id":"((?:[^"\\]|\\.)*)"'), said LIKE '{"role":"user",%'
    FROM message WHERE namespace IN (SELECT namespace FROM shared)),
whose (branch, user_id) AS MATERIALIZED (
    SELECT branch, user_id FROM spoken WHERE user_id IS NOT NULL
    UNION
    SELECT m.branch, s.user_id FROM spoken m
        JOIN step s ON s.namespace = m.namespace AND s.run_id = m.run_id WHERE m.user_id IS NULL
    UNION
    SELECT b.id, s.user_id FROM branch b
        JOIN step s ON s.namespace = b.namespace AND s.session_id = b.session_id),
kind (branch, named, unknown) AS MATERIALIZED (
    SELECT m.branch, bool_or(m.user_id IS NOT NULL),
        bool_or(m.user_id IS NULL AND (m.asks OR m.run_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM step s WHERE s.namespace = m.namespace AND s.run_id = m.run_id)))
    FROM spoken m GROUP BY m.branch),
line (branch, id, parent) AS MATERIALIZED (
    SELECT id, id, parent_id FROM branch WHERE namespace IN (SELECT namespace FROM shared)
    UNION ALL
    SELECT l.branch, b.id, b.parent_id FROM line l
        JOIN branch b ON b.id = l.parent AND b.id < l.id),
mixed (branch) AS (
    SELECT l.branch FROM line l JOIN whose w ON w.branch = l.id
        GROUP BY l.branch HAVING min(w.user_id) <> max(w.user_id)
    UNION
    SELECT l.branch FROM line l JOIN kind k ON k.branch = l.id
        GROUP BY l.branch HAVING bool_or(k.named) AND bool_or(k.unknown)
    UNION
    SELECT b.id FROM branch b JOIN session s ON s.namespace = b.namespace AND s.id = b.session_id
        WHERE s.user_id = '')
SELECT namespace, row + 1099511627776 FROM message
WHERE branch_id IN (SELECT branch FROM mixed);
DELETE FROM step_text WHERE row IN (SELECT row FROM stale_text WHERE row > 1099511627776);
DELETE FROM embedding WHERE row IN (SELECT row FROM stale_text WHERE row > 1099511627776);
UPDATE namespace SET epoch = epoch + 1,
    message_texts_through = least(message_texts_through, (SELECT min(t.row) - 1099511627777
        FROM stale_text t WHERE t.namespace = namespace.id AND t.row > 1099511627776)),
    message_vectors_through = least(message_vectors_through, (SELECT min(t.row) - 1099511627777
        FROM stale_text t WHERE t.namespace = namespace.id AND t.row > 1099511627776))
    WHERE id IN (SELECT namespace FROM stale_text WHERE row > 1099511627776);
DELETE FROM stale_text WHERE row > 1099511627776;
