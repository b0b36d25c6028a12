-- Messages of sessions are indexed as steps are: a message's row there is its own plus 2^40.
ALTER TABLE namespace ADD COLUMN message_texts_through BIGINT NOT NULL DEFAULT 0;
ALTER TABLE namespace ADD COLUMN message_vectors_through BIGINT NOT NULL DEFAULT 0;

-- What a step says is compared in another way, and a program's end is told with its question: words
-- are made anew by whoever searches next, embeddings of what reads otherwise, too.
DELETE FROM stale_text;
DELETE FROM step_text;
DELETE FROM embedding WHERE given = 0 AND row IN (
    SELECT row FROM step_view
    WHERE step_type = 'ProgramEnd' OR (step_type = 'Action' AND tool IS NULL));
UPDATE namespace SET texts_through = 0, vectors_through = 0, epoch = epoch + 1;
