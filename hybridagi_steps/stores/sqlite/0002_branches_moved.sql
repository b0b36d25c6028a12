-- What branches hide changes only when a session begins or stops to read one: followers count that.
ALTER TABLE namespace ADD COLUMN branches_moved INTEGER NOT NULL DEFAULT 0;
CREATE TRIGGER branch_moved AFTER UPDATE OF reach ON branch BEGIN
    UPDATE namespace SET branches_moved = branches_moved + 1 WHERE id = new.namespace;
END;
CREATE TRIGGER branch_gone AFTER DELETE ON branch BEGIN
    UPDATE namespace SET branches_moved = branches_moved + 1 WHERE id = old.namespace;
END;
