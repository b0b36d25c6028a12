-- Whether something that was deleted, or overwritten, may stand in the file still: else a purge that
-- finds nothing rewrites nothing. Set in the transaction that deletes, whoever deletes, and cleared
-- once the file was rewritten. A file of before has had something deleted. The triggers that set it
-- stand in schema.py.
INSERT INTO meta
    SELECT 'compaction_owed', EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'namespace')
    WHERE true ON CONFLICT (key) DO UPDATE SET value = excluded.value;
