-- Nothing that was learned from a memory is kept in it any more. What was kept owes a compaction, then
-- nothing that would set off these triggers is written.
DELETE FROM meta WHERE key LIKE 'learned:%';
DROP TRIGGER IF EXISTS owed_after_delete ON meta;
DROP TRIGGER IF EXISTS owed_after_update ON meta;
