-- Where else texts of a namespace lie is that namespace's own, as `place:5:…`. Before, every role read
-- what all had noted, and could have a purge of another namespace open whatever it named.
INSERT INTO meta SELECT format('place:%s:%s', n.id, m.value), m.value FROM meta m, namespace n
    WHERE m.key = 'place:' || m.value ON CONFLICT (key) DO NOTHING;
DELETE FROM meta WHERE key = 'place:' || value;
ALTER FUNCTION isolate() RENAME TO isolate_tables;
CREATE FUNCTION isolate() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM isolate_tables();
    DROP POLICY IF EXISTS noted ON meta;
    DROP POLICY IF EXISTS noting ON meta;
    DROP POLICY IF EXISTS mine ON meta;
    CREATE POLICY mine ON meta USING (split_part(key, ':', 1) IN ('learned', 'cache', 'place')
        AND split_part(key, ':', 2) IN (SELECT a.namespace::text FROM access a
            WHERE a.role = current_user));
END $$;
REVOKE ALL ON FUNCTION isolate() FROM PUBLIC;
