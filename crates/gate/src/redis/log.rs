//! The claim log on Redis Streams: one stream per partition, one consumer group, one consumer per
//! process. Where claims go to their workers by a message broker, a second group, of relays, reads the same
//! streams ([`super::relay`]).
//!
//! A task per partition reads its stream with a blocking read on a connection of its own (a blocking
//! read holds up everything else on its connection) and takes over what a silent consumer has left
//! pending. What it read waits in a small queue for `take`. Acknowledging removes the entry from the
//! group and from the stream in one step, so the stream holds exactly what the ledger does not have; the
//! same step puts it among what is [`kept`](super::kept).
//!
//! A worker that dies leaves its entries pending; after `takeover_ms` another one takes them over.
//! A worker that only slept and wakes up settles them again, which the ledger makes a no-op, and
//! acknowledges them again, which removes nothing twice. What this process itself still has in hand it
//! does not take over from itself, however long the ledger keeps it waiting.
//!
//! A failover may take an entry from the stream that a worker has in hand, and give its id to another one.
//! An acknowledgement is of the entry that was read: of another one with its id nothing is removed.
//!
//! The streams may be at different servers, and one that is down is no reason to keep the others
//! waiting: what cannot be acknowledged there is remembered and acknowledged by the upkeep when it
//! answers again; forgotten, it comes again, which changes nothing.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::Value;
use redis_link::{Call, LinkOptions, RedisLink, RedisServers};
use sale::{EntryId, LogEntry, LogError};
use tokio::sync::{Notify, mpsc};

use super::{
    RedisOptions,
    kept::Kept,
    scripts,
    store::Store,
    streams::{content_text, id_text, partition_of, read_rows},
};
use crate::Result;

/// Who turns claims into orders. What this group acknowledges is in the ledger, and leaves the stream.
pub(super) const WORKERS: &str = "workers";
/// Who carries claims to a message broker. What this group acknowledges is there, and stays on the stream.
pub(super) const RELAYS: &str = "relays";
/// How long a read waits for something to come.
const BLOCK_MS: u64 = 2_000;
/// What a silent worker has left is looked for so many times within `takeover_ms`.
const TAKEOVER_LOOKS: u64 = 4;
/// A connection for commands that block it. A blocking read is answered within this, or it is dead.
const BLOCKING: LinkOptions =
    LinkOptions { answer_within: Duration::from_secs(5), connections: 1, may_ask_twice: false };
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
/// How often the consumers of the streams are looked through.
const TIDY_EVERY: Duration = Duration::from_secs(600);

pub(super) struct StreamLog {
    group: &'static str,
    store: Arc<Store>,
    kept: Arc<Kept>,
    servers: Arc<RedisServers>,
    /// The name of this process among the workers.
    consumer: String,
    takeover_ms: u64,
    queue: tokio::sync::Mutex<Option<mpsc::Receiver<LogEntry>>>,
    returned: Mutex<VecDeque<LogEntry>>,
    came_back: Notify,
    /// Taken from the streams and not acknowledged: in the queue, or with a worker.
    in_hand: Mutex<HashSet<EntryId>>,
    /// Settled, and their partition did not answer.
    unacked: Mutex<HashMap<usize, HashSet<EntryId>>>,
    /// Partitions that did not answer the last acknowledgement. Workers do not wait for them.
    silent: Mutex<HashSet<usize>>,
    /// As last heard of each partition.
    backlogs: Vec<AtomicU64>,
    tidied: Mutex<Option<Instant>>,
}

impl StreamLog {
    pub(super) fn new(
        group: &'static str,
        store: Arc<Store>,
        kept: Arc<Kept>,
        options: &RedisOptions,
    ) -> StreamLog {
        StreamLog {
            group,
            kept,
            servers: options.servers.clone(),
            consumer: options.consumer.clone(),
            takeover_ms: options.takeover_ms,
            queue: tokio::sync::Mutex::new(None),
            returned: Mutex::default(),
            came_back: Notify::new(),
            in_hand: Mutex::default(),
            unacked: Mutex::default(),
            silent: Mutex::default(),
            backlogs: (0..store.partitions).map(|_| AtomicU64::new(0)).collect(),
            tidied: Mutex::default(),
            store,
        }
    }

    /// The next entries. The first call starts the readers: only a worker ever calls it.
    pub(super) async fn take(
        self: &Arc<Self>,
        claims_max: usize,
    ) -> std::result::Result<Vec<LogEntry>, LogError> {
        let mut queue = self.queue.lock().await;
        let queue = queue.get_or_insert_with(|| self.start());
        loop {
            let mut taken: Vec<LogEntry> = Vec::new();
            let mut claims = 0;
            while claims < claims_max {
                let next = self.returned.lock().pop_front().or_else(|| queue.try_recv().ok());
                let Some(entry) = next else { break };
                claims += entry.claims.len();
                taken.push(entry);
            }
            if !taken.is_empty() {
                return Ok(taken);
            }
            tokio::select! {
                entry = queue.recv() => match entry {
                    Some(entry) => self.returned.lock().push_back(entry),
                    None => return Err(LogError("the readers have ended".into())),
                },
                () = self.came_back.notified() => {}
            }
        }
    }

    fn start(self: &Arc<Self>) -> mpsc::Receiver<LogEntry> {
        let (sender, queue) = mpsc::channel(WAITING_MAX);
        for partition in 0..self.store.partitions {
            let reader = Reader { log: self.clone(), partition, sender: sender.clone() };
            tokio::spawn(reader.run());
        }
        queue
    }

    pub(super) fn give_back(&self, entries: Vec<LogEntry>) {
        let mut returned = self.returned.lock();
        for entry in entries.into_iter().rev() {
            returned.push_front(entry);
        }
        drop(returned);
        self.came_back.notify_one();
    }

    /// The broker has these: no relay takes them again. What cannot be noted is relayed once more.
    pub(super) async fn relayed(&self, entries: &[EntryId]) {
        let mut by_partition: HashMap<usize, Vec<&EntryId>> = HashMap::new();
        for id in entries {
            by_partition.entry(partition_of(*id)).or_default().push(id);
        }
        let notes = by_partition.into_iter().map(|(partition, ids)| async move {
            let mut ack = redis::cmd("XACK");
            ack.arg(self.store.keys.orders(partition)).arg(self.group);
            for id in ids {
                ack.arg(id_text(*id));
            }
            if let Err(error) = self.store.ask::<u64>(&ack).await {
                tracing::debug!(partition, %error, "relayed claims cannot be noted");
            }
        });
        join_all(notes).await;
        self.in_hand.lock().retain(|id| !entries.contains(id));
    }

    /// Never fails: see the head of this file.
    pub(super) async fn ack(&self, entries: &[EntryId]) {
        {
            let mut unacked = self.unacked.lock();
            for id in entries {
                unacked.entry(partition_of(*id)).or_default().insert(*id);
            }
        }
        let silent = self.silent.lock().clone();
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
            self.unacked.lock().extract_if(|partition, _| wanted(*partition)).collect();
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
            let mut call = self.kept.ack_call(partition, chunk.len());
            for id in chunk {
                call.push(id_text(**id));
                call.push(content_text(**id));
            }
            self.store.run::<(u64, u64)>(&call).await?;
        }
        Ok(())
    }

    fn note_acked(&self, partition: usize, ids: HashSet<EntryId>, acked: &Result<()>) {
        if let Err(error) = acked {
            if self.silent.lock().insert(partition) {
                tracing::warn!(partition, %error,
                    "settled claims cannot be acknowledged, will try again");
            }
            let mut unacked = self.unacked.lock();
            let waiting = unacked.entry(partition).or_default();
            if waiting.len() + ids.len() <= UNACKED_MAX {
                waiting.extend(ids);
                return;
            }
        } else if self.silent.lock().remove(&partition) {
            tracing::info!(partition, "settled claims are acknowledged again");
        }
        // Too many to remember: they come again, and are settled already.
        self.in_hand.lock().retain(|id| !ids.contains(id));
    }

    /// Of partitions that do not answer the last number stands.
    pub(super) async fn read_backlog(&self) -> Result<()> {
        let counts = self.backlogs.iter().enumerate().map(|(partition, known)| async move {
            let command = redis::cmd("GET").arg(self.store.keys.backlog(partition)).to_owned();
            let count: Option<i64> = self.store.ask(&command).await?;
            known.store(count.unwrap_or(0).max(0) as u64, Ordering::Release);
            Ok(())
        });
        join_all(counts).await.into_iter().collect()
    }

    /// As last heard of each partition.
    pub(super) fn backlogs(&self) -> Vec<u64> {
        self.backlogs.iter().map(|known| known.load(Ordering::Acquire)).collect()
    }

    pub(super) fn backlog(&self) -> u64 {
        self.backlogs.iter().map(|known| known.load(Ordering::Acquire)).sum()
    }

    /// As a partition told by the way.
    pub(super) fn note_backlog(&self, partition: usize, backlog: u64) {
        self.backlogs[partition].store(backlog, Ordering::Release);
    }

    /// Look through the consumers of the streams, now and then.
    pub(super) async fn tidy_groups(&self) -> Result<()> {
        let due = self.tidied.lock().is_none_or(|tidied| tidied.elapsed() > TIDY_EVERY);
        if due {
            *self.tidied.lock() = Some(Instant::now());
            let all = (0..self.store.partitions).map(|partition| self.tidy_group(partition));
            return join_all(all).await.into_iter().collect();
        }
        Ok(())
    }

    /// Forget workers that are gone.
    async fn tidy_group(&self, partition: usize) -> Result<()> {
        let call = Call::new(&scripts::TIDY_GROUP, [self.store.keys.orders(partition)])
            .arg(self.group)
            .number(CONSUMER_IDLE_MS_MAX)
            .arg(self.consumer.as_str());
        match self.store.run::<i64>(&call).await {
            Ok(0) => {}
            Ok(gone) => tracing::info!(partition, gone, "consumers that are gone were forgotten"),
            // Nobody has read the stream yet.
            Err(error) if error.code() == Some("NOGROUP") => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Reads one partition until nobody listens any more.
struct Reader {
    log: Arc<StreamLog>,
    partition: usize,
    sender: mpsc::Sender<LogEntry>,
}

impl Reader {
    async fn run(self) {
        let (mut link, mut looked) = (None, None);
        while !self.sender.is_closed() {
            let done = self.round(&mut link, &mut looked).await;
            if let Err(error) = done {
                tracing::debug!(partition = self.partition, %error, "the claim log does not answer");
                link = None;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// `looked`: when it was last seen what others have left.
    async fn round(
        &self,
        link: &mut Option<RedisLink>,
        looked: &mut Option<Instant>,
    ) -> Result<()> {
        if link.is_none() {
            let opened = self.log.servers.link(BLOCKING).await?;
            self.make_group(&opened).await?;
            *link = Some(opened);
        }
        let Some(link) = link else { return Ok(()) };
        let every = Duration::from_millis(self.log.takeover_ms / TAKEOVER_LOOKS);
        if looked.is_none_or(|looked| looked.elapsed() >= every) {
            let left = self.take_over(link).await?;
            // After a full page there may be more.
            *looked = (left.len() < READ_ENTRIES).then(Instant::now);
            for entry in left {
                self.pass_on(entry).await;
            }
        }
        for entry in self.read(link).await? {
            self.pass_on(entry).await;
        }
        Ok(())
    }

    async fn pass_on(&self, entry: LogEntry) {
        if !self.log.in_hand.lock().insert(entry.id) {
            return;
        }
        // Nobody listens when the process stops; another one takes the entry over.
        let _ = self.sender.send(entry).await;
    }

    /// From the beginning: what was logged before there was a group counts, too.
    async fn make_group(&self, link: &RedisLink) -> Result<()> {
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(self.stream()).arg(self.log.group).arg("0").arg("MKSTREAM");
        match link.ask::<()>(&create).await {
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
            other => Ok(other?),
        }
    }

    fn stream(&self) -> String {
        self.log.store.keys.orders(self.partition)
    }

    async fn read(&self, link: &RedisLink) -> Result<Vec<LogEntry>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(self.log.group).arg(&self.log.consumer);
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

    async fn take_over(&self, link: &RedisLink) -> Result<Vec<LogEntry>> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim.arg(self.stream()).arg(self.log.group).arg(&self.log.consumer);
        claim.arg(self.log.takeover_ms).arg("0").arg("COUNT").arg(READ_ENTRIES);
        let reply: Vec<Value> = link.ask(&claim).await?;
        Ok(self.entries(reply.into_iter().nth(1).unwrap_or(Value::Array(Vec::new()))))
    }

    fn entries(&self, rows: Value) -> Vec<LogEntry> {
        read_rows(self.partition, rows).entries
    }
}
