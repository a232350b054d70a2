//! Which messages are out, and so how far each queue may be committed.
//!
//! RocketMQ remembers one place per queue and not which messages are done. Workers are done in any
//! order: an item may be put aside while others go on. So the place stops before the first message that
//! is not done; after a crash the done ones behind it come again, which changes nothing.
//!
//! A queue that goes to another worker and comes back begins anew: what was out before is forgotten, and
//! delivered again to whoever has the queue.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use crate::broker::Receipt;

/// `K` is what is kept of a message until it is done.
pub(super) struct Places<Q, K> {
    queues: HashMap<Q, Queue>,
    out: HashMap<Receipt, (Q, i64, K)>,
    last_receipt: u64,
}

#[derive(Default)]
struct Queue {
    /// Delivered and not done.
    open: BTreeSet<i64>,
    /// Behind the last one that was delivered.
    next: i64,
    /// What the broker was last told.
    told: i64,
}

impl Queue {
    /// All before it is done.
    fn reached(&self) -> i64 {
        self.open.first().copied().unwrap_or(self.next)
    }
}

impl<Q, K> Default for Places<Q, K> {
    fn default() -> Places<Q, K> {
        Places { queues: HashMap::new(), out: HashMap::new(), last_receipt: 0 }
    }
}

impl<Q: Clone + Eq + Hash, K: Clone> Places<Q, K> {
    pub(super) fn delivered(&mut self, queue: &Q, offset: i64, kept: K) -> Receipt {
        let ours = self
            .queues
            .entry(queue.clone())
            .or_insert_with(|| Queue { told: offset, ..Queue::default() });
        ours.open.insert(offset);
        ours.next = ours.next.max(offset + 1);
        self.last_receipt += 1;
        let receipt = Receipt(self.last_receipt);
        self.out.insert(receipt, (queue.clone(), offset, kept));
        receipt
    }

    /// True if some queue may be committed further than before.
    pub(super) fn done(&mut self, receipts: &[Receipt]) -> bool {
        for receipt in receipts {
            let Some((queue, offset, _)) = self.out.remove(receipt) else { continue };
            if let Some(ours) = self.queues.get_mut(&queue) {
                ours.open.remove(&offset);
            }
        }
        self.queues.values().any(|queue| queue.reached() > queue.told)
    }

    /// How far queues may be committed that the broker was not told so.
    pub(super) fn reached(&mut self) -> HashMap<Q, i64> {
        let further = self.queues.iter_mut().filter_map(|(queue, ours)| {
            let reached = ours.reached();
            (reached > ours.told).then(|| {
                ours.told = reached;
                (queue.clone(), reached)
            })
        });
        further.collect()
    }

    /// The broker may have forgotten what it was told.
    pub(super) fn say_again(&mut self) {
        for queue in self.queues.values_mut() {
            queue.told = queue.told.min(queue.reached() - 1);
        }
    }

    /// Other queues than these are not ours any more.
    pub(super) fn keep(&mut self, is_ours: impl Fn(&Q) -> bool) {
        self.queues.retain(|queue, _| is_ours(queue));
        let ours = &self.queues;
        self.out.retain(|_, (queue, _, _)| ours.contains_key(queue));
    }

    pub(super) fn kept(&self, receipt: Receipt) -> Option<K> {
        self.out.get(&receipt).map(|(_, _, kept)| kept.clone())
    }

    pub(super) fn open(&self) -> usize {
        self.out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_stops_before_the_first_message_that_is_not_done() {
        let mut places = Places::default();
        let out: Vec<Receipt> = (5..9).map(|offset| places.delivered(&"q0", offset, ())).collect();
        let other = places.delivered(&"q1", 70, ());
        assert!(!places.done(&out[1..3]));
        assert!(places.reached().is_empty());
        assert!(places.done(&[out[0], other]));
        assert_eq!(places.reached(), HashMap::from([("q0", 8), ("q1", 71)]));
        assert!(!places.done(&[out[0]]), "once");
        assert!(places.done(&[out[3]]));
        assert_eq!(places.reached(), HashMap::from([("q0", 9)]));
        assert_eq!((places.reached(), places.open()), (HashMap::new(), 0));
        places.say_again();
        assert_eq!(places.reached(), HashMap::from([("q0", 9), ("q1", 71)]));
    }

    #[test]
    fn what_was_out_before_a_queue_went_to_another_worker_is_forgotten() {
        let mut places = Places::default();
        let before = places.delivered(&"q0", 5, ());
        let kept = places.delivered(&"q1", 5, ());
        places.keep(|queue| *queue == "q1");
        assert_eq!(places.open(), 1);
        let again = places.delivered(&"q0", 5, ());
        assert!(!places.done(&[before]));
        assert!(places.done(&[again, kept]));
        assert_eq!(places.reached(), HashMap::from([("q0", 6), ("q1", 6)]));
    }
}
