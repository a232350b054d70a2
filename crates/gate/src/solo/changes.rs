//! Changes of the gate that are not admissions: units that come back, stock that operators change, loads,
//! and what has to be done now and then. Each is written down before it is made.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::RwLock;
use sale::{Claim, Epoch, ItemId, OrderNo};

use super::{
    Inner, REWRITE_AFTER_ENTRIES, SoloGate, item::GateItem, journal::JournalError, record::Record,
    writer::Writer,
};
use crate::{AdjustOutcome, Changed, GiveBack, Loading, Readmitted, Result, Shut, Upkeep};

#[async_trait]
impl Upkeep for SoloGate {
    async fn readmit(&self, claim: &Claim) -> Result<Readmitted> {
        let claim = claim.clone();
        self.with_journal(move |inner, writer| inner.readmit(writer, claim)).await
    }

    async fn release(&self, units: &[GiveBack]) -> Result<Vec<Changed>> {
        let units = units.to_vec();
        self.with_journal(move |inner, writer| inner.release(writer, units)).await
    }

    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        self.with_journal(move |inner, writer| {
            let Some(state) = inner.items.get(item) else { return Ok(AdjustOutcome::NotLoaded) };
            let (had, left) = {
                let state = state.read();
                (state.adjusts.get(&adjust_no).copied(), state.left)
            };
            let mut records = Vec::new();
            match had {
                // Zero: the load contained it.
                Some(had) if had == delta || had == 0 => return Ok(AdjustOutcome::Repeated),
                Some(had) if !committed => return Ok(AdjustOutcome::Other { delta: had }),
                Some(_) => records.push(Record::ForgetAdjust { adjust_no }),
                None => {}
            }
            if delta < 0 && left.saturating_add(delta) < 0 && !committed {
                return Ok(AdjustOutcome::Short { left });
            }
            records.push(Record::Adjust { adjust_no, delta });
            Ok(AdjustOutcome::Done(inner.change(writer, &state, &records)?))
        })
        .await
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.with_journal(move |inner, writer| {
            let Some(state) = inner.items.get(item) else { return Ok(None) };
            if !state.read().adjusts.contains_key(&adjust_no) {
                return Ok(None);
            }
            Ok(Some(inner.change(writer, &state, &[Record::ForgetAdjust { adjust_no }])?))
        })
        .await
    }

    /// In one process loads and what comes from the ledger take turns, so nothing of it arrives meanwhile.
    async fn begin_load(&self, item: ItemId, epoch: Epoch, _: u32) -> Result<bool> {
        let begun = self
            .with_journal(move |inner, writer| {
                let Some(state) = inner.items.get(item) else { return Ok(true) };
                let (here, shut) = (state.read().epoch, state.read().shut);
                if here >= epoch || shut == Some(Shut::Ended) {
                    return Ok(false);
                }
                if shut != Some(Shut::Frozen) {
                    inner.change(writer, &state, &[Record::Shut { shut: Some(Shut::Frozen) }])?;
                }
                Ok(true)
            })
            .await?;
        if begun {
            self.0.filling.lock().insert(item, GateItem::empty(item, epoch));
        }
        Ok(begun)
    }

    async fn fill(&self, item: ItemId, epoch: Epoch, marks: Vec<Claim>) -> Result<bool> {
        let mut filling = self.0.filling.lock();
        let mine = filling.get_mut(&item).filter(|filled| filled.epoch == epoch);
        Ok(mine.map(|filled| filled.put_marks(&marks)).is_some())
    }

    async fn abandon_load(&self, item: ItemId, epoch: Epoch) {
        self.0.filling.lock().retain(|id, filled| *id != item || filled.epoch != epoch);
    }

    async fn load(&self, loading: Loading) -> Result<bool> {
        let filled = self.0.filling.lock().remove(&loading.item);
        let filled = filled.filter(|filled| filled.epoch == loading.epoch);
        self.with_journal(move |inner, writer| {
            let before = inner.items.get(loading.item);
            let state = {
                let before = before.as_ref().map(|state| state.read());
                if before.as_ref().is_some_and(|before| before.epoch >= loading.epoch) {
                    return Ok(false);
                }
                GateItem::load(&loading, filled, before.as_deref())
            };
            let last_seq = writer.last_seq;
            writer.journal()?.put_items(last_seq, [&state])?;
            inner.items.put(state);
            Ok(true)
        })
        .await
    }

    async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool> {
        self.with_journal(move |inner, writer| {
            let Some(state) = inner.items.get(item) else { return Ok(false) };
            let now = state.read().shut;
            // Ended is for good. An item in doubt stays frozen until it is loaded anew, whatever an
            // operator resumes meanwhile: what it admitted would be in nobody's books.
            let stays = match now {
                Some(Shut::Ended) => true,
                Some(Shut::Frozen) => shut != Some(Shut::Ended),
                now => now == shut,
            };
            if !stays {
                inner.change(writer, &state, &[Record::Shut { shut }])?;
            }
            Ok(true)
        })
        .await
    }

    async fn unload(&self, item: ItemId) -> Result<()> {
        self.with_journal(move |inner, writer| {
            writer.journal()?.remove_item(item)?;
            inner.items.remove(item);
            let trimmed = writer.journal()?.trim(inner.options.keep)?;
            tracing::debug!(%item, trimmed, "the item left the gate");
            Ok(())
        })
        .await
    }

    async fn upkeep(&self) -> Result<()> {
        self.tidy(REWRITE_AFTER_ENTRIES).await?;
        self.drop_kept().await
    }
}

impl Inner {
    /// Write changes of one item and make them, all or none.
    fn change(
        &self,
        writer: &mut Writer,
        state: &RwLock<GateItem>,
        records: &[Record],
    ) -> std::result::Result<Changed, JournalError> {
        let item = state.read().item;
        let borrowed: Vec<_> = records.iter().map(|record| (item, record)).collect();
        writer.append(&borrowed)?;
        let mut state = state.write();
        let units = records.iter().map(|record| state.apply(record).units).sum();
        Ok(Changed { item, version: state.version, units })
    }

    fn readmit(
        &self,
        writer: &mut Writer,
        claim: Claim,
    ) -> std::result::Result<Readmitted, JournalError> {
        let Some(state) = self.items.get(claim.item) else { return Ok(Readmitted::NotLoaded) };
        {
            let state = state.read();
            if state.shut == Some(Shut::Frozen) {
                return Ok(Readmitted::Frozen);
            }
            match state.marks.get(&claim.user) {
                Some(mark) if mark.order_no == claim.order_no => return Ok(Readmitted::Known),
                Some(mark) => {
                    return Ok(Readmitted::AlreadyBought { order_no: mark.order_no });
                }
                None if i64::from(claim.quantity) > state.left => return Ok(Readmitted::SoldOut),
                None => {}
            }
        }
        let (item, epoch) = (claim.item, state.read().epoch);
        let claimed_ms = claim.claimed_ms;
        let record = Record::Claims { epoch, claimed_ms, claims: vec![claim] };
        self.change(writer, &state, std::slice::from_ref(&record))?;
        self.log.push(writer.last_seq, vec![(item, record)]);
        Ok(Readmitted::Admitted)
    }

    fn release(
        &self,
        writer: &mut Writer,
        units: Vec<GiveBack>,
    ) -> std::result::Result<Vec<Changed>, JournalError> {
        let mut by_item: BTreeMap<ItemId, Vec<GiveBack>> = BTreeMap::new();
        for unit in units {
            let state = self.items.get(unit.item);
            if state.is_some_and(|state| state.read().holds(&unit)) {
                by_item.entry(unit.item).or_default().push(unit);
            }
        }
        let records: Vec<(ItemId, Record)> =
            by_item.into_iter().map(|(item, units)| (item, Record::Release { units })).collect();
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let borrowed: Vec<_> = records.iter().map(|(item, record)| (*item, record)).collect();
        writer.append(&borrowed)?;
        let apply = |(item, record): &(ItemId, Record)| {
            self.items.get(*item).map(|state| state.write().apply(record))
        };
        Ok(records.iter().filter_map(apply).collect())
    }
}
