-- What models were asked and gave for steps that were recorded with it, apart from all that is read,
-- ranked and found. A part of such texts is named by a hash of what it says and stored once; a
-- prompt_use says whose it is, so that the part goes with the last of them.
CREATE TABLE prompt (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    step_id TEXT NOT NULL,
    body BLOB NOT NULL,                -- packed JSON, hashes in the place of messages and tools
    checksum INTEGER NOT NULL          -- of step_id and body
);
CREATE UNIQUE INDEX prompt_step ON prompt (namespace, step_id);
CREATE TABLE prompt_part (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    hash TEXT NOT NULL,
    body BLOB NOT NULL                 -- packed
);
CREATE UNIQUE INDEX prompt_part_hash ON prompt_part (namespace, hash);
CREATE TABLE prompt_use (
    namespace INTEGER NOT NULL REFERENCES namespace (id),
    hash TEXT NOT NULL,
    step_id TEXT NOT NULL,
    PRIMARY KEY (namespace, hash, step_id)
) WITHOUT ROWID;
CREATE INDEX prompt_use_step ON prompt_use (namespace, step_id);
