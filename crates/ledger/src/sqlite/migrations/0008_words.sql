-- The shop's own words. external_id and sku are its ids, of an activity and of a product. more_images: the
-- addresses after image_url, and attributes: names and values, both as JSON. NULL: none, as in rows that the
-- build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN external_id TEXT;
CREATE UNIQUE INDEX uk_activity_external ON tb_seckill_activity (external_id) WHERE external_id IS NOT NULL;
ALTER TABLE tb_seckill_product ADD COLUMN sku TEXT;
CREATE UNIQUE INDEX uk_product_sku ON tb_seckill_product (activity_id, sku) WHERE sku IS NOT NULL;
CREATE INDEX ix_product_sku ON tb_seckill_product (sku) WHERE sku IS NOT NULL;
ALTER TABLE tb_seckill_product ADD COLUMN description TEXT;
ALTER TABLE tb_seckill_product ADD COLUMN more_images TEXT;
ALTER TABLE tb_seckill_product ADD COLUMN attributes TEXT;

-- What was made under an Idempotency-Key: the activities as JSON, and the SHA-256 of what was asked for.
CREATE TABLE tb_create_key (
    who        TEXT    NOT NULL,
    idem_key   TEXT    NOT NULL,
    body_hash  TEXT    NOT NULL,
    made       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (who, idem_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX ix_create_key_age ON tb_create_key (created_at);
