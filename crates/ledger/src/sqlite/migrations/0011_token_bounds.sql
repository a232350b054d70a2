-- How long an admin token is good, and from where: ranges of addresses, by comma. NULL: for ever, from anywhere, as
-- tokens that the build before makes. When it was last used, as far as it was written down.
ALTER TABLE tb_admin_token ADD COLUMN expires_at INTEGER;
ALTER TABLE tb_admin_token ADD COLUMN addresses TEXT;
ALTER TABLE tb_admin_token ADD COLUMN last_used_at INTEGER;
