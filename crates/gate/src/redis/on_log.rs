//! Which claims are on the log: asked for when the ledger does not answer and a buyer wants to know,
//! when an item is loaded, and by operators.
//!
//! A mark says that a claim was admitted, not what became of it: it stays for as long as the order lives.
//! Only the stream tells, for what is acknowledged is not in it any more. To look for one claim in a long
//! stream is expensive, and while the ledger is away everybody asks. So a stream is read once for all who
//! ask at this process: as a whole now and then, and in between only what came behind its last row.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use sale::{Claim, EntryId, ItemId, OrderNo};
use tokio::sync::Mutex;

use super::{directory::Directory, store::Store, streams::next_page};
use crate::Result;

/// A stream is read as a whole at most so often…
const WHOLE_EVERY: Duration = Duration::from_secs(2);
/// …and not before so many times the time has passed that the last reading took.
const REST_FACTOR: u32 = 10;
/// What nobody asked for so long is forgotten.
const KEPT: Duration = Duration::from_secs(60);

pub(super) struct OnLog {
    store: Arc<Store>,
    directory: Arc<Directory>,
    /// What the streams held when somebody last wanted to know, by partition.
    reads: Vec<Mutex<StreamRead>>,
}

/// What a stream held when it was last read. It never holds more than the log may.
#[derive(Default)]
struct StreamRead {
    claims: HashSet<OrderNo>,
    last: Option<EntryId>,
    /// When it was read as a whole, and how long that took.
    whole: Option<(Instant, Duration)>,
}

impl StreamRead {
    fn is_old(&self) -> bool {
        self.whole.is_none_or(|(at, took)| at.elapsed() > WHOLE_EVERY.max(took * REST_FACTOR))
    }
}

impl OnLog {
    pub(super) fn new(store: Arc<Store>, directory: Arc<Directory>) -> OnLog {
        let reads = (0..store.partitions).map(|_| Mutex::default()).collect();
        OnLog { store, directory, reads }
    }

    pub(super) async fn holds(&self, claim: &Claim) -> Result<bool> {
        let Some(partition) = self.directory.home(claim.item, &claim.user) else {
            return Ok(false);
        };
        let mut read = self.reads[partition].lock().await;
        if read.is_old() {
            let begun = Instant::now();
            let mut whole = StreamRead::default();
            self.read_on(partition, &mut whole).await?;
            whole.whole = Some((begun, begun.elapsed()));
            *read = whole;
        } else if !read.claims.contains(&claim.order_no) {
            self.read_on(partition, &mut read).await?;
        }
        Ok(read.claims.contains(&claim.order_no))
    }

    async fn read_on(&self, partition: usize, read: &mut StreamRead) -> Result<()> {
        while let Some((entries, last)) = next_page(&self.store, partition, read.last).await? {
            let claims = entries.iter().flat_map(|entry| &entry.claims);
            read.claims.extend(claims.map(|claim| claim.order_no));
            read.last = Some(last);
        }
        Ok(())
    }

    /// The ledger answers again, and nobody asks here any more.
    pub(super) fn forget_old_reads(&self) {
        for read in &self.reads {
            if let Ok(mut read) = read.try_lock()
                && read.whole.is_some_and(|(at, _)| at.elapsed() > KEPT)
            {
                *read = StreamRead::default();
            }
        }
    }

    /// Claims of an item on the streams; what is acknowledged is not there any more.
    pub(super) async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        let mut partitions = self.directory.partitions_of(item);
        if partitions.is_empty() {
            partitions = (0..self.store.partitions).collect();
        }
        let mut claims = Vec::new();
        for partition in partitions {
            let mut after = None;
            while let Some((entries, last)) = next_page(&self.store, partition, after).await? {
                after = Some(last);
                let of_item = entries.into_iter().filter(|entry| entry.item == item);
                claims.extend(of_item.flat_map(|entry| entry.claims));
            }
        }
        Ok(claims)
    }

    /// A claim on the streams by its number, which tells neither the item nor the buyer: all are read
    /// until it is found.
    pub(super) async fn find(&self, order_no: OrderNo) -> Result<Option<Claim>> {
        let streams = (0..self.store.partitions).map(|partition| self.find_in(partition, order_no));
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

    async fn find_in(&self, partition: usize, order_no: OrderNo) -> Result<Option<Claim>> {
        let mut after = None;
        while let Some((entries, last)) = next_page(&self.store, partition, after).await? {
            after = Some(last);
            let mut claims = entries.into_iter().flat_map(|entry| entry.claims);
            let found = claims.find(|claim| claim.order_no == order_no);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}
