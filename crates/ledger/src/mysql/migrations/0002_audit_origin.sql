-- From where an operator asked, and by which request; NULL for what a job did, and in rows of before.
-- MySQL has no ADD COLUMN IF NOT EXISTS, and a step must be repeatable: the statement is made only
-- where the columns are missing. One statement adds both, so that they are there together.
SET @add_origin = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'tb_admin_audit' AND column_name = 'request_id') = 0,
    'ALTER TABLE tb_admin_audit ADD COLUMN address VARCHAR(64), ADD COLUMN request_id VARCHAR(64)',
    'DO 0');
PREPARE add_origin FROM @add_origin;
EXECUTE add_origin;
DEALLOCATE PREPARE add_origin;
