-- The first schema. Table names are those of the documents the project was asked for.
-- Times are Unix milliseconds, money is minor units, order numbers are their text ("SK" + digits),
-- whose order is the order of time.

CREATE TABLE tb_seckill_activity (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    name          TEXT    NOT NULL,
    opens_at      INTEGER NOT NULL,
    closes_at     INTEGER NOT NULL,
    pay_within_ms INTEGER NOT NULL CHECK (pay_within_ms > 0),
    state         INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    CHECK (closes_at > opens_at)
) STRICT;

CREATE TABLE tb_seckill_product (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    activity_id    INTEGER NOT NULL REFERENCES tb_seckill_activity (id),
    name           TEXT    NOT NULL,
    image_url      TEXT    NOT NULL,
    price          INTEGER NOT NULL CHECK (price >= 0),
    origin_price   INTEGER          CHECK (origin_price >= 0),
    currency       TEXT    NOT NULL CHECK (length(currency) = 3),
    stock          INTEGER NOT NULL,
    total          INTEGER NOT NULL,
    limit_per_user INTEGER NOT NULL CHECK (limit_per_user > 0),
    shards         INTEGER NOT NULL CHECK (shards > 0),
    version        INTEGER NOT NULL DEFAULT 0,
    epoch          INTEGER NOT NULL DEFAULT 0,
    state          INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),
    CHECK (stock BETWEEN 0 AND total)
) STRICT;
CREATE INDEX ix_product_activity ON tb_seckill_product (activity_id);

-- No foreign key to the item: a claim of an item the ledger does not know still needs its void row,
-- and so does one of no units at all, which no live order may have.
-- WITHOUT ROWID, because rows arrive in about the order of their numbers and are read by them.
CREATE TABLE tb_seckill_order (
    order_no     TEXT    NOT NULL PRIMARY KEY,
    user_id      TEXT    NOT NULL,
    activity_id  INTEGER NOT NULL,
    product_id   INTEGER NOT NULL,
    product_name TEXT    NOT NULL,
    price        INTEGER NOT NULL CHECK (price >= 0),
    currency     TEXT    NOT NULL,
    quantity     INTEGER NOT NULL CHECK (quantity > 0 OR status = 5),
    amount       INTEGER NOT NULL CHECK (amount >= 0),
    status       INTEGER NOT NULL CHECK (status BETWEEN 0 AND 5),
    close_reason TEXT,
    epoch        INTEGER NOT NULL,
    claim_key    INTEGER,
    claimed_at   INTEGER NOT NULL,
    pay_deadline INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    paid_at      INTEGER,
    closed_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX ix_order_deadline ON tb_seckill_order (status, pay_deadline);
CREATE INDEX ix_order_user     ON tb_seckill_order (user_id, order_no);
CREATE INDEX ix_order_product  ON tb_seckill_order (product_id, order_no);

-- type: 1 deduct, 2 return, 3 adjusted by an operator (then order_no is the number of the adjustment).
CREATE TABLE tb_stock_log (
    id           INTEGER PRIMARY KEY,
    order_no     TEXT    NOT NULL,
    product_id   INTEGER NOT NULL,
    product_name TEXT    NOT NULL,
    quantity     INTEGER NOT NULL CHECK (quantity > 0 OR (type = 3 AND quantity < 0)),
    before_stock INTEGER NOT NULL CHECK (before_stock >= 0),
    after_stock  INTEGER NOT NULL CHECK (after_stock >= 0),
    type         INTEGER NOT NULL CHECK (type BETWEEN 1 AND 3),
    create_time  INTEGER NOT NULL,
    CHECK (after_stock = before_stock + CASE type WHEN 1 THEN -quantity ELSE quantity END)
) STRICT;
CREATE UNIQUE INDEX uk_stock_log_order ON tb_stock_log (order_no, type);
CREATE INDEX ix_stock_log_product ON tb_stock_log (product_id, id);
CREATE INDEX ix_stock_log_adjust ON tb_stock_log (product_id, id) WHERE type = 3;

-- One row per buyer and item while an order of theirs is live: the limit the seeds ask for.
CREATE TABLE tb_user_seckill (
    user_id     TEXT    NOT NULL,
    product_id  INTEGER NOT NULL,
    order_no    TEXT    NOT NULL,
    quantity    INTEGER NOT NULL CHECK (quantity > 0),
    create_time INTEGER NOT NULL
) STRICT;
-- The item first: the buyers of one sale then share a few dense pages, and a batch of a thousand
-- strangers does not rewrite a thousand pages of the whole shop's history.
CREATE UNIQUE INDEX uk_user_product ON tb_user_seckill (product_id, user_id);

-- kind: 0 opened at the provider (provider_txn is then our own order_no, for theirs is not known
-- yet), 1 money received, 2 money given back (provider_txn names the payment that was given back).
CREATE TABLE tb_payment (
    id           INTEGER PRIMARY KEY,
    provider     TEXT    NOT NULL,
    provider_txn TEXT    NOT NULL,
    order_no     TEXT    NOT NULL REFERENCES tb_seckill_order (order_no),
    kind         INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 2),
    amount       INTEGER NOT NULL CHECK (amount >= 0),
    currency     TEXT    NOT NULL,
    paid_at      INTEGER,
    created_at   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX uk_payment ON tb_payment (provider, provider_txn, kind);
CREATE INDEX ix_payment_order ON tb_payment (order_no, kind);

-- state: 0 retrying, 1 dead, 2 settled after all, 3 voided.
CREATE TABLE tb_dead_letter (
    order_no    TEXT    NOT NULL PRIMARY KEY,
    product_id  INTEGER NOT NULL,
    user_id     TEXT    NOT NULL,
    quantity    INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    claimed_at  INTEGER NOT NULL,
    claim_key   INTEGER,
    state       INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),
    tries       INTEGER NOT NULL CHECK (tries >= 0),
    next_try_at INTEGER,
    cause       TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ix_dead_letter_due ON tb_dead_letter (state, next_try_at);
CREATE INDEX ix_dead_letter_product ON tb_dead_letter (product_id, state);
CREATE INDEX ix_dead_letter_user ON tb_dead_letter (user_id, order_no);

-- AUTOINCREMENT, because rows are deleted when delivered and an id must never come back.
-- provider and provider_txn are set on refunds only, so that one payment never waits twice.
CREATE TABLE tb_outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    kind         TEXT    NOT NULL,
    body         TEXT    NOT NULL,
    provider     TEXT,
    provider_txn TEXT,
    tries        INTEGER NOT NULL DEFAULT 0,
    next_try_at  INTEGER NOT NULL DEFAULT 0,
    cause        TEXT,
    created_at   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX uk_outbox_refund ON tb_outbox (provider, provider_txn)
    WHERE provider_txn IS NOT NULL;

CREATE TABLE tb_admin_audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    who        TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    target     TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE TRIGGER tr_admin_audit_update BEFORE UPDATE ON tb_admin_audit
BEGIN SELECT RAISE(ABORT, 'tb_admin_audit is append-only'); END;
CREATE TRIGGER tr_admin_audit_delete BEFORE DELETE ON tb_admin_audit
BEGIN SELECT RAISE(ABORT, 'tb_admin_audit is append-only'); END;

CREATE TABLE tb_job_run (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    job        TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    ok         INTEGER NOT NULL CHECK (ok IN (0, 1)),
    report     TEXT    NOT NULL
) STRICT;
CREATE INDEX ix_job_run_job ON tb_job_run (job, id);

-- Only the SHA-256 of a token is kept. Two live tokens never share a secret.
CREATE TABLE tb_admin_token (
    name        TEXT    NOT NULL PRIMARY KEY,
    role        TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    secret_hash BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    revoked_at  INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX uk_admin_token_secret ON tb_admin_token (secret_hash)
    WHERE revoked_at IS NULL;

-- Signs sale tokens and receipts where no other secret is configured. One row.
CREATE TABLE tb_secret (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    secret     TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
