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

    pub(super) fn put(&self, id: ItemId, item: Arc<RwLock<GateItem>>) {
        self.0.write().insert(id, item);
    }

    pub(super) fn remove(&self, item: ItemId) -> Option<Arc<RwLock<GateItem>>> {
        self.0.write().remove(&item)
    }

    /// The largest number of an order or adjustment that any item knows.
    pub(super) fn last_order_no(&self) -> Option<OrderNo> {
        self.all().iter().filter_map(|item| item.read().last_order_no()).max()
    }

    /// Write the journal anew: all items as they are now, and what is owed to the ledger.
    pub(super) fn replace_in(
        &self,
        journal: &mut Journal,
        as_of: u64,
        owed: &[Stored],
    ) -> Result<(), JournalError> {
        let items = self.all();
        journal.replace(as_of, items.iter().map(|item| &**item), owed)?;
        items.iter().for_each(|item| item.write().is_all_written(as_of));
        Ok(())
    }
}
