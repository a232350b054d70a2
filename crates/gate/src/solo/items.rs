//! Every item at the gate, in memory.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;
use sale::{ItemId, OrderNo};

use super::{
    item::GateItem,
    journal::{Journal, JournalError, Stored},
};

/// Locked for writing, as a whole or one item, only by the holder of the journal lock.
#[derive(Default)]
pub(super) struct Items(RwLock<HashMap<ItemId, Arc<RwLock<GateItem>>>>);

impl Items {
    pub(super) fn get(&self, item: ItemId) -> Option<Arc<RwLock<GateItem>>> {
        self.0.read().get(&item).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<RwLock<GateItem>>> {
        self.0.read().values().cloned().collect()
    }

    pub(super) fn put(&self, item: GateItem) {
        self.0.write().insert(item.item, Arc::new(RwLock::new(item)));
    }

    pub(super) fn remove(&self, item: ItemId) {
        self.0.write().remove(&item);
    }

    /// The largest number of an order or adjustment that any item knows.
    pub(super) fn last_order_no(&self) -> Option<OrderNo> {
        self.all().iter().filter_map(|item| item.read().last_order_no()).max()
    }

    /// Write all items into the journal as they are now.
    pub(super) fn write_to(&self, journal: &mut Journal, as_of: u64) -> Result<(), JournalError> {
        let items = self.all();
        let guards: Vec<_> = items.iter().map(|item| item.read()).collect();
        journal.put_items(as_of, guards.iter().map(|item| &**item))
    }

    /// Write the journal anew: all items as they are now, and what is owed to the ledger.
    pub(super) fn replace_in(
        &self,
        journal: &mut Journal,
        as_of: u64,
        owed: &[Stored],
    ) -> Result<(), JournalError> {
        let items = self.all();
        let guards: Vec<_> = items.iter().map(|item| item.read()).collect();
        journal.replace(as_of, guards.iter().map(|item| &**item), owed)
    }
}
