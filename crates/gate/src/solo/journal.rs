//! The solo journal: claim log and memory of the gate in one SQLite file.
//!
//! | table | holds |
//! |---|---|
//! | `item` | an item as it was when all entries up to `as_of` had been applied |
//! | `entry` | one change of one item: the winners of a batch, units given back, … |
//! | `cursor` | up to which entry the workers have put everything into the ledger |
//!
//! A batch is one row, not one row per claim: the cost of a durable promise is one commit, shared
//! by all who came together. The life of a batch:
//!
//! 1. appended and committed with `synchronous=FULL`, so it is on disk when the buyers hear of it.
//!    A crash before the commit: nobody heard. After: the restart applies it again.
//! 2. delivered to a worker from memory, settled in the ledger, acknowledged by moving `cursor`.
//!    A crash in between delivers it again, which the ledger makes a no-op. For that reason the
//!    cursor is written without waiting for the disk, on a second connection.
//! 3. kept until the item's row is written anew (after many entries, at a start or in a quiet
//!    moment) or the item leaves the gate, because until then a restart needs it to know who is
//!    marked.
//!
//! A write that fails is *unknown*: the caller asks again by reading what is there (`read_all`).

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, params};
use sale::{Epoch, ItemId};

use super::{
    record::{self, Record},
    shelf::Shelf,
};

const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str = "
    CREATE TABLE item (
        item_id INTEGER PRIMARY KEY,
        as_of   INTEGER NOT NULL,
        body    BLOB NOT NULL
    ) STRICT;
    CREATE TABLE entry (
        seq     INTEGER PRIMARY KEY,
        item_id INTEGER NOT NULL,
        kind    INTEGER NOT NULL,
        body    BLOB NOT NULL
    ) STRICT;
    CREATE TABLE cursor (
        one   INTEGER PRIMARY KEY CHECK (one = 1),
        acked INTEGER NOT NULL
    ) STRICT;
    INSERT INTO cursor VALUES (1, 0);
";

/// Nobody else should hold the file's lock; if somebody does (a backup, a curious shell), this is
/// how long a batch waits for it.
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{0} was written by a newer version of seckill (schema {1}, this one knows {SCHEMA_VERSION})"
    )]
    NewerSchema(PathBuf, i64),
    #[error("{0} cannot be opened: {1}")]
    Unusable(PathBuf, String),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum JournalError {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error(transparent)]
    Garbled(#[from] crate::mark::Garbled),
}

type Result<T> = std::result::Result<T, JournalError>;

pub(super) struct Journal {
    path: PathBuf,
    /// Commits are on disk when they return.
    durable: Connection,
    /// Commits may be lost in a power cut. For the cursor only.
    relaxed: Connection,
}

/// An entry as it lies in the journal.
pub(super) struct Stored {
    pub(super) seq: u64,
    pub(super) item: ItemId,
    pub(super) record: Record,
}

/// Everything in the journal.
pub(super) struct Contents {
    pub(super) shelves: Vec<Shelf>,
    /// Claims that are not acknowledged, oldest first.
    pub(super) unsettled: Vec<Stored>,
    pub(super) acked: u64,
    pub(super) last_seq: u64,
    /// Entries that were applied on top of the items' rows.
    pub(super) replayed: u64,
}

impl Journal {
    pub(super) fn open(path: &Path) -> std::result::Result<Journal, OpenError> {
        let unusable = |e: rusqlite::Error| OpenError::Unusable(path.into(), e.to_string());
        let durable = connect(path, "FULL").map_err(unusable)?;
        let version: i64 =
            durable.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(unusable)?;
        match version {
            0 => {
                let create = format!(
                    "BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"
                );
                durable.execute_batch(&create).map_err(unusable)?;
            }
            SCHEMA_VERSION => {}
            newer => return Err(OpenError::NewerSchema(path.into(), newer)),
        }
        let relaxed = connect(path, "NORMAL").map_err(unusable)?;
        Ok(Journal { path: path.into(), durable, relaxed })
    }

    /// After a failed write: fresh connections, so that nothing half-done lingers in them.
    pub(super) fn reopen(&mut self) -> std::result::Result<(), OpenError> {
        *self = Journal::open(&self.path)?;
        Ok(())
    }

    /// Append these changes in one commit. `seq` is the number of the first.
    pub(super) fn append(&mut self, seq: u64, records: &[(ItemId, &Record)]) -> Result<()> {
        let tx =
            self.durable.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut insert = tx.prepare_cached("INSERT INTO entry VALUES (?, ?, ?, ?)")?;
            for (n, (item, record)) in records.iter().enumerate() {
                insert.execute(params![seq + n as u64, item.0, record.kind(), record.encode()])?;
            }
        }
        Ok(tx.commit()?)
    }

    /// Write items anew, as of `as_of`.
    pub(super) fn put_items<'a>(
        &mut self,
        as_of: u64,
        shelves: impl IntoIterator<Item = &'a Shelf>,
    ) -> Result<()> {
        let tx =
            self.durable.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        for shelf in shelves {
            tx.prepare_cached("INSERT OR REPLACE INTO item VALUES (?, ?, ?)")?.execute(params![
                shelf.item.0,
                as_of,
                record::encode_shelf(shelf)
            ])?;
        }
        Ok(tx.commit()?)
    }

    pub(super) fn remove_item(&mut self, item: ItemId) -> Result<()> {
        self.durable.execute("DELETE FROM item WHERE item_id = ?", [item.0])?;
        Ok(())
    }

    pub(super) fn ack(&mut self, acked: u64) -> Result<()> {
        self.relaxed.prepare_cached("UPDATE cursor SET acked = ?")?.execute([acked])?;
        Ok(())
    }

    /// Drop entries that nobody needs: settled, and contained in an item's row or of no item.
    pub(super) fn trim(&mut self) -> Result<usize> {
        let trimmed = self.relaxed.execute(
            "DELETE FROM entry WHERE seq <= (SELECT acked FROM cursor)
             AND seq <= coalesce((SELECT as_of FROM item WHERE item.item_id = entry.item_id), seq)",
            [],
        )?;
        Ok(trimmed)
    }

    pub(super) fn read_all(&self) -> Result<Contents> {
        let acked: u64 =
            self.durable.query_row("SELECT acked FROM cursor", [], |row| row.get(0))?;
        let mut shelves = std::collections::HashMap::new();
        let mut items = self.durable.prepare("SELECT item_id, as_of, body FROM item")?;
        let mut rows = items.query([])?;
        while let Some(row) = rows.next()? {
            let item = ItemId(row.get(0)?);
            let body = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
            shelves.insert(item, (row.get::<_, u64>(1)?, record::decode_shelf(item, body)?));
        }
        let mut contents = Contents {
            shelves: Vec::new(),
            unsettled: Vec::new(),
            acked,
            last_seq: acked,
            replayed: 0,
        };
        let mut entries =
            self.durable.prepare("SELECT seq, item_id, kind, body FROM entry ORDER BY seq")?;
        let mut rows = entries.query([])?;
        while let Some(row) = rows.next()? {
            let (seq, item) = (row.get(0)?, ItemId(row.get(1)?));
            let body = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
            let record = Record::decode(row.get(2)?, item, body)?;
            contents.last_seq = contents.last_seq.max(seq);
            if let Some((as_of, shelf)) = shelves.get_mut(&item)
                && seq > *as_of
            {
                shelf.apply(&record);
                contents.replayed += 1;
            }
            if seq > acked && matches!(record, Record::Claims { .. }) {
                contents.unsettled.push(Stored { seq, item, record });
            }
        }
        let as_of = shelves.values().map(|(as_of, _)| *as_of).max().unwrap_or(0);
        contents.last_seq = contents.last_seq.max(as_of);
        contents.shelves = shelves.into_values().map(|(_, shelf)| shelf).collect();
        Ok(contents)
    }

    /// Can it be written? Takes and drops the write lock and looks at the schema.
    pub(super) fn probe(&mut self) -> Result<()> {
        let tx =
            self.durable.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.query_row("SELECT acked FROM cursor", [], |_| Ok(())).optional()?;
        Ok(tx.rollback()?)
    }
}

fn connect(path: &Path, synchronous: &str) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    // A checkpoint copies the WAL into the file and stalls one batch; 16 MiB apart they are rare.
    connection.pragma_update(None, "wal_autocheckpoint", 4_096)?;
    Ok(connection)
}

/// The epoch of the entry's claims, for the worker.
pub(super) fn epoch_of(record: &Record) -> Epoch {
    match record {
        Record::Claims { epoch, .. } => *epoch,
        _ => 0,
    }
}
