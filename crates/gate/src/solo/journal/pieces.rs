//! Items in the file, piece by piece.
//!
//! An item with millions of buyers is too much for one row, and for one moment in which nobody else can
//! write. So its row in `item` has only its head (window, units, stock changes), and its buyers and
//! spent keys are in rows of `piece`, each of a bounded size. A *step* writes a few of those that
//! changed, in one commit.
//!
//! Between two steps buyers are served, so the rows of an item are not of one instant. Each row knows up
//! to which entry all are contained in it (`as_of`, for the head `head_as_of`), and a start applies the
//! later ones:
//!
//! - what an entry changes of a buyer, where that buyer's piece is older than the entry;
//! - what it changes of the head, where the head is older. Every step that writes a piece writes the
//!   head as well, so a head is never older than a piece, and an entry that it lacks is lacking
//!   everywhere.
//!
//! `item.as_of` is the entry that all pieces contain, and grows when every piece that had changed is
//! written. Only then are entries dropped. A crash at any point finds the old rows, the new ones, and
//! the entries for both.
//!
//! **An item that is not in pieces yet** (it is being loaded for the first time, or a release that knew
//! no pieces wrote it) has all of them written before its row says so. Its `generation`, a number by
//! chance, is in both: after a crash in the middle its pieces belong to nobody, and go as *leftovers*, a
//! few at a time.
//!
//! **A piece that was divided** leaves its row until all it became is written: rows are read in the
//! order of their bits, and what has more of them takes the place of what has fewer.

use std::collections::HashMap;

use rusqlite::{Connection, TransactionBehavior, params};
use sale::ItemId;

use super::{Journal, Result};
use crate::{
    mark::{Bytes, Garbled},
    solo::{
        item::{GateItem, InFile},
        piece::Piece,
        record,
        spent::List,
    },
};

pub(super) const SCHEMA: &str = "
    ALTER TABLE item ADD COLUMN head_as_of INTEGER;
    CREATE TABLE piece (
        item_id    INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        kind       INTEGER NOT NULL,
        bits       INTEGER NOT NULL,
        no         INTEGER NOT NULL,
        as_of      INTEGER NOT NULL,
        body       BLOB NOT NULL,
        PRIMARY KEY (item_id, generation, kind, bits, no)
    ) STRICT;
";

/// What `piece.kind` says: buyers, whose `no` is the suffix of their hashes; pages of the two lists of
/// spent keys.
const BUYERS: i64 = 0;
const KEYS: i64 = 1;
const SPENDERS: i64 = 2;

/// Rows that go in one step: a megabyte or so.
const DROPPED_PIECES_MAX: u32 = 8;

/// Pieces of no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::solo) struct Leftover {
    pub(in crate::solo) item: ItemId,
    pub(in crate::solo) generation: i64,
}

/// What a step writes of an item.
#[derive(Default)]
pub(in crate::solo) struct Step<'a> {
    /// Buyers, as they are now.
    pub(in crate::solo) pieces: Vec<&'a Piece>,
    /// Pages of spent keys.
    pub(in crate::solo) pages: Vec<(List, usize)>,
    /// Rows that were divided into others, all of which are written.
    pub(in crate::solo) divided: &'a [(u32, u8)],
    /// The head, and the entry that all pieces contain.
    pub(in crate::solo) head: Option<(&'a GateItem, u64)>,
}

/// Items as they lie in the file.
#[derive(Default)]
pub(super) struct Pieced {
    pub(super) items: HashMap<ItemId, GateItem>,
    pub(super) leftovers: Vec<Leftover>,
    /// The last entry that any row contains.
    pub(super) last_seq: u64,
}

impl Journal {
    /// Write one step of an item, which contains all entries up to `seq`. What is written anew need not
    /// wait for the disk: without it the entries are still there, and they go after it. What a load
    /// brings is nowhere else.
    pub(in crate::solo) fn put_step(
        &mut self,
        seq: u64,
        item: &GateItem,
        step: &Step<'_>,
        waits_for_disk: bool,
    ) -> Result<()> {
        let connection = if waits_for_disk { &mut self.durable } else { &mut self.relaxed };
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        put_step(&tx, seq, item, step)?;
        tx.commit()?;
        self.checkpoint_soon()
    }

    /// Drop a few rows that are of no item. Answers whether there are more.
    pub(in crate::solo) fn drop_leftover(&mut self, leftover: Leftover) -> Result<bool> {
        let dropped = self.relaxed.execute(
            "DELETE FROM piece WHERE rowid IN
                 (SELECT rowid FROM piece WHERE item_id = ? AND generation = ? LIMIT ?)",
            params![leftover.item.0, leftover.generation, DROPPED_PIECES_MAX],
        )?;
        self.checkpoint_soon()?;
        Ok(dropped == DROPPED_PIECES_MAX as usize)
    }
}

fn put_step(tx: &Connection, seq: u64, item: &GateItem, step: &Step<'_>) -> rusqlite::Result<()> {
    let generation = item.in_file.generation;
    let mut put = tx.prepare_cached("INSERT OR REPLACE INTO piece VALUES (?, ?, ?, ?, ?, ?, ?)")?;
    for piece in &step.pieces {
        let Piece { suffix, bits, .. } = piece;
        put.execute(params![item.item.0, generation, BUYERS, bits, suffix, seq, piece.encode()])?;
    }
    for page in &step.pages {
        let kind = if page.0 == List::Keys { KEYS } else { SPENDERS };
        let body = item.spent.encode(*page);
        put.execute(params![item.item.0, generation, kind, 0, page.1 as u64, seq, body])?;
    }
    let mut drop = tx.prepare_cached(
        "DELETE FROM piece WHERE item_id = ? AND generation = ? AND kind = ? AND bits = ? AND no = ?",
    )?;
    for (suffix, bits) in step.divided {
        drop.execute(params![item.item.0, generation, BUYERS, bits, suffix])?;
    }
    if let Some((head, as_of)) = step.head {
        let mut put = tx.prepare_cached(
            "INSERT OR REPLACE INTO item (item_id, as_of, body, head_as_of) VALUES (?, ?, ?, ?)",
        )?;
        let body = record::encode_head(head, generation);
        put.execute(params![item.item.0, as_of, body, seq])?;
    }
    Ok(())
}

/// All of an item.
pub(super) fn put_whole(tx: &Connection, seq: u64, item: &GateItem) -> rusqlite::Result<()> {
    let pieces = item.marks.pieces().iter().collect();
    let (pages, head) = (item.spent.pages(), Some((item, seq)));
    put_step(tx, seq, item, &Step { pieces, pages, head, ..Step::default() })
}

pub(super) fn read_items(connection: &Connection) -> Result<Pieced> {
    let mut read = Pieced::default();
    let mut heads = connection.prepare("SELECT item_id, as_of, body, head_as_of FROM item")?;
    let mut rows = heads.query([])?;
    while let Some(row) = rows.next()? {
        let (item, as_of) = (ItemId(row.get(0)?), row.get::<_, u64>(1)?);
        let body = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
        let state = match row.get::<_, Option<u64>>(3)? {
            Some(head_as_of) => {
                let mut state = record::decode_head(item, body)?;
                let InFile { generation, .. } = state.in_file;
                // Where the head is younger there may be entries that only some of the pieces contain.
                let version = if as_of == head_as_of { state.version } else { 0 };
                state.in_file = InFile { generation, as_of, head_as_of, has_row: true, version };
                state
            }
            None => {
                let mut state = record::decode_item(item, body)?;
                (state.in_file.as_of, state.in_file.head_as_of) = (as_of, as_of);
                state
            }
        };
        read.last_seq = read.last_seq.max(state.in_file.head_as_of);
        read.items.insert(item, state);
    }
    read_pieces(connection, &mut read)?;
    Ok(read)
}

/// In the order of the key: of one item and kind those of fewer bits come first, and pages in their order.
fn read_pieces(connection: &Connection, read: &mut Pieced) -> Result<()> {
    let mut pieces = connection.prepare(
        "SELECT item_id, generation, kind, bits, no, as_of, body FROM piece
         ORDER BY item_id, generation, kind, bits, no",
    )?;
    let mut rows = pieces.query([])?;
    while let Some(row) = rows.next()? {
        let (item, generation) = (ItemId(row.get(0)?), row.get(1)?);
        let state = read.items.get_mut(&item);
        let is_theirs =
            |state: &&mut GateItem| state.in_file.has_row && state.in_file.generation == generation;
        let Some(state) = state.filter(is_theirs) else {
            let leftover = Leftover { item, generation };
            if read.leftovers.last() != Some(&leftover) {
                read.leftovers.push(leftover);
            }
            continue;
        };
        let as_of = row.get(5)?;
        read.last_seq = read.last_seq.max(as_of);
        let body = row.get_ref(6)?.as_blob().map_err(rusqlite::Error::from)?;
        match row.get(2)? {
            BUYERS => {
                let mut piece = Piece::decode(row.get(4)?, row.get(3)?, body)?;
                piece.note_written(as_of);
                state.marks.restore(piece);
            }
            kind @ (KEYS | SPENDERS) => {
                let list = if kind == KEYS { List::Keys } else { List::Spenders };
                let mut from = Bytes(body);
                state.spent.restore(list, &mut from)?;
                from.end()?;
            }
            _ => return Err(Garbled("kind of piece").into()),
        }
    }
    Ok(())
}
