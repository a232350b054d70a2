-- Keys that sign sale tokens, receipts and tickets after the first one, which is made of the deployment's secret.
-- Each signs from signs_from on, until a later one does, and verifies until it is retired. Row 0 is there only if
-- the first one is retired. Rows are never deleted: a number stands for one key.
CREATE TABLE tb_signing_key (
    id         INTEGER PRIMARY KEY CHECK (id BETWEEN 0 AND 255),
    secret     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    signs_from INTEGER NOT NULL,
    retired_at INTEGER
) STRICT;
