-- Revocations: marks on the ids of steps. A mark survives the step's replacement; what descends from
-- a marked step and was stored above `revoked_through` may not be marked yet.
CREATE TABLE revocation (
    namespace INTEGER NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    filter TEXT COLLATE "C" NOT NULL,           -- which steps were revoked, as JSON
    reason TEXT COLLATE "C",
    created_at TEXT COLLATE "C" NOT NULL,
    matched BIGINT NOT NULL,
    descended BIGINT NOT NULL,
    undone_at TEXT COLLATE "C",
    PRIMARY KEY (namespace, id)
);
CREATE TABLE revoked (                          -- what is in force
    namespace INTEGER NOT NULL,
    step_id TEXT COLLATE "C" NOT NULL,
    revocation TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, step_id, revocation)
);
CREATE INDEX revoked_by ON revoked (namespace, revocation);
ALTER TABLE namespace ADD COLUMN revoked_through BIGINT NOT NULL DEFAULT 0;

-- Followers count these as they count moved branches: either changes what is hidden.
CREATE FUNCTION revocation_moved() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE namespace SET branches_moved = branches_moved + 1 WHERE id = new.namespace;
    RETURN NULL;
END $$;
CREATE TRIGGER revocation_moved AFTER INSERT OR UPDATE OF undone_at ON revocation
    FOR EACH ROW EXECUTE FUNCTION revocation_moved();

-- Where a step comes from, NULL when it was recorded here. Chats imported before say their format.
ALTER TABLE agent_step ADD COLUMN source TEXT COLLATE "C";
UPDATE agent_step s SET source = f.name
    FROM (VALUES ('anthropic'), ('dspy'), ('langchain'), ('langgraph'), ('mlflow'), ('openai'),
                 ('otlp'), ('toolbench')) f (name)
    WHERE s.metadata @> ARRAY['["format","text","' || f.name || '"]'];
CREATE OR REPLACE VIEW step_view AS
SELECT namespace, row, id, parent_id, run_id, hop, session_id, user_id, program_id, program, tool,
       step_type, scope, status, score, created_at, metadata, branch_id, source FROM agent_step;
