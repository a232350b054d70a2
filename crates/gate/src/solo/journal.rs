//! The solo journal: claim log and memory of the gate in one SQLite file.
//!
//! | table | holds |
//! |---|---|
//! | `item` | an item without its buyers, as it was when all entries up to `head_as_of` had been applied |
//! | `piece` | some of an item's buyers, or of its spent keys ([`pieces`]) |
//! | `entry` | one change of one item: the winners of a batch, units given back, … |
//! | `cursor` | up to which entry the workers have put everything into the ledger |
//! | `settled` | entries beyond the cursor that are in the ledger all the same |
//! | `kept` | up to which entry all are settled and in the items' rows, and how much of them is kept |
//!
//! A batch is one row, not one row per claim: the cost of a durable promise is one commit, shared
//! by all who came together. The life of a batch:
//!
//! 1. appended and committed with `synchronous=FULL`, so it is on disk when the buyers hear of it.
//!    A crash before the commit: nobody heard. After: the restart applies it again.
//! 2. delivered to a worker from memory, settled in the ledger, acknowledged by moving `cursor`, or
//!    by a row in `settled` while an older entry is still owed. A crash in between delivers it again,
//!    which the ledger makes a no-op. For that reason both are written without waiting for the disk,
//!    on a second connection.
//! 3. kept until what it changed of the item is written anew (after many entries, at a start or in a
//!    quiet moment) or the item leaves the gate, because until then a restart needs it to know who is
//!    marked. `item.as_of` says up to which entry that is so.
//! 4. kept for those who look back, as long and as much as is set, and by nobody else read again ([`kept`]).
//!
//! **A write that fails.** The gate knows everything the journal should hold: it undoes in memory what
//! was not written, and nothing is read back. If the write was refused (no room, a lock), the journal
//! goes on where it was as soon as it can be written. After an I/O error it is not known what of the
//! file is on the disk, nor whether the failed commit is in it ([`sqlite_file`] says why). Then the
//! connections are closed without a further write, the file is [secured](sqlite_file::secure), and its
//! contents are written anew from memory in one commit ([`Journal::replace`]); what was kept for those who
//! look back is not in memory, and is given up. A crash meanwhile finds
//! the old contents, with or without the commit that failed; nobody was told that it succeeded, nor
//! that it never will.

pub(super) mod kept;
pub(super) mod pieces;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use rusqlite::{Connection, params};
use sale::ItemId;

use self::pieces::{Leftover, Pieced};
use super::{item::GateItem, record::Record};

/// What was written before there were pieces is read as it is, and written anew in pieces like anything else.
const WHOLE_ITEMS_VERSION: i64 = 1;
const SCHEMA_VERSION: i64 = 2;
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
/// Added later. A binary that does not know it delivers these entries again, which does no harm, so
/// the version of the schema stays.
const SETTLED_TABLE: &str = "CREATE TABLE IF NOT EXISTS settled (seq INTEGER PRIMARY KEY) STRICT";

/// Nobody else should hold the file's lock; if somebody does (a backup, a curious shell), this is
/// how long a batch waits for it.
const BUSY_TIMEOUT: Duration = Duration::from_millis(250);

/// A durable commit shows for so long that the journal can be written; then a probe writes again. An
/// idle server thus syncs six times a minute.
const PROVED_FOR: Duration = Duration::from_secs(10);

/// A checkpoint copies the WAL into the file and stalls one batch; 16 MiB apart they are rare.
const WAL_PAGES_MAX: u32 = 4_096;
/// While an item is written piece by piece they come as often as a stall is to be short: 2 MiB.
const STEP_WAL_PAGES_MAX: u32 = 512;

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
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is being mended.
    #[error("the journal cannot be written")]
    Away,
}

impl JournalError {
    /// Is it unknown what of the file is on the disk?
    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(self, JournalError::Sql(error) if sqlite_file::is_in_doubt(error))
    }
}

type Result<T> = std::result::Result<T, JournalError>;

pub(super) struct Journal {
    path: PathBuf,
    /// Commits are on disk when they return.
    durable: Connection,
    /// Commits may be lost in a power cut. For what is acknowledged, and for dropping it.
    relaxed: Connection,
    length: sqlite_file::Length,
    /// Are there rows in `settled`?
    settled_beyond: bool,
    /// When a durable commit last succeeded on these connections.
    written: Option<Instant>,
}

/// What is in the ledger.
#[derive(Debug, Default)]
pub(super) struct Acked {
    /// Everything up to here.
    pub(super) cursor: u64,
    /// These, too, although something older is not.
    pub(super) beyond: Vec<u64>,
}

/// An entry as it lies in the journal.
pub(super) struct Stored {
    pub(super) seq: u64,
    pub(super) item: ItemId,
    pub(super) record: Record,
}

/// Everything in the journal that a start needs.
pub(super) struct Contents {
    pub(super) items: Vec<GateItem>,
    /// Claims that are not acknowledged, oldest first.
    pub(super) unsettled: Vec<Stored>,
    pub(super) acked: u64,
    pub(super) last_seq: u64,
    /// Entries that were applied on top of the items' rows.
    pub(super) replayed: u64,
    /// Pieces of no item.
    pub(super) leftovers: Vec<Leftover>,
}

impl Journal {
    /// Open the file at a start.
    pub(super) fn open(path: &Path) -> std::result::Result<Journal, OpenError> {
        let secured = sqlite_file::secure_unless_open(path)
            .map_err(|e| OpenError::Unusable(path.into(), e.to_string()))?;
        if !secured {
            tracing::warn!(path = %path.display(), "another program has the journal open");
        }
        Journal::connect(path)
    }

    /// Open it again after an I/O error. Nobody else may have it open.
    pub(super) fn reopen(path: &Path) -> std::result::Result<Journal, OpenError> {
        let secured = sqlite_file::secure(path);
        secured.map_err(|e| OpenError::Unusable(path.into(), e.to_string()))?;
        Journal::connect(path)
    }

    fn connect(path: &Path) -> std::result::Result<Journal, OpenError> {
        let unusable = |e: &dyn std::fmt::Display| OpenError::Unusable(path.into(), e.to_string());
        let length = sqlite_file::Length::new(WAL_PAGES_MAX);
        let durable = connect(path, "FULL", &length).map_err(|e| unusable(&e))?;
        prepare(&durable, path)?;
        let relaxed = connect(path, "NORMAL", &length).map_err(|e| unusable(&e))?;
        let settled_beyond = any_settled(&relaxed).map_err(|e| unusable(&e))?;
        sqlite_file::sync_names(path).map_err(|e| unusable(&e))?;
        Ok(Journal { path: path.into(), durable, relaxed, length, settled_beyond, written: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Is no transaction left open by a failure?
    pub(super) fn is_idle(&self) -> bool {
        self.durable.is_autocommit() && self.relaxed.is_autocommit()
    }

    /// Close the file and touch it no more. Answers where it is.
    pub(super) fn close_untouched(self) -> PathBuf {
        sqlite_file::leave_untouched_on_close(&self.relaxed);
        sqlite_file::leave_untouched_on_close(&self.durable);
        self.path
    }

    /// Append these changes in one commit. `seq` is the number of the first.
    pub(super) fn append(&mut self, seq: u64, records: &[(ItemId, &Record)]) -> Result<()> {
        let tx =
            self.durable.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        put_entries(&tx, (seq..).zip(records).map(|(seq, (item, record))| (seq, *item, *record)))?;
        tx.commit()?;
        self.written = Some(Instant::now());
        Ok(())
    }

    pub(super) fn remove_item(&mut self, item: ItemId) -> Result<()> {
        self.durable.execute("DELETE FROM item WHERE item_id = ?", [item.0])?;
        Ok(())
    }

    pub(super) fn ack(&mut self, acked: &Acked) -> Result<()> {
        if acked.beyond.is_empty() && !self.settled_beyond {
            let mut update = self.relaxed.prepare_cached(MOVE_CURSOR)?;
            update.execute([acked.cursor])?;
        } else {
            self.ack_beyond(acked)?;
        }
        self.checkpoint()
    }

    fn ack_beyond(&mut self, acked: &Acked) -> Result<()> {
        let tx = self.relaxed.transaction()?;
        tx.prepare_cached(MOVE_CURSOR)?.execute([acked.cursor])?;
        {
            // Only of entries that are there: a number without one may be given again.
            let mut insert = tx.prepare_cached(
                "INSERT OR IGNORE INTO settled SELECT seq FROM entry WHERE seq = ?",
            )?;
            for seq in &acked.beyond {
                insert.execute([seq])?;
            }
        }
        tx.execute("DELETE FROM settled WHERE seq <= ?", [acked.cursor])?;
        let settled_beyond = any_settled(&tx)?;
        tx.commit()?;
        self.settled_beyond = settled_beyond;
        Ok(())
    }

    /// Write everything anew, in one commit: these items as of `as_of`, and of the entries only what
    /// is owed to the ledger.
    pub(super) fn replace<'a>(
        &mut self,
        as_of: u64,
        items: impl IntoIterator<Item = &'a RwLock<GateItem>>,
        owed: &[Stored],
    ) -> Result<()> {
        let tx =
            self.durable.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        tx.execute_batch(
            "DELETE FROM item; DELETE FROM piece; DELETE FROM entry; DELETE FROM settled;
             UPDATE kept SET upto = 0, bytes = 0",
        )?;
        for item in items {
            pieces::put_whole(&tx, as_of, &item.read())?;
        }
        put_entries(&tx, owed.iter().map(|Stored { seq, item, record }| (*seq, *item, record)))?;
        let acked = owed.first().map_or(as_of, |oldest| oldest.seq - 1);
        tx.prepare_cached(MOVE_CURSOR)?.execute([acked])?;
        tx.commit()?;
        self.settled_beyond = false;
        self.checkpoint()
    }

    /// Move the WAL into the file if it has grown long.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        Ok(self.length.check(&self.durable)?)
    }

    /// The same after one of many steps, when it is worth it sooner.
    fn checkpoint_soon(&mut self) -> Result<()> {
        Ok(self.length.check_at(&self.durable, STEP_WAL_PAGES_MAX)?)
    }

    pub(super) fn read_all(&self) -> Result<Contents> {
        let acked: u64 =
            self.durable.query_row("SELECT acked FROM cursor", [], |row| row.get(0))?;
        let Pieced { mut items, leftovers, last_seq } = pieces::read_items(&self.durable)?;
        let settled: HashSet<u64> = self
            .durable
            .prepare("SELECT seq FROM settled")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let kept_upto = Journal::kept_upto(&self.durable)?;
        let mut contents = Contents {
            items: Vec::new(),
            unsettled: Vec::new(),
            acked,
            last_seq: acked.max(kept_upto).max(last_seq),
            replayed: 0,
            leftovers,
        };
        let mut entries = self
            .durable
            .prepare("SELECT seq, item_id, kind, body FROM entry WHERE seq > ? ORDER BY seq")?;
        let mut rows = entries.query([kept_upto])?;
        while let Some(row) = rows.next()? {
            let (seq, item) = (row.get(0)?, ItemId(row.get(1)?));
            let body = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
            let record = Record::decode(row.get(2)?, item, body)?;
            contents.last_seq = contents.last_seq.max(seq);
            if items.get_mut(&item).is_some_and(|state| state.replay(seq, &record)) {
                contents.replayed += 1;
            }
            let owed = seq > acked && !settled.contains(&seq);
            if owed && matches!(record, Record::Claims { .. }) {
                contents.unsettled.push(Stored { seq, item, record });
            }
        }
        contents.items = items.into_values().collect();
        Ok(contents)
    }

    /// Can it be written? Taking the lock is not enough to know: a full disk gives locks to everybody.
    /// So a row is written over with itself and synced, unless a commit has just shown that it works.
    pub(super) fn probe(&mut self) -> Result<()> {
        let tx =
            self.durable.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        if self.written.is_some_and(|written| written.elapsed() < PROVED_FOR) {
            return Ok(tx.rollback()?);
        }
        tx.prepare_cached("UPDATE cursor SET acked = acked")?.execute([])?;
        tx.commit()?;
        self.written = Some(Instant::now());
        Ok(())
    }

    /// Can it be written, now that it could not? A commit that waits for the disk tells.
    pub(super) fn try_again(&mut self) -> Result<()> {
        Ok(self.durable.execute_batch("UPDATE cursor SET acked = acked")?)
    }
}

const MOVE_CURSOR: &str = "UPDATE cursor SET acked = ?";

fn put_entries<'r>(
    tx: &Connection,
    entries: impl IntoIterator<Item = (u64, ItemId, &'r Record)>,
) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached("INSERT INTO entry VALUES (?, ?, ?, ?)")?;
    for (seq, item, record) in entries {
        insert.execute(params![seq, item.0, record.kind(), record.encode()])?;
    }
    Ok(())
}

fn any_settled(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM settled)", [], |row| row.get(0))
}

/// Make the tables if they are missing; refuse those of a newer version.
fn prepare(connection: &Connection, path: &Path) -> std::result::Result<(), OpenError> {
    let unusable = |e: rusqlite::Error| OpenError::Unusable(path.into(), e.to_string());
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(unusable)?;
    match version {
        0 | WHOLE_ITEMS_VERSION => {
            let tables = if version == 0 { SCHEMA } else { "" };
            let create = format!(
                "BEGIN IMMEDIATE; {tables} {} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT",
                pieces::SCHEMA
            );
            connection.execute_batch(&create).map_err(unusable)?;
        }
        SCHEMA_VERSION => {}
        newer => return Err(OpenError::NewerSchema(path.into(), newer)),
    }
    connection.execute_batch(SETTLED_TABLE).map_err(unusable)?;
    connection.execute_batch(kept::KEPT_TABLE).map_err(unusable)?;
    Journal::find_kept(connection).map_err(unusable)
}

fn connect(
    path: &Path,
    synchronous: &str,
    length: &sqlite_file::Length,
) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    sqlite_file::use_wal(&connection)?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    length.watch(&mut connection)?;
    Ok(connection)
}
