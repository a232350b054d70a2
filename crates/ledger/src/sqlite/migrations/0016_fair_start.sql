-- Fair start: claims of so long a time from the opening on are drawn, and the SHA-256 of what they are drawn by. 0
-- and NULL: nobody is drawn, as in rows that the build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN shuffle_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tb_seckill_activity ADD COLUMN draw_commitment TEXT;

-- What a draw is decided by, in hexadecimal. Secret: seed until the draw is over, salt for good.
CREATE TABLE tb_draw (
    activity_id INTEGER NOT NULL PRIMARY KEY,
    seed        TEXT    NOT NULL,
    salt        TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- The record of a draw. outcome: 0 won, 1 sold out, 2 refused, 3 left.
CREATE TABLE tb_draw_place (
    product_id INTEGER NOT NULL,
    place      TEXT    NOT NULL,
    quantity   INTEGER NOT NULL,
    outcome    INTEGER NOT NULL CHECK (outcome BETWEEN 0 AND 3),
    PRIMARY KEY (product_id, place)
) STRICT, WITHOUT ROWID;
