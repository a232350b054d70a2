-- What is asked about money. Of a payment that was opened (kind 0): ask_at, when its provider is asked next
-- whether it is paid, and asks, how often it was; asked_at, since when the shop is asked to close it, and
-- closed_at, since when the shop says that it is. Of money that came in (kind 1): asked_at and asks, when and how
-- often the shop was asked to give it back.
ALTER TABLE tb_payment ADD COLUMN ask_at INTEGER;
ALTER TABLE tb_payment ADD COLUMN asks INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tb_payment ADD COLUMN asked_at INTEGER;
ALTER TABLE tb_payment ADD COLUMN closed_at INTEGER;
CREATE INDEX ix_payment_ask ON tb_payment (provider, ask_at);

-- Days whose bill was compared with the ledger, by the provider's calendar. differences: how many were left.
CREATE TABLE tb_bill_day (
    provider    TEXT    NOT NULL,
    day_at      INTEGER NOT NULL,
    line_count  INTEGER NOT NULL,
    differences INTEGER NOT NULL,
    compared_at INTEGER NOT NULL,
    PRIMARY KEY (provider, day_at)
) STRICT, WITHOUT ROWID;

-- The role cashier. A rule of a column cannot be changed, so the table is made anew.
CREATE TABLE tb_admin_token_new (
    name        TEXT    NOT NULL PRIMARY KEY,
    role        TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'admin', 'cashier')),
    secret_hash BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    revoked_at  INTEGER,
    expires_at  INTEGER,
    addresses   TEXT,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO tb_admin_token_new
SELECT name, role, secret_hash, created_at, revoked_at, expires_at, addresses, last_used_at FROM tb_admin_token;
DROP TABLE tb_admin_token;
ALTER TABLE tb_admin_token_new RENAME TO tb_admin_token;
CREATE UNIQUE INDEX uk_admin_token_secret ON tb_admin_token (secret_hash)
    WHERE revoked_at IS NULL;
