-- What runs of agents need. It only expands: a release that knows 0002 alone works on beside it, and wakes runs too.

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

-- Only the events of a purged call may go: the history of a run, whose stream has a name of its own kind, never does.
CREATE OR REPLACE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
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
