-- What signs somebody in to the console: links that are good once (kind 1), and sessions (kind 2). Only the hash
-- of the secret is here. token is the hash of the admin token behind it; of the token of the settings, which may be
-- a short word, it is mixed with the secret (configured = 1), so that nobody can guess it from this table.
CREATE TABLE tb_console_pass (
    secret_hash TEXT    NOT NULL PRIMARY KEY,
    kind        INTEGER NOT NULL CHECK (kind BETWEEN 1 AND 2),
    token       TEXT    NOT NULL,
    configured  INTEGER NOT NULL CHECK (configured BETWEEN 0 AND 1),
    created_at  INTEGER NOT NULL,
    used_at     INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ix_console_pass_expires ON tb_console_pass (expires_at);
CREATE INDEX ix_console_pass_used ON tb_console_pass (kind, used_at);
