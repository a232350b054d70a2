//! What the journal keeps although nobody needs it any more, for those who look back: the *tail*.
//!
//! Up to `kept.upto` every entry is of claims that are settled, and that the items' rows contain. A start
//! reads only what comes after it. They are not moved anywhere: keeping them costs no write, and what is
//! kept goes in small steps, the oldest first, when it is too old or too much ([`Journal::drop_kept`]).
//! `kept.bytes` says how much it is, so that nobody has to look through it; both are changed in the
//! transaction that changes what they speak of. These transactions need not survive a power cut: with one of
//! them all later ones are gone as well, and the row is right again.

use rusqlite::{Connection, OptionalExtension, params};
use sale::{Claim, ItemId, Millis};

use super::{Journal, Result, any_settled};
use crate::{
    Keep,
    kept::head_of,
    solo::record::{CLAIMS_KIND, Record},
};

pub(super) const KEPT_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS kept (
        one   INTEGER PRIMARY KEY CHECK (one = 1),
        upto  INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    ) STRICT;
    INSERT OR IGNORE INTO kept VALUES (1, 0, 0);
";

/// What an entry takes beside its claims, roughly.
const ENTRY_BYTES: u64 = 32;
/// Entries that go in one step, while everybody who wants to buy waits.
const DROPPED_ENTRIES_MAX: u64 = 2_000;
/// Entries that are looked at in one step of trimming.
const TRIMMED_ENTRIES_MAX: u64 = 2_000;
/// What one page of looking back reads at most: entries, bytes, and claims that are wanted.
const PAGE_ENTRIES_MAX: usize = 4_000;
const PAGE_BYTES_MAX: usize = 2 << 20;
const PAGE_CLAIMS_MAX: u64 = 1_000;

/// Of an entry: its claims are in the ledger.
const SETTLED: &str = "(seq <= (SELECT acked FROM cursor) OR seq IN (SELECT seq FROM settled))";
/// Of an entry: it is contained in the item's row, or of no item.
const IN_ITEMS: &str =
    "seq <= coalesce((SELECT as_of FROM item WHERE item.item_id = entry.item_id), seq)";

/// A piece of the journal, read from its oldest end on.
pub(in crate::solo) struct Piece {
    /// Batches of claims as they were written, made at the wanted time or later.
    pub(in crate::solo) batches: Vec<(u64, ItemId, Vec<u8>)>,
    /// The last entry that was looked at, if there may be more.
    pub(in crate::solo) more_after: Option<u64>,
}

/// How far the entries have been trimmed.
#[derive(Clone, Copy, Default)]
pub(in crate::solo) struct Trim {
    /// The last entry that was looked at.
    after: u64,
    /// Bytes of claims that nobody needs, behind an entry that somebody does.
    between_bytes: u64,
    /// They are too many, and go.
    drops_between: bool,
    /// Entries that went, or became a part of the tail.
    pub(in crate::solo) trimmed: usize,
}

impl Trim {
    /// Behind an entry that is needed there may be others that are not. They are kept as well, but what
    /// is not counted must not become more than what is kept at all: then all entries are gone through
    /// once more.
    fn begins_again(&mut self, keep: Keep) -> bool {
        let again =
            !keep.is_nothing() && !self.drops_between && self.between_bytes > keep.bytes_max;
        if again {
            (self.after, self.drops_between) = (0, true);
        }
        again
    }
}

impl Journal {
    /// After a binary that knows no tail has dropped it, there is none.
    pub(super) fn find_kept(connection: &Connection) -> rusqlite::Result<()> {
        connection.execute(
            "UPDATE kept SET bytes = 0
             WHERE bytes <> 0 AND NOT EXISTS (SELECT 1 FROM entry WHERE seq <= kept.upto)",
            [],
        )?;
        Ok(())
    }

    /// Up to which entry a start needs none.
    pub(super) fn kept_upto(connection: &Connection) -> rusqlite::Result<u64> {
        connection.query_row("SELECT upto FROM kept", [], |row| row.get(0))
    }

    /// Entries that nobody needs any more are no longer read at a start: changes that the items' rows
    /// contain are dropped, settled claims become a part of the tail, if one is kept. One step looks at
    /// so many entries. Answers whether there are more to look at.
    pub(in crate::solo) fn trim_step(&mut self, trim: &mut Trim, keep: Keep) -> Result<bool> {
        let tx = self.relaxed.transaction()?;
        let kept_upto = Journal::kept_upto(&tx)?;
        trim.after = trim.after.max(kept_upto);
        let until: Option<u64> = tx.query_row(
            "SELECT max(seq) FROM (SELECT seq FROM entry WHERE seq > ? ORDER BY seq LIMIT ?)",
            params![trim.after, TRIMMED_ENTRIES_MAX],
            |row| row.get(0),
        )?;
        let Some(until) = until else {
            if trim.begins_again(keep) {
                return Ok(true);
            }
            forget_settled(&tx)?;
            let settled_beyond = any_settled(&tx)?;
            tx.commit()?;
            self.settled_beyond = settled_beyond;
            self.checkpoint()?;
            return Ok(false);
        };
        trim.trimmed += if keep.is_nothing() {
            drop_all(&tx, trim.after, until)?
        } else if trim.drops_between {
            drop_between(&tx, trim.after, until)?
        } else {
            add_to_tail(&tx, kept_upto, until, trim)?
        };
        tx.commit()?;
        trim.after = until;
        self.checkpoint_soon()?;
        Ok(true)
    }

    /// One step of dropping what is too old or too much. Answers whether there may be more to drop.
    pub(in crate::solo) fn drop_kept(&mut self, keep: Keep, now_ms: Millis) -> Result<bool> {
        let tx = self.relaxed.transaction()?;
        let (upto, mut bytes): (u64, u64) =
            tx.query_row("SELECT upto, bytes FROM kept", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let since_ms = keep.since_ms(now_ms);
        let (mut last, mut entries) = (None, 0);
        {
            // A batch is read no further than to its head, but for those that go.
            let mut oldest = tx.prepare_cached(
                "SELECT seq, length(body), substr(body, 1, 24) FROM entry
                 WHERE seq <= ? ORDER BY seq LIMIT ?",
            )?;
            let mut rows = oldest.query([upto, DROPPED_ENTRIES_MAX])?;
            while let Some(row) = rows.next()? {
                let head = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
                // What cannot be read is of no use to anybody.
                let is_young = head_of(head).is_ok_and(|(made_ms, _)| made_ms >= since_ms);
                if is_young && !keep.is_nothing() && bytes <= keep.bytes_max {
                    break;
                }
                last = Some(row.get::<_, u64>(0)?);
                bytes = bytes.saturating_sub(row.get::<_, u64>(1)? + ENTRY_BYTES);
                entries += 1;
            }
        }
        let Some(last) = last else { return Ok(false) };
        tx.execute("DELETE FROM entry WHERE seq <= ?", [last])?;
        tx.execute("UPDATE kept SET bytes = ?", [bytes])?;
        tx.commit()?;
        self.checkpoint()?;
        Ok(entries == DROPPED_ENTRIES_MAX)
    }

    /// The next claims after this entry that were made at `since_ms` or later.
    pub(in crate::solo) fn piece_after(&self, after: u64, since_ms: Millis) -> Result<Piece> {
        let mut entries = self.durable.prepare_cached(
            "SELECT seq, item_id, kind, body FROM entry WHERE seq > ? ORDER BY seq",
        )?;
        let mut rows = entries.query([after])?;
        let mut piece = Piece { batches: Vec::new(), more_after: None };
        let (mut looked, mut bytes, mut claims) = (0, 0, 0);
        while let Some(row) = rows.next()? {
            let seq: u64 = row.get(0)?;
            let body = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
            looked += 1;
            bytes += body.len();
            if row.get::<_, i64>(2)? == CLAIMS_KIND {
                let (made_ms, count) = head_of(body)?;
                if made_ms >= since_ms {
                    claims += count;
                    piece.batches.push((seq, ItemId(row.get(1)?), body.to_vec()));
                }
            }
            if looked >= PAGE_ENTRIES_MAX || bytes >= PAGE_BYTES_MAX || claims >= PAGE_CLAIMS_MAX {
                piece.more_after = Some(seq);
                break;
            }
        }
        Ok(piece)
    }
}

/// What is not on the log any more need not be known as settled.
fn forget_settled(tx: &Connection) -> Result<usize> {
    Ok(tx.execute(
        "DELETE FROM settled WHERE seq NOT IN
             (SELECT seq FROM entry WHERE seq > (SELECT upto FROM kept))",
        [],
    )?)
}

/// Drop what nobody needs and is not in the tail.
fn drop_all(tx: &Connection, after: u64, until: u64) -> Result<usize> {
    let mut drop = tx.prepare_cached(&format!(
        "DELETE FROM entry WHERE seq > ? AND seq <= ? AND (kind <> ? OR {SETTLED}) AND {IN_ITEMS}"
    ))?;
    Ok(drop.execute(params![after, until, CLAIMS_KIND])?)
}

fn add_to_tail(tx: &Connection, upto: u64, until: u64, trim: &mut Trim) -> Result<usize> {
    let after = trim.after;
    let mut drop = tx.prepare_cached(&format!(
        "DELETE FROM entry WHERE seq > ? AND seq <= ? AND kind <> ? AND {IN_ITEMS}"
    ))?;
    let dropped = drop.execute(params![after, until, CLAIMS_KIND])?;
    let unneeded = format!("kind = ? AND {SETTLED} AND {IN_ITEMS}");
    // Behind an entry that is needed the tail does not go on.
    if after > upto {
        trim.between_bytes += bytes_of(tx, &unneeded, after, until)?;
        return Ok(dropped);
    }
    let mut first_needed = tx.prepare_cached(&format!(
        "SELECT seq FROM entry WHERE seq > ? AND seq <= ? AND NOT ({unneeded}) ORDER BY seq LIMIT 1"
    ))?;
    let needed: Option<u64> =
        first_needed.query_row(params![after, until, CLAIMS_KIND], |row| row.get(0)).optional()?;
    let now_upto = needed.map_or(until, |needed| needed - 1).max(upto);
    let (entries, bytes): (u64, u64) = tx.query_row(
        "SELECT count(*), coalesce(sum(length(body)), 0) FROM entry WHERE seq > ? AND seq <= ?",
        [upto, now_upto],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    tx.execute(
        "UPDATE kept SET upto = ?, bytes = bytes + ?",
        [now_upto, bytes + entries * ENTRY_BYTES],
    )?;
    trim.between_bytes += bytes_of(tx, &unneeded, now_upto, until)?;
    Ok(dropped + entries as usize)
}

fn bytes_of(tx: &Connection, which: &str, after: u64, until: u64) -> Result<u64> {
    let mut sum = tx.prepare_cached(&format!(
        "SELECT coalesce(sum(length(body)), 0) FROM entry WHERE seq > ? AND seq <= ? AND {which}"
    ))?;
    Ok(sum.query_row(params![after, until, CLAIMS_KIND], |row| row.get(0))?)
}

fn drop_between(tx: &Connection, after: u64, until: u64) -> Result<usize> {
    let mut drop = tx.prepare_cached(&format!(
        "DELETE FROM entry WHERE seq > ? AND seq <= ? AND kind = ? AND {SETTLED} AND {IN_ITEMS}"
    ))?;
    Ok(drop.execute(params![after, until, CLAIMS_KIND])?)
}

/// The claims of a batch as it was written.
pub(in crate::solo) fn claims_of(item: ItemId, batch: &[u8]) -> Result<Vec<Claim>> {
    match Record::decode(CLAIMS_KIND, item, batch)? {
        Record::Claims { claims, .. } => Ok(claims),
        _ => Ok(Vec::new()),
    }
}
