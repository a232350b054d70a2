//! The claim log on Redis Streams: one stream per partition, one consumer group, one consumer per
//! process.
//!
//! A task per partition reads its stream with a blocking read on a connection of its own (a blocking
//! read holds up everything else on its connection) and takes over what a silent consumer has left
//! pending. What it read waits in a small queue for `take`. Acknowledging removes the entry from the
//! group and from the stream in one step, so the stream holds exactly what the ledger does not have.
//!
//! A worker that dies leaves its entries pending; after `takeover_ms` another one takes them over.
//! A worker that only slept and wakes up settles them again, which the ledger makes a no-op, and
//! acknowledges them again, which removes nothing twice.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redis::{RedisResult, Value, from_redis_value};
use sale::{Claim, EntryId, ItemId, LogEntry, LogError};
use tokio::sync::{Notify, mpsc};

use super::{
    Inner,
    link::{Call, Link},
    scripts,
};
use crate::{
    GateError, Result,
    mark::{Bytes, Garbled, decode_claims},
};

const GROUP: &str = "workers";
/// How long a read waits for something to come.
const BLOCK_MS: u64 = 1_000;
/// A blocking read is answered within this, or the connection is dead.
const BLOCKED_ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Entries in one read.
const READ_ENTRIES: usize = 64;
/// Entries that wait for `take`, per process.
const WAITING_MAX: usize = 256;
/// After a failure, how long before the next try.
const PAUSE: Duration = Duration::from_millis(200);
/// The partition is kept in the upper bits of an entry's id: milliseconds need 48.
const PARTITION_SHIFT: u32 = 48;

pub(super) struct Streams {
    queue: tokio::sync::Mutex<Option<mpsc::Receiver<LogEntry>>>,
    returned: Mutex<VecDeque<LogEntry>>,
    came_back: Notify,
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams {
            queue: tokio::sync::Mutex::new(None),
            returned: Mutex::default(),
            came_back: Notify::new(),
        }
    }

    pub(super) fn give_back(&self, entries: Vec<LogEntry>) {
        let mut returned = self.returned.lock();
        for entry in entries.into_iter().rev() {
            returned.push_front(entry);
        }
        drop(returned);
        self.came_back.notify_one();
    }
}

/// The next entries. The first call starts the readers: only a worker ever calls it.
pub(super) async fn take(
    inner: &Arc<Inner>,
    claims_max: usize,
) -> std::result::Result<Vec<LogEntry>, LogError> {
    let streams = &inner.log;
    let mut queue = streams.queue.lock().await;
    let queue = queue.get_or_insert_with(|| start(inner));
    loop {
        let mut taken: Vec<LogEntry> = Vec::new();
        let mut claims = 0;
        while claims < claims_max {
            let next = streams.returned.lock().pop_front().or_else(|| queue.try_recv().ok());
            let Some(entry) = next else { break };
            claims += entry.claims.len();
            taken.push(entry);
        }
        if !taken.is_empty() {
            return Ok(taken);
        }
        tokio::select! {
            entry = queue.recv() => match entry {
                Some(entry) => streams.returned.lock().push_back(entry),
                None => return Err(LogError("the readers have ended".into())),
            },
            () = streams.came_back.notified() => {}
        }
    }
}

fn start(inner: &Arc<Inner>) -> mpsc::Receiver<LogEntry> {
    let (sender, queue) = mpsc::channel(WAITING_MAX);
    for partition in 0..inner.options.partitions {
        let reader = Reader { inner: inner.clone(), partition, sender: sender.clone() };
        tokio::spawn(reader.run());
    }
    queue
}

/// Reads one partition until nobody listens any more.
struct Reader {
    inner: Arc<Inner>,
    partition: usize,
    sender: mpsc::Sender<LogEntry>,
}

impl Reader {
    async fn run(self) {
        let mut link = None;
        while !self.sender.is_closed() {
            let done = self.round(&mut link).await;
            if let Err(error) = done {
                tracing::debug!(partition = self.partition, %error, "the claim log does not answer");
                link = None;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn round(&self, link: &mut Option<Link>) -> Result<()> {
        if link.is_none() {
            let opened = Link::open_alone(&self.inner.options.urls, BLOCKED_ANSWER_WITHIN).await?;
            self.make_group(&opened).await?;
            *link = Some(opened);
        }
        let Some(link) = link else { return Ok(()) };
        for entry in self.take_over(link).await? {
            self.pass_on(entry).await;
        }
        for entry in self.read(link).await? {
            self.pass_on(entry).await;
        }
        Ok(())
    }

    async fn pass_on(&self, entry: LogEntry) {
        // Nobody listens when the process stops; another one takes the entry over.
        let _ = self.sender.send(entry).await;
    }

    /// From the beginning: what was logged before there was a group counts, too.
    async fn make_group(&self, link: &Link) -> Result<()> {
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(self.stream()).arg(GROUP).arg("0").arg("MKSTREAM");
        match link.ask::<()>(&create).await {
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
            other => Ok(other?),
        }
    }

    fn stream(&self) -> String {
        self.inner.keys.orders(self.partition)
    }

    async fn read(&self, link: &Link) -> Result<Vec<LogEntry>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(&self.inner.options.consumer);
        read.arg("COUNT").arg(READ_ENTRIES).arg("BLOCK").arg(BLOCK_MS);
        read.arg("STREAMS").arg(self.stream()).arg(">");
        let reply: Value = link.ask(&read).await?;
        // Nothing, or one stream: a pair of its name and its entries.
        let rows = match reply {
            Value::Array(streams) => match streams.into_iter().next() {
                Some(Value::Array(mut pair)) if pair.len() == 2 => pair.remove(1),
                _ => Value::Array(Vec::new()),
            },
            _ => Value::Array(Vec::new()),
        };
        self.entries(rows)
    }

    async fn take_over(&self, link: &Link) -> Result<Vec<LogEntry>> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim.arg(self.stream()).arg(GROUP).arg(&self.inner.options.consumer);
        claim.arg(self.inner.options.takeover_ms).arg("0").arg("COUNT").arg(READ_ENTRIES);
        let reply: Vec<Value> = link.ask(&claim).await?;
        self.entries(reply.into_iter().nth(1).unwrap_or(Value::Array(Vec::new())))
    }

    fn entries(&self, rows: Value) -> Result<Vec<LogEntry>> {
        parse_entries(self.partition, rows)
    }
}

/// Rows of `[id, [field, value, …]]`.
fn parse_entries(partition: usize, rows: Value) -> Result<Vec<LogEntry>> {
    let Value::Array(rows) = rows else { return Ok(Vec::new()) };
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Array(mut row) = row else { continue };
        if row.len() != 2 {
            continue;
        }
        let fields: RedisResult<HashMap<String, Vec<u8>>> =
            from_redis_value(row.remove(1)).map_err(Into::into);
        let id: String = from_redis_value(row.remove(0)).map_err(|e| GateError(e.to_string()))?;
        let fields = fields?;
        let field = |name: &str| fields.get(name).ok_or(Garbled("log entry"));
        let item = std::str::from_utf8(field("i")?).ok().and_then(|text| text.parse().ok());
        let item: ItemId = item.ok_or(Garbled("item of a log entry"))?;
        let (epoch, _, claims) = decode_claims(item, &mut Bytes(field("b")?))?;
        entries.push(LogEntry { id: entry_id(partition, &id)?, item, epoch, claims });
    }
    Ok(entries)
}

fn entry_id(partition: usize, text: &str) -> Result<EntryId> {
    let parsed = text.split_once('-').and_then(|(ms, n)| Some((ms.parse().ok()?, n.parse().ok()?)));
    let (ms, n): (u64, u64) = parsed.ok_or(Garbled("id of a log entry"))?;
    Ok(EntryId((partition as u64) << PARTITION_SHIFT | ms, n))
}

fn id_text(id: EntryId) -> String {
    format!("{}-{}", id.0 & ((1 << PARTITION_SHIFT) - 1), id.1)
}

impl Inner {
    pub(super) async fn ack(&self, entries: &[EntryId]) -> Result<()> {
        let mut by_partition: HashMap<usize, Vec<EntryId>> = HashMap::new();
        for id in entries {
            by_partition.entry((id.0 >> PARTITION_SHIFT) as usize).or_default().push(*id);
        }
        for (partition, ids) in by_partition {
            let names = [self.keys.orders(partition), self.keys.backlog(partition)];
            let mut call = Call::new(&scripts::ACK, names).arg(GROUP);
            for id in ids {
                call.push(id_text(id));
            }
            self.link.run::<i64>(&call).await?;
        }
        Ok(())
    }

    /// Claims of an item on the streams; what is acknowledged is not there any more.
    pub(super) async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        let mut claims = Vec::new();
        for partition in 0..self.options.partitions {
            let mut from = "-".to_owned();
            loop {
                let mut range = redis::cmd("XRANGE");
                range.arg(self.keys.orders(partition)).arg(&from).arg("+");
                range.arg("COUNT").arg(super::SCAN_ROWS);
                let entries = parse_entries(partition, self.link.ask(&range).await?)?;
                let Some(last) = entries.last() else { break };
                from = format!("({}", id_text(last.id));
                let of_item = entries.into_iter().filter(|entry| entry.item == item);
                claims.extend(of_item.flat_map(|entry| entry.claims));
            }
        }
        Ok(claims)
    }
}
