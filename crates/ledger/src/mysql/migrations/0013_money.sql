-- What is asked about money. Of a payment that was opened (kind 0): ask_at, when its provider is asked next
-- whether it is paid, and asks, how often it was; asked_at, since when the shop is asked to close it, and
-- closed_at, since when the shop says that it is. Of money that came in (kind 1): asked_at and asks, when and how
-- often the shop was asked to give it back.
ALTER TABLE tb_payment ADD COLUMN ask_at BIGINT;
ALTER TABLE tb_payment ADD COLUMN asks INT NOT NULL DEFAULT 0;
ALTER TABLE tb_payment ADD COLUMN asked_at BIGINT;
ALTER TABLE tb_payment ADD COLUMN closed_at BIGINT;
ALTER TABLE tb_payment ADD KEY ix_payment_ask (provider, ask_at);

-- Days whose bill was compared with the ledger, by the provider's calendar. differences: how many were left.
CREATE TABLE IF NOT EXISTS tb_bill_day (
    provider    VARCHAR(32) NOT NULL,
    day_at      BIGINT      NOT NULL,
    line_count  BIGINT      NOT NULL,
    differences BIGINT      NOT NULL,
    compared_at BIGINT      NOT NULL,
    PRIMARY KEY (provider, day_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

-- The role cashier: the rule of the column gives way to a new one. MySQL has no DROP CONSTRAINT IF EXISTS, so
-- each statement is made only where it is needed. They are looked for where all engines list them: TiDB names
-- rules of columns nowhere else.
SET @drop_roles = IF(
    (SELECT COUNT(*) FROM information_schema.check_constraints
     WHERE constraint_schema = DATABASE() AND constraint_name = 'ck_admin_token_role') = 1,
    'ALTER TABLE tb_admin_token DROP CONSTRAINT ck_admin_token_role',
    'DO 0');
PREPARE drop_roles FROM @drop_roles;
EXECUTE drop_roles;
DEALLOCATE PREPARE drop_roles;
SET @add_roles = IF(
    (SELECT COUNT(*) FROM information_schema.check_constraints
     WHERE constraint_schema = DATABASE() AND constraint_name = 'ck_admin_token_roles') = 0,
    'ALTER TABLE tb_admin_token ADD CONSTRAINT ck_admin_token_roles CHECK (role IN (''viewer'', ''operator'', ''admin'', ''cashier''))',
    'DO 0');
PREPARE add_roles FROM @add_roles;
EXECUTE add_roles;
DEALLOCATE PREPARE add_roles;
