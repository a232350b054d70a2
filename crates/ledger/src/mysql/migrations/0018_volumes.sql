-- The volume an order was written in: the orders of one stretch of time, so that the index of buyers is written in
-- one place and not all over the past. Volume 0 is what was there before, and what a binary of the build before
-- writes; new orders go into volume 1 at once.
CREATE TABLE IF NOT EXISTS tb_order_volume (
    volume   BIGINT NOT NULL PRIMARY KEY,
    began_at BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
INSERT INTO tb_order_volume (volume, began_at) VALUES (0, 0), (1, 0) ON DUPLICATE KEY UPDATE volume = volume;

ALTER TABLE tb_seckill_order ADD COLUMN volume INT NOT NULL DEFAULT 0;
-- It keeps its name, by which the build before asks for it. InnoDB ends every index with the primary key: this one
-- is (volume, user_id, order_no).
ALTER TABLE tb_seckill_order DROP KEY ix_order_user, ADD KEY ix_order_user (volume, user_id);
