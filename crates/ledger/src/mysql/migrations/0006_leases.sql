-- Jobs are leased here. The fence grows with every new holder of a lease.
ALTER TABLE tb_lease ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;

-- Which process hands out order numbers of a node. until_at is by this server's clock: before that the node
-- is given to nobody else. The holder's numbers are of times up to reach, by its own clock.
CREATE TABLE IF NOT EXISTS tb_node (
    node     INT          NOT NULL PRIMARY KEY,
    holder   VARCHAR(255) NOT NULL,
    taken_at BIGINT       NOT NULL,
    until_at BIGINT       NOT NULL,
    reach    BIGINT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;
