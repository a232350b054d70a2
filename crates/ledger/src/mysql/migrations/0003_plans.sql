-- Drafts are edited by compare-and-set of their version, and may publish themselves.

ALTER TABLE tb_seckill_activity ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tb_seckill_activity ADD COLUMN publish_at BIGINT;
ALTER TABLE tb_seckill_activity ADD KEY ix_activity_publish (state, publish_at);

-- Orders are looked for by when they were paid. InnoDB ends every index with the primary key: (paid_at)
-- is (paid_at, order_no).
ALTER TABLE tb_seckill_order ADD KEY ix_order_paid (paid_at);
