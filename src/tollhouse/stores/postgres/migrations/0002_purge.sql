-- What purging needs. It only expands: the release that knows 0001 alone works on beside it.

-- A purged call keeps its row, whose head then says that the stream is empty: only then may the events go.
CREATE OR REPLACE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    emptied boolean;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.data = '' AND to_jsonb(NEW) - 'data' = to_jsonb(OLD) - 'data' THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE' THEN
        -- The table is named by its own schema: a role's search path may be another.
        EXECUTE format('SELECT true FROM %I.calls WHERE tenant = $1 AND key = $2 AND head_seq = 0', TG_TABLE_SCHEMA)
            INTO emptied USING OLD.tenant, substr(OLD.stream, 6);
        IF emptied THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'events are append-only' USING ERRCODE = 'restrict_violation';
END
$$;

-- Bodies that a purged call had: they go once no other call is found to have the same.
CREATE TABLE condemned (
    tenant text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, digest)
);

-- Whoever brings the same bytes again, in whatever release, keeps them.
CREATE FUNCTION blobs_kept_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('DELETE FROM %I.condemned WHERE tenant = $1 AND digest = $2', TG_TABLE_SCHEMA)
        USING NEW.tenant, NEW.digest;
    RETURN NEW;
END
$$;
CREATE TRIGGER blobs_kept_again BEFORE INSERT ON blobs FOR EACH ROW EXECUTE FUNCTION blobs_kept_again();
