-- What `stats` counts, kept up to a row of each kind: who asks counts on from there. Rows that go
-- void the count, sessions that begin or end that of the sessions; whoever deletes, triggers say so.
ALTER TABLE namespace ADD COLUMN rows_gone BIGINT NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN sessions_moved BIGINT NOT NULL DEFAULT 0;
CREATE TABLE tally (
    namespace INTEGER PRIMARY KEY,
    rows_gone BIGINT NOT NULL,         -- what namespace had; if that has more by now, this is void
    sessions_moved BIGINT NOT NULL,    -- as rows_gone, of `sessions`
    through BIGINT NOT NULL,           -- steps up to here are counted
    messages_through BIGINT NOT NULL,
    steps BIGINT NOT NULL,
    runs BIGINT NOT NULL,
    dangling_parents BIGINT NOT NULL,
    sessions BIGINT NOT NULL,
    messages BIGINT NOT NULL
);
CREATE FUNCTION counted_gone() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE namespace SET rows_gone = rows_gone + 1
        WHERE id IN (SELECT DISTINCT namespace FROM moved);
    RETURN NULL;
END $$;
CREATE FUNCTION sessions_moved() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE namespace SET sessions_moved = sessions_moved + 1
        WHERE id IN (SELECT DISTINCT namespace FROM moved);
    RETURN NULL;
END $$;
CREATE TRIGGER step_gone AFTER DELETE ON agent_step REFERENCING OLD TABLE AS moved
    FOR EACH STATEMENT EXECUTE FUNCTION counted_gone();
CREATE TRIGGER message_gone AFTER DELETE ON message REFERENCING OLD TABLE AS moved
    FOR EACH STATEMENT EXECUTE FUNCTION counted_gone();
CREATE TRIGGER message_rewritten AFTER UPDATE ON message REFERENCING OLD TABLE AS moved
    FOR EACH STATEMENT EXECUTE FUNCTION counted_gone();
CREATE TRIGGER session_begun AFTER INSERT ON session REFERENCING NEW TABLE AS moved
    FOR EACH STATEMENT EXECUTE FUNCTION sessions_moved();
CREATE TRIGGER session_gone AFTER DELETE ON session REFERENCING OLD TABLE AS moved
    FOR EACH STATEMENT EXECUTE FUNCTION sessions_moved();
CREATE INDEX embedding_text_only ON embedding (namespace) WHERE vector IS NULL;
