-- Who alone does something for a while, among all instances: times are by this server's clock.
CREATE TABLE IF NOT EXISTS tb_lease (
    name     VARCHAR(100) NOT NULL PRIMARY KEY,
    holder   VARCHAR(255) NOT NULL,
    until_at BIGINT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
