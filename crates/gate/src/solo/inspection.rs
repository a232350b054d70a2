//! Reading what the gate holds: for reconcile, for operators, and for buyers who ask after their claims.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use parking_lot::RwLock;
use sale::{Claim, ItemId, OrderNo, UserId};

use super::{SoloGate, item::GateItem};
use crate::{Inspection, Loaded, Outline, Reading, Result, Writable};

#[async_trait]
impl Inspection for SoloGate {
    async fn adjusts(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>> {
        let Some(state) = self.0.items.get(item) else { return Ok(Vec::new()) };
        let state = state.read();
        Ok(state.adjusts.iter().map(|(no, delta)| (*no, *delta)).collect())
    }

    async fn loaded(&self) -> Result<Vec<Loaded>> {
        let items = self.0.items.all();
        Ok(items.iter().map(|state| state.read().loaded()).collect())
    }

    async fn loaded_item(&self, item: ItemId) -> Result<Option<Loaded>> {
        Ok(self.0.items.get(item).map(|state| state.read().loaded()))
    }

    async fn reading(&self, item: ItemId) -> Result<Option<Reading>> {
        // While the journal lock is held nothing moves, so item and log are of one instant.
        self.with_journal(move |inner, _| {
            let Some(state) = inner.items.get(item) else { return Ok(None) };
            let state = state.read();
            Ok(Some(Reading {
                item,
                epoch: state.epoch,
                shut: state.shut,
                opens_ms: state.opens_ms,
                closes_ms: state.closes_ms,
                left: state.left,
                marks: state.marks.len() as u64,
                marked_units: state.marks.units(),
                version: state.version,
                in_flight: inner.log.lock().claims_of(item),
                adjusts: state.adjusts.iter().map(|(no, delta)| (*no, *delta)).collect(),
            }))
        })
        .await
    }

    async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        Ok(self.0.log.lock().claims_of(item))
    }

    async fn outlines(&self) -> Result<HashMap<ItemId, Outline>> {
        let items = self.0.items.all();
        let outlines = items.iter().map(|state| {
            let state = state.read();
            (state.item, state.outline())
        });
        Ok(outlines.collect())
    }

    async fn marked(&self, item: ItemId, claims: &[(UserId, OrderNo)]) -> Result<HashSet<OrderNo>> {
        let Some(state) = self.0.items.get(item) else { return Ok(HashSet::new()) };
        let state = state.read();
        let is_marked = |(user, order_no): &&(UserId, OrderNo)| {
            state.marks.get(user).is_some_and(|mark| mark.order_no == *order_no)
        };
        Ok(claims.iter().filter(is_marked).map(|(_, order_no)| *order_no).collect())
    }

    async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>> {
        let Some(state) = self.0.items.get(item) else { return Ok(Vec::new()) };
        let mut marks = Vec::new();
        // Piece by piece: whoever admits waits for who reads, and with them all who wait for the journal.
        for place in 0.. {
            let state = state.read();
            let Some(piece) = state.marks.pieces().get(place) else { break };
            marks.extend(piece.each().map(|(user, mark)| (user, mark.order_no)));
        }
        Ok(marks)
    }

    async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        let log = self.0.log.lock();
        Ok(log.claim(order_no).filter(|claim| claim.user == *user).cloned())
    }

    async fn is_on_log(&self, claim: &Claim) -> Result<bool> {
        Ok(self.0.log.lock().claim(claim.order_no).is_some())
    }

    async fn queued_of(&self, user: &UserId) -> Result<Vec<Claim>> {
        // The marks of one buyer over the items at the gate are few; the log may be a million long.
        let of_buyer = |item: &RwLock<GateItem>| item.read().marks.get(user).map(|m| m.order_no);
        let items = self.0.items.all();
        let marked: Vec<OrderNo> = items.iter().filter_map(|item| of_buyer(item)).collect();
        let log = self.0.log.lock();
        let mut claims: Vec<Claim> =
            marked.into_iter().filter_map(|order_no| log.claim(order_no).cloned()).collect();
        claims.sort_by_key(|claim| std::cmp::Reverse(claim.order_no));
        Ok(claims)
    }

    async fn on_log(&self, order_no: OrderNo) -> Result<Option<Claim>> {
        Ok(self.0.log.lock().claim(order_no).cloned())
    }

    fn left(&self, item: ItemId) -> Option<i64> {
        self.0.items.get(item).map(|state| state.read().left.max(0))
    }

    async fn oldest_waits_ms(&self) -> Result<Option<u64>> {
        let log = self.0.log.lock();
        let oldest = log.all().next().and_then(|entry| entry.claims.first());
        let waited_ms = oldest.map(|claim| self.0.clock.now_ms() - claim.claimed_ms);
        Ok(waited_ms.map(|waited_ms| waited_ms.max(0) as u64))
    }

    async fn check(&self) -> Writable {
        let probed = self.with_journal(|_, writer| writer.journal()?.probe()).await;
        let cause = probed.err().map(|error| error.detail);
        Writable { partitions: 1, silent: usize::from(cause.is_some()), cause }
    }
}
