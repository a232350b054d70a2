//! A stream of claims, read page by page: what an entry looks like in Redis, and its id here.
//!
//! An id alone does not make an entry: a failover can roll a stream back, and the new primary gives its ids
//! again. So the id here has a hash of the entry's head, which `ack.lua` compares.

use std::collections::HashMap;

use redis::{RedisResult, Value, from_redis_value};
use sale::{EntryId, ItemId, LogEntry};

use super::{SCAN_ROWS, store::Store};
use crate::{
    Result,
    mark::{Bytes, Garbled, decode_claims},
};

/// The partition is kept in the upper bits of an entry's id: milliseconds need 48.
const PARTITION_SHIFT: u32 = 48;

/// Epoch, time, number of claims and the first order number: no two entries begin alike.
const HEAD_BYTES: usize = 32;

/// What a page of a stream says.
#[derive(Default)]
pub(super) struct Page {
    pub(super) entries: Vec<LogEntry>,
    /// The last row, readable or not.
    last: Option<EntryId>,
}

/// The next entries of the log behind this one, and the last of them, readable or not; `None` at its
/// end.
pub(super) async fn next_page(
    store: &Store,
    partition: usize,
    after: Option<EntryId>,
) -> Result<Option<(Vec<LogEntry>, EntryId)>> {
    let from = after.map_or_else(|| "-".to_owned(), |id| format!("({}", id_text(id)));
    let stream = store.keys.orders(partition);
    page_from(store, partition, &stream, (&from, "+"), SCAN_ROWS).await
}

/// At most so many entries of a stream of this partition, between the ends that `XRANGE` is told.
pub(super) async fn page_from(
    store: &Store,
    partition: usize,
    stream: &str,
    (from, to): (&str, &str),
    rows: usize,
) -> Result<Option<(Vec<LogEntry>, EntryId)>> {
    let mut range = redis::cmd("XRANGE");
    range.arg(stream).arg(from).arg(to).arg("COUNT").arg(rows);
    let page = read_rows(partition, store.ask(&range).await?);
    Ok(page.last.map(|last| (page.entries, last)))
}

/// Rows of `[id, [field, value, …]]`. One that cannot be read is left where it is, for a person to
/// look at, and holds up no others.
pub(super) fn read_rows(partition: usize, rows: Value) -> Page {
    let mut page = Page::default();
    let Value::Array(rows) = rows else { return page };
    for row in rows {
        let Value::Array(row) = row else { continue };
        let Ok([id, fields]) = <[Value; 2]>::try_from(row) else { continue };
        let Ok(id) = read_id(partition, id) else { continue };
        page.last = Some(id);
        // Deleted while it was pending.
        if fields == Value::Nil {
            continue;
        }
        match read_entry(id, fields) {
            Ok(entry) => page.entries.push(entry),
            Err(error) => tracing::error!(partition, entry = id_text(id), %error,
                "an entry of the claim log cannot be read and is left there"),
        }
    }
    page
}

fn read_id(partition: usize, id: Value) -> Result<EntryId> {
    let id: String = from_redis_value(id).map_err(|_| Garbled("id of a log entry"))?;
    entry_id(partition, &id)
}

fn read_entry(id: EntryId, fields: Value) -> Result<LogEntry> {
    let fields: RedisResult<HashMap<String, Vec<u8>>> =
        from_redis_value(fields).map_err(Into::into);
    let fields = fields?;
    let field = |name: &str| fields.get(name).ok_or(Garbled("log entry"));
    let item = std::str::from_utf8(field("i")?).ok().and_then(|text| text.parse().ok());
    let item: ItemId = item.ok_or(Garbled("item of a log entry"))?;
    let content = field("b")?;
    let (epoch, _, claims) = decode_claims(item, &mut Bytes(content))?;
    let id = EntryId { content: head_hash(content), ..id };
    Ok(LogEntry { id, item, epoch, claims })
}

fn entry_id(partition: usize, text: &str) -> Result<EntryId> {
    let parsed = text.split_once('-').and_then(|(ms, n)| Some((ms.parse().ok()?, n.parse().ok()?)));
    let (ms, n): (u64, u64) = parsed.ok_or(Garbled("id of a log entry"))?;
    Ok(EntryId::at((partition as u64) << PARTITION_SHIFT | ms, n))
}

/// As Redis writes it.
pub(super) fn id_text(id: EntryId) -> String {
    format!("{}-{}", id.place.0 & ((1 << PARTITION_SHIFT) - 1), id.place.1)
}

pub(super) fn partition_of(id: EntryId) -> usize {
    (id.place.0 >> PARTITION_SHIFT) as usize
}

fn head_hash(content: &[u8]) -> u64 {
    let head = &content[..content.len().min(HEAD_BYTES)];
    let [a, b, c, d, e, f, g, h, ..] = sha1_smol::Sha1::from(head).digest().bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// As `ack.lua` compares it.
pub(super) fn content_text(id: EntryId) -> String {
    format!("{:016x}", id.content)
}
