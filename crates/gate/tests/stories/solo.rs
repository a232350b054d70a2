//! Stories of the solo gate: what buyers and workers see of it, also across restarts.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use gate::{
    AdjustOutcome, Admission, Busy, ClaimRequest, Decision, GiveBack, Inspection, Keep,
    LaneOptions, Lanes, Loading, NumberedRequest, Shut, Upkeep,
    solo::{JOURNAL_FILE, OpenError, REWRITE_AFTER_ENTRIES, SoloGate, SoloOptions},
};
use proptest::prelude::*;
use sale::{Claim, ClaimLog, ItemId, OrderNo, UserId};

use crate::fixture::{
    Home, ITEM, SoloHome, admitted, give_back, ids, keyed, left, one, one_unit, order_numbers,
};

/// Whatever is waited for comes within this, or the story fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// A moment is quiet when nobody was admitted for this long.
const QUIET: Duration = Duration::from_secs(1);

fn request_of(home: &SoloHome, item: ItemId, user: &str) -> NumberedRequest {
    (home.numbers.next(), ClaimRequest { item, ..one_unit(user) })
}

#[tokio::test]
async fn a_restart_remembers_everything_it_said() {
    let home = SoloHome::new();
    let (claim, with_key);
    {
        let gate = home.open_solo();
        gate.load(home.loading(1, 10)).await.unwrap();
        claim = admitted(&one(&gate, home.request("a", 2)).await);
        let request = keyed(home.request("b", 1), 7);
        with_key = admitted(&one(&gate, request).await);
        gate.release(&[give_back(&claim)]).await.unwrap();
        gate.shut(ITEM, Some(Shut::Paused)).await.unwrap();
    }
    let gate = home.open_solo();
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks, reading.shut), (9, 1, Some(Shut::Paused)));
    assert_eq!(gate.backlog(), 2, "both claims are still owed to the ledger");
    assert_eq!(gate.last_order_no(), Some(with_key.order_no));
    let again = keyed(home.request("b", 1), 7);
    let decision = one(&gate, again).await;
    assert!(matches!(decision, Decision::Admitted { repeated: true, .. }), "{decision:?}");
    assert_eq!(admitted(&decision).order_no, with_key.order_no);
    assert_eq!(
        gate.queued(&with_key.user, with_key.order_no).await.unwrap().unwrap().user,
        with_key.user
    );
    assert_eq!(gate.queued_of(&with_key.user).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_was_not_acknowledged_is_delivered_again() {
    let home = SoloHome::new();
    {
        let gate = home.open_solo();
        gate.load(home.loading(1, 10)).await.unwrap();
        for user in ["a", "b", "c"] {
            gate.admit(vec![home.request(user, 1)]).await;
        }
        let taken = gate.take(2).await.unwrap();
        assert_eq!(taken.len(), 2, "two entries hold two claims");
        gate.ack(&[taken[0].id]).await.unwrap();
        assert_eq!(gate.backlog(), 2);
    }
    let gate = home.open_solo();
    let users = |entries: Vec<sale::LogEntry>| -> Vec<String> {
        entries.iter().map(|entry| entry.claims[0].user.to_string()).collect()
    };
    let taken = gate.take(100).await.unwrap();
    let all = ids(&taken);
    gate.give_back(taken).await;
    let taken = gate.take(100).await.unwrap();
    assert_eq!(users(taken), ["b", "c"]);
    gate.ack(&all).await.unwrap();
    assert_eq!(gate.backlog(), 0);
    drop(gate);
    let gate = home.open_solo();
    assert_eq!(gate.backlog(), 0);
    assert_eq!(left(&gate).await, 7, "settled claims keep their marks and units");
}

#[tokio::test]
async fn who_spent_a_key_is_known_after_the_item_was_written_anew_and_read_back() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 1)).await.unwrap();
    let first = admitted(&one(&gate, keyed(home.request("a", 1), 7)).await);
    gate.release(&[give_back(&first)]).await.unwrap();
    assert!(gate.load(home.loading(2, 0)).await.unwrap());
    drop(gate);
    let gate = home.open_solo();
    assert!(!gate.may_hold_mark(ITEM, &"c".parse().unwrap(), true));
    assert!(gate.may_hold_mark(ITEM, &"a".parse().unwrap(), true));
}

#[tokio::test]
async fn a_full_log_admits_nobody_until_the_workers_catch_up() {
    let home = SoloHome::new();
    let gate = home.open_with(2);
    gate.load(home.loading(1, 10)).await.unwrap();
    let batch = ["a", "b", "c", "a"].map(|user| home.request(user, 1)).to_vec();
    let decisions = gate.admit(batch).await;
    assert_eq!(decisions[2], Decision::Busy(Busy::LogFull));
    assert!(matches!(decisions[3], Decision::AlreadyBought { .. }), "what is true is still told");
    let taken = gate.take(9).await.unwrap();
    gate.ack(&[taken[0].id]).await.unwrap();
    admitted(&one(&gate, home.request("c", 1)).await);
}

/// Ask until the gate decides again.
async fn admitted_at_last(gate: &SoloGate, home: &SoloHome, user: &str) -> Claim {
    let asked = Instant::now();
    loop {
        match one(gate, home.request(user, 1)).await {
            Decision::Busy(Busy::Unwritable) => assert!(asked.elapsed() < PATIENCE),
            decision => return admitted(&decision),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_decides_nothing_and_loses_nothing() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 2)).await.unwrap();
    let first = admitted(&one(&gate, home.request("a", 1)).await);
    let taken = gate.take(9).await.unwrap();
    {
        let thief = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
        thief.execute_batch("BEGIN IMMEDIATE").unwrap();
        let batch = ["b", "c"].map(|user| home.request(user, 1)).to_vec();
        let decisions = gate.admit(batch).await;
        assert_eq!(decisions, vec![Decision::Busy(Busy::Unwritable); 2]);
        let at_once = gate.admit(vec![home.request("d", 1)]).await;
        assert_eq!(at_once, [Decision::Busy(Busy::Unwritable)]);
        assert!(gate.ping().await.is_err());
        assert!(gate.release(&[give_back(&first)]).await.is_err(), "nothing changes");
        assert_eq!(left(&gate).await, 1, "the units of the failed batch were not taken");
        // What the ledger has is acknowledged all the same.
        gate.ack(&[taken[0].id]).await.unwrap();
        assert_eq!(gate.backlog(), 0);
    }
    admitted_at_last(&gate, &home, "d").await;
    assert_eq!((left(&gate).await, gate.backlog()), (0, 1));
    gate.ping().await.unwrap();
    drop(gate);
    let gate = home.open_solo();
    assert_eq!((left(&gate).await, gate.backlog()), (0, 1), "as it was said, also on the disk");
}

#[tokio::test]
async fn a_clock_that_steps_back_does_not_keep_the_gate_closed() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(Loading { opens_ms: 0, ..home.loading(1, 2) }).await.unwrap();
    {
        let thief = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
        thief.execute_batch("BEGIN IMMEDIATE").unwrap();
        let decision = gate.admit(vec![home.request("a", 1)]).await;
        assert_eq!(decision, [Decision::Busy(Busy::Unwritable)]);
    }
    home.clock.advance(-3_600_000);
    admitted_at_last(&gate, &home, "a").await;
}

#[tokio::test]
async fn a_clock_that_steps_back_does_not_keep_an_item_sold_out() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(Loading { opens_ms: 0, ..home.loading(1, 1) }).await.unwrap();
    let lanes = home.lanes(Arc::new(gate.clone()), 10);
    let first = admitted(&lanes.claim(one_unit("a")).await);
    let stranger: UserId = "b".parse().unwrap();
    let none = lanes.claim(one_unit("b")).await;
    assert!(matches!(none, Decision::SoldOut { .. }));
    home.clock.advance(-3_600_000);
    // Behind the lanes' back, as another process would: nobody withdraws the "no".
    gate.release(&[give_back(&first)]).await.unwrap();
    let asked = Instant::now();
    while lanes.is_sold_out(ITEM, &stranger, false) {
        assert!(asked.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    admitted(&lanes.claim(one_unit("b")).await);
}

#[tokio::test]
async fn a_claim_that_is_stuck_keeps_its_own_entry_and_no_other() {
    const ROUNDS: usize = 300;
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 1_000)).await.unwrap();
    let stuck = admitted(&one(&gate, home.request("stuck", 1)).await);
    let held = gate.take(1).await.unwrap().remove(0);
    let mut last = stuck.clone();
    for n in 0..ROUNDS {
        last = admitted(&one(&gate, home.request(&format!("u{n}"), 1)).await);
        let taken = gate.take(9).await.unwrap();
        gate.ack(&ids(&taken)).await.unwrap();
        if n % 3 == 0 {
            gate.release(&[give_back(&last)]).await.unwrap();
        }
    }
    assert_eq!(gate.backlog(), 1);
    let before = left(&gate).await;
    drop(gate);
    // A restart delivers what is owed, and nothing that is in the ledger.
    let gate = home.open_solo();
    assert_eq!(gate.backlog(), 1);
    assert_eq!(gate.queued(&stuck.user, stuck.order_no).await.unwrap(), Some(stuck.clone()));
    assert_eq!(gate.queued(&last.user, last.order_no).await.unwrap(), None);
    assert!(gate.tidy(0).await.unwrap());
    assert_eq!(entries(&home), 1, "of all entries only the stuck one is kept");
    let after = admitted(&one(&gate, home.request("after", 1)).await);
    drop(gate);
    let gate = home.open_solo();
    assert_eq!((left(&gate).await, gate.backlog()), (before - 1, 2));
    // At last the ledger takes it.
    let taken = gate.take(9).await.unwrap();
    assert_eq!(taken[0].id, held.id, "in the old order");
    assert_eq!(taken[1].claims[0].order_no, after.order_no);
    gate.ack(&ids(&taken)).await.unwrap();
    gate.tidy(0).await.unwrap();
    assert_eq!((gate.backlog(), entries(&home)), (0, 0));
}

#[tokio::test]
async fn numbers_of_dropped_entries_may_come_again_and_are_owed_anew() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    let other = Loading { item: ItemId(7), ..home.loading(1, 10) };
    gate.load(other).await.unwrap();
    gate.load(home.loading(1, 10)).await.unwrap();
    gate.admit(vec![request_of(&home, ItemId(7), "stuck")]).await;
    let _stuck = gate.take(1).await.unwrap();
    for user in ["a", "b"] {
        gate.admit(vec![home.request(user, 1)]).await;
        let taken = gate.take(1).await.unwrap();
        gate.ack(&[taken[0].id]).await.unwrap();
    }
    // The item goes, and with it the entries with the largest numbers.
    gate.unload(ITEM).await.unwrap();
    assert_eq!(entries(&home), 1);
    drop(gate);
    let gate = home.open_solo();
    let new = admitted(&one(&gate, request_of(&home, ItemId(7), "new")).await);
    drop(gate);
    let gate = home.open_solo();
    assert_eq!(gate.backlog(), 2);
    assert!(gate.queued(&new.user, new.order_no).await.unwrap().is_some());
}

/// As on a full disk, where everybody gets the lock and nobody can write.
#[tokio::test]
async fn a_journal_that_gives_its_lock_and_takes_no_write_is_down() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    let back_door = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
    let full = "CREATE TRIGGER full BEFORE UPDATE ON cursor
        BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
    back_door.execute_batch(full).unwrap();
    let seen = gate.check().await;
    assert_eq!((seen.partitions, seen.silent), (1, 1));
    assert!(seen.cause.unwrap().contains("the disk is full"));
    back_door.execute_batch("DROP TRIGGER full").unwrap();
    // A moment after a failed write it is asked again.
    for _ in 0..500 {
        home.clock.advance(1_000);
        if gate.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never recovers");
}

#[tokio::test]
async fn the_age_of_the_oldest_claim_on_the_log_is_known() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 9)).await.unwrap();
    assert_eq!(gate.oldest_waits_ms().await.unwrap(), None);
    gate.admit(vec![home.request("a", 1)]).await;
    home.clock.advance(700);
    gate.admit(vec![home.request("b", 1)]).await;
    home.clock.advance(300);
    assert_eq!(gate.oldest_waits_ms().await.unwrap(), Some(1_000));
    let taken = gate.take(1).await.unwrap();
    gate.ack(&[taken[0].id]).await.unwrap();
    assert_eq!(gate.oldest_waits_ms().await.unwrap(), Some(300));
}

#[tokio::test]
async fn an_item_that_leaves_takes_its_settled_entries_along() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 9)).await.unwrap();
    gate.admit(vec![home.request("a", 1)]).await;
    let taken = gate.take(9).await.unwrap();
    gate.ack(&[taken[0].id]).await.unwrap();
    gate.admit(vec![home.request("b", 1)]).await;
    gate.unload(ITEM).await.unwrap();
    assert_eq!(gate.left(ITEM), None);
    drop(gate);
    let gate = home.open_solo();
    assert!(gate.loaded().await.unwrap().is_empty());
    assert_eq!(gate.backlog(), 1, "the unsettled claim is still delivered");
    let journal = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
    let entries: i64 =
        journal.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap();
    assert_eq!(entries, 1);
}

#[tokio::test]
async fn a_newer_journal_is_refused() {
    let home = SoloHome::new();
    drop(home.open_solo());
    let journal = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
    journal.pragma_update(None, "user_version", 99).unwrap();
    let opened = SoloGate::open(
        home.path(),
        SoloOptions { log_claims_max: 1, keep: Keep::NOTHING },
        home.clock.clone(),
    );
    assert!(matches!(opened, Err(OpenError::NewerSchema(_, 99))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_lane_says_so_at_once() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 1_000)).await.unwrap();
    let lanes = Arc::new(home.lanes(Arc::new(gate), 4));
    // While somebody holds the journal the lane cannot drain, so its queue of four fills up.
    let thief = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
    thief.execute_batch("BEGIN IMMEDIATE").unwrap();
    let buyers: Vec<_> = (0..100)
        .map(|n| {
            let lanes = lanes.clone();
            let request = one_unit(&format!("u{n}"));
            tokio::spawn(async move { lanes.claim(request).await })
        })
        .collect();
    let mut too_hot = 0;
    for buyer in buyers {
        too_hot += u32::from(buyer.await.unwrap() == Decision::TooHot);
    }
    assert!(too_hot > 0);
}

/// What the gate should be, said as simply as possible.
#[derive(Default)]
struct Model {
    left: i64,
    marks: HashMap<UserId, (OrderNo, u32)>,
    unsettled: Vec<OrderNo>,
}

#[derive(Clone, Debug)]
enum Step {
    Claims(Vec<(u8, u32)>),
    Release(u8),
    Adjust(i64),
    Settle,
    Restart,
    Upkeep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec((0u8..20, 1u32..4), 1..8).prop_map(Step::Claims),
        2 => (0u8..20).prop_map(Step::Release),
        1 => (-5i64..6).prop_map(Step::Adjust),
        1 => Just(Step::Settle),
        1 => Just(Step::Restart),
        1 => Just(Step::Upkeep),
    ]
}

/// Entries in the journal's file.
fn entries(home: &SoloHome) -> i64 {
    let file = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
    file.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_journal_that_grew_long_is_tidied_in_a_quiet_moment() {
    const ITEMS: i64 = 150;
    let home = SoloHome::new();
    let gate = home.open_solo();
    for item in 1..=ITEMS {
        gate.load(Loading { item: ItemId(item), ..home.loading(1, 1_000) }).await.unwrap();
    }
    let mut rounds = 0;
    // Each batch leaves an entry per item.
    while rounds * ITEMS as u64 <= REWRITE_AFTER_ENTRIES {
        rounds += 1;
        let one = |item| request_of(&home, ItemId(item), &format!("u{rounds}"));
        gate.admit((1..=ITEMS).map(one).collect()).await;
        let taken = gate.take(usize::MAX).await.unwrap();
        gate.ack(&ids(&taken)).await.unwrap();
    }
    let last = admitted(&one(&gate, request_of(&home, ItemId(1), "last")).await);
    let admitted = Instant::now();
    gate.upkeep().await.unwrap();
    let tidied_early = (entries(&home) as u64) <= REWRITE_AFTER_ENTRIES;
    assert!(!tidied_early || admitted.elapsed() >= QUIET, "not while buyers come");
    // By the machine's own time, whatever the clock says.
    home.clock.advance(-3_600_000);
    while admitted.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gate.upkeep().await.unwrap();
    assert_eq!(entries(&home), 1, "only what the ledger does not have yet");
    drop(gate);
    let gate = home.open_solo();
    let reading = gate.reading(ItemId(1)).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks), (1_000 - rounds as i64 - 1, rounds + 1));
    assert_eq!(reading.in_flight, [last]);
}

#[tokio::test]
async fn a_journal_that_is_far_too_long_waits_for_no_quiet_moment() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 100)).await.unwrap();
    for n in 0..21 {
        gate.admit(vec![home.request(&format!("u{n}"), 1)]).await;
        assert_eq!(gate.tidy(2).await.unwrap(), n == 20, "after {n}");
    }
    assert_eq!(entries(&home), 21, "none is in the ledger");
}

#[tokio::test]
async fn a_lane_that_died_is_noticed() {
    for dies in [false, true] {
        let home = SoloHome::new();
        let gate = Arc::new(home.open_solo());
        gate.load(home.loading(1, 10)).await.unwrap();
        let options = LaneOptions { queue_max: 10, batch_max: 10, ..LaneOptions::default() };
        let may_number = Arc::new(move || !dies || panic!("a test kills this lane"));
        let numbers = home.numbers.clone();
        let lanes =
            Lanes::start(options, 1_000, gate, numbers, may_number, Arc::new(|_, _| {})).unwrap();
        assert!(lanes.are_running());
        let decision = lanes.claim(one_unit("a")).await;
        assert_eq!(matches!(decision, Decision::Admitted { .. }), !dies, "{decision:?}");
        // The buyer hears of it a moment before the thread has ended.
        let ended = async {
            while lanes.are_running() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let noticed = tokio::time::timeout(Duration::from_secs(1), ended).await.is_ok();
        assert_eq!(noticed, dies);
        lanes.stop().await;
        assert!(!lanes.are_running());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_history_with_restarts_is_the_history_without(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let home = SoloHome::new();
            let mut gate = home.open_solo();
            gate.load(home.loading(1, 12)).await.unwrap();
            let mut model = Model { left: 12, ..Model::default() };
            for step in steps {
                match step {
                    Step::Claims(wishes) => {
                        let wish = |(n, quantity): &(u8, u32)| home.request(&format!("u{n}"), *quantity);
                        let batch: Vec<NumberedRequest> = wishes.iter().map(wish).collect();
                        let decisions = gate.admit(batch.clone()).await;
                        for (request, decision) in batch.iter().zip(decisions) {
                            model.check(request, &decision);
                        }
                    }
                    Step::Release(n) => {
                        let user: UserId = format!("u{n}").parse().unwrap();
                        if let Some((order_no, quantity)) = model.marks.remove(&user) {
                            model.left += i64::from(quantity);
                            let unit = GiveBack { item: ITEM, user, order_no, quantity };
                            gate.release(&[unit.clone(), unit]).await.unwrap();
                        }
                    }
                    Step::Adjust(delta) => {
                        let done = gate.adjust(ITEM, home.numbers.next(), delta, false).await.unwrap();
                        match done {
                            AdjustOutcome::Done(_) => model.left += delta,
                            AdjustOutcome::Short { .. } => assert!(model.left + delta < 0),
                            other => panic!("{other:?}"),
                        }
                    }
                    Step::Settle if gate.backlog() > 0 => {
                        let taken = gate.take(3).await.unwrap();
                        let delivered = order_numbers(&taken);
                        assert_eq!(delivered, model.unsettled.drain(..delivered.len()).collect::<Vec<_>>());
                        gate.ack(&ids(&taken)).await.unwrap();
                    }
                    Step::Settle => {}
                    Step::Upkeep => {
                        gate.upkeep().await.unwrap();
                        gate.tidy(0).await.unwrap();
                    }
                    Step::Restart => {
                        drop(gate);
                        gate = home.open_solo();
                    }
                }
                let reading = gate.reading(ITEM).await.unwrap().unwrap();
                assert_eq!(reading.left, model.left);
                assert_eq!(reading.marks, model.marks.len() as u64);
                let units: u32 = model.marks.values().map(|(_, quantity)| quantity).sum();
                assert_eq!(reading.marked_units, i64::from(units));
                assert_eq!(gate.backlog(), model.unsettled.len() as u64);
            }
        });
    }
}

impl Model {
    fn check(&mut self, (order_no, request): &NumberedRequest, decision: &Decision) {
        let expected = match self.marks.get(&request.user) {
            Some((order_no, _)) => Decision::AlreadyBought { order_no: *order_no },
            None if request.quantity > 2 => Decision::OverLimit { limit: 2 },
            None if i64::from(request.quantity) > self.left => {
                assert!(matches!(decision, Decision::SoldOut { left, .. } if *left == self.left));
                return;
            }
            None => {
                assert_eq!(admitted(decision).order_no, *order_no);
                self.left -= i64::from(request.quantity);
                self.marks.insert(request.user.clone(), (*order_no, request.quantity));
                self.unsettled.push(*order_no);
                return;
            }
        };
        assert_eq!(*decision, expected);
    }
}
