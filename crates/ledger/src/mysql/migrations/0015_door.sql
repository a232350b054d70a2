-- How an activity lets buyers in: challenge, difficulty, members first, as JSON in a text. NULL: as any, and as
-- in rows that the build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN door TEXT;

-- Lists of buyers. kind: 1 members, 2 blocked. activity_id 0: of the whole shop. entries counts the rows of a
-- list, so that nobody has to.
CREATE TABLE IF NOT EXISTS tb_buyer_list (
    kind        TINYINT NOT NULL CHECK (kind BETWEEN 1 AND 2),
    activity_id BIGINT  NOT NULL,
    entries     BIGINT  NOT NULL CHECK (entries >= 0),
    PRIMARY KEY (kind, activity_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
CREATE TABLE IF NOT EXISTS tb_buyer_list_entry (
    kind        TINYINT     NOT NULL,
    activity_id BIGINT      NOT NULL,
    user_id     VARCHAR(64) NOT NULL,
    created_at  BIGINT      NOT NULL,
    PRIMARY KEY (kind, activity_id, user_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- Buyers who let too many orders go unpaid, and until when they wait.
CREATE TABLE IF NOT EXISTS tb_cool_down (
    user_id    VARCHAR(64) NOT NULL PRIMARY KEY,
    until_at   BIGINT      NOT NULL,
    created_at BIGINT      NOT NULL,
    KEY ix_cool_down_until (until_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
