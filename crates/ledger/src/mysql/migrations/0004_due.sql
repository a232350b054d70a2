-- What is due is found by an index, however much has been sold before or is planned after it.

ALTER TABLE tb_seckill_activity ADD KEY ix_activity_opens (state, opens_at);
ALTER TABLE tb_seckill_activity ADD KEY ix_activity_closes (state, closes_at);

-- over_at: since when a payment that was opened (kind 0) is not asked about any more. Its provider has
-- told of the money, or has said that it is closed and that has been so for long enough.
ALTER TABLE tb_payment ADD COLUMN over_at BIGINT;
UPDATE tb_payment AS p JOIN tb_payment AS m
    ON m.order_no = p.order_no AND m.provider = p.provider AND m.kind = 1
SET p.over_at = p.created_at WHERE p.kind = 0 AND p.over_at IS NULL;
-- InnoDB ends every index with the primary key: those that are open come in the order of their ids.
ALTER TABLE tb_payment ADD KEY ix_payment_open (kind, over_at);
