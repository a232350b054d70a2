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
//! acknowledges them again, which removes nothing twice. What this process itself still has in hand it
//! does not take over from itself, however long the ledger keeps it waiting.
//!
//! The streams may be at different servers, and one that is down is no reason to keep the others
//! waiting: what cannot be acknowledged there is remembered and acknowledged by the upkeep when it
//! answers again; forgotten, it comes again, which changes nothing.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{RedisResult, Value, from_redis_value};
use sale::{Claim, EntryId, ItemId, LogEntry, LogError, OrderNo};
use tokio::sync::{Notify, mpsc};

use super::{
    Inner,
    link::{Call, Link},
    scripts,
};
use crate::{
    Result,
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
/// Entries in one call of `ack.lua`.
const ACK_ENTRIES_MAX: usize = 1_000;
/// Entries of one partition that are remembered to be acknowledged when it answers again.
const UNACKED_MAX: usize = 100_000;
/// A consumer that holds nothing and was not heard of for so long is forgotten.
const CONSUMER_IDLE_MS_MAX: u64 = 60 * 60 * 1_000;
/// The partition is kept in the upper bits of an entry's id: milliseconds need 48.
const PARTITION_SHIFT: u32 = 48;

pub(super) struct Streams {
    queue: tokio::sync::Mutex<Option<mpsc::Receiver<LogEntry>>>,
    returned: Mutex<VecDeque<LogEntry>>,
    came_back: Notify,
    /// Taken from the streams and not acknowledged: in the queue, or with a worker.
    in_hand: Mutex<HashSet<EntryId>>,
    /// Settled, and their partition did not answer.
    unacked: Mutex<HashMap<usize, HashSet<EntryId>>>,
    /// Partitions that did not answer the last acknowledgement. Workers do not wait for them.
    silent: Mutex<HashSet<usize>>,
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams {
            queue: tokio::sync::Mutex::new(None),
            returned: Mutex::default(),
            came_back: Notify::new(),
            in_hand: Mutex::default(),
            unacked: Mutex::default(),
            silent: Mutex::default(),
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
        if !self.inner.log.in_hand.lock().insert(entry.id) {
            return;
        }
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
        Ok(self.entries(rows))
    }

    async fn take_over(&self, link: &Link) -> Result<Vec<LogEntry>> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim.arg(self.stream()).arg(GROUP).arg(&self.inner.options.consumer);
        claim.arg(self.inner.options.takeover_ms).arg("0").arg("COUNT").arg(READ_ENTRIES);
        let reply: Vec<Value> = link.ask(&claim).await?;
        Ok(self.entries(reply.into_iter().nth(1).unwrap_or(Value::Array(Vec::new()))))
    }

    fn entries(&self, rows: Value) -> Vec<LogEntry> {
        read_rows(self.partition, rows).entries
    }
}

/// What a page of a stream says.
#[derive(Default)]
struct Page {
    entries: Vec<LogEntry>,
    /// The last row, readable or not.
    last: Option<EntryId>,
}

/// Rows of `[id, [field, value, …]]`. One that cannot be read is left where it is, for a person to
/// look at, and holds up no others.
fn read_rows(partition: usize, rows: Value) -> Page {
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
    let (epoch, _, claims) = decode_claims(item, &mut Bytes(field("b")?))?;
    Ok(LogEntry { id, item, epoch, claims })
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
    /// Never fails: see the head of this file.
    pub(super) async fn ack(&self, entries: &[EntryId]) {
        {
            let mut unacked = self.log.unacked.lock();
            for id in entries {
                unacked.entry((id.0 >> PARTITION_SHIFT) as usize).or_default().insert(*id);
            }
        }
        let silent = self.log.silent.lock().clone();
        // Those that fail are told of when they do, and tried again by the upkeep.
        let _ = self.ack_where(|partition| !silent.contains(&partition)).await;
    }

    /// Acknowledge all that waits for it.
    pub(super) async fn ack_again(&self) -> Result<()> {
        self.ack_where(|_| true).await
    }

    /// Each partition for itself.
    async fn ack_where(&self, wanted: impl Fn(usize) -> bool) -> Result<()> {
        let waiting: Vec<(usize, HashSet<EntryId>)> =
            self.log.unacked.lock().extract_if(|partition, _| wanted(*partition)).collect();
        let acks = waiting.into_iter().map(|(partition, ids)| async move {
            let acked = self.ack_partition(partition, &ids).await;
            self.note_acked(partition, ids, &acked);
            acked
        });
        join_all(acks).await.into_iter().collect()
    }

    async fn ack_partition(&self, partition: usize, ids: &HashSet<EntryId>) -> Result<()> {
        let ids: Vec<&EntryId> = ids.iter().collect();
        for chunk in ids.chunks(ACK_ENTRIES_MAX) {
            let names = [self.keys.orders(partition), self.keys.backlog(partition)];
            let mut call = Call::new(&scripts::ACK, names).arg(GROUP);
            for id in chunk {
                call.push(id_text(**id));
            }
            self.link.run::<i64>(&call).await?;
        }
        Ok(())
    }

    fn note_acked(&self, partition: usize, ids: HashSet<EntryId>, acked: &Result<()>) {
        if let Err(error) = acked {
            if self.log.silent.lock().insert(partition) {
                tracing::warn!(partition, %error,
                    "settled claims cannot be acknowledged, will try again");
            }
            let mut unacked = self.log.unacked.lock();
            let waiting = unacked.entry(partition).or_default();
            if waiting.len() + ids.len() <= UNACKED_MAX {
                waiting.extend(ids);
                return;
            }
        } else if self.log.silent.lock().remove(&partition) {
            tracing::info!(partition, "settled claims are acknowledged again");
        }
        // Too many to remember: they come again, and are settled already.
        self.log.in_hand.lock().retain(|id| !ids.contains(id));
    }

    /// Claims of an item on the streams; what is acknowledged is not there any more.
    pub(super) async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        let mut partitions = self.partitions_of(item);
        if partitions.is_empty() {
            partitions = (0..self.options.partitions).collect();
        }
        let mut claims = Vec::new();
        for partition in partitions {
            let mut after = None;
            while let Some((entries, last)) = self.stream_page(partition, after).await? {
                after = Some(last);
                let of_item = entries.into_iter().filter(|entry| entry.item == item);
                claims.extend(of_item.flat_map(|entry| entry.claims));
            }
        }
        Ok(claims)
    }

    /// A claim on the streams by its number, which tells neither the item nor the buyer: all are read
    /// until it is found.
    pub(super) async fn on_log(&self, order_no: OrderNo) -> Result<Option<Claim>> {
        let streams =
            (0..self.options.partitions).map(|partition| self.on_stream(partition, order_no));
        let mut nowhere = Ok(None);
        for found in join_all(streams).await {
            match found {
                Ok(Some(claim)) => return Ok(Some(claim)),
                Ok(None) => {}
                Err(error) => nowhere = Err(error),
            }
        }
        nowhere
    }

    async fn on_stream(&self, partition: usize, order_no: OrderNo) -> Result<Option<Claim>> {
        let mut after = None;
        while let Some((entries, last)) = self.stream_page(partition, after).await? {
            after = Some(last);
            let mut claims = entries.into_iter().flat_map(|entry| entry.claims);
            let found = claims.find(|claim| claim.order_no == order_no);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The next entries of a stream behind this one, and the last of them, readable or not; `None` at
    /// its end.
    pub(super) async fn stream_page(
        &self,
        partition: usize,
        after: Option<EntryId>,
    ) -> Result<Option<(Vec<LogEntry>, EntryId)>> {
        let from = after.map_or_else(|| "-".to_owned(), |id| format!("({}", id_text(id)));
        let mut range = redis::cmd("XRANGE");
        range.arg(self.keys.orders(partition)).arg(from).arg("+");
        range.arg("COUNT").arg(super::SCAN_ROWS);
        let page = read_rows(partition, self.link.ask(&range).await?);
        Ok(page.last.map(|last| (page.entries, last)))
    }

    /// Forget workers that are gone.
    pub(super) async fn tidy_group(&self, partition: usize) -> Result<()> {
        let call = Call::new(&scripts::TIDY_GROUP, [self.keys.orders(partition)])
            .arg(GROUP)
            .arg(CONSUMER_IDLE_MS_MAX)
            .arg(self.options.consumer.as_str());
        match self.link.run::<i64>(&call).await {
            Ok(0) => {}
            Ok(gone) => tracing::info!(partition, gone, "consumers that are gone were forgotten"),
            // Nobody has read the stream yet.
            Err(error) if error.code() == Some("NOGROUP") => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
