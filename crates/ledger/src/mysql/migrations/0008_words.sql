-- The shop's own words. external_id and sku are its ids, of an activity and of a product. more_images: the
-- addresses after image_url, and attributes: names and values, both as JSON in a text, which MySQL and
-- MariaDB keep as it was written. NULL: none, as in rows that the build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN external_id VARCHAR(64);
ALTER TABLE tb_seckill_activity ADD UNIQUE KEY uk_activity_external (external_id);
ALTER TABLE tb_seckill_product ADD COLUMN sku VARCHAR(64);
ALTER TABLE tb_seckill_product ADD UNIQUE KEY uk_product_sku (activity_id, sku);
ALTER TABLE tb_seckill_product ADD KEY ix_product_sku (sku);
ALTER TABLE tb_seckill_product ADD COLUMN description TEXT;
ALTER TABLE tb_seckill_product ADD COLUMN more_images MEDIUMTEXT;
ALTER TABLE tb_seckill_product ADD COLUMN attributes MEDIUMTEXT;

-- What was made under an Idempotency-Key: the activities as JSON, and the SHA-256 of what was asked for.
CREATE TABLE IF NOT EXISTS tb_create_key (
    who        VARCHAR(64)  NOT NULL,
    idem_key   VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    body_hash  CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    made       MEDIUMTEXT   NOT NULL,
    created_at BIGINT       NOT NULL,
    PRIMARY KEY (who, idem_key),
    KEY ix_create_key_age (created_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
