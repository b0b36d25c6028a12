-- Which session was written last: a number that grows, since clocks go back. It is one more than the
-- row of the last message, or than write_floor where something else was written last or messages
-- were deleted: so a message that is added writes nothing more than its row.
ALTER TABLE session ADD COLUMN written INTEGER NOT NULL DEFAULT 0;
INSERT INTO meta VALUES ('write_floor', (SELECT count(*) + 1 FROM session));
UPDATE session SET written = o.number
    FROM (SELECT namespace, id, row_number() OVER (ORDER BY updated_at, id DESC) AS number
          FROM session) o
    WHERE o.namespace = session.namespace AND o.id = session.id;
CREATE VIEW next_write AS
SELECT max(coalesce((SELECT max(row) FROM message), 0),
           (SELECT value FROM meta WHERE key = 'write_floor')) + 1 AS number;
