-- The ledger: calls, runs, their histories, the processes that own them, and bodies too large for a row.
-- `tenant` leads every primary key, so that the schema can be sharded by it. Text compares by byte.

CREATE TABLE meta (
    name TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE calls (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    wire_key TEXT NOT NULL,
    tool TEXT NOT NULL,
    effect TEXT NOT NULL CHECK (effect IN ('read', 'write', 'external', 'destructive')),
    scope TEXT,
    call_group TEXT,
    request_digest TEXT NOT NULL,
    contract TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    created_at_us INTEGER NOT NULL,
    digest TEXT NOT NULL,
    arguments TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN (
        'held', 'ready', 'departed', 'accepted', 'in_doubt', 'succeeded', 'failed', 'refused', 'compensated'
    )),
    version INTEGER NOT NULL CHECK (version > 0),
    fence INTEGER NOT NULL CHECK (fence >= 0),
    round INTEGER NOT NULL CHECK (round > 0),
    open_owners TEXT,
    due_at_us INTEGER,
    contradicted INTEGER NOT NULL CHECK (contradicted IN (0, 1)),
    cancel_asked INTEGER NOT NULL CHECK (cancel_asked IN (0, 1)),
    repeat_slot TEXT,
    updated_at_us INTEGER NOT NULL CHECK (updated_at_us >= created_at_us),
    head_seq INTEGER NOT NULL CHECK (head_seq >= 0),
    head_hash TEXT NOT NULL,
    body TEXT NOT NULL,
    result TEXT,
    PRIMARY KEY (tenant, key),
    -- A departed call has an owner who will say; a settled one holds no place in the repeat check.
    CHECK (state <> 'departed' OR open_owners IS NOT NULL),
    CHECK (state NOT IN ('succeeded', 'failed', 'refused', 'compensated') OR repeat_slot IS NULL)
);

-- Newest first, page by page.
CREATE INDEX calls_created ON calls (tenant, created_at_us, key);
-- The rare states by themselves: a call that departs and succeeds never enters this index.
CREATE INDEX calls_rare ON calls (tenant, state, created_at_us, key) WHERE state NOT IN ('departed', 'succeeded');
CREATE INDEX calls_contradicted ON calls (tenant, created_at_us, key) WHERE contradicted = 1;
-- What a sweeper and a worker look for.
CREATE INDEX calls_open_owners ON calls (tenant, open_owners) WHERE open_owners IS NOT NULL;
CREATE INDEX calls_due ON calls (tenant, due_at_us, key) WHERE due_at_us IS NOT NULL;
-- Twins of a scope; two that arrive at the same moment meet on the slot.
CREATE INDEX calls_twins ON calls (tenant, scope, tool, digest) WHERE scope IS NOT NULL;
CREATE UNIQUE INDEX calls_repeat_slot ON calls (tenant, repeat_slot) WHERE repeat_slot IS NOT NULL;

CREATE TABLE events (
    tenant TEXT NOT NULL,
    stream TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq > 0),
    at_us INTEGER NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    salt TEXT NOT NULL,
    payload_digest TEXT NOT NULL,
    hash TEXT NOT NULL,
    write_id TEXT NOT NULL,
    PRIMARY KEY (tenant, stream, seq)
);

-- History is only ever added to; erasing a payload, which the chain does not cover, is the one exception.
CREATE TRIGGER events_never_change BEFORE UPDATE ON events
WHEN NOT (
    NEW.data = '' AND NEW.tenant = OLD.tenant AND NEW.stream = OLD.stream AND NEW.seq = OLD.seq
    AND NEW.at_us = OLD.at_us AND NEW.kind = OLD.kind AND NEW.salt = OLD.salt
    AND NEW.payload_digest = OLD.payload_digest AND NEW.hash = OLD.hash AND NEW.write_id = OLD.write_id
)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;
-- A purged call keeps its row, whose head then says that the stream is empty: only then may the events go. Those of a
-- run, whose stream has a name of its own kind, never do.
CREATE TRIGGER events_never_go BEFORE DELETE ON events
WHEN substr(OLD.stream, 1, 5) <> 'call:' OR NOT EXISTS (
    SELECT 1 FROM calls WHERE tenant = OLD.tenant AND key = substr(OLD.stream, 6) AND head_seq = 0
)
BEGIN
    SELECT RAISE(ABORT, 'events are append-only');
END;

CREATE TABLE owners (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    pid_started TEXT NOT NULL,
    label TEXT NOT NULL,
    lease_until_us INTEGER NOT NULL,
    started_at_us INTEGER NOT NULL,
    ended_at_us INTEGER,
    proven_dead INTEGER NOT NULL DEFAULT 0 CHECK (proven_dead IN (0, 1)),
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- Owners of processes long gone stay behind; a sweeper looks at the living.
CREATE INDEX owners_live ON owners (tenant, lease_until_us) WHERE ended_at_us IS NULL;

CREATE TABLE blobs (
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (tenant, digest)
);

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
