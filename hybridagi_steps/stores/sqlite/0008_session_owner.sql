-- Whose a session is. Those of before have nobody here: then it is the only user of its steps.
ALTER TABLE session ADD COLUMN user_id TEXT;
CREATE INDEX session_of_user ON session (namespace, user_id, written) WHERE user_id IS NOT NULL;
