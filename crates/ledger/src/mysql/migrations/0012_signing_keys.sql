-- Keys that sign sale tokens, receipts and tickets after the first one, which is made of the deployment's secret.
-- Each signs from signs_from on, until a later one does, and verifies until it is retired. Row 0 is there only if
-- the first one is retired. Rows are never deleted: a number stands for one key.
CREATE TABLE IF NOT EXISTS tb_signing_key (
    id         SMALLINT     NOT NULL PRIMARY KEY,
    secret     VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at BIGINT       NOT NULL,
    signs_from BIGINT       NOT NULL,
    retired_at BIGINT,
    CONSTRAINT ck_signing_key_id CHECK (id BETWEEN 0 AND 255)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
