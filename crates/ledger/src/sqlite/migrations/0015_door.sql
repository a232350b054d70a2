-- How an activity lets buyers in: challenge, difficulty, members first, as JSON. NULL: as any, and as in rows
-- that the build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN door TEXT;

-- Lists of buyers. kind: 1 members, 2 blocked. activity_id 0: of the whole shop. entries counts the rows of a
-- list, so that nobody has to.
CREATE TABLE tb_buyer_list (
    kind        INTEGER NOT NULL CHECK (kind BETWEEN 1 AND 2),
    activity_id INTEGER NOT NULL,
    entries     INTEGER NOT NULL CHECK (entries >= 0),
    PRIMARY KEY (kind, activity_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE tb_buyer_list_entry (
    kind        INTEGER NOT NULL,
    activity_id INTEGER NOT NULL,
    user_id     TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (kind, activity_id, user_id)
) STRICT, WITHOUT ROWID;

-- Buyers who let too many orders go unpaid, and until when they wait.
CREATE TABLE tb_cool_down (
    user_id    TEXT    NOT NULL PRIMARY KEY,
    until_at   INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ix_cool_down_until ON tb_cool_down (until_at);
