-- What signs somebody in to the console: links that are good once (kind 1), and sessions (kind 2). Only the hash
-- of the secret is here. token is the hash of the admin token behind it; of the token of the settings, which may be
-- a short word, it is mixed with the secret (configured = 1), so that nobody can guess it from this table.
CREATE TABLE IF NOT EXISTS tb_console_pass (
    secret_hash CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    kind        TINYINT  NOT NULL CHECK (kind BETWEEN 1 AND 2),
    token       CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    configured  TINYINT  NOT NULL CHECK (configured BETWEEN 0 AND 1),
    created_at  BIGINT   NOT NULL,
    used_at     BIGINT   NOT NULL,
    expires_at  BIGINT   NOT NULL,
    KEY ix_console_pass_expires (expires_at),
    KEY ix_console_pass_used (kind, used_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
