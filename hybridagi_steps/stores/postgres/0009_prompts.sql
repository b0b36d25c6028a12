-- What models were asked and gave for steps that were recorded with it, apart from all that is read,
-- ranked and found. A part of such texts is named by a hash of what it says and stored once; a
-- prompt_use says whose it is, so that the part goes with the last of them.
CREATE TABLE prompt (
    namespace INTEGER NOT NULL,
    step_id TEXT COLLATE "C" NOT NULL,
    body BYTEA NOT NULL,                        -- packed JSON, hashes in the place of messages
    checksum BIGINT NOT NULL,                   -- of step_id and body
    PRIMARY KEY (namespace, step_id)
);
CREATE TABLE prompt_part (
    namespace INTEGER NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    body BYTEA NOT NULL,                        -- packed
    PRIMARY KEY (namespace, hash)
);
CREATE TABLE prompt_use (
    namespace INTEGER NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    step_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, hash, step_id)
);
CREATE INDEX prompt_use_step ON prompt_use (namespace, step_id);
-- The planner keeps no samples of them that would outlive a purge.
ALTER TABLE prompt
    ALTER step_id SET STATISTICS 0, ALTER body SET STATISTICS 0, ALTER body SET STORAGE EXTERNAL;
ALTER TABLE prompt_part
    ALTER hash SET STATISTICS 0, ALTER body SET STATISTICS 0, ALTER body SET STORAGE EXTERNAL;
ALTER TABLE prompt_use ALTER hash SET STATISTICS 0, ALTER step_id SET STATISTICS 0;
