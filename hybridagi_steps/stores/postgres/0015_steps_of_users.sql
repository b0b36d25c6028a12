-- A user's steps by row: a page of the runs or sessions of one among many read all steps for it.
CREATE INDEX IF NOT EXISTS agent_step_user ON agent_step (namespace, user_id, row) WHERE user_id IS NOT NULL;
