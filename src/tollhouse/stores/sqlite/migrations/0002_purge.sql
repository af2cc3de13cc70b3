-- What purging needs. It only expands: the release that knows 0001 alone works on beside it.

-- A purged call keeps its row, whose head then says that the stream is empty: only then may the events go.
DROP TRIGGER events_never_go;
CREATE TRIGGER events_never_go BEFORE DELETE ON events
WHEN NOT EXISTS (
    SELECT 1 FROM calls WHERE tenant = OLD.tenant AND key = substr(OLD.stream, 6) AND head_seq = 0
)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;

-- Bodies that a purged call had: they go once no other call is found to have the same.
CREATE TABLE condemned (
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (tenant, digest)
) WITHOUT ROWID;

-- Whoever brings the same bytes again, in whatever release, keeps them.
CREATE TRIGGER blobs_kept_again BEFORE INSERT ON blobs
BEGIN
    DELETE FROM condemned WHERE tenant = NEW.tenant AND digest = NEW.digest;
END;
