//! What each `Idempotency-Key` was spent on lately, so that a key for one item does not buy another.
//!
//! The gate compares a key with the mark its buyer has on the item at hand; the marks of other items
//! lie elsewhere, in a cluster even on other machines, and asking there would cost every claim a
//! second step. So each process remembers the keys it admitted last. That finds what it is for, a
//! client that sends one key for everything, and forgets by overwriting: a key that is not found is
//! decided by the gate as before.

use parking_lot::Mutex;
use sale::{ItemId, KeyHash, OrderNo};

/// Keys remembered at most; each takes 32 bytes.
const KEYS_REMEMBERED_MAX: usize = 1 << 16;

pub(crate) struct SpentOn {
    /// A key's place is given by its own bits, so that noting it is one write and nothing is sought.
    places: Box<[Mutex<Option<Spent>>]>,
}

#[derive(Clone, Copy)]
struct Spent {
    key: KeyHash,
    item: ItemId,
    order_no: OrderNo,
}

impl SpentOn {
    pub(crate) fn new() -> SpentOn {
        SpentOn { places: (0..KEYS_REMEMBERED_MAX).map(|_| Mutex::new(None)).collect() }
    }

    fn place(&self, key: KeyHash) -> &Mutex<Option<Spent>> {
        &self.places[key.0 as usize % KEYS_REMEMBERED_MAX]
    }

    /// A claim of this item was admitted with this key.
    pub(crate) fn note(&self, key: KeyHash, item: ItemId, order_no: OrderNo) {
        *self.place(key).lock() = Some(Spent { key, item, order_no });
    }

    /// The claim of another item that this key was spent on, as far as is remembered.
    pub(crate) fn elsewhere(&self, key: KeyHash, item: ItemId) -> Option<OrderNo> {
        let spent = (*self.place(key).lock())?;
        (spent.key == key && spent.item != item).then_some(spent.order_no)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_remembered_with_its_item_until_another_takes_its_place() {
        let spent_on = SpentOn::new();
        let order_no = OrderNo::from_u64(9).unwrap();
        let key = KeyHash(7);
        assert_eq!(spent_on.elsewhere(key, ItemId(1)), None);
        spent_on.note(key, ItemId(1), order_no);
        assert_eq!(spent_on.elsewhere(key, ItemId(1)), None, "its own item is the gate's matter");
        assert_eq!(spent_on.elsewhere(key, ItemId(2)), Some(order_no));
        let neighbour = KeyHash(7 + KEYS_REMEMBERED_MAX as u64);
        assert_eq!(spent_on.elsewhere(neighbour, ItemId(2)), None);
        spent_on.note(neighbour, ItemId(1), order_no);
        assert_eq!(spent_on.elsewhere(key, ItemId(2)), None);
    }
}
