-- Fair start: claims of so long a time from the opening on are drawn, and the SHA-256 of what they are drawn by. 0
-- and NULL: nobody is drawn, as in rows that the build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN shuffle_ms BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tb_seckill_activity ADD COLUMN draw_commitment VARCHAR(64);

-- What a draw is decided by, in hexadecimal. Secret: seed until the draw is over, salt for good.
CREATE TABLE IF NOT EXISTS tb_draw (
    activity_id BIGINT      NOT NULL PRIMARY KEY,
    seed        VARCHAR(64) NOT NULL,
    salt        VARCHAR(64) NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The record of a draw. outcome: 0 won, 1 sold out, 2 refused, 3 left.
CREATE TABLE IF NOT EXISTS tb_draw_place (
    product_id BIGINT      NOT NULL,
    place      VARCHAR(32) NOT NULL,
    quantity   BIGINT      NOT NULL,
    outcome    TINYINT     NOT NULL CHECK (outcome BETWEEN 0 AND 3),
    PRIMARY KEY (product_id, place)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
