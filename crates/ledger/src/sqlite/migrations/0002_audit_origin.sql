-- From where an operator asked, and by which request; NULL for what a job did, and in rows of before.
ALTER TABLE tb_admin_audit ADD COLUMN address TEXT;
ALTER TABLE tb_admin_audit ADD COLUMN request_id TEXT;
