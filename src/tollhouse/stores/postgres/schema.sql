-- The ledger: calls, runs, their histories, the processes that own them, and bodies too large for a row.
-- `tenant` leads every primary key, so that the schema can be sharded by it. Keys compare by byte ("C").
-- A CHECK is parsed anew for every statement, so the one on `calls` is as short as can be, and a state is held to its
-- names by its type, which costs nothing.

-- The settled states come last.
CREATE TYPE call_state AS ENUM (
    'held', 'ready', 'departed', 'accepted', 'in_doubt', 'succeeded', 'failed', 'refused', 'compensated'
);

CREATE TABLE calls (
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    wire_key text NOT NULL,
    tool text COLLATE "C" NOT NULL,
    effect text NOT NULL,
    scope text COLLATE "C",
    call_group text COLLATE "C",
    request_digest text NOT NULL,
    contract text NOT NULL,
    requested_by text NOT NULL,
    created_at_us bigint NOT NULL,
    digest text COLLATE "C" NOT NULL,
    arguments text NOT NULL,
    state call_state NOT NULL,
    version bigint NOT NULL,
    fence bigint NOT NULL,
    round integer NOT NULL,
    open_owners text COLLATE "C",
    due_at_us bigint,
    contradicted boolean NOT NULL,
    cancel_asked boolean NOT NULL,
    repeat_slot text COLLATE "C",
    updated_at_us bigint NOT NULL,
    head_seq bigint NOT NULL,
    head_hash text NOT NULL,
    body text NOT NULL,
    result text,
    PRIMARY KEY (tenant, key),
    -- A departed call has an owner who will say; a settled one holds no place in the repeat check.
    CONSTRAINT calls_sound CHECK (
        (state <> 'departed' OR open_owners IS NOT NULL) AND (repeat_slot IS NULL OR state < 'succeeded')
    )
);

-- Newest first, page by page.
CREATE INDEX calls_created ON calls (tenant, created_at_us, key);
-- The rare states by themselves: a call that departs and succeeds never enters this index.
CREATE INDEX calls_rare ON calls (tenant, state, created_at_us, key) WHERE state NOT IN ('departed', 'succeeded');
CREATE INDEX calls_contradicted ON calls (tenant, created_at_us, key) WHERE contradicted;
-- What a sweeper and a worker look for. No write has a guard that implies these conditions: a plan made while the table
-- was empty might else walk an index of every call that was ever open instead of the primary key.
CREATE INDEX calls_open_owners ON calls (tenant, open_owners) WHERE open_owners IS NOT NULL;
CREATE INDEX calls_due ON calls (tenant, due_at_us) WHERE due_at_us IS NOT NULL;
-- Twins of a scope; two that arrive at the same moment meet on the slot. `tenant` comes last, and twins are asked for in
-- a way that needs this index: a plan made for the empty table might else walk all calls of a tenant.
CREATE INDEX calls_twins ON calls (scope, tool, digest, tenant) WHERE scope IS NOT NULL;
CREATE UNIQUE INDEX calls_repeat_slot ON calls (tenant, repeat_slot) WHERE repeat_slot IS NOT NULL;

CREATE TABLE events (
    tenant text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    at_us bigint NOT NULL,
    kind text NOT NULL,
    data text NOT NULL,
    salt text NOT NULL,
    payload_digest text NOT NULL,
    hash text NOT NULL,
    write_id text NOT NULL,
    PRIMARY KEY (tenant, stream, seq)
);

-- History is only ever added to; erasing a payload, which the chain does not cover, is the one exception. A purged call
-- keeps its row, whose head then says that the stream is empty: only then may the events go. Those of a run never do.
CREATE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    emptied boolean;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.data = '' AND to_jsonb(NEW) - 'data' = to_jsonb(OLD) - 'data' THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE' AND OLD.stream LIKE 'call:%' THEN
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
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION events_append_only();

CREATE TABLE owners (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    pid_started text NOT NULL,
    label text NOT NULL,
    lease_until_us bigint NOT NULL,
    started_at_us bigint NOT NULL,
    ended_at_us bigint,
    proven_dead boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, id)
);

-- Owners of processes long gone stay behind; a sweeper looks at the living.
CREATE INDEX owners_live ON owners (tenant, lease_until_us) WHERE ended_at_us IS NULL;

CREATE TABLE blobs (
    tenant text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (tenant, digest)
);

-- The store's clock: the server's, plus `offset_us` while that lags behind `high_us`, the latest moment on which a
-- lease was judged. A server clock that is set back thus changes no verdict, and time goes on.
CREATE TABLE clock (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    high_us bigint NOT NULL,
    offset_us bigint NOT NULL
);
INSERT INTO clock (high_us, offset_us) VALUES (0, 0);

CREATE TABLE meta (
    name text PRIMARY KEY,
    value text NOT NULL
);

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

CREATE TABLE runs (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    agent_version text NOT NULL,
    driver text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    owner text COLLATE "C",
    start_key text COLLATE "C",
    start_digest text NOT NULL,
    thread text COLLATE "C",
    parent_run_id text COLLATE "C",
    parent_key text COLLATE "C",
    source_run_id text COLLATE "C",
    attempt_no integer NOT NULL,
    requested_by text NOT NULL,
    created_at_us bigint NOT NULL,
    updated_at_us bigint NOT NULL,
    due_at_us bigint,
    finished boolean NOT NULL,
    head_seq bigint NOT NULL,
    head_hash text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (tenant, id),
    CONSTRAINT runs_state CHECK (state IN (
        'queued', 'running', 'awaiting_approval', 'awaiting_reconciliation', 'awaiting_answer', 'awaiting_work',
        'awaiting_time', 'limit_reached', 'succeeded', 'failed', 'cancelled'
    )),
    -- A running run has an owner who drives it; nobody drives any other.
    CONSTRAINT runs_sound CHECK (
        (state = 'running') = (owner IS NOT NULL) AND (state IN ('succeeded', 'failed', 'cancelled')) = finished
        AND version > 0 AND attempt_no > 0 AND head_seq >= 0
    )
);

-- Newest first, page by page.
CREATE INDEX runs_created ON runs (tenant, created_at_us, id);
-- Every state but the one in which most runs end.
CREATE INDEX runs_rare ON runs (tenant, state, created_at_us, id) WHERE state <> 'succeeded';
-- What a driver looks for: what is due, and what is driven, perhaps by a process that has ended.
CREATE INDEX runs_due ON runs (tenant, driver, due_at_us, id) WHERE due_at_us IS NOT NULL AND owner IS NULL;
CREATE INDEX runs_owner ON runs (tenant, owner, id) WHERE owner IS NOT NULL;
-- One run under a caller's key, one unfinished run of a conversation.
CREATE UNIQUE INDEX runs_start_key ON runs (tenant, start_key) WHERE start_key IS NOT NULL;
CREATE UNIQUE INDEX runs_busy_thread ON runs (tenant, thread) WHERE thread IS NOT NULL AND NOT finished;
CREATE INDEX runs_thread ON runs (tenant, thread, created_at_us, id) WHERE thread IS NOT NULL;
CREATE INDEX runs_parent ON runs (tenant, parent_run_id, created_at_us, id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_source ON runs (tenant, source_run_id, created_at_us, id) WHERE source_run_id IS NOT NULL;

-- Runs at which somebody shall look soon, and since when.
CREATE TABLE wakes (
    tenant text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    at_us bigint NOT NULL,
    PRIMARY KEY (tenant, run_id)
);

CREATE INDEX wakes_arrived ON wakes (tenant, at_us, run_id);

-- Whoever moves a call on, in whatever process or release, wakes the run that waits for it, in the same transaction.
-- A call that departed is awaited by the process that sent it: most calls end that way, and cost nothing here.
-- A decision about a contradiction may leave the state as it is, and is awaited all the same.
-- A wake that stands is locked, not passed over: a driver who takes note of it meanwhile waits for the move, sees it,
-- and misses nothing.
CREATE FUNCTION calls_wake_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format(
        'INSERT INTO %1$I.wakes AS w (tenant, run_id, at_us) SELECT $1, $2, $3'
        ' WHERE EXISTS (SELECT FROM %1$I.runs WHERE tenant = $1 AND id = $2 AND NOT finished)'
        ' ON CONFLICT (tenant, run_id) DO UPDATE SET at_us = w.at_us WHERE false', TG_TABLE_SCHEMA
    ) USING NEW.tenant, NEW.scope, NEW.updated_at_us;
    RETURN NULL;
END
$$;
CREATE TRIGGER calls_wake_runs AFTER UPDATE OF state, contradicted ON calls FOR EACH ROW
    WHEN (NEW.scope IS NOT NULL AND OLD.state <> 'departed'
        AND (NEW.state <> OLD.state OR NEW.contradicted <> OLD.contradicted))
    EXECUTE FUNCTION calls_wake_runs();

-- Immutable things that runs refer to by the digest of their text.
CREATE TABLE definitions (
    tenant text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    created_at_us bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (tenant, digest)
);

CREATE INDEX definitions_name ON definitions (tenant, kind, name, created_at_us, digest);

-- Credentials for the HTTP API; of a secret only its digest.
CREATE TABLE access_keys (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    secret_digest text NOT NULL,
    principal text NOT NULL,
    scopes text NOT NULL,
    created_at_us bigint NOT NULL,
    expires_at_us bigint,
    revoked_at_us bigint,
    PRIMARY KEY (tenant, id)
);
