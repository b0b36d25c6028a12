-- Revocations: marks on the ids of steps. A mark survives the step's replacement; what descends from
-- a marked step and was stored above `revoked_through` may not be marked yet.
CREATE TABLE revocation (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    id TEXT NOT NULL,
    filter TEXT NOT NULL,              -- which steps were revoked, as JSON
    reason TEXT,
    created_at TEXT NOT NULL,
    matched INTEGER NOT NULL,
    descended INTEGER NOT NULL,
    undone_at TEXT,
    PRIMARY KEY (namespace, id)
) WITHOUT ROWID;
CREATE TABLE revoked (                 -- what is in force
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    step_id TEXT NOT NULL,
    revocation TEXT NOT NULL,
    PRIMARY KEY (namespace, step_id, revocation)
) WITHOUT ROWID;
CREATE INDEX revoked_by ON revoked (namespace, revocation);
ALTER TABLE namespace ADD COLUMN revoked_through INTEGER NOT NULL DEFAULT 0;

-- Followers count these as they count moved branches: either changes what is hidden.
CREATE TRIGGER step_revoked AFTER INSERT ON revocation BEGIN
    UPDATE namespace SET branches_moved = branches_moved + 1 WHERE id = new.namespace;
END;
CREATE TRIGGER step_reinstated AFTER UPDATE OF undone_at ON revocation BEGIN
    UPDATE namespace SET branches_moved = branches_moved + 1 WHERE id = new.namespace;
END;
