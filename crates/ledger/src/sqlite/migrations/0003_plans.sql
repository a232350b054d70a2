-- Drafts are edited by compare-and-set of their version, and may publish themselves.

ALTER TABLE tb_seckill_activity ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tb_seckill_activity ADD COLUMN publish_at INTEGER;
CREATE INDEX ix_activity_publish ON tb_seckill_activity (publish_at) WHERE state = 0;

-- Orders are looked for by when they were paid.
CREATE INDEX ix_order_paid ON tb_seckill_order (paid_at, order_no) WHERE paid_at IS NOT NULL;
