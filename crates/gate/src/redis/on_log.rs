//! Which claims are on the log: asked for when the ledger does not answer and a buyer wants to know.
//!
//! A mark says that a claim was admitted, not what became of it: it stays for as long as the order lives.
//! Only the stream tells, for what is acknowledged is not in it any more. To look for one claim in a long
//! stream is expensive, and while the ledger is away everybody asks. So a stream is read once for all who
//! ask at this process: as a whole now and then, and in between only what came behind its last row.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use sale::{Claim, EntryId, OrderNo};

use super::Inner;
use crate::Result;

/// A stream is read as a whole at most so often…
const WHOLE_EVERY: Duration = Duration::from_secs(2);
/// …and not before so many times the time has passed that the last reading took.
const REST_FACTOR: u32 = 10;
/// What nobody asked for so long is forgotten.
const KEPT: Duration = Duration::from_secs(60);

/// What a stream held when it was last read. It never holds more than the log may.
#[derive(Default)]
pub(super) struct StreamRead {
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

impl Inner {
    pub(super) async fn is_on_log(&self, claim: &Claim) -> Result<bool> {
        let Some(partition) = self.home(claim.item, &claim.user) else { return Ok(false) };
        let mut read = self.stream_reads[partition].lock().await;
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
        while let Some((entries, last)) = self.stream_page(partition, read.last).await? {
            let claims = entries.iter().flat_map(|entry| &entry.claims);
            read.claims.extend(claims.map(|claim| claim.order_no));
            read.last = Some(last);
        }
        Ok(())
    }

    /// The ledger answers again, and nobody asks here any more.
    pub(super) fn forget_stream_reads(&self) {
        for read in &self.stream_reads {
            if let Ok(mut read) = read.try_lock()
                && read.whole.is_some_and(|(at, _)| at.elapsed() > KEPT)
            {
                *read = StreamRead::default();
            }
        }
    }
}
