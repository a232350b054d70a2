//! Changes of the gate that are not admissions: units that come back, stock that operators change, loads,
//! and what has to be done now and then. Each is written down before it is made.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::RwLock;
use sale::{Claim, Epoch, ItemId, OrderNo};

use super::{
    Inner, REWRITE_AFTER_ENTRIES, SoloGate,
    item::GateItem,
    journal::{JournalError, pieces::Leftover},
    record::Record,
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
        self.with_journal(move |inner, writer| {
            let loading = units.iter().find_map(|unit| inner.refuse_while_loading(unit.item).err());
            loading.map_or_else(|| inner.release(writer, units).map(Ok), |error| Ok(Err(error)))
        })
        .await?
    }

    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        self.with_journal(move |inner, writer| {
            if let Err(loading) = inner.refuse_while_loading(item) {
                return Ok(Err(loading));
            }
            let Some(state) = inner.items.get(item) else {
                return Ok(Ok(AdjustOutcome::NotLoaded));
            };
            let (had, left) = {
                let state = state.read();
                (state.adjusts.get(&adjust_no).copied(), state.left)
            };
            let mut records = Vec::new();
            match had {
                // Zero: the load contained it.
                Some(had) if had == delta || had == 0 => return Ok(Ok(AdjustOutcome::Repeated)),
                Some(had) if !committed => return Ok(Ok(AdjustOutcome::Other { delta: had })),
                Some(_) => records.push(Record::ForgetAdjust { adjust_no }),
                None => {}
            }
            if delta < 0 && left.saturating_add(delta) < 0 && !committed {
                return Ok(Ok(AdjustOutcome::Short { left }));
            }
            records.push(Record::Adjust { adjust_no, delta });
            Ok(Ok(AdjustOutcome::Done(inner.change(writer, &state, &records)?)))
        })
        .await?
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.with_journal(move |inner, writer| {
            if let Err(loading) = inner.refuse_while_loading(item) {
                return Ok(Err(loading));
            }
            let Some(state) = inner.items.get(item) else { return Ok(Ok(None)) };
            if !state.read().adjusts.contains_key(&adjust_no) {
                return Ok(Ok(None));
            }
            Ok(Ok(Some(inner.change(writer, &state, &[Record::ForgetAdjust { adjust_no }])?)))
        })
        .await?
    }

    async fn begin_load(&self, item: ItemId, epoch: Epoch, _: u32) -> Result<bool> {
        self.begin(item, epoch).await
    }

    async fn fill(&self, item: ItemId, epoch: Epoch, marks: Vec<Claim>) -> Result<bool> {
        self.fill_in(item, epoch, marks).await
    }

    async fn abandon_load(&self, item: ItemId, epoch: Epoch) {
        self.abandon(item, epoch).await;
    }

    async fn load(&self, loading: Loading) -> Result<bool> {
        self.load_whole(loading).await
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
            inner.forget_filling(writer, item);
            if let Some(state) = inner.items.remove(item) {
                let generation = state.read().in_file.generation;
                writer.leftovers.push(Leftover { item, generation });
            }
            Ok(())
        })
        .await?;
        self.drop_leftovers().await?;
        let trimmed = self.trim().await?;
        tracing::debug!(%item, trimmed, "the item left the gate");
        Ok(())
    }

    async fn upkeep(&self) -> Result<()> {
        self.drop_leftovers().await?;
        self.tidy(REWRITE_AFTER_ENTRIES).await?;
        self.drop_kept().await
    }
}

impl Inner {
    /// Write changes of one item and make them, all or none.
    pub(super) fn change(
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
