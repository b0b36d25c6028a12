-- What `stats` counts, kept up to a row of each kind: who asks counts on from there. Rows that go
-- void the count, sessions that begin or end that of the sessions; whoever deletes, triggers say so.
ALTER TABLE namespace ADD COLUMN rows_gone INTEGER NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN sessions_moved INTEGER NOT NULL DEFAULT 0;
CREATE TABLE tally (
    namespace INTEGER PRIMARY KEY REFERENCES namespace (id),
    rows_gone INTEGER NOT NULL,        -- what namespace had; if that has more by now, this is void
    sessions_moved INTEGER NOT NULL,   -- as rows_gone, of `sessions`
    through INTEGER NOT NULL,          -- steps up to here are counted
    messages_through INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    dangling_parents INTEGER NOT NULL,
    sessions INTEGER NOT NULL,
    messages INTEGER NOT NULL
);
CREATE TRIGGER step_gone AFTER DELETE ON agent_step BEGIN
    UPDATE namespace SET rows_gone = rows_gone + 1 WHERE id = old.namespace;
END;
CREATE TRIGGER message_gone AFTER DELETE ON message BEGIN
    UPDATE namespace SET rows_gone = rows_gone + 1 WHERE id = old.namespace;
END;
CREATE TRIGGER message_rewritten AFTER UPDATE OF body ON message BEGIN
    UPDATE namespace SET rows_gone = rows_gone + 1 WHERE id = old.namespace;
END;
CREATE TRIGGER session_begun AFTER INSERT ON session BEGIN
    UPDATE namespace SET sessions_moved = sessions_moved + 1 WHERE id = new.namespace;
END;
CREATE TRIGGER session_gone AFTER DELETE ON session BEGIN
    UPDATE namespace SET sessions_moved = sessions_moved + 1 WHERE id = old.namespace;
END;
CREATE INDEX embedding_text_only ON embedding (namespace) WHERE vector IS NULL;
