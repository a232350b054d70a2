-- What is due is found by an index, however much has been sold before or is planned after it.

CREATE INDEX ix_activity_opens ON tb_seckill_activity (state, opens_at);
CREATE INDEX ix_activity_closes ON tb_seckill_activity (state, closes_at);

-- over_at: since when a payment that was opened (kind 0) is not asked about any more. Its provider has
-- told of the money, or has said that it is closed and that has been so for long enough.
ALTER TABLE tb_payment ADD COLUMN over_at INTEGER;
UPDATE tb_payment SET over_at = created_at
WHERE kind = 0 AND EXISTS (SELECT 1 FROM tb_payment AS m
    WHERE m.order_no = tb_payment.order_no AND m.provider = tb_payment.provider AND m.kind = 1);
CREATE INDEX ix_payment_open ON tb_payment (kind) WHERE kind = 0 AND over_at IS NULL;
