-- One row per step; everything else about steps is derived from the body, later and in batches.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,              -- store_id; row_floor: rows up to here were used once
    value NOT NULL
) WITHOUT ROWID;

CREATE TABLE namespace (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    epoch INTEGER NOT NULL DEFAULT 1,  -- grows when followers must start again
    embedder TEXT,
    dimension INTEGER,
    keys_through INTEGER NOT NULL DEFAULT 0,    -- steps up to this row have their step_key
    texts_through INTEGER NOT NULL DEFAULT 0,   -- … have their step_text, or stand in stale_text
    vectors_through INTEGER NOT NULL DEFAULT 0  -- … have their embedding
);

CREATE TABLE agent_step (
    row INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    id TEXT NOT NULL,
    branch_id INTEGER,
    sequence INTEGER,
    body TEXT NOT NULL,
    CHECK ((branch_id IS NULL) = (sequence IS NULL))
);
CREATE UNIQUE INDEX agent_step_id ON agent_step (namespace, id);
CREATE INDEX agent_step_lineage ON agent_step (namespace, branch_id, sequence)
    WHERE branch_id IS NOT NULL;

-- What filters look at. A narrow copy, so that a filter over 100,000 steps reads no bodies, and
-- written in batches, so that an append writes one row and one index entry.
CREATE TABLE step_key (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    row INTEGER NOT NULL,
    parent_id TEXT, run_id TEXT, hop INTEGER NOT NULL, session_id TEXT, user_id TEXT,
    program_id TEXT, program TEXT, tool TEXT, step_type TEXT, scope TEXT, status TEXT,
    score REAL, created_at TEXT, metadata TEXT,
    branch_id INTEGER,                 -- NULL: the step belongs to no message of a session
    PRIMARY KEY (namespace, row)
) WITHOUT ROWID;
CREATE INDEX step_key_run ON step_key (namespace, run_id, hop, row) WHERE run_id IS NOT NULL;
CREATE INDEX step_key_parent ON step_key (namespace, parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX step_key_session ON step_key (namespace, session_id)
    WHERE session_id IS NOT NULL AND branch_id IS NULL;

-- The keys of steps that have none yet, taken from their bodies. The casts give each column the
-- type it has in step_key: without them SQLite answers step_view by reading everything. n.id and
-- the + keep it from walking a whole namespace by an index instead of the few rows at its end.
CREATE VIEW step_tail AS
SELECT
    n.id AS namespace, s.row AS row,
    CAST(json_extract(s.body, '$.parent_id') AS TEXT) AS parent_id,
    CAST(json_extract(s.body, '$.run_id') AS TEXT) AS run_id,
    CAST(json_extract(s.body, '$.hop') AS INTEGER) AS hop,
    CAST(json_extract(s.body, '$.session_id') AS TEXT) AS session_id,
    CAST(json_extract(s.body, '$.user_id') AS TEXT) AS user_id,
    CAST(json_extract(s.body, '$.program_id') AS TEXT) AS program_id,
    CAST(CASE WHEN json_extract(s.body, '$.step_type') IN ('ProgramCall', 'ProgramEnd')
               AND json_type(s.body, '$.inputs.program') = 'text'
              THEN json_extract(s.body, '$.inputs.program') END AS TEXT) AS program,
    CAST(CASE WHEN json_type(s.body, '$.inputs.tool') = 'text'
              THEN json_extract(s.body, '$.inputs.tool') END AS TEXT) AS tool,
    CAST(json_extract(s.body, '$.step_type') AS TEXT) AS step_type,
    CAST(json_extract(s.body, '$.scope') AS TEXT) AS scope,
    CAST(json_extract(s.body, '$.status') AS TEXT) AS status,
    CAST(json_extract(s.body, '$.score') AS REAL) AS score,
    CAST(json_extract(s.body, '$.created_at') AS TEXT) AS created_at,
    CAST(json_extract(s.body, '$.metadata') AS TEXT) AS metadata,
    s.branch_id AS branch_id
FROM namespace n CROSS JOIN agent_step s ON s.row > n.keys_through AND +s.namespace = n.id;

CREATE VIEW step_view AS
SELECT namespace, row, parent_id, run_id, hop, session_id, user_id, program_id, program, tool,
       step_type, scope, status, score, created_at, metadata, branch_id FROM step_key
UNION ALL
SELECT namespace, row, parent_id, run_id, hop, session_id, user_id, program_id, program, tool,
       step_type, scope, status, score, created_at, metadata, branch_id FROM step_tail;

CREATE TABLE run (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    run_id TEXT NOT NULL,
    score REAL,
    feedback TEXT,
    PRIMARY KEY (namespace, run_id)
) WITHOUT ROWID;

-- Followers read these three by (namespace, seq); a seq is never used twice.
CREATE TABLE step_text (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    row INTEGER NOT NULL UNIQUE,
    parent_row INTEGER,
    tokens TEXT NOT NULL,
    text_hash INTEGER NOT NULL,
    purpose_hash INTEGER NOT NULL,
    scoped INTEGER NOT NULL
);
CREATE INDEX step_text_seq ON step_text (namespace, seq);

CREATE TABLE embedding (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    row INTEGER NOT NULL UNIQUE,
    model TEXT,
    dimension INTEGER,
    text_hash INTEGER NOT NULL,
    given INTEGER NOT NULL,            -- 1: came with the step; 0: the embedder made it
    scoped INTEGER NOT NULL,
    vector BLOB                        -- float32, little endian; NULL: nothing usable
);
CREATE INDEX embedding_seq ON embedding (namespace, seq);

CREATE TABLE tombstone (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    row INTEGER NOT NULL
);
CREATE INDEX tombstone_seq ON tombstone (namespace, seq);

CREATE TABLE stale_text (              -- steps whose parent arrived after their words were saved
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    row INTEGER NOT NULL,
    PRIMARY KEY (namespace, row)
) WITHOUT ROWID;

-- Sessions: a session points at a branch, a branch is an append-only line of messages. `reach` is the
-- last sequence of a branch that any session reads: 9223372036854775807 for a branch that a session
-- points at, 0 for one that nobody reads. Steps above it are hidden.
CREATE TABLE branch (
    id INTEGER PRIMARY KEY AUTOINCREMENT,       -- never reused: a position keeps its meaning
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    session_id TEXT NOT NULL,                   -- whose attempt it is
    parent_id INTEGER REFERENCES branch (id),   -- the branch that owns fork_sequence
    fork_sequence INTEGER NOT NULL,             -- own messages begin at fork_sequence + 1
    reach INTEGER NOT NULL,
    pointed INTEGER NOT NULL,                   -- 1: a session points at it, or once did
    reason TEXT NOT NULL,
    created_at TEXT NOT NULL,
    CHECK ((parent_id IS NULL) = (fork_sequence = 0))
);
CREATE INDEX branch_session ON branch (namespace, session_id);
CREATE INDEX branch_read ON branch (parent_id, fork_sequence) WHERE reach > 0;
CREATE INDEX branch_limited ON branch (namespace) WHERE reach < 9223372036854775807;
CREATE TABLE session (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    id TEXT NOT NULL,
    branch_id INTEGER NOT NULL REFERENCES branch (id),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    forked_from TEXT,
    forked_at INTEGER,
    PRIMARY KEY (namespace, id),
    CHECK ((forked_from IS NULL) = (forked_at IS NULL))
) WITHOUT ROWID;
CREATE TABLE message (
    row INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    branch_id INTEGER NOT NULL REFERENCES branch (id),
    sequence INTEGER NOT NULL CHECK (sequence > 0),
    id TEXT NOT NULL,
    said TEXT NOT NULL,                         -- the message as providers take it
    body TEXT NOT NULL,                         -- what else is known of it
    UNIQUE (namespace, id),
    UNIQUE (branch_id, sequence)
);
CREATE TABLE append_key (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    session_id TEXT NOT NULL,
    key TEXT NOT NULL,
    branch_id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,                      -- first - 1: the commit had no message
    PRIMARY KEY (namespace, session_id, key)
) WITHOUT ROWID;
CREATE TABLE message_token (                    -- derived: how long a message is, in tokens
    message_row INTEGER NOT NULL REFERENCES message (row),
    counter TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (message_row, counter)
) WITHOUT ROWID;

-- What a large store looks like to SQLite's planner: a namespace says little, a run or a parent a
-- lot. Without this it takes every equality for equally good and walks whole namespaces.
ANALYZE;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('agent_step', 'agent_step_id', '100000 50000 1'),
    ('step_key', 'step_key', '100000 50000 1'),
    ('step_key', 'step_key_run', '100000 50000 20 2 1'),
    ('step_key', 'step_key_parent', '100000 50000 2'),
    ('step_key', 'step_key_session', '100000 50000 20 1'),
    ('agent_step', 'agent_step_lineage', '100000 50000 100 1'),
    ('step_text', 'step_text_seq', '100000 50000 1'),
    ('embedding', 'embedding_seq', '100000 50000 1');
