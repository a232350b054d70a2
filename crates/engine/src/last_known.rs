//! The orders that were last read here for buyers, for the time when the ledger cannot be asked.
//!
//! As long as it can, nobody is told what is in here. When it cannot, what it said a while ago is told with
//! the time at which it was true. An order that changed since, as far as anybody told us, is forgotten.

use std::collections::HashMap;

use parking_lot::Mutex;
use sale::{Millis, Order, OrderNo};

/// Orders remembered; of more, those that were read first are forgotten first.
const ORDERS_MAX: usize = 20_000;
/// What was read longer ago is not told.
const AGE_MS_MAX: Millis = 600_000;

#[derive(Default)]
pub(crate) struct LastKnown(Mutex<Generations>);

/// When `young` is full it becomes `old`, and what was old is forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<OrderNo, (Order, Millis)>,
    old: HashMap<OrderNo, (Order, Millis)>,
}

impl LastKnown {
    /// `read_ms` is from before it was read.
    pub(crate) fn note(&self, order: &Order, read_ms: Millis) {
        let mut generations = self.0.lock();
        if generations.young.len() >= ORDERS_MAX / 2 {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(order.order_no, (order.clone(), read_ms));
    }

    /// The order, and when it was so.
    pub(crate) fn of(&self, no: OrderNo, now_ms: Millis) -> Option<(Order, Millis)> {
        let generations = self.0.lock();
        let known = generations.young.get(&no).or_else(|| generations.old.get(&no))?;
        (0..AGE_MS_MAX).contains(&(now_ms - known.1)).then(|| known.clone())
    }

    /// They have changed.
    pub(crate) fn forget(&self, numbers: impl Iterator<Item = OrderNo>) {
        let mut generations = self.0.lock();
        for no in numbers {
            generations.young.remove(&no);
            generations.old.remove(&no);
        }
    }
}
