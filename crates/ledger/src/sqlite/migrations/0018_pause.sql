-- When a pause is over by itself. NULL: an operator resumes it, as in rows that the build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN resume_at INTEGER;
