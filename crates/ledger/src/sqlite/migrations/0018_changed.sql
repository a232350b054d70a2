-- When an activity or an item was last changed, whoever changed it: those who look at all of them every
-- second ask for what changed.
ALTER TABLE tb_seckill_activity ADD COLUMN changed_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tb_seckill_product ADD COLUMN changed_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX ix_activity_changed ON tb_seckill_activity (changed_at);
CREATE INDEX ix_product_changed ON tb_seckill_product (changed_at, activity_id);
CREATE TRIGGER tr_activity_made AFTER INSERT ON tb_seckill_activity
BEGIN
    UPDATE tb_seckill_activity SET changed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE id = NEW.id;
END;
CREATE TRIGGER tr_activity_changed AFTER UPDATE ON tb_seckill_activity WHEN NEW.changed_at = OLD.changed_at
BEGIN
    UPDATE tb_seckill_activity SET changed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE id = NEW.id;
END;
CREATE TRIGGER tr_product_made AFTER INSERT ON tb_seckill_product
BEGIN
    UPDATE tb_seckill_product SET changed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE id = NEW.id;
END;
CREATE TRIGGER tr_product_changed AFTER UPDATE ON tb_seckill_product WHEN NEW.changed_at = OLD.changed_at
BEGIN
    UPDATE tb_seckill_product SET changed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE id = NEW.id;
END;
