-- Each kind of outbox rows is a queue of its own. waits_for: the party for whose answer a row waits, empty
-- while nobody is known to be in its way. product_id: the item whose units it is about, 0 for rows that are
-- about none or several, and for those of the build before.
ALTER TABLE tb_outbox ADD COLUMN waits_for TEXT NOT NULL DEFAULT '';
ALTER TABLE tb_outbox ADD COLUMN product_id INTEGER NOT NULL DEFAULT 0;
CREATE INDEX ix_outbox_due ON tb_outbox (kind, waits_for, next_try_at);
CREATE INDEX ix_outbox_age ON tb_outbox (kind, created_at);
CREATE INDEX ix_outbox_item ON tb_outbox (product_id, kind);
