-- When a pause is over by itself. NULL: an operator resumes it, as in rows that the build before writes.
ALTER TABLE tb_seckill_activity ADD COLUMN resume_at INTEGER;
-- 1: ended as a draft, which no buyer has seen and none shall see.
ALTER TABLE tb_seckill_activity ADD COLUMN given_up INTEGER NOT NULL DEFAULT 0;
