//! Buyers and their claims, as every section needs them. Made before the watch starts.

use std::sync::Arc;

use gate::{ClaimRequest, Decision, Loading, NumberedRequest};
use sale::{Claim, Clock, ItemId, OrderNo, OrderNumbers, SharedClock, SystemClock, UserId};

use crate::Failure;

pub(crate) fn clock() -> SharedClock {
    Arc::new(SystemClock)
}

/// Hands out buyers that never come twice. Their names are eleven characters, like a mobile number,
/// and in no order: a multiplication by an odd number scatters them.
pub(crate) struct Crowd {
    numbers: OrderNumbers,
    next: u64,
}

impl Crowd {
    pub(crate) fn new() -> Crowd {
        Crowd { numbers: OrderNumbers::new(0, clock()), next: 0 }
    }

    pub(crate) fn start_after(&mut self, seen: Option<OrderNo>) {
        if let Some(seen) = seen {
            self.numbers.start_after(seen);
        }
    }

    pub(crate) fn buyer(&mut self) -> Result<(UserId, OrderNo), Failure> {
        let user = Crowd::name(self.next)?;
        self.next += 1;
        Ok((user, self.numbers.next()))
    }

    /// The buyer that comes after so many others.
    pub(crate) fn name(n: u64) -> Result<UserId, Failure> {
        let scattered = n.wrapping_mul(0x9E37_79B1) as u32;
        Ok(UserId::new(&format!("u{scattered:010}"))?)
    }

    pub(crate) fn requests(
        &mut self,
        item: ItemId,
        n: usize,
    ) -> Result<Vec<NumberedRequest>, Failure> {
        let request = |_| {
            let (user, order_no) = self.buyer()?;
            Ok((order_no, ClaimRequest { item, user, quantity: 1, key: None }))
        };
        (0..n).map(request).collect()
    }

    pub(crate) fn claims(&mut self, item: ItemId, n: usize) -> Result<Vec<Claim>, Failure> {
        let claimed_ms = SystemClock.now_ms();
        let claim = |_| {
            let (user, order_no) = self.buyer()?;
            Ok(Claim { order_no, item, user, quantity: 1, epoch: 1, claimed_ms, key: None })
        };
        (0..n).map(claim).collect()
    }
}

/// An item that is open now and for the next hour.
pub(crate) fn open_item(item: ItemId, left: usize, shards: u32, marks: Vec<Claim>) -> Loading {
    let now_ms = SystemClock.now_ms();
    Loading {
        item,
        epoch: 1,
        opens_ms: now_ms - 1_000,
        closes_ms: now_ms + 3_600_000,
        limit: 1,
        shards,
        left: left as i64,
        marks,
        adjusted: Vec::new(),
        shut: None,
    }
}

/// Every one of them must have won: a rate of refusals would be another figure.
pub(crate) fn all_admitted(decisions: &[Decision]) -> Result<(), Failure> {
    let lost = decisions.iter().find(|v| !matches!(v, Decision::Admitted { repeated: false, .. }));
    lost.map_or(Ok(()), |decision| Err(format!("a claim was not admitted: {decision:?}").into()))
}

/// In batches of this size.
pub(crate) fn batches<T>(all: Vec<T>, size: usize) -> Vec<Vec<T>> {
    let mut batches = Vec::with_capacity(all.len().div_ceil(size));
    let mut rest = all.into_iter();
    loop {
        let batch: Vec<T> = rest.by_ref().take(size).collect();
        if batch.is_empty() {
            return batches;
        }
        batches.push(batch);
    }
}
