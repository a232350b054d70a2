//! Loading an item, step by step: other items are sold meanwhile.
//!
//! 1. *begin*: an item that is here is frozen, in the journal, and keeps its marks: they answer for
//!    buyers who hold something. From here on units that come back and stock changes are refused, for a
//!    load replaces what is here by what the ledger held a moment before.
//! 2. *fill*: marks come in parts, and take the place of what was here.
//! 3. *load*: what the load did not bring ends, piece by piece; what changed is written, piece by piece;
//!    the last step writes the head, under which the item is sold.
//!
//! A crash before the last step finds the item frozen in its old epoch, or not here at all if it never
//! was, and it is loaded again by whoever sees that. Memory holds the item once, whether it was here
//! before or not.

use std::sync::Arc;

use parking_lot::RwLock;
use sale::{Claim, Epoch, ItemId};

use super::{
    Inner, SoloGate,
    item::GateItem,
    journal::{JournalError, pieces::Leftover},
    record::Record,
    writer::Writer,
    writing::Pass,
};
use crate::{GateError, GateFailure, Loading, Result, Shut};

/// A step that changes an item without writing it needs the journal all the same: while it is mended, it is
/// written anew from what is here. Marks that are filled in in one step: a quarter of a millisecond.
const STEP_MARKS_MAX: usize = 1_000;
/// Pieces from which what the load did not bring is taken in one step.
const STEP_PIECES_MAX: usize = 8;

/// A load under way.
#[derive(Clone)]
pub(super) struct Filling {
    epoch: Epoch,
    /// The item as it is at the gate, or a new one.
    state: Arc<RwLock<GateItem>>,
}

/// Only the holder of a load may go on with it.
fn of_epoch(filling: Option<&Filling>, epoch: Epoch) -> Option<Arc<RwLock<GateItem>>> {
    filling.filter(|filling| filling.epoch == epoch).map(|filling| filling.state.clone())
}

impl Inner {
    pub(super) fn is_filling(&self, item: ItemId) -> bool {
        self.filling.lock().contains_key(&item)
    }

    /// Whoever has something for an item that is being loaded comes again.
    pub(super) fn refuse_while_loading(&self, item: ItemId) -> Result<()> {
        if self.is_filling(item) {
            let detail = format!("item {item} is being loaded");
            return Err(GateError::new(GateFailure::BeingLoaded, detail));
        }
        Ok(())
    }

    fn filling(&self, item: ItemId, epoch: Epoch) -> Option<Arc<RwLock<GateItem>>> {
        of_epoch(self.filling.lock().get(&item), epoch)
    }

    fn begin_load(
        &self,
        writer: &mut Writer,
        item: ItemId,
        epoch: Epoch,
    ) -> std::result::Result<bool, JournalError> {
        let later = self.filling.lock().get(&item).is_some_and(|filling| filling.epoch >= epoch);
        if later {
            return Ok(false);
        }
        let state = match self.items.get(item) {
            Some(state) => {
                let (here, shut) = (state.read().epoch, state.read().shut);
                if here >= epoch || shut == Some(Shut::Ended) {
                    return Ok(false);
                }
                if shut != Some(Shut::Frozen) {
                    let shut = Some(Shut::Frozen);
                    self.change(writer, &state, &[Record::Shut { shut }])?;
                }
                state.write().begin_filling();
                state
            }
            None => Arc::new(RwLock::new(GateItem::empty(item, epoch))),
        };
        self.forget_filling(writer, item);
        self.filling.lock().insert(item, Filling { epoch, state });
        Ok(true)
    }

    /// Whoever loads it hears so with the next step. What was written of an item that is not here is of none.
    pub(super) fn forget_filling(&self, writer: &mut Writer, item: ItemId) {
        let Some(Filling { state, .. }) = self.filling.lock().remove(&item) else { return };
        let in_file = state.read().in_file;
        if !in_file.has_row && self.items.get(item).is_none() {
            writer.leftovers.push(Leftover { item, generation: in_file.generation });
        }
    }

    /// The journal was written anew, and only items that are at the gate are in it.
    pub(super) fn forget_written_of_new_ones(&self) {
        for (item, filling) in self.filling.lock().iter() {
            if self.items.get(*item).is_none() {
                filling.state.write().is_all_unwritten();
            }
        }
    }

    /// The last step. The item is sold from here on.
    fn open(&self, state: Arc<RwLock<GateItem>>, head: GateItem) {
        let item = head.item;
        {
            let mut state = state.write();
            state.take_head(head);
            state.in_file.version = state.version;
        }
        self.filling.lock().remove(&item);
        self.items.put(item, state);
    }
}

impl SoloGate {
    pub(super) async fn begin(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        self.with_journal(move |inner, writer| inner.begin_load(writer, item, epoch)).await
    }

    pub(super) async fn abandon(&self, item: ItemId, epoch: Epoch) {
        let abandoned = self.with_journal(move |inner, writer| {
            if inner.filling(item, epoch).is_some() {
                inner.forget_filling(writer, item);
            }
            Ok(())
        });
        if let Err(error) = abandoned.await {
            tracing::error!(%item, %error, "a load that was given up could not be forgotten");
        }
    }

    /// False if somebody else has begun a later load.
    pub(super) async fn fill_in(
        &self,
        item: ItemId,
        epoch: Epoch,
        mut marks: Vec<Claim>,
    ) -> Result<bool> {
        while !marks.is_empty() {
            let rest = marks.split_off(marks.len().min(STEP_MARKS_MAX));
            let some = std::mem::replace(&mut marks, rest);
            let filled = self.with_journal(move |inner, writer| {
                writer.journal()?;
                let state = inner.filling(item, epoch);
                Ok(state.map(|state| state.write().fill(&some)).is_some())
            });
            if !filled.await? {
                return Ok(false);
            }
        }
        Ok(self.0.filling(item, epoch).is_some())
    }

    pub(super) async fn load_whole(&self, mut loading: Loading) -> Result<bool> {
        let Loading { item, epoch, .. } = loading;
        if self.0.filling(item, epoch).is_none() && !self.begin(item, epoch).await? {
            return Ok(false);
        }
        let marks = std::mem::take(&mut loading.marks);
        if !self.fill_in(item, epoch, marks).await? || !self.end_others(item, epoch).await? {
            return Ok(false);
        }
        self.write_and_open(loading).await
    }

    /// Marks that the load did not bring end.
    async fn end_others(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        let mut from = 0;
        loop {
            let ended = self.with_journal(move |inner, writer| {
                writer.journal()?;
                let Some(state) = inner.filling(item, epoch) else { return Ok(None) };
                let mut state = state.write();
                let pieces = state.marks.pieces().len();
                let to = pieces.min(from + STEP_PIECES_MAX);
                (from..to).for_each(|place| state.end_others(place));
                Ok(Some((to, to == pieces)))
            });
            match ended.await? {
                None => return Ok(false),
                Some((_, true)) => return Ok(true),
                Some((to, false)) => from = to,
            }
        }
    }

    async fn write_and_open(&self, loading: Loading) -> Result<bool> {
        let Loading { item, epoch, .. } = loading;
        let loading = Arc::new(loading);
        let mut pass = None::<Pass>;
        loop {
            let loading = loading.clone();
            let written = self.with_journal(move |inner, writer| {
                let Some(state) = inner.filling(item, epoch) else { return Ok(None) };
                let mut pass = pass.unwrap_or_else(|| Pass::of(&state.read(), writer));
                let head = GateItem::head_of(&loading);
                let more = inner.write_step(writer, &state, &mut pass, Some(&head))?;
                if !more {
                    inner.open(state, head);
                }
                Ok(Some((pass, more)))
            });
            match written.await? {
                None => return Ok(false),
                Some((_, false)) => return Ok(true),
                Some((under_way, true)) => pass = Some(under_way),
            }
        }
    }
}
