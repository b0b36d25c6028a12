-- Which session was written last: a number that grows, since clocks go back.
ALTER TABLE session ADD COLUMN written BIGINT NOT NULL DEFAULT 0;
UPDATE session SET written = o.number
    FROM (SELECT namespace, id, row_number() OVER (ORDER BY updated_at, id DESC) AS number
          FROM session) o
    WHERE o.namespace = session.namespace AND o.id = session.id;
CREATE SEQUENCE session_write CACHE 1 OWNED BY session.written;
SELECT setval('session_write', count(*) + 1) FROM session;
CREATE VIEW next_write AS SELECT nextval('session_write') AS number;
