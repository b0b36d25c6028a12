-- Bodies leave out the status that nearly every step has, and what they say twice (see
-- stores/body.py). Earlier versions would misread them.
COMMENT ON COLUMN agent_step.body IS 'A step as JSON; "ok" is the status of one that names none';
