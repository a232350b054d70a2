-- What was moved to the months of the archive (sql/archive). month is 202611 for November 2026.
CREATE TABLE IF NOT EXISTS tb_archive_month (
    month     INT         NOT NULL PRIMARY KEY,
    last_no   VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin,
    paid_from BIGINT,
    paid_to   BIGINT
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Orders of an item that were moved, and what they came to.
CREATE TABLE IF NOT EXISTS tb_archived_orders (
    product_id BIGINT  NOT NULL,
    month      INT     NOT NULL,
    status     TINYINT NOT NULL,
    orders     BIGINT  NOT NULL,
    units      BIGINT  NOT NULL,
    amount     BIGINT  NOT NULL,
    PRIMARY KEY (product_id, month, status)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Where the stock log of an item goes on in the books: behind this row, with this stock. In which months the rest is.
CREATE TABLE IF NOT EXISTS tb_archived_item (
    product_id BIGINT NOT NULL PRIMARY KEY,
    end_id     BIGINT NOT NULL,
    end_stock  BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS tb_archived_log (
    product_id BIGINT NOT NULL,
    month      INT    NOT NULL,
    PRIMARY KEY (product_id, month)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS tb_archived_buyer (
    user_id VARCHAR(64) NOT NULL,
    month   INT         NOT NULL,
    PRIMARY KEY (user_id, month)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS tb_archived_payment (
    provider     VARCHAR(64)  NOT NULL,
    provider_txn VARCHAR(128) NOT NULL,
    month        INT          NOT NULL,
    PRIMARY KEY (provider, provider_txn)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Orders that were moved and are in the books again, until they are moved again.
CREATE TABLE IF NOT EXISTS tb_archive_recalled (
    order_no VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

ALTER TABLE tb_seckill_activity ADD COLUMN archived_at BIGINT;
ALTER TABLE tb_seckill_activity ADD KEY ix_activity_archive (archived_at, state, closes_at);
