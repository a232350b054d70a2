//! Which messages are out, and so how far each partition may be committed.
//!
//! Kafka remembers one offset per partition and not which messages are done. Workers are done in any order:
//! an item may be put aside while others go on. So the offset stops before the first message that is not
//! done; after a crash the done ones behind it come again, which changes nothing.
//!
//! A partition that is taken away and comes back is another one as far as receipts go: what was out then is
//! delivered again, to us or to others.

use std::collections::{BTreeSet, HashMap};

use crate::broker::Receipt;

#[derive(Default)]
pub(super) struct Offsets {
    partitions: HashMap<i32, Partition>,
    out: HashMap<Receipt, (i32, u64, i64)>,
    last_receipt: u64,
    /// How often partitions were given to us.
    given: u64,
}

struct Partition {
    /// Which time it is ours.
    given: u64,
    /// Delivered and not done.
    open: BTreeSet<i64>,
    /// Behind the last one that was delivered.
    next: i64,
}

impl Partition {
    /// All before it is done.
    fn reached(&self) -> i64 {
        self.open.first().copied().unwrap_or(self.next)
    }
}

impl Offsets {
    pub(super) fn assigned(&mut self, partitions: impl IntoIterator<Item = i32>) {
        self.given += 1;
        for partition in partitions {
            let new = Partition { given: self.given, open: BTreeSet::new(), next: 0 };
            self.partitions.insert(partition, new);
        }
    }

    pub(super) fn revoked(&mut self, partitions: impl IntoIterator<Item = i32>) {
        for partition in partitions {
            self.partitions.remove(&partition);
        }
        let ours = &self.partitions;
        self.out.retain(|_, (partition, given, _)| {
            ours.get(partition).is_some_and(|partition| partition.given == *given)
        });
    }

    /// `None` if the partition is not ours any more.
    pub(super) fn delivered(&mut self, partition: i32, offset: i64) -> Option<Receipt> {
        let ours = self.partitions.get_mut(&partition)?;
        ours.open.insert(offset);
        ours.next = ours.next.max(offset + 1);
        self.last_receipt += 1;
        let receipt = Receipt(self.last_receipt);
        self.out.insert(receipt, (partition, ours.given, offset));
        Some(receipt)
    }

    /// Answers up to where which partitions are done now, if they have come further.
    pub(super) fn done(&mut self, receipts: &[Receipt]) -> Vec<(i32, i64)> {
        let mut before: HashMap<i32, i64> = HashMap::new();
        for receipt in receipts {
            let Some((partition, _, offset)) = self.out.remove(receipt) else { continue };
            let Some(ours) = self.partitions.get_mut(&partition) else { continue };
            before.entry(partition).or_insert_with(|| ours.reached());
            ours.open.remove(&offset);
        }
        let reached = before.into_iter().filter_map(|(partition, before)| {
            let reached = self.partitions.get(&partition)?.reached();
            (reached > before).then_some((partition, reached))
        });
        reached.collect()
    }

    /// Of a client that has ended. Receipts are not given twice.
    pub(super) fn forget(&mut self) {
        self.partitions.clear();
        self.out.clear();
    }

    pub(super) fn open(&self) -> usize {
        self.out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_stops_before_the_first_message_that_is_not_done() {
        let mut offsets = Offsets::default();
        offsets.assigned([0, 1]);
        let out: Vec<Receipt> =
            (5..9).map(|offset| offsets.delivered(0, offset).unwrap()).collect();
        let other = offsets.delivered(1, 70).unwrap();
        assert_eq!(offsets.done(&out[1..3]), []);
        assert_eq!(offsets.done(&[out[0], other]).len(), 2);
        assert_eq!(offsets.done(&[out[0]]), [], "once");
        assert_eq!(offsets.done(&[out[3]]), [(0, 9)]);
        assert_eq!(offsets.open(), 0);
    }

    #[test]
    fn a_receipt_of_a_client_that_has_ended_says_nothing_of_the_next_one() {
        let mut offsets = Offsets::default();
        offsets.assigned([0]);
        let before = offsets.delivered(0, 5).unwrap();
        offsets.forget();
        offsets.assigned([0]);
        let again = offsets.delivered(0, 5).unwrap();
        assert_ne!(before, again);
        assert_eq!(offsets.done(&[before]), []);
        assert_eq!(offsets.done(&[again]), [(0, 6)]);
    }

    #[test]
    fn what_was_out_before_a_partition_was_taken_away_says_nothing_of_it_afterwards() {
        let mut offsets = Offsets::default();
        offsets.assigned([0, 1]);
        let before = offsets.delivered(0, 5).unwrap();
        let kept = offsets.delivered(1, 5).unwrap();
        offsets.revoked([0]);
        assert_eq!(offsets.delivered(0, 6), None);
        offsets.assigned([0]);
        let again = offsets.delivered(0, 5).unwrap();
        assert_eq!(offsets.done(&[before]), []);
        assert_eq!(offsets.done(&[again]), [(0, 6)]);
        assert_eq!(offsets.done(&[kept]), [(1, 6)], "of one that stayed ours nothing changed");
    }
}
