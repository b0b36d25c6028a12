-- The planner's statistics are samples of what stands in the columns, and outlive it. Texts are kept
-- out of them, and so are keys that are looked up by their indexes alone. Of the keys of agent_step
-- and run the planner needs to know how much they tell; a purge has their statistics made anew.
--
-- To set a column's type to what it is drops the statistics of it, and rewrites nothing.
ALTER TABLE agent_step ALTER body TYPE TEXT, ALTER body SET STATISTICS 0;
ALTER TABLE step_text ALTER tokens TYPE TEXT, ALTER tokens SET STATISTICS 0;
ALTER TABLE embedding
    ALTER vector TYPE BYTEA, ALTER vector SET STATISTICS 0, ALTER vector SET STORAGE EXTERNAL;
ALTER TABLE run ALTER feedback TYPE TEXT, ALTER feedback SET STATISTICS 0;
ALTER TABLE branch
    ALTER session_id TYPE TEXT COLLATE "C", ALTER session_id SET STATISTICS 0;
ALTER TABLE session
    ALTER id TYPE TEXT COLLATE "C", ALTER id SET STATISTICS 0,
    ALTER forked_from TYPE TEXT COLLATE "C", ALTER forked_from SET STATISTICS 0;
ALTER TABLE message
    ALTER id TYPE TEXT COLLATE "C", ALTER id SET STATISTICS 0,
    ALTER said TYPE TEXT, ALTER said SET STATISTICS 0,
    ALTER body TYPE TEXT, ALTER body SET STATISTICS 0;
ALTER TABLE append_key
    ALTER session_id TYPE TEXT COLLATE "C", ALTER session_id SET STATISTICS 0,
    ALTER key TYPE TEXT COLLATE "C", ALTER key SET STATISTICS 0;
ALTER TABLE revocation
    ALTER filter TYPE TEXT COLLATE "C", ALTER filter SET STATISTICS 0,
    ALTER reason TYPE TEXT COLLATE "C", ALTER reason SET STATISTICS 0;
ALTER TABLE revoked
    ALTER step_id TYPE TEXT COLLATE "C", ALTER step_id SET STATISTICS 0;
