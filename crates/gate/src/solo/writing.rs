//! Writing an item anew, step by step: what changed of it since it was last written, and at the end up
//! to which entry all of it is contained in its rows.
//!
//! A step holds the journal lock, and is small. Whoever has one [`Pass`] under way may be overtaken by
//! another one, or by claims: what they change is written again by whoever comes after.

use parking_lot::RwLock;

use super::{
    Inner,
    item::{GateItem, InFile},
    journal::{JournalError, pieces::Step},
    piece::Piece,
    writer::Writer,
};

/// Buyers in one step: a quarter of a megabyte, with names of the usual length.
const STEP_MARKS_MAX: usize = 2 * super::piece::PIECE_MARKS_MAX;
/// Places of pieces that are looked at in one step.
const STEP_PIECES_MAX: usize = 256;
/// Pages of spent keys in one step.
const STEP_PAGES_MAX: usize = 2;
/// Rows of pieces that were divided that go in one step.
const STEP_DIVIDED_MAX: usize = 8;

/// How far one item is written.
pub(super) struct Pass {
    /// Every entry up to this one will be in the rows.
    as_of: u64,
    /// And this version of the item.
    version: u64,
    /// The next piece.
    place: usize,
    /// Rows that were divided before.
    divided: Vec<(u32, u8)>,
}

impl Pass {
    pub(super) fn of(item: &GateItem, writer: &Writer) -> Pass {
        let (as_of, version) = (writer.last_seq, item.version);
        Pass { as_of, version, place: 0, divided: item.marks.divided() }
    }
}

/// The places of what a step writes.
#[derive(Default)]
struct Chosen {
    pages: Vec<(super::spent::List, usize)>,
    pieces: Vec<usize>,
    next_place: usize,
    divided: usize,
    is_last: bool,
}

impl Inner {
    /// Write the next step. With `head` the item gets it in the last one. Answers whether there is more
    /// to do.
    pub(super) fn write_step(
        &self,
        writer: &mut Writer,
        state: &RwLock<GateItem>,
        pass: &mut Pass,
        head: Option<&GateItem>,
    ) -> Result<bool, JournalError> {
        let (seq, is_load) = (writer.last_seq, head.is_some());
        let chosen;
        {
            // Whoever asks who is marked need not wait for the disk.
            let item = state.read();
            chosen = choose(&item, pass);
            let before = item.in_file.as_of;
            let as_of = if chosen.is_last { before.max(pass.as_of) } else { before };
            let writes_head = chosen.is_last || item.in_file.has_row;
            let head = head.filter(|_| chosen.is_last).unwrap_or(&item);
            let step = Step {
                pieces: chosen.pieces.iter().map(|place| &item.marks.pieces()[*place]).collect(),
                pages: chosen.pages.clone(),
                divided: &pass.divided[..chosen.divided],
                head: writes_head.then_some((head, as_of)),
            };
            let is_empty = step.pieces.is_empty() && step.pages.is_empty();
            if !is_empty || chosen.divided > 0 || chosen.is_last {
                // The file's order is that of the steps: with a head that is on disk all before it is.
                let waits = chosen.is_last && is_load;
                writer.journal()?.put_step(seq, &item, &step, waits)?;
            }
        }
        let mut item = state.write();
        note_written(&mut item, seq, &chosen);
        let done: Vec<_> = pass.divided.drain(..chosen.divided).collect();
        item.marks.forget_divided(&done);
        if chosen.is_last {
            let InFile { generation, as_of, .. } = item.in_file;
            let as_of = as_of.max(pass.as_of);
            let version = pass.version;
            item.in_file = InFile { generation, as_of, head_as_of: seq, has_row: true, version };
        }
        pass.place = chosen.next_place;
        Ok(!chosen.is_last)
    }
}

/// Spent keys first: a mark that is gone from its piece must not leave a key that nobody knows.
fn choose(item: &GateItem, pass: &Pass) -> Chosen {
    let mut chosen = Chosen { next_place: pass.place, ..Chosen::default() };
    let pages = item.spent.unwritten();
    if pages.len() > STEP_PAGES_MAX {
        chosen.pages = pages[..STEP_PAGES_MAX].to_vec();
        return chosen;
    }
    chosen.pages = pages;
    let (pieces, mut marks) = (item.marks.pieces(), 0);
    let end = pieces.len().min(pass.place + STEP_PIECES_MAX);
    while chosen.next_place < end && marks < STEP_MARKS_MAX {
        let piece: &Piece = &pieces[chosen.next_place];
        if !piece.is_written {
            marks += piece.len();
            chosen.pieces.push(chosen.next_place);
        }
        chosen.next_place += 1;
    }
    let has_all = chosen.next_place == pieces.len();
    if has_all && chosen.pieces.is_empty() {
        chosen.divided = pass.divided.len().min(STEP_DIVIDED_MAX);
        chosen.is_last = chosen.divided == pass.divided.len();
    }
    chosen
}

fn note_written(item: &mut GateItem, seq: u64, chosen: &Chosen) {
    for place in &chosen.pieces {
        if let Some(piece) = item.marks.piece_mut(*place) {
            piece.note_written(seq);
        }
    }
    chosen.pages.iter().for_each(|page| item.spent.note_written(*page));
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use sale::{ClaimLog, ItemId, ManualClock, OrderNumbers};

    use super::*;
    use crate::{
        Admission, ClaimRequest, Decision, GiveBack, Inspection, Keep, Loading, Upkeep,
        solo::{SoloGate, SoloOptions},
    };

    const ITEM: ItemId = ItemId(7);

    #[derive(Clone, Debug)]
    enum Move {
        /// So many buyers from this one on come.
        Claims(u16, u16),
        /// Every so many-th mark ends.
        Release(usize),
        /// An item is written so many steps far, and then the next thing happens.
        Write(usize),
        /// What the items contain is dropped.
        Tidy,
        Settle,
        /// The item is loaded anew with every so many-th of its marks, or the load is cut off.
        Rebuild(usize, bool),
        Crash,
    }

    fn a_move() -> impl Strategy<Value = Move> {
        prop_oneof![
            4 => (0u16..300, 1u16..60).prop_map(|(from, n)| Move::Claims(from, n)),
            2 => (2usize..9).prop_map(Move::Release),
            3 => (1usize..12).prop_map(Move::Write),
            2 => Just(Move::Tidy),
            1 => Just(Move::Settle),
            1 => (1usize..4, any::<bool>()).prop_map(|(nth, cut)| Move::Rebuild(nth, cut)),
            3 => Just(Move::Crash),
        ]
    }

    struct Story {
        place: tempfile::TempDir,
        gate: SoloGate,
        numbers: OrderNumbers,
        epoch: u64,
        /// Who holds what.
        held: HashMap<sale::UserId, sale::Claim>,
    }

    fn open(place: &std::path::Path) -> SoloGate {
        let options = SoloOptions { log_claims_max: u64::MAX, keep: Keep::NOTHING };
        SoloGate::open(place, options, ManualClock::at(1_800_000_000_000)).unwrap()
    }

    impl Story {
        async fn begin() -> Story {
            let place = tempfile::tempdir().unwrap();
            let gate = open(place.path());
            let numbers = OrderNumbers::new(0, ManualClock::at(1_800_000_000_000));
            let story = Story { place, gate, numbers, epoch: 1, held: HashMap::new() };
            assert!(story.gate.load(story.loading()).await.unwrap());
            story
        }

        fn loading(&self) -> Loading {
            Loading {
                item: ITEM,
                epoch: self.epoch,
                opens_ms: 0,
                closes_ms: i64::MAX,
                limit: 1,
                shards: 1,
                left: 100_000 - self.held.len() as i64,
                marks: self.held.values().cloned().collect(),
                adjusted: vec![],
                shut: None,
            }
        }

        async fn make(&mut self, step: Move) {
            match step {
                Move::Claims(from, n) => self.claims(from, n).await,
                Move::Release(nth) => {
                    let gone: Vec<_> = self.held.values().step_by(nth).cloned().collect();
                    let unit = |claim: &sale::Claim| GiveBack {
                        item: ITEM,
                        user: claim.user.clone(),
                        order_no: claim.order_no,
                        quantity: claim.quantity,
                    };
                    let units: Vec<GiveBack> = gone.iter().map(unit).collect();
                    self.gate.release(&units).await.unwrap();
                    gone.iter().for_each(|claim| drop(self.held.remove(&claim.user)));
                }
                Move::Write(steps) => self.write(steps),
                Move::Tidy => assert!(self.gate.tidy(0).await.is_ok()),
                // Whoever takes waits until there is something.
                Move::Settle if self.gate.backlog() > 0 => {
                    let taken = self.gate.take(100).await.unwrap();
                    let ids: Vec<_> = taken.iter().map(|entry| entry.id).collect();
                    self.gate.ack(&ids).await.unwrap();
                }
                Move::Settle => {}
                Move::Rebuild(nth, cut) => self.rebuild(nth, cut).await,
                Move::Crash => self.gate = open(self.place.path()),
            }
        }

        async fn claims(&mut self, from: u16, n: u16) {
            let request = |n: u16| {
                let (user, key) = (format!("u{n}").parse().unwrap(), None);
                (self.numbers.next(), ClaimRequest { item: ITEM, user, quantity: 1, key })
            };
            let batch: Vec<_> = (from..from + n).map(request).collect();
            for (decision, (_, request)) in self.gate.admit(batch.clone()).await.iter().zip(batch) {
                match decision {
                    Decision::Admitted { claim, .. } => {
                        assert!(self.held.insert(request.user, claim.clone()).is_none());
                    }
                    Decision::AlreadyBought { order_no } => {
                        assert_eq!(self.held[&request.user].order_no, *order_no);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }

        fn write(&self, steps: usize) {
            let inner = &self.gate.0;
            let (state, mut writer) = (inner.items.get(ITEM).unwrap(), inner.writer.lock());
            let mut pass = Pass::of(&state.read(), &writer);
            for _ in 0..steps {
                if !inner.write_step(&mut writer, &state, &mut pass, None).unwrap() {
                    break;
                }
            }
        }

        /// As if the ledger knew of every so many-th only.
        async fn rebuild(&mut self, nth: usize, cut: bool) {
            self.epoch += 1;
            if cut {
                let half: Vec<_> = self.held.values().step_by(2).cloned().collect();
                assert!(self.gate.begin_load(ITEM, self.epoch, 1).await.unwrap());
                assert!(self.gate.fill(ITEM, self.epoch, half).await.unwrap());
                self.gate = open(self.place.path());
                let reading = self.gate.reading(ITEM).await.unwrap().unwrap();
                assert_eq!(reading.shut, Some(crate::Shut::Frozen));
                self.epoch += 1;
            }
            let kept: Vec<_> = self.held.values().step_by(nth).cloned().collect();
            self.held = kept.into_iter().map(|claim| (claim.user.clone(), claim)).collect();
            assert!(self.gate.load(self.loading()).await.unwrap());
        }

        async fn check(&self) {
            let reading = self.gate.reading(ITEM).await.unwrap().unwrap();
            assert_eq!(reading.marks, self.held.len() as u64);
            assert_eq!(reading.marked_units, self.held.len() as i64);
            assert_eq!(reading.left, 100_000 - self.held.len() as i64);
            for (user, order_no) in self.gate.marks(ITEM).await.unwrap() {
                assert_eq!(self.held[&user].order_no, order_no);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        #[test]
        fn an_item_that_is_written_by_and_by_survives_a_crash_at_any_step(
            moves in prop::collection::vec(a_move(), 1..30)
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut story = Story::begin().await;
                for step in moves {
                    story.make(step).await;
                    story.check().await;
                }
                story.make(Move::Crash).await;
                story.check().await;
            });
        }
    }

    #[tokio::test]
    async fn what_is_left_of_a_load_that_was_cut_off_goes() {
        let mut story = Story::begin().await;
        story.claims(0, 300).await;
        let pieces = |story: &Story| -> i64 {
            let journal =
                rusqlite::Connection::open(story.place.path().join("journal.db")).unwrap();
            journal.query_row("SELECT count(*) FROM piece", [], |row| row.get(0)).unwrap()
        };
        story.write(9_999);
        let written = pieces(&story);
        assert!(written > 20, "{written} pieces");
        // Another item, of which only pieces are in the file.
        let other = GateItem::empty(ItemId(8), 1);
        let state = RwLock::new(other);
        {
            let mut writer = story.gate.0.writer.lock();
            let marks: Vec<_> = story.held.values().cloned().collect();
            state.write().fill(&marks);
            let mut pass = Pass::of(&state.read(), &writer);
            story.gate.0.write_step(&mut writer, &state, &mut pass, None).unwrap();
        }
        assert!(pieces(&story) > written);
        story.make(Move::Crash).await;
        story.check().await;
        assert_eq!(story.gate.loaded().await.unwrap().len(), 1);
        story.gate.upkeep().await.unwrap();
        assert_eq!(pieces(&story), written);
    }
}
