-- The volume an order was written in: the orders of one stretch of time, so that the index of buyers is written in
-- one place and not all over the past. Volume 0 is what was there before, and what a binary of the build before
-- writes; new orders go into volume 1 at once.
CREATE TABLE IF NOT EXISTS tb_order_volume (
    volume   BIGINT NOT NULL PRIMARY KEY,
    began_at BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
INSERT INTO tb_order_volume (volume, began_at) VALUES (0, 0), (1, 0) ON DUPLICATE KEY UPDATE volume = volume;

ALTER TABLE tb_seckill_order ADD COLUMN volume INT NOT NULL DEFAULT 0;
-- InnoDB ends every index with the primary key: the new index is (volume, user_id, order_no). It is built beside the
-- old one, which serves until then, and takes its name, by which the build before asks for it.
SET @add_index = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'tb_seckill_order' AND seq_in_index = 1
         AND index_name IN ('ix_order_buyer', 'ix_order_user') AND column_name = 'volume') = 0,
    'ALTER TABLE tb_seckill_order ADD KEY ix_order_buyer (volume, user_id)',
    'DO 0');
PREPARE add_index FROM @add_index;
EXECUTE add_index;
DEALLOCATE PREPARE add_index;
SET @drop_index = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'tb_seckill_order' AND seq_in_index = 1
         AND index_name = 'ix_order_user' AND column_name = 'user_id') = 1,
    'ALTER TABLE tb_seckill_order DROP KEY ix_order_user',
    'DO 0');
PREPARE drop_index FROM @drop_index;
EXECUTE drop_index;
DEALLOCATE PREPARE drop_index;
SET @name_index = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'tb_seckill_order' AND seq_in_index = 1
         AND index_name = 'ix_order_buyer') = 1,
    'ALTER TABLE tb_seckill_order RENAME INDEX ix_order_buyer TO ix_order_user',
    'DO 0');
PREPARE name_index FROM @name_index;
EXECUTE name_index;
DEALLOCATE PREPARE name_index;
