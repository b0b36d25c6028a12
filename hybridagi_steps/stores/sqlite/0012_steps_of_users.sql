-- A user's steps by row: a page of the runs or sessions of one among many read all steps for it.
CREATE INDEX IF NOT EXISTS step_key_user ON step_key (namespace, user_id, row) WHERE user_id IS NOT NULL;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('step_key', 'step_key_user', '100000 50000 1000 1');
