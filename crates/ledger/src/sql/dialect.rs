//! The words that SQLite and MySQL do not share.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "mysql"), allow(dead_code))]
pub(crate) enum Dialect {
    Sqlite,
    /// MySQL, MariaDB and TiDB: the SQL keeps to what all of them understand.
    Mysql,
}

impl Dialect {
    /// Holds the rows that are read until the transaction ends. In SQLite there is one writer, which
    /// holds the whole file.
    pub(crate) fn for_update(self) -> &'static str {
        match self {
            Dialect::Sqlite => "",
            Dialect::Mysql => "FOR UPDATE",
        }
    }

    /// The same; if somebody else holds one of them, it fails at once. Not SKIP LOCKED, which TiDB reads
    /// over: it would lock nothing, and whoever writes then waits after all.
    pub(crate) fn for_update_at_once(self) -> &'static str {
        match self {
            Dialect::Sqlite => "",
            Dialect::Mysql => "FOR UPDATE NOWAIT",
        }
    }

    /// Behind a table: read it by this index and no other.
    pub(crate) fn by_index(self, name: &str) -> String {
        match self {
            Dialect::Sqlite => format!("INDEXED BY {name}"),
            Dialect::Mysql => format!("FORCE INDEX ({name})"),
        }
    }

    /// Behind a table: read it by its primary key, so that rows are locked in its order and no others are.
    pub(crate) fn by_primary_key(self) -> &'static str {
        match self {
            Dialect::Sqlite => "",
            Dialect::Mysql => "FORCE INDEX (PRIMARY)",
        }
    }

    /// Behind an INSERT: a row whose key is taken stays as it is, and does not count as written. MySQL
    /// wants a column to leave alone; its INSERT IGNORE would ignore a value that does not fit as well.
    pub(crate) fn keep(self, column: &str) -> String {
        match self {
            Dialect::Sqlite => "ON CONFLICT DO NOTHING".into(),
            Dialect::Mysql => format!("ON DUPLICATE KEY UPDATE {column} = {column}"),
        }
    }

    /// Behind an INSERT: a row of the same `key` takes these columns from the new one.
    pub(crate) fn replace(self, key: &str, columns: &[&str]) -> String {
        let taken: Vec<String> = match self {
            Dialect::Sqlite => columns.iter().map(|c| format!("{c} = excluded.{c}")).collect(),
            Dialect::Mysql => columns.iter().map(|c| format!("{c} = VALUES({c})")).collect(),
        };
        let taken = taken.join(", ");
        match self {
            Dialect::Sqlite => format!("ON CONFLICT ({key}) DO UPDATE SET {taken}"),
            Dialect::Mysql => format!("ON DUPLICATE KEY UPDATE {taken}"),
        }
    }

    /// Of an admin token that is not revoked: it has this secret. Each by its own unique index.
    pub(crate) fn has_live_secret(self) -> &'static str {
        match self {
            Dialect::Sqlite => "secret_hash = ? AND revoked_at IS NULL",
            Dialect::Mysql => "live_secret = ?",
        }
    }

    /// An expression for the time at the server, if there is one. Not by way of local time, which has
    /// one hour twice a year.
    pub(crate) fn server_clock(self) -> Option<&'static str> {
        match self {
            Dialect::Sqlite => None,
            Dialect::Mysql => {
                Some("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000")
            }
        }
    }

    /// A column of when a row was last changed, in ms.
    pub(crate) fn changed_ms(self) -> &'static str {
        match self {
            Dialect::Sqlite => "changed_at",
            Dialect::Mysql => "CAST(UNIX_TIMESTAMP(changed_at) * 1000 AS SIGNED)",
        }
    }

    /// The time by which rows are marked as changed, in ms.
    pub(crate) fn changing_clock(self) -> &'static str {
        match self {
            Dialect::Sqlite => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            Dialect::Mysql => "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
        }
    }

    /// Of a row: it was changed within this time. By the index.
    pub(crate) fn changed_within(self, ms: i64) -> String {
        match self {
            Dialect::Sqlite => format!("changed_at >= {} - {ms}", self.changing_clock()),
            Dialect::Mysql => {
                format!("changed_at >= NOW(3) - INTERVAL {} MICROSECOND", ms.saturating_mul(1_000))
            }
        }
    }
}
