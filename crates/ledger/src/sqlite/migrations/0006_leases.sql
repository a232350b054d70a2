-- Jobs are leased here. The fence grows with every new holder of a lease.
ALTER TABLE tb_lease ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;

-- Which process hands out order numbers of a node. Before until_at the node is given to nobody else. The
-- holder's numbers are of times up to reach, by its own clock.
CREATE TABLE tb_node (
    node     INTEGER NOT NULL PRIMARY KEY,
    holder   TEXT    NOT NULL,
    taken_at INTEGER NOT NULL,
    until_at INTEGER NOT NULL,
    reach    INTEGER NOT NULL
) STRICT;
