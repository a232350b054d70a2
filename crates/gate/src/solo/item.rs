//! One item at the gate, in memory: its window, what is left, who is marked.
//!
//! Pure: it decides and changes, it writes nothing. Deciding a batch and replaying the journal end
//! in the same [`GateItem::apply`], so what a restart rebuilds is what was there.

use std::collections::{BTreeMap, HashMap, HashSet};

use indexmap::IndexMap;
use sale::{Claim, Epoch, ItemId, KeyHash, Millis, OrderNo, UserId};

use super::record::Record;
use crate::{
    Busy, Changed, ClaimRequest, Decision, GiveBack, Loading, NumberedRequest, Shut,
    mark::{Mark, repeated},
};

/// Versions count up from the epoch, so that those of a later epoch are always larger.
const VERSION_BITS: u32 = 40;

/// Keys of claims that were given back, remembered per item so that the same key still gets the
/// same answer. Beyond this many no more are remembered, and a further one counts as new.
const SPENT_KEYS_MAX: usize = 1_000_000;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct GateItem {
    pub(super) item: ItemId,
    pub(super) epoch: Epoch,
    pub(super) shut: Option<Shut>,
    pub(super) opens_ms: Millis,
    pub(super) closes_ms: Millis,
    pub(super) limit: u32,
    /// Below zero only after the ledger lowered the stock under claims in flight; it comes back to
    /// zero as the ledger voids them.
    pub(super) left: i64,
    pub(super) version: u64,
    pub(super) marked_units: i64,
    /// Of the maps this one holds a million: entries lie dense, one beside the other, and growing
    /// neither doubles what they take nor hashes them anew.
    pub(super) marks: IndexMap<UserId, Mark>,
    pub(super) spent: HashMap<KeyHash, Mark>,
    /// Whose keys those are: the sold-out cache must not answer in their place.
    pub(super) spenders: HashSet<UserId>,
    pub(super) adjusts: BTreeMap<OrderNo, i64>,
}

impl GateItem {
    pub(super) fn empty(item: ItemId, epoch: Epoch) -> GateItem {
        GateItem {
            item,
            epoch,
            shut: None,
            opens_ms: 0,
            closes_ms: 0,
            limit: 0,
            left: 0,
            version: epoch << VERSION_BITS,
            marked_units: 0,
            marks: IndexMap::new(),
            spent: HashMap::new(),
            spenders: HashSet::new(),
            adjusts: BTreeMap::new(),
        }
    }

    /// The item under a new epoch, some of whose marks may be filled in already. Spent keys of the epoch
    /// before, if there was one, stay spent.
    pub(super) fn load(
        loading: &Loading,
        filled: Option<GateItem>,
        before: Option<&GateItem>,
    ) -> GateItem {
        // Epochs only grow. If this one does not, the load fails before anything is written, and what
        // is at the gate stays as it is.
        let (item, epoch) = (loading.item, loading.epoch);
        assert!(before.map(|before| before.epoch) < Some(epoch), "{item} is beyond epoch {epoch}");
        let mut item = filled.unwrap_or_else(|| GateItem::empty(loading.item, loading.epoch));
        item.shut = loading.shut;
        item.opens_ms = loading.opens_ms;
        item.closes_ms = loading.closes_ms;
        item.limit = loading.limit;
        item.left = loading.left;
        item.adjusts = loading.adjusted.iter().map(|adjust_no| (*adjust_no, 0)).collect();
        item.put_marks(&loading.marks);
        if let Some(before) = before {
            item.spent = before.spent.clone();
            item.spenders = before.spenders.clone();
            // A mark that ends here and not by a release: its key was answered all the same.
            for (user, mark) in &before.marks {
                if item.marks.get(user).is_none_or(|now| now.order_no != mark.order_no) {
                    item.spend(user.clone(), *mark);
                }
            }
        }
        item
    }

    pub(super) fn put_marks(&mut self, claims: &[Claim]) {
        self.marks.reserve(claims.len());
        for claim in claims {
            self.put_mark(claim.user.clone(), Mark::of(claim));
        }
    }

    pub(super) fn put_mark(&mut self, user: UserId, mark: Mark) {
        self.marked_units += i64::from(mark.quantity);
        if let Some(old) = self.marks.insert(user, mark) {
            self.marked_units -= i64::from(old.quantity);
        }
    }

    /// Decide one request, and if it wins, take the units and mark the buyer.
    ///
    /// What was answered before comes first: it is true whether or not the window is open.
    pub(super) fn decide(
        &mut self,
        (order_no, request): &NumberedRequest,
        now_ms: Millis,
        ahead: u64,
    ) -> Decision {
        if let Some(known) = self.answered(request, ahead) {
            return known;
        }
        match self.shut {
            Some(Shut::Ended) => return Decision::Ended,
            Some(Shut::Paused) => return Decision::Busy(Busy::Paused),
            Some(Shut::Frozen) => return Decision::Busy(Busy::Frozen),
            None if now_ms < self.opens_ms => {
                return Decision::NotStarted { opens_ms: self.opens_ms };
            }
            None if now_ms >= self.closes_ms => return Decision::Ended,
            None => {}
        }
        if request.quantity > self.limit {
            return Decision::OverLimit { limit: self.limit };
        }
        if i64::from(request.quantity) > self.left {
            return Decision::SoldOut { left: self.left.max(0), version: self.version };
        }
        let claim = request.claim(*order_no, self.epoch, now_ms);
        self.take(&claim);
        Decision::Admitted { claim, repeated: false, ahead }
    }

    /// The answer that the same key had, or that what the buyer holds gives. A spent key comes before
    /// what its buyer holds by now: same key, same answer.
    pub(super) fn answered(&self, request: &ClaimRequest, ahead: u64) -> Option<Decision> {
        if let Some(mark) = request.key.and_then(|key| self.spent.get(&key)) {
            return Some(repeated(*mark, request, ahead));
        }
        let mark = self.marks.get(&request.user)?;
        Some(match request.key {
            Some(key) if mark.key() == Some(key) => repeated(*mark, request, ahead),
            _ => Decision::AlreadyBought { order_no: mark.order_no },
        })
    }

    fn take(&mut self, claim: &Claim) {
        self.left -= i64::from(claim.quantity);
        self.version += 1;
        self.put_mark(claim.user.clone(), Mark::of(claim));
    }

    /// Undo the taking of units whose claim could not be written down. The buyer was told nothing, so
    /// the key is not spent either.
    pub(super) fn untake(&mut self, claim: &Claim) {
        let holds = |mark: &Mark| mark.order_no == claim.order_no;
        if self.marks.get(&claim.user).is_some_and(holds)
            && let Some(mark) = self.marks.swap_remove(&claim.user)
        {
            self.left += i64::from(mark.quantity);
            self.marked_units -= i64::from(mark.quantity);
        }
        // Never back: somebody may have seen the number between the two.
        self.version += 1;
    }

    /// The largest number of an order or adjustment that is known here.
    pub(super) fn last_order_no(&self) -> Option<OrderNo> {
        let marks = self.marks.values().chain(self.spent.values()).map(|mark| mark.order_no).max();
        marks.max(self.adjusts.keys().max().copied())
    }

    /// Make a change that is in the journal.
    pub(super) fn apply(&mut self, record: &Record) -> Changed {
        let before = self.left;
        match record {
            Record::Claims { claims, .. } => claims.iter().for_each(|claim| self.take(claim)),
            Record::Release { units } => units.iter().for_each(|unit| self.give_back(unit)),
            Record::Adjust { adjust_no, delta } => {
                if self.adjusts.insert(*adjust_no, *delta).is_none() {
                    self.left += delta;
                }
            }
            Record::ForgetAdjust { adjust_no } => {
                self.left -= self.adjusts.remove(adjust_no).unwrap_or(0);
            }
            Record::Shut { shut } => self.shut = *shut,
        }
        self.version += 1;
        Changed { item: self.item, version: self.version, units: self.left - before }
    }

    /// Would this release change anything?
    pub(super) fn holds(&self, unit: &GiveBack) -> bool {
        self.marks.get(&unit.user).is_some_and(|mark| mark.order_no == unit.order_no)
    }

    fn give_back(&mut self, unit: &GiveBack) {
        if !self.holds(unit) {
            return;
        }
        if let Some((user, mark)) = self.marks.swap_remove_entry(&unit.user) {
            // The units that come back are those the mark took, whatever the message says.
            self.left += i64::from(mark.quantity);
            self.marked_units -= i64::from(mark.quantity);
            self.spend(user, mark);
        }
    }

    fn spend(&mut self, user: UserId, mark: Mark) {
        if let Some(key) = mark.key()
            && self.spent.len() < SPENT_KEYS_MAX
        {
            self.spent.insert(key, mark);
            self.spenders.insert(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "beyond epoch 1")]
    fn an_epoch_that_does_not_grow_is_no_load() {
        GateItem::load(&loading(1), None, Some(&item(9)));
    }

    fn loading(left: i64) -> Loading {
        Loading {
            item: ItemId(1),
            epoch: 1,
            opens_ms: 1_000,
            closes_ms: 2_000,
            limit: 2,
            shards: 1,
            left,
            marks: vec![],
            adjusted: vec![],
            shut: None,
        }
    }

    fn item(left: i64) -> GateItem {
        GateItem::load(&loading(left), None, None)
    }

    fn request(n: u64, user: &str, quantity: u32, key: Option<u64>) -> NumberedRequest {
        let (user, key) = (user.parse().unwrap(), key.map(KeyHash));
        let request = ClaimRequest { item: ItemId(1), user, quantity, key };
        (OrderNo::from_u64(n).unwrap(), request)
    }

    /// What the first claim of u1 took.
    fn held_by_u1(quantity: u32) -> GiveBack {
        let order_no = OrderNo::from_u64(1).unwrap();
        GiveBack { item: ItemId(1), user: "u1".parse().unwrap(), order_no, quantity }
    }

    #[test]
    fn the_window_opens_and_closes_to_the_millisecond() {
        let mut item = item(9);
        let try_at =
            |item: &mut GateItem, n, ms| item.decide(&request(n, &format!("u{n}"), 1, None), ms, 0);
        assert_eq!(try_at(&mut item, 1, 999), Decision::NotStarted { opens_ms: 1_000 });
        assert!(matches!(try_at(&mut item, 2, 1_000), Decision::Admitted { .. }));
        assert!(matches!(try_at(&mut item, 3, 1_999), Decision::Admitted { .. }));
        assert_eq!(try_at(&mut item, 4, 2_000), Decision::Ended);
        item.shut = Some(Shut::Paused);
        assert_eq!(try_at(&mut item, 5, 1_500), Decision::Busy(Busy::Paused));
    }

    #[test]
    fn what_the_buyer_holds_is_told_even_after_the_end() {
        let mut item = item(1);
        item.decide(&request(1, "u1", 1, Some(7)), 1_500, 0);
        for now in [1_500, 9_999] {
            let again = item.decide(&request(2, "u1", 1, Some(7)), now, 0);
            let Decision::Admitted { claim, repeated: true, .. } = again else {
                panic!("{again:?}")
            };
            assert_eq!(claim.order_no.as_u64(), 1);
            let other_key = item.decide(&request(3, "u1", 1, Some(8)), now, 0);
            assert_eq!(other_key, Decision::AlreadyBought { order_no: claim.order_no });
        }
    }

    #[test]
    fn a_spent_key_keeps_its_answer_after_the_units_went_back() {
        let mut item = item(1);
        item.decide(&request(1, "u1", 1, Some(7)), 1_500, 0);
        let unit = held_by_u1(1);
        assert_eq!(item.apply(&Record::Release { units: vec![unit.clone(), unit] }).units, 1);
        assert!(matches!(
            item.decide(&request(2, "u1", 1, Some(7)), 1_500, 0),
            Decision::Admitted { repeated: true, .. }
        ));
        assert_eq!(item.left, 1, "the old answer took no new unit");
        assert!(matches!(
            item.decide(&request(3, "u1", 1, Some(8)), 1_500, 0),
            Decision::Admitted { repeated: false, .. }
        ));
    }

    #[test]
    fn a_spent_key_keeps_its_answer_when_its_buyer_holds_another_claim() {
        let mut item = item(2);
        item.decide(&request(1, "u1", 1, Some(7)), 1_500, 0);
        let unit = held_by_u1(1);
        item.apply(&Record::Release { units: vec![unit] });
        item.decide(&request(2, "u1", 1, Some(8)), 1_500, 0);
        for (key, order_no) in [(7, 1), (8, 2)] {
            let again = item.decide(&request(3, "u1", 1, Some(key)), 1_500, 0);
            let Decision::Admitted { claim, repeated: true, .. } = again else {
                panic!("{again:?}")
            };
            assert_eq!(claim.order_no.as_u64(), order_no);
        }
    }

    #[test]
    fn a_key_that_asks_for_another_quantity_is_told_so_and_takes_nothing() {
        let mut item = item(9);
        item.decide(&request(1, "u1", 2, Some(7)), 1_500, 0);
        let order_no = OrderNo::from_u64(1).unwrap();
        let reused = Decision::KeyReused { order_no };
        assert_eq!(item.decide(&request(2, "u1", 1, Some(7)), 1_500, 0), reused);
        let unit = held_by_u1(2);
        item.apply(&Record::Release { units: vec![unit] });
        assert_eq!(item.decide(&request(3, "u1", 1, Some(7)), 1_500, 0), reused, "a spent key");
        assert_eq!(item.left, 9);
        let same = item.decide(&request(4, "u1", 2, Some(7)), 1_500, 0);
        assert!(matches!(same, Decision::Admitted { repeated: true, .. }), "{same:?}");
    }

    #[test]
    fn a_key_outlives_the_rebuild_that_drops_its_mark() {
        let mut before = item(1);
        before.decide(&request(1, "u1", 1, Some(7)), 1_500, 0);
        // The order is closed in the ledger, the release not here yet: the load knows no mark.
        let mut after = GateItem::load(&Loading { epoch: 2, ..loading(1) }, None, Some(&before));
        let again = after.decide(&request(2, "u1", 1, Some(7)), 1_500, 0);
        assert!(matches!(again, Decision::Admitted { repeated: true, .. }), "{again:?}");
        assert_eq!(after.left, 1, "the old answer took no new unit");
    }

    #[test]
    fn units_whose_claim_was_not_written_are_there_again_and_the_key_is_new() {
        let mut item = item(1);
        let before = item.clone();
        let decision = item.decide(&request(1, "u1", 1, Some(7)), 1_500, 0);
        let Decision::Admitted { claim, .. } = decision else { panic!("{decision:?}") };
        item.untake(&claim);
        item.untake(&claim);
        assert!(item.version > before.version);
        assert_eq!(GateItem { version: before.version, ..item.clone() }, before);
        let again = item.decide(&request(2, "u1", 1, Some(7)), 1_500, 0);
        assert!(matches!(again, Decision::Admitted { repeated: false, .. }), "{again:?}");
    }

    #[test]
    fn too_few_for_two_is_enough_for_one() {
        let mut item = item(1);
        let two = item.decide(&request(1, "u1", 2, None), 1_500, 0);
        assert!(matches!(two, Decision::SoldOut { left: 1, .. }));
        assert_eq!(
            item.decide(&request(2, "u1", 3, None), 1_500, 0),
            Decision::OverLimit { limit: 2 }
        );
        assert!(matches!(
            item.decide(&request(3, "u2", 1, None), 1_500, 0),
            Decision::Admitted { .. }
        ));
    }
}
