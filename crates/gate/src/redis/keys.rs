//! The names of everything in Redis.
//!
//! All keys of a partition carry its hash tag, so that a buyer's mark, the stock they draw on and
//! the stream they end up in are in one slot and one script. If a format ever changes, the prefix
//! gets a version.

use sale::ItemId;

/// The keys of one deployment.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { prefix: prefix.into() }
    }

    /// hash: item → how many shards it has. What is at the gate, for those who join later.
    pub(super) fn items(&self) -> String {
        format!("{}:items", self.prefix)
    }

    /// hash: epoch shut opens closes limit seq units server; of a load under way also loading (when it
    /// made its last step, in ms) wiped filled (chunks of marks) stocked wish
    pub(super) fn meta(&self, partition: usize, item: ItemId) -> String {
        self.of_item(partition, "meta", item)
    }

    /// string: units left in this partition
    pub(super) fn stock(&self, partition: usize, item: ItemId) -> String {
        self.of_item(partition, "stock", item)
    }

    /// hash: user → mark, the one-order-per-buyer rule
    pub(super) fn users(&self, partition: usize, item: ItemId) -> String {
        self.of_item(partition, "users", item)
    }

    /// hash: user → mark, of a load under way: what was marked before it and has not been marked by it
    pub(super) fn before(&self, partition: usize, item: ItemId) -> String {
        self.of_item(partition, "before", item)
    }

    /// hash: key → mark of a claim whose units went back; the same key keeps its answer
    pub(super) fn spent(&self, partition: usize, item: ItemId) -> String {
        self.of_item(partition, "spent", item)
    }

    /// hash: adjustment number → units
    pub(super) fn adjusts(&self, partition: usize, item: ItemId) -> String {
        self.of_item(partition, "adjusts", item)
    }

    /// stream: one entry per batch and item, the winners
    pub(super) fn orders(&self, partition: usize) -> String {
        self.of_partition(partition, "orders")
    }

    /// string: claims on the stream that are not acknowledged
    pub(super) fn backlog(&self, partition: usize) -> String {
        self.of_partition(partition, "backlog")
    }

    /// stream: entries that are acknowledged, in the order of that, for those who look back
    pub(super) fn kept(&self, partition: usize) -> String {
        self.of_partition(partition, "kept")
    }

    /// string: how much that is, roughly
    pub(super) fn kept_bytes(&self, partition: usize) -> String {
        self.of_partition(partition, "kept_bytes")
    }

    /// string: written by whoever checks that the partition can be written; expires
    pub(super) fn probe(&self, partition: usize) -> String {
        self.of_partition(partition, "probe")
    }

    /// sorted set: item → how many changes there had been in this partition when it last changed; under
    /// the empty name, how many there have been
    pub(super) fn changed(&self, partition: usize) -> String {
        self.of_partition(partition, "changed")
    }

    /// hash: move → item:epoch:to:units:ms, stock that left this partition and may not have arrived
    pub(super) fn moves(&self, partition: usize) -> String {
        self.of_partition(partition, "moves")
    }

    /// hash: move → item:ms, stock that arrived here
    pub(super) fn given(&self, partition: usize) -> String {
        self.of_partition(partition, "given")
    }

    /// hash: move → item:ms, moves from here that are over
    pub(super) fn settled(&self, partition: usize) -> String {
        self.of_partition(partition, "settled")
    }

    fn of_item(&self, partition: usize, what: &str, item: ItemId) -> String {
        format!("{}:{{p{partition}}}:{what}:{item}", self.prefix)
    }

    fn of_partition(&self, partition: usize, what: &str) -> String {
        format!("{}:{{p{partition}}}:{what}", self.prefix)
    }
}
