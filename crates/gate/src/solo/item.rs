//! One item at the gate, in memory: its window, what is left, who is marked.
//!
//! Pure: it decides and changes, it writes nothing. Deciding a batch and replaying the journal end
//! in the same [`GateItem::apply`], so what a restart rebuilds is what was there.

use std::collections::BTreeMap;

use sale::{Claim, Epoch, ItemId, Millis, OrderNo, UserId};

use super::{marks::Marks, record::Record, spent::Spent};
use crate::{
    Busy, Changed, ClaimRequest, Decision, GiveBack, Loaded, Loading, NumberedRequest, Outline,
    Presence, Shut,
    mark::{Mark, repeated},
};

/// Versions count up from the epoch, so that those of a later epoch are always larger.
const VERSION_BITS: u32 = 40;

/// What the file has of an item.
#[derive(Clone, Copy, Default)]
pub(super) struct InFile {
    /// Its pieces are known by this number. What an earlier load or an earlier life of the item has left
    /// behind has another one.
    pub(super) generation: i64,
    /// All entries up to this one are in the pieces.
    pub(super) as_of: u64,
    /// And up to this one in the head.
    pub(super) head_as_of: u64,
    /// There is a row that says that these pieces are the item.
    pub(super) has_row: bool,
    /// The version of which all is in the file, without any entry.
    pub(super) version: u64,
}

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
    pub(super) adjusts: BTreeMap<OrderNo, i64>,
    pub(super) marks: Marks,
    pub(super) spent: Spent,
    /// Counts loads, so that each knows which marks it has brought. After 65,536 loads of which none
    /// came to its end one might take an old mark for its own: a buyer would be told that they hold what
    /// is over.
    load: u16,
    pub(super) in_file: InFile,
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
            adjusts: BTreeMap::new(),
            marks: Marks::default(),
            spent: Spent::default(),
            load: 0,
            in_file: InFile { generation: new_generation(), ..InFile::default() },
        }
    }

    /// An item without buyers, as it is to be sold: the head of one that is loaded.
    pub(super) fn head_of(loading: &Loading) -> GateItem {
        GateItem {
            shut: loading.shut,
            opens_ms: loading.opens_ms,
            closes_ms: loading.closes_ms,
            limit: loading.limit,
            left: loading.left,
            adjusts: loading.adjusted.iter().map(|adjust_no| (*adjust_no, 0)).collect(),
            ..GateItem::empty(loading.item, loading.epoch)
        }
    }

    /// From here on marks are filled in. Those that are there stay as long as the load goes on: they
    /// answer for buyers who hold something.
    pub(super) fn begin_filling(&mut self) {
        self.load = self.load.wrapping_add(1);
    }

    pub(super) fn fill(&mut self, claims: &[Claim]) {
        for claim in claims {
            let mark = Mark::of(claim);
            let before = self.marks.put(claim.user.as_str(), mark, self.load);
            if let Some(before) = before.filter(|before| before.order_no != mark.order_no) {
                self.spent.add(claim.user.clone(), before);
            }
        }
    }

    /// Of one piece, the marks that the load did not bring end here and not by a release. Their keys
    /// were answered all the same.
    pub(super) fn end_others(&mut self, place: usize) {
        for (user, mark) in self.marks.take_out_others(place, self.load) {
            self.spent.add(user, mark);
        }
    }

    /// What was filled in is sold under this head.
    pub(super) fn take_head(&mut self, head: GateItem) {
        // Epochs only grow: of two loads the later one stands.
        assert!(self.epoch <= head.epoch, "{} is beyond epoch {}", self.item, head.epoch);
        let GateItem { epoch, shut, opens_ms, closes_ms, limit, left, version, adjusts, .. } = head;
        (self.epoch, self.shut, self.limit, self.left) = (epoch, shut, limit, left);
        (self.opens_ms, self.closes_ms) = (opens_ms, closes_ms);
        (self.version, self.adjusts) = (version, adjusts);
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
        if let Some(mark) = request.key.and_then(|key| self.spent.get(key)) {
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
        self.marks.put(claim.user.as_str(), Mark::of(claim), self.load);
    }

    /// Undo the taking of units whose claim could not be written down. The buyer was told nothing, so
    /// the key is not spent either.
    pub(super) fn untake(&mut self, claim: &Claim) {
        let holds = |mark: &Mark| mark.order_no == claim.order_no;
        if self.marks.get(&claim.user).is_some_and(holds)
            && let Some(mark) = self.marks.remove(&claim.user)
        {
            self.left += i64::from(mark.quantity);
        }
        // Never back: somebody may have seen the number between the two.
        self.version += 1;
    }

    /// The largest number of an order or adjustment that is known here.
    pub(super) fn last_order_no(&self) -> Option<OrderNo> {
        let marks = self.marks.last_order_no().max(self.spent.last_order_no());
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

    pub(super) fn loaded(&self) -> Loaded {
        Loaded {
            item: self.item,
            epoch: self.epoch,
            shut: self.shut,
            window: (self.opens_ms, self.closes_ms),
            presence: Presence::Whole,
        }
    }

    pub(super) fn outline(&self) -> Outline {
        Outline {
            epoch: self.epoch,
            version: self.version,
            shut: self.shut,
            left: self.left,
            marks: self.marks.len() as u64,
            marked_units: self.marks.units(),
        }
    }

    /// Make a change that is in the journal, as far as what was read from the file does not contain it.
    /// The head may be younger than some of the pieces, and is as young as the youngest of them.
    pub(super) fn replay(&mut self, seq: u64, record: &Record) -> bool {
        if seq <= self.in_file.as_of {
            return false;
        }
        if seq > self.in_file.head_as_of {
            self.apply(record);
            return true;
        }
        match record {
            Record::Claims { claims, .. } => {
                for claim in
                    claims.iter().filter(|claim| self.lacks(seq, &claim.user)).collect::<Vec<_>>()
                {
                    self.marks.put(claim.user.as_str(), Mark::of(claim), self.load);
                }
            }
            Record::Release { units } => {
                for unit in
                    units.iter().filter(|unit| self.lacks(seq, &unit.user)).collect::<Vec<_>>()
                {
                    self.end_mark(unit);
                }
            }
            Record::Adjust { .. } | Record::ForgetAdjust { .. } | Record::Shut { .. } => {}
        }
        true
    }

    /// All of it was written in one commit.
    pub(super) fn is_all_written(&mut self, as_of: u64) {
        let pages = self.spent.pages();
        pages.into_iter().for_each(|page| self.spent.note_written(page));
        self.marks.is_all_written(as_of);
        let (generation, version) = (self.in_file.generation, self.version);
        self.in_file = InFile { generation, as_of, head_as_of: as_of, has_row: true, version };
    }

    /// Has it changed since all of it was written? What is not in pieces yet has.
    pub(super) fn is_to_be_written(&self) -> bool {
        !self.in_file.has_row || self.in_file.version != self.version
    }

    /// The file has nothing of it any more.
    pub(super) fn is_all_unwritten(&mut self) {
        self.spent.is_all_unwritten();
        self.marks.is_all_unwritten();
        self.in_file.has_row = false;
    }

    /// Was the piece that has this buyer written before this entry?
    fn lacks(&self, seq: u64, user: &UserId) -> bool {
        self.marks.piece_of(user).as_of < seq
    }

    /// Would this release change anything?
    pub(super) fn holds(&self, unit: &GiveBack) -> bool {
        self.marks.get(&unit.user).is_some_and(|mark| mark.order_no == unit.order_no)
    }

    fn give_back(&mut self, unit: &GiveBack) {
        // The units that come back are those the mark took, whatever the message says.
        self.left += self.end_mark(unit).map_or(0, |mark| i64::from(mark.quantity));
    }

    fn end_mark(&mut self, unit: &GiveBack) -> Option<Mark> {
        let mark = if self.holds(unit) { self.marks.remove(&unit.user) } else { None }?;
        self.spent.add(unit.user.clone(), mark);
        Some(mark)
    }
}

/// No two are the same, whatever a crash has left of the one before.
fn new_generation() -> i64 {
    let mut dice = [0; 8];
    // Without randomness the time will do: it is another one after every crash.
    if getrandom::fill(&mut dice).is_err() {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        dice = (since.as_nanos() as u64).to_le_bytes();
    }
    i64::from_le_bytes(dice)
}

#[cfg(test)]
mod tests {
    use sale::KeyHash;

    use super::*;

    #[test]
    #[should_panic(expected = "beyond epoch 0")]
    fn an_epoch_that_does_not_grow_is_no_load() {
        item(9).take_head(GateItem::head_of(&Loading { epoch: 0, ..loading(1) }));
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
        GateItem::head_of(&loading(left))
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
        let mut after = before;
        after.begin_filling();
        after.end_others(0);
        after.take_head(GateItem::head_of(&Loading { epoch: 2, ..loading(1) }));
        let again = after.decide(&request(2, "u1", 1, Some(7)), 1_500, 0);
        assert!(matches!(again, Decision::Admitted { repeated: true, .. }), "{again:?}");
        assert_eq!(after.left, 1, "the old answer took no new unit");
    }

    #[test]
    fn units_whose_claim_was_not_written_are_there_again_and_the_key_is_new() {
        let mut item = item(1);
        let before = item.version;
        let decision = item.decide(&request(1, "u1", 1, Some(7)), 1_500, 0);
        let Decision::Admitted { claim, .. } = decision else { panic!("{decision:?}") };
        item.untake(&claim);
        item.untake(&claim);
        assert!(item.version > before);
        assert_eq!((item.left, item.marks.len(), item.marks.units()), (1, 0, 0));
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
