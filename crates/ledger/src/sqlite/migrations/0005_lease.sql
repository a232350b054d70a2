-- Who alone does something for a while, among all instances.
CREATE TABLE tb_lease (
    name     TEXT    NOT NULL PRIMARY KEY,
    holder   TEXT    NOT NULL,
    until_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
