-- What runs of agents need. It only expands: a release that knows 0002 alone works on beside it, and wakes runs too.

CREATE TABLE runs (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    agent TEXT NOT NULL,
    agent_version TEXT NOT NULL,
    driver TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN (
        'queued', 'running', 'awaiting_approval', 'awaiting_reconciliation', 'awaiting_answer', 'awaiting_work',
        'awaiting_time', 'limit_reached', 'succeeded', 'failed', 'cancelled'
    )),
    version INTEGER NOT NULL CHECK (version > 0),
    owner TEXT,
    start_key TEXT,
    start_digest TEXT NOT NULL,
    thread TEXT,
    parent_run_id TEXT,
    parent_key TEXT,
    source_run_id TEXT,
    attempt_no INTEGER NOT NULL CHECK (attempt_no > 0),
    requested_by TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    updated_at_us INTEGER NOT NULL,
    due_at_us INTEGER,
    finished INTEGER NOT NULL CHECK (finished IN (0, 1)),
    head_seq INTEGER NOT NULL CHECK (head_seq >= 0),
    head_hash TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, id),
    -- A running run has an owner who drives it; nobody drives any other.
    CHECK ((state = 'running') = (owner IS NOT NULL)),
    CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = finished)
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
CREATE UNIQUE INDEX runs_busy_thread ON runs (tenant, thread) WHERE thread IS NOT NULL AND finished = 0;
CREATE INDEX runs_thread ON runs (tenant, thread, created_at_us, id) WHERE thread IS NOT NULL;
CREATE INDEX runs_parent ON runs (tenant, parent_run_id, created_at_us, id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_source ON runs (tenant, source_run_id, created_at_us, id) WHERE source_run_id IS NOT NULL;

-- Runs at which somebody shall look soon, and since when.
CREATE TABLE wakes (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    at_us INTEGER NOT NULL,
    PRIMARY KEY (tenant, run_id)
) WITHOUT ROWID;

CREATE INDEX wakes_arrived ON wakes (tenant, at_us, run_id);

-- Whoever moves a call on, in whatever process or release, wakes the run that waits for it, in the same transaction.
-- A call that departed is awaited by the process that sent it: most calls end that way, and cost nothing here.
-- A decision about a contradiction may leave the state as it is, and is awaited all the same.
CREATE TRIGGER calls_wake_runs AFTER UPDATE OF state, contradicted ON calls
WHEN NEW.scope IS NOT NULL AND OLD.state <> 'departed'
    AND (NEW.state <> OLD.state OR NEW.contradicted <> OLD.contradicted)
BEGIN
    INSERT INTO wakes (tenant, run_id, at_us) SELECT NEW.tenant, NEW.scope, NEW.updated_at_us
    WHERE EXISTS (SELECT 1 FROM runs WHERE tenant = NEW.tenant AND id = NEW.scope AND finished = 0)
    ON CONFLICT DO NOTHING;
END;

-- Immutable things that runs refer to by the digest of their text.
CREATE TABLE definitions (
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, digest)
);

CREATE INDEX definitions_name ON definitions (tenant, kind, name, created_at_us, digest);

-- Credentials for the HTTP API; of a secret only its digest.
CREATE TABLE access_keys (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    secret_digest TEXT NOT NULL,
    principal TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    expires_at_us INTEGER,
    revoked_at_us INTEGER,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- Only the events of a purged call may go: the history of a run, whose stream has a name of its own kind, never does.
DROP TRIGGER events_never_go;
CREATE TRIGGER events_never_go BEFORE DELETE ON events
WHEN substr(OLD.stream, 1, 5) <> 'call:' OR NOT EXISTS (
    SELECT 1 FROM calls WHERE tenant = OLD.tenant AND key = substr(OLD.stream, 6) AND head_seq = 0
)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
