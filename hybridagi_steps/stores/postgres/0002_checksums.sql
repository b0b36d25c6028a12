-- A checksum per row, computed by who writes it; NULL: an earlier version wrote it, unchecked.
ALTER TABLE agent_step ADD COLUMN checksum BIGINT;      -- of body and namespace
ALTER TABLE step_text ADD COLUMN checksum BIGINT;       -- NULL in a row that was emptied
ALTER TABLE embedding ADD COLUMN checksum BIGINT;
ALTER TABLE run ADD COLUMN checksum BIGINT;
ALTER TABLE session ADD COLUMN checksum BIGINT;
ALTER TABLE branch ADD COLUMN checksum BIGINT;          -- of what never changes
ALTER TABLE message ADD COLUMN said_checksum BIGINT;    -- of said, branch_id and sequence
ALTER TABLE message ADD COLUMN checksum BIGINT;        -- of the whole message
