-- Where the shop's backend is told of what happens here. events: one bit for each kind of event. state:
-- 0 enabled, 1 switched off (reason says why), 2 removed and waiting for its deliveries to be deleted. The secrets
-- sign what is sent, so they are kept as they are. failing_since: since when it has not taken anything.
CREATE TABLE tb_webhook_endpoint (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    url             TEXT    NOT NULL,
    description     TEXT    NOT NULL,
    events          INTEGER NOT NULL,
    state           INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2),
    reason          TEXT,
    secret          TEXT    NOT NULL,
    previous_secret TEXT,
    previous_until  INTEGER,
    source          TEXT    NOT NULL CHECK (source IN ('settings', 'api')),
    failing_since   INTEGER,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;

-- One row for each event and endpoint. state: 0 pending, 1 delivered, 2 failed, 3 behind an earlier event of
-- the same subject that was not taken yet. next_try_at is 0 unless a pending row waits for its next try.
CREATE TABLE tb_webhook_delivery (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    endpoint_id  INTEGER NOT NULL,
    event_id     TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    subject      TEXT    NOT NULL,
    body         TEXT    NOT NULL,
    state        INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),
    tries        INTEGER NOT NULL DEFAULT 0,
    first_try_at INTEGER,
    next_try_at  INTEGER NOT NULL DEFAULT 0,
    status       INTEGER,
    cause        TEXT,
    created_at   INTEGER NOT NULL,
    done_at      INTEGER
) STRICT;
CREATE UNIQUE INDEX uk_webhook_event ON tb_webhook_delivery (endpoint_id, event_id);
CREATE INDEX ix_webhook_due ON tb_webhook_delivery (endpoint_id, state, next_try_at);
CREATE INDEX ix_webhook_subject ON tb_webhook_delivery (endpoint_id, subject);
CREATE INDEX ix_webhook_age ON tb_webhook_delivery (endpoint_id, state, created_at);

-- Activities of which it was told that they opened: no transaction of theirs causes that.
CREATE TABLE tb_webhook_opened (
    activity_id INTEGER NOT NULL PRIMARY KEY,
    told_at     INTEGER NOT NULL
) STRICT;
