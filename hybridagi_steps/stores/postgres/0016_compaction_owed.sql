-- Whether something that was deleted, or overwritten, may stand in the tables still: else a purge that
-- finds nothing rewrites nothing. It is noted in the transaction that deletes, whoever deletes, under
-- the number of the last rewriting that had begun. Rewriting counts first and takes the notes of
-- before away when it is done: it waits for whoever has changed a table by then, and who changes one
-- later reads the new number. A database of before has had something deleted.
INSERT INTO meta VALUES ('rewritings', '0') ON CONFLICT (key) DO NOTHING;
INSERT INTO meta SELECT 'owed:0:', '' WHERE EXISTS (SELECT FROM namespace)
    ON CONFLICT (key) DO NOTHING;

-- A note for each transaction, so that none waits for another. It is nobody's namespace's.
CREATE OR REPLACE FUNCTION owe_compaction() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = hybridagi_steps, pg_temp AS $$
DECLARE
    begun TEXT := (SELECT 'owed:' || value FROM meta WHERE key = 'rewritings');
BEGIN
    IF NOT EXISTS (SELECT FROM meta WHERE key >= begun || ':' AND key < begun || ';') THEN
        INSERT INTO meta VALUES (begun || ':' || pg_current_xact_id(), '');
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION compaction_owed() RETURNS boolean LANGUAGE sql STABLE
    SECURITY DEFINER SET search_path = hybridagi_steps, pg_temp AS $$
    SELECT EXISTS (SELECT FROM meta WHERE key >= 'owed:' AND key < 'owed;') $$;

DO $$
DECLARE
    t RECORD;
BEGIN
    FOR t IN SELECT * FROM (VALUES
        ('agent_step', 'DELETE', 'true'),
        ('message', 'DELETE', 'true'),
        ('message', 'UPDATE OF id, said, body', 'true'),
        ('session', 'DELETE', 'true'),
        ('session', 'UPDATE OF forked_from', 'true'),
        ('branch', 'DELETE', 'true'),
        ('branch', 'UPDATE OF session_id', 'old.session_id IS DISTINCT FROM new.session_id'),
        ('append_key', 'DELETE', 'true'),
        ('run', 'DELETE', 'true'),
        ('run', 'UPDATE OF feedback', 'old.feedback IS DISTINCT FROM new.feedback'),
        ('prompt', 'DELETE', 'true'),
        ('prompt', 'UPDATE OF body', 'old.body IS DISTINCT FROM new.body'),
        ('prompt_part', 'DELETE', 'true'),
        ('revocation', 'DELETE', 'true'),
        ('revocation', 'UPDATE OF filter, reason', 'true'),
        ('meta', 'DELETE', $of$old.key LIKE 'learned:%'$of$),
        ('meta', 'UPDATE OF value', $of$old.key LIKE 'learned:%'$of$)) changes (name, kind, counts)
    LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS owed_after_%s ON %I', left(t.kind, 6), t.name);
        EXECUTE format('CREATE TRIGGER owed_after_%s AFTER %s ON %I FOR EACH ROW WHEN (%s)
            EXECUTE FUNCTION owe_compaction()', left(t.kind, 6), t.kind, t.name, t.counts);
    END LOOP;
END $$;
