-- Search in the database, for processes that are not to hold the index of a namespace. Nothing of it
-- is filled until one asks (search_tables.py): indexes over the words are made then, one per
-- namespace, and the vectors go to a table of their own if the extension pgvector is there.
--
-- The stems of a row: those of its window and those that only the whole text has.
CREATE FUNCTION stems(tokens TEXT) RETURNS TEXT[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT array_remove(string_to_array(translate(
    split_part(tokens, E'\n', 1) || ' ' || split_part(tokens, E'\n', 2), E'\t', ' '), ' '), '') $$;
-- What a spoken turn belongs to; NULL for other rows.
CREATE FUNCTION talk(tokens TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT nullif(split_part(split_part(tokens, E'\n', 3), ' ', 1), '') $$;

CREATE TABLE search_state (
    namespace INTEGER PRIMARY KEY,
    texts_through BIGINT NOT NULL DEFAULT 0,    -- step_text is counted up to this seq
    vectors_through BIGINT NOT NULL DEFAULT 0,  -- embedding is in near up to this seq
    documents BIGINT NOT NULL DEFAULT 0,        -- of the user's own history: trial runs not
    words BIGINT NOT NULL DEFAULT 0,            -- of their windows together
    own_words BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE stem_count (
    namespace INTEGER NOT NULL,
    stem TEXT COLLATE "C" NOT NULL,
    documents BIGINT NOT NULL,                  -- that hold it
    PRIMARY KEY (namespace, stem)
);
CREATE INDEX stem_unused ON stem_count (namespace) WHERE documents <= 0;
ALTER TABLE stem_count ALTER stem SET STATISTICS 0;

CREATE FUNCTION count_texts(counted INTEGER, sign INTEGER, texts TEXT[]) RETURNS void LANGUAGE sql
    SET search_path FROM CURRENT AS $$
    INSERT INTO stem_count AS c (namespace, stem, documents)
        SELECT counted, s.stem, sign * count(*) FROM unnest(texts) t (tokens),
            LATERAL (SELECT DISTINCT unnest(stems(t.tokens)) AS stem) s
        GROUP BY s.stem ORDER BY s.stem
        ON CONFLICT (namespace, stem) DO UPDATE SET documents = c.documents + excluded.documents;
    DELETE FROM stem_count WHERE namespace = counted AND documents <= 0;
    UPDATE search_state s SET documents = s.documents + sign * cardinality(texts),
        words = s.words + sign * sums.words, own_words = s.own_words + sign * sums.own
        FROM (SELECT coalesce(sum(cardinality(stems(split_part(t.tokens, E'\n', 1)))), 0) AS words,
                coalesce(sum(cardinality(stems(split_part(split_part(t.tokens, E'\n', 1), E'\t', 2)))),
                    0) AS own
            FROM unnest(texts) t (tokens)) sums
        WHERE s.namespace = counted;
$$;
CREATE FUNCTION texts_gone() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM gone) THEN
        RETURN NULL;
    END IF;
    PERFORM namespace FROM search_state WHERE namespace IN (SELECT namespace FROM gone)
        ORDER BY namespace FOR UPDATE;
    PERFORM count_texts(g.namespace, -1, array_agg(g.tokens))
        FROM gone g JOIN search_state s ON s.namespace = g.namespace AND g.seq <= s.texts_through
        WHERE NOT g.scoped AND g.text_hash <> 0 GROUP BY g.namespace;
    IF TG_OP = 'UPDATE' THEN
        PERFORM count_texts(f.namespace, 1, array_agg(f.tokens))
            FROM fresh f JOIN search_state s ON s.namespace = f.namespace
                AND f.seq <= s.texts_through
            WHERE NOT f.scoped AND f.text_hash <> 0 GROUP BY f.namespace;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER texts_deleted AFTER DELETE ON step_text REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION texts_gone();
CREATE TRIGGER texts_changed AFTER UPDATE ON step_text
    REFERENCING OLD TABLE AS gone NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION texts_gone();
