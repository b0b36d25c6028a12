-- Whether something that was deleted, or overwritten, may stand in the file still: else a purge that
-- finds nothing rewrites nothing. Set in the transaction that deletes, whoever deletes, and cleared
-- once the file was rewritten. A file of before has had something deleted.
INSERT INTO meta
    SELECT 'compaction_owed', EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'namespace')
    WHERE true ON CONFLICT (key) DO UPDATE SET value = excluded.value;
CREATE TRIGGER IF NOT EXISTS owed_for_step AFTER DELETE ON agent_step BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_message AFTER DELETE ON message BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_rewritten AFTER UPDATE OF id, said, body ON message BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_session AFTER DELETE ON session BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_origin AFTER UPDATE OF forked_from ON session BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_branch AFTER DELETE ON branch BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_disowned AFTER UPDATE OF session_id ON branch
WHEN old.session_id IS NOT new.session_id BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_key AFTER DELETE ON append_key BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_run AFTER DELETE ON run BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_feedback AFTER UPDATE OF feedback ON run
WHEN old.feedback IS NOT new.feedback BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_prompt AFTER DELETE ON prompt BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_other_prompt AFTER UPDATE OF body ON prompt
WHEN old.body IS NOT new.body BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_part AFTER DELETE ON prompt_part BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_revocation AFTER DELETE ON revocation BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_reason AFTER UPDATE OF filter, reason ON revocation BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_forgotten AFTER DELETE ON meta
WHEN old.key LIKE 'learned:%' BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
CREATE TRIGGER IF NOT EXISTS owed_for_learned AFTER UPDATE OF value ON meta
WHEN old.key LIKE 'learned:%' BEGIN
    UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
END;
