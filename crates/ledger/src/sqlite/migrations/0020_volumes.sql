-- The volume an order was written in: the orders of one stretch of time, so that the index of buyers is written in
-- one place and not all over the past. Volume 0 is what was there before; new orders go into volume 1 at once.
ALTER TABLE tb_seckill_order ADD COLUMN volume INTEGER NOT NULL DEFAULT 0;
DROP INDEX ix_order_user;
CREATE INDEX ix_order_user ON tb_seckill_order (volume, user_id, order_no);

CREATE TABLE tb_order_volume (
    volume   INTEGER NOT NULL PRIMARY KEY,
    began_at INTEGER NOT NULL
) STRICT;
INSERT INTO tb_order_volume (volume, began_at) VALUES (0, 0), (1, 0);
