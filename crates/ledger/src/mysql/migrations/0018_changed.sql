-- When an activity or an item was last changed, whoever changed it, by the server's clock: those who look at all
-- of them every second ask for what changed.
ALTER TABLE tb_seckill_activity ADD COLUMN changed_at TIMESTAMP(3) NOT NULL
    DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3);
ALTER TABLE tb_seckill_product ADD COLUMN changed_at TIMESTAMP(3) NOT NULL
    DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3);
ALTER TABLE tb_seckill_activity ADD KEY ix_activity_changed (changed_at);
ALTER TABLE tb_seckill_product ADD KEY ix_product_changed (changed_at, activity_id);
