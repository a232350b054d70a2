-- The first schema, in what MySQL 8 and MariaDB 10.6 both understand. Table names are those of the
-- documents the project was asked for. Times are Unix milliseconds, money is minor units, order
-- numbers are their text ("SK" + digits), whose order is the order of time.
--
-- A statement of DDL commits by itself here, so a step can stop half-way: every statement below can
-- be run again. Constraints have names, for those names are what an error says.
--
-- AUTO_ID_CACHE is for TiDB alone, to all others it is a remark: ids grow in the order they are given out, over
-- all servers of a cluster, as they do where there is one server.
--
-- utf8mb4_bin everywhere: ids are compared by their code points, never by how they look. It pads with
-- spaces when it compares, which no id can notice: none has white space in it.

CREATE TABLE IF NOT EXISTS tb_seckill_activity (
    id            BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name          VARCHAR(200) NOT NULL,
    opens_at      BIGINT       NOT NULL,
    closes_at     BIGINT       NOT NULL,
    pay_within_ms BIGINT       NOT NULL,
    state         TINYINT      NOT NULL,
    created_at    BIGINT       NOT NULL,
    updated_at    BIGINT       NOT NULL,
    CONSTRAINT ck_activity_pay_within CHECK (pay_within_ms > 0),
    CONSTRAINT ck_activity_state CHECK (state BETWEEN 0 AND 3),
    CONSTRAINT ck_activity_window CHECK (closes_at > opens_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

CREATE TABLE IF NOT EXISTS tb_seckill_product (
    id             BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    activity_id    BIGINT        NOT NULL,
    name           VARCHAR(200)  NOT NULL,
    image_url      VARCHAR(1000) NOT NULL,
    price          BIGINT        NOT NULL,
    origin_price   BIGINT,
    currency       CHAR(3)       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    stock          BIGINT        NOT NULL,
    total          BIGINT        NOT NULL,
    limit_per_user INT UNSIGNED  NOT NULL,
    shards         INT UNSIGNED  NOT NULL,
    version        BIGINT        NOT NULL DEFAULT 0,
    epoch          BIGINT        NOT NULL DEFAULT 0,
    state          TINYINT       NOT NULL,
    KEY ix_product_activity (activity_id),
    CONSTRAINT fk_product_activity FOREIGN KEY (activity_id) REFERENCES tb_seckill_activity (id),
    CONSTRAINT ck_product_price CHECK (price >= 0),
    CONSTRAINT ck_product_origin_price CHECK (origin_price >= 0),
    CONSTRAINT ck_product_limit CHECK (limit_per_user > 0),
    CONSTRAINT ck_product_shards CHECK (shards > 0),
    CONSTRAINT ck_product_state CHECK (state BETWEEN 0 AND 3),
    CONSTRAINT ck_product_stock CHECK (stock BETWEEN 0 AND total)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

-- No foreign key to the item: a claim of an item the ledger does not know still needs its void row,
-- and so does one of no units at all, which no live order may have.
-- InnoDB ends every index with the primary key: (user_id) is (user_id, order_no).
CREATE TABLE IF NOT EXISTS tb_seckill_order (
    order_no     VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    user_id      VARCHAR(64)  NOT NULL,
    activity_id  BIGINT       NOT NULL,
    product_id   BIGINT       NOT NULL,
    product_name VARCHAR(200) NOT NULL,
    price        BIGINT       NOT NULL,
    currency     CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity     INT UNSIGNED NOT NULL,
    amount       BIGINT       NOT NULL,
    status       TINYINT      NOT NULL,
    close_reason VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin,
    epoch        BIGINT       NOT NULL,
    claim_key    BIGINT,
    claimed_at   BIGINT       NOT NULL,
    pay_deadline BIGINT       NOT NULL,
    created_at   BIGINT       NOT NULL,
    paid_at      BIGINT,
    closed_at    BIGINT,
    KEY ix_order_deadline (status, pay_deadline),
    KEY ix_order_user (user_id),
    KEY ix_order_product (product_id),
    CONSTRAINT ck_order_price CHECK (price >= 0),
    CONSTRAINT ck_order_quantity CHECK (quantity > 0 OR status = 5),
    CONSTRAINT ck_order_amount CHECK (amount >= 0),
    CONSTRAINT ck_order_status CHECK (status BETWEEN 0 AND 5)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- type: 1 deduct, 2 return, 3 adjusted by an operator (then order_no is the number of the adjustment).
-- Ids of one item grow in the order of its changes, for each is made under the lock of its row.
CREATE TABLE IF NOT EXISTS tb_stock_log (
    id           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    order_no     VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    product_id   BIGINT       NOT NULL,
    product_name VARCHAR(200) NOT NULL,
    quantity     BIGINT       NOT NULL,
    before_stock BIGINT       NOT NULL,
    after_stock  BIGINT       NOT NULL,
    type         TINYINT      NOT NULL,
    create_time  BIGINT       NOT NULL,
    UNIQUE KEY uk_stock_log_order (order_no, type),
    KEY ix_stock_log_product (product_id),
    KEY ix_stock_log_type (product_id, type),
    CONSTRAINT ck_stock_log_quantity CHECK (quantity > 0 OR (type = 3 AND quantity < 0)),
    CONSTRAINT ck_stock_log_stock CHECK (before_stock >= 0 AND after_stock >= 0),
    CONSTRAINT ck_stock_log_type CHECK (type BETWEEN 1 AND 3),
    CONSTRAINT ck_stock_log_sum
        CHECK (after_stock = before_stock + CASE type WHEN 1 THEN -quantity ELSE quantity END)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

-- One row per buyer and item while an order of theirs is live: the limit the seeds ask for. It is the
-- primary key and not a unique index beside one: the table is then nothing but that index. The item
-- first: the buyers of one sale then share a few dense pages.
CREATE TABLE IF NOT EXISTS tb_user_seckill (
    user_id     VARCHAR(64)  NOT NULL,
    product_id  BIGINT       NOT NULL,
    order_no    VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity    INT UNSIGNED NOT NULL,
    create_time BIGINT       NOT NULL,
    PRIMARY KEY (product_id, user_id),
    CONSTRAINT ck_user_quantity CHECK (quantity > 0)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- kind: 0 opened at the provider (provider_txn is then our own order_no, for theirs is not known
-- yet), 1 money received, 2 money given back (provider_txn names the payment that was given back).
CREATE TABLE IF NOT EXISTS tb_payment (
    id           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    provider     VARCHAR(64)  NOT NULL,
    provider_txn VARCHAR(128) NOT NULL,
    order_no     VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind         TINYINT      NOT NULL,
    amount       BIGINT       NOT NULL,
    currency     CHAR(3)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    paid_at      BIGINT,
    created_at   BIGINT       NOT NULL,
    UNIQUE KEY uk_payment (provider, provider_txn, kind),
    KEY ix_payment_order (order_no, kind),
    CONSTRAINT fk_payment_order FOREIGN KEY (order_no) REFERENCES tb_seckill_order (order_no),
    CONSTRAINT ck_payment_kind CHECK (kind BETWEEN 0 AND 2),
    CONSTRAINT ck_payment_amount CHECK (amount >= 0)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

-- state: 0 retrying, 1 dead, 2 settled after all, 3 voided.
CREATE TABLE IF NOT EXISTS tb_dead_letter (
    order_no    VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    product_id  BIGINT       NOT NULL,
    user_id     VARCHAR(64)  NOT NULL,
    quantity    INT UNSIGNED NOT NULL,
    epoch       BIGINT       NOT NULL,
    claimed_at  BIGINT       NOT NULL,
    claim_key   BIGINT,
    state       TINYINT      NOT NULL,
    tries       INT UNSIGNED NOT NULL,
    next_try_at BIGINT,
    cause       TEXT         NOT NULL,
    created_at  BIGINT       NOT NULL,
    updated_at  BIGINT       NOT NULL,
    KEY ix_dead_letter_due (state, next_try_at),
    KEY ix_dead_letter_product (product_id, state),
    KEY ix_dead_letter_user (user_id),
    CONSTRAINT ck_dead_letter_state CHECK (state BETWEEN 0 AND 3)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Rows are deleted when delivered and an id must never come back: InnoDB keeps the counter over
-- restarts since MySQL 8 and MariaDB 10.2. provider and provider_txn are set on refunds only, so that
-- one payment never waits twice; rows without them do not collide, for NULL equals nothing.
CREATE TABLE IF NOT EXISTS tb_outbox (
    id           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    kind         VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    body         LONGTEXT     NOT NULL,
    provider     VARCHAR(64),
    provider_txn VARCHAR(128),
    tries        INT UNSIGNED NOT NULL DEFAULT 0,
    next_try_at  BIGINT       NOT NULL DEFAULT 0,
    cause        TEXT,
    created_at   BIGINT       NOT NULL,
    UNIQUE KEY uk_outbox_refund (provider, provider_txn)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

CREATE TABLE IF NOT EXISTS tb_admin_audit (
    id         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    who        VARCHAR(255) NOT NULL,
    action     VARCHAR(255) NOT NULL,
    target     TEXT         NOT NULL,
    detail     LONGTEXT     NOT NULL,
    created_at BIGINT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

DROP TRIGGER IF EXISTS tr_admin_audit_update;
CREATE TRIGGER tr_admin_audit_update BEFORE UPDATE ON tb_admin_audit FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'tb_admin_audit is append-only';
DROP TRIGGER IF EXISTS tr_admin_audit_delete;
CREATE TRIGGER tr_admin_audit_delete BEFORE DELETE ON tb_admin_audit FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'tb_admin_audit is append-only';

CREATE TABLE IF NOT EXISTS tb_job_run (
    id         BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job        VARCHAR(100) NOT NULL,
    started_at BIGINT       NOT NULL,
    ended_at   BIGINT       NOT NULL,
    ok         TINYINT      NOT NULL,
    report     LONGTEXT     NOT NULL,
    KEY ix_job_run_job (job),
    CONSTRAINT ck_job_run_ok CHECK (ok IN (0, 1))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

-- Only the SHA-256 of a token is kept. Two live tokens never share a secret: live_secret is the
-- secret of a token that is not revoked, and NULL equals nothing.
CREATE TABLE IF NOT EXISTS tb_admin_token (
    name        VARCHAR(200)  NOT NULL PRIMARY KEY,
    role        VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    secret_hash VARBINARY(64) NOT NULL,
    created_at  BIGINT        NOT NULL,
    revoked_at  BIGINT,
    live_secret VARBINARY(64)
        GENERATED ALWAYS AS (CASE WHEN revoked_at IS NULL THEN secret_hash END) STORED,
    UNIQUE KEY uk_admin_token_secret (live_secret),
    CONSTRAINT ck_admin_token_role CHECK (role IN ('viewer', 'operator', 'admin'))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Signs sale tokens and receipts where no other secret is configured. One row.
CREATE TABLE IF NOT EXISTS tb_secret (
    id         TINYINT      NOT NULL PRIMARY KEY,
    secret     VARCHAR(500) NOT NULL,
    created_at BIGINT       NOT NULL,
    CONSTRAINT ck_secret_one CHECK (id = 1)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
