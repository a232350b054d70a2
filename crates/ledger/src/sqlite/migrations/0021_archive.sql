-- What was moved to the months of the archive (sql/archive). month is 202611 for November 2026.
CREATE TABLE tb_archive_month (
    month     INTEGER NOT NULL PRIMARY KEY,
    last_no   TEXT,
    paid_from INTEGER,
    paid_to   INTEGER
) STRICT;

-- Orders of an item that were moved, and what they came to.
CREATE TABLE tb_archived_orders (
    product_id INTEGER NOT NULL,
    month      INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    orders     INTEGER NOT NULL,
    units      INTEGER NOT NULL,
    amount     INTEGER NOT NULL,
    PRIMARY KEY (product_id, month, status)
) STRICT, WITHOUT ROWID;

-- Where the stock log of an item goes on in the books: behind this row, with this stock. In which months the rest is.
CREATE TABLE tb_archived_item (
    product_id INTEGER NOT NULL PRIMARY KEY,
    end_id     INTEGER NOT NULL,
    end_stock  INTEGER NOT NULL
) STRICT;
CREATE TABLE tb_archived_log (
    product_id INTEGER NOT NULL,
    month      INTEGER NOT NULL,
    PRIMARY KEY (product_id, month)
) STRICT, WITHOUT ROWID;

CREATE TABLE tb_archived_buyer (
    user_id TEXT    NOT NULL,
    month   INTEGER NOT NULL,
    PRIMARY KEY (user_id, month)
) STRICT, WITHOUT ROWID;
CREATE TABLE tb_archived_payment (
    provider     TEXT    NOT NULL,
    provider_txn TEXT    NOT NULL,
    month        INTEGER NOT NULL,
    PRIMARY KEY (provider, provider_txn)
) STRICT, WITHOUT ROWID;

-- Orders that were moved and are in the books again, until they are moved again.
CREATE TABLE tb_archive_recalled (
    order_no TEXT NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

ALTER TABLE tb_seckill_activity ADD COLUMN archived_at INTEGER;
CREATE INDEX ix_activity_archive ON tb_seckill_activity (closes_at) WHERE state = 3 AND archived_at IS NULL;
