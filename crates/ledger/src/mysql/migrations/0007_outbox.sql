-- Each kind of outbox rows is a queue of its own. waits_for: the party for whose answer a row waits, empty
-- while nobody is known to be in its way. product_id: the item whose units it is about, 0 for rows that are
-- about none or several, and for those of the build before.
ALTER TABLE tb_outbox ADD COLUMN waits_for VARCHAR(100) NOT NULL DEFAULT '';
ALTER TABLE tb_outbox ADD COLUMN product_id BIGINT NOT NULL DEFAULT 0;
-- InnoDB ends every index with the primary key: rows that are due at once come in the order they were written.
ALTER TABLE tb_outbox ADD KEY ix_outbox_due (kind, waits_for, next_try_at);
ALTER TABLE tb_outbox ADD KEY ix_outbox_age (kind, created_at);
ALTER TABLE tb_outbox ADD KEY ix_outbox_item (product_id, kind);

-- What waits to be done, as one of the instances has counted it lately, by this server's clock.
CREATE TABLE IF NOT EXISTS tb_outstanding (
    id         INT      NOT NULL PRIMARY KEY CHECK (id = 1),
    counted_at BIGINT   NOT NULL,
    body       LONGTEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
