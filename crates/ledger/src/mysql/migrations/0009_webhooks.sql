-- Where the shop's backend is told of what happens here. events: one bit for each kind of event. state:
-- 0 enabled, 1 switched off (reason says why), 2 removed and waiting for its deliveries to be deleted. The secrets
-- sign what is sent, so they are kept as they are. failing_since: since when it has not taken anything.
CREATE TABLE IF NOT EXISTS tb_webhook_endpoint (
    id              BIGINT        NOT NULL AUTO_INCREMENT PRIMARY KEY,
    url             VARCHAR(2048) NOT NULL,
    description     VARCHAR(255)  NOT NULL,
    events          BIGINT        NOT NULL,
    state           TINYINT       NOT NULL,
    reason          TEXT,
    secret          VARCHAR(255)  NOT NULL,
    previous_secret VARCHAR(255),
    previous_until  BIGINT,
    source          VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    failing_since   BIGINT,
    created_at      BIGINT        NOT NULL,
    updated_at      BIGINT        NOT NULL,
    CONSTRAINT ck_webhook_endpoint_state CHECK (state BETWEEN 0 AND 2)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

-- One row for each event and endpoint. state: 0 pending, 1 delivered, 2 failed, 3 behind an earlier event of
-- the same subject that was not taken yet. next_try_at is 0 unless a pending row waits for its next try.
CREATE TABLE IF NOT EXISTS tb_webhook_delivery (
    id           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    endpoint_id  BIGINT       NOT NULL,
    event_id     VARCHAR(80)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind         VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    subject      VARCHAR(40)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    body         TEXT         NOT NULL,
    state        TINYINT      NOT NULL,
    tries        INT UNSIGNED NOT NULL DEFAULT 0,
    first_try_at BIGINT,
    next_try_at  BIGINT       NOT NULL DEFAULT 0,
    status       INT,
    cause        TEXT,
    created_at   BIGINT       NOT NULL,
    done_at      BIGINT,
    UNIQUE KEY uk_webhook_event (endpoint_id, event_id),
    KEY ix_webhook_due (endpoint_id, state, next_try_at),
    KEY ix_webhook_subject (endpoint_id, subject),
    KEY ix_webhook_age (endpoint_id, state, created_at),
    CONSTRAINT ck_webhook_delivery_state CHECK (state BETWEEN 0 AND 3)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
    /*T![auto_id_cache] AUTO_ID_CACHE 1 */;

-- Activities of which it was told that they opened: no transaction of theirs causes that.
CREATE TABLE IF NOT EXISTS tb_webhook_opened (
    activity_id BIGINT NOT NULL PRIMARY KEY,
    told_at     BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
