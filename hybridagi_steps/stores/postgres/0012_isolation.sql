-- Who may see which namespace. Every table has forced row-level security: its owner sees all, any
-- other role what `access` names for it, whatever statement it runs. A role's name is what the server
-- itself knows of a connection, so nothing has to be set first, and no pooler can mix it up.
CREATE TABLE access (
    role TEXT COLLATE "C" NOT NULL,
    namespace INTEGER NOT NULL,
    rights TEXT COLLATE "C" NOT NULL CHECK (rights IN ('reader', 'writer', 'server')),
    PRIMARY KEY (role, namespace)
);

-- What each role may do: for tables that are new, or another owner's than they were. The owner may
-- write `near` by COPY, which forced policies refuse.
CREATE FUNCTION isolate() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    -- Hashed once for a statement. As `= ANY (ARRAY(…))` it would do for an index, and the planner
    -- takes it for one that tells more than a run does.
    mine CONSTANT TEXT := 'IN (SELECT a.namespace FROM access a WHERE a.role = current_user)';
    condition TEXT;
    t RECORD;
    r RECORD;
BEGIN
    FOR t IN SELECT c.oid, c.relname AS name, pg_get_userbyid(c.relowner) AS owner,
            EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid
                AND a.attname = 'namespace' AND NOT a.attisdropped) AS has_namespace
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p')
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid
                AND p.polname = 'owned' AND c.relowner = ANY (p.polroles))
    LOOP
        condition := CASE t.name
            WHEN 'access' THEN 'role = current_user'
            WHEN 'namespace' THEN 'id ' || mine
            WHEN 'message_token' THEN
                'EXISTS (SELECT FROM message m WHERE m.row = message_row)'
            WHEN 'meta' THEN format($of$split_part(key, ':', 1) IN ('learned', 'cache')
                AND split_part(key, ':', 2) IN (SELECT a.namespace::text FROM access a
                    WHERE a.role = current_user)$of$)
            ELSE CASE WHEN t.has_namespace THEN 'namespace ' || mine END END;
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t.name);
        IF t.name <> 'near' THEN
            EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', t.name);
        END IF;
        EXECUTE format('DROP POLICY IF EXISTS owned ON %I', t.name);
        EXECUTE format('CREATE POLICY owned ON %I TO %I USING (true)', t.name, t.owner);
        EXECUTE format('DROP POLICY IF EXISTS mine ON %I', t.name);
        IF condition IS NOT NULL THEN
            EXECUTE format('CREATE POLICY mine ON %I USING (%s)', t.name, condition);
        END IF;
    END LOOP;
    DROP POLICY IF EXISTS everybody ON meta;
    CREATE POLICY everybody ON meta FOR SELECT
        USING (key IN ('application', 'store_id', 'schema_version'));
    DROP POLICY IF EXISTS noted ON meta;
    CREATE POLICY noted ON meta FOR SELECT USING (split_part(key, ':', 1) = 'place');
    DROP POLICY IF EXISTS noting ON meta;
    CREATE POLICY noting ON meta FOR INSERT WITH CHECK (split_part(key, ':', 1) = 'place');
    FOR r IN SELECT role AS name, max(rights) AS rights FROM access
        WHERE to_regrole(quote_ident(role)) IS NOT NULL GROUP BY role
    LOOP
        PERFORM grant_rights(r.name, r.rights);
    END LOOP;
END $$;

-- A writer adds: nothing that was recorded can it remove. What is made of the log may be made anew.
CREATE FUNCTION grant_rights(who TEXT, rights TEXT) RETURNS void LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
DECLARE
    log CONSTANT TEXT[] := ARRAY['agent_step', 'message', 'session', 'branch', 'run', 'append_key',
        'tombstone', 'revocation', 'revoked', 'namespace'];
    t TEXT;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), who);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', current_schema(), who);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA %I FROM %I', current_schema(), who);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', current_schema(), who);
    IF rights = 'reader' THEN
        RETURN;
    END IF;
    EXECUTE format('GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA %I TO %I', current_schema(), who);
    FOR t IN SELECT c.relname FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p') AND c.relname <> 'access'
    LOOP
        EXECUTE format('GRANT INSERT, UPDATE ON %I TO %I', t, who);
        IF rights = 'server' OR NOT t = ANY (log) THEN
            EXECUTE format('GRANT DELETE ON %I TO %I', t, who);
        END IF;
    END LOOP;
END $$;

-- Binds a role to a namespace, which is made where there is none; for the owner of the tables.
CREATE FUNCTION admit(who TEXT, whose TEXT, may TEXT) RETURNS void LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('server_version_num')::INTEGER < 150000 THEN
        RAISE EXCEPTION 'roles need PostgreSQL 15: before, views are read as their owner';
    END IF;
    INSERT INTO namespace (name) VALUES (whose) ON CONFLICT DO NOTHING;
    INSERT INTO access SELECT who, id, may FROM namespace WHERE name = whose
        ON CONFLICT (role, namespace) DO NOTHING;
    UPDATE access SET rights = may WHERE role = who;
    PERFORM grant_rights(who, may);
END $$;
-- Binds it no longer; who is bound to nothing loses every right.
CREATE FUNCTION expel(who TEXT, whose TEXT) RETURNS void LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM access a USING namespace n WHERE n.id = a.namespace AND a.role = who
        AND n.name = whose;
    IF NOT EXISTS (SELECT FROM access WHERE role = who) THEN
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', current_schema(), who);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA %I FROM %I', current_schema(), who);
    END IF;
END $$;
REVOKE ALL ON FUNCTION isolate(), grant_rights(TEXT, TEXT), admit(TEXT, TEXT, TEXT),
    expel(TEXT, TEXT) FROM PUBLIC;

-- Views are read with the rights of who asks, not of who made them.
DO $$ BEGIN
    IF current_setting('server_version_num')::INTEGER >= 150000 THEN
        ALTER VIEW step_view SET (security_invoker = true);
        ALTER VIEW next_write SET (security_invoker = true);
    END IF;
END $$;
