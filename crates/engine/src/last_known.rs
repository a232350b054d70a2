//! The orders that were last read here for buyers, for the time when the ledger cannot be asked.
//!
//! As long as it can, nobody is told what is in here. When it cannot, what it said a while ago is told with
//! the time at which it was true. An order that changed since, as far as anybody told us, is forgotten.

use gate::Recent;
use parking_lot::Mutex;
use sale::{Millis, Order, OrderNo};

/// Orders remembered; of more, those that were read first are forgotten first.
const ORDERS_MAX: usize = 20_000;
/// What was read longer ago is not told.
const AGE_MS_MAX: Millis = 600_000;

pub(crate) struct LastKnown(Mutex<Recent<OrderNo, (Order, Millis)>>);

impl Default for LastKnown {
    fn default() -> Self {
        LastKnown(Mutex::new(Recent::new(ORDERS_MAX)))
    }
}

impl LastKnown {
    /// `read_ms` is from before it was read.
    pub(crate) fn note(&self, order: &Order, read_ms: Millis) {
        self.0.lock().insert(order.order_no, (order.clone(), read_ms));
    }

    /// The order, and when it was so.
    pub(crate) fn of(&self, no: OrderNo, now_ms: Millis) -> Option<(Order, Millis)> {
        let known = self.0.lock().get(&no).cloned()?;
        (0..AGE_MS_MAX).contains(&(now_ms - known.1)).then_some(known)
    }

    /// They have changed.
    pub(crate) fn forget(&self, numbers: impl Iterator<Item = OrderNo>) {
        let mut known = self.0.lock();
        numbers.for_each(|no| known.remove(&no));
    }
}
