//! Stories of the solo gate: what buyers and workers see of it, also across restarts.

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::fixture::{ITEM, admitted, give_back, keyed, one_unit, units};
use gate::{
    AdjustOutcome, Busy, ClaimRequest, Decision, Gate, GiveBack, LaneOptions, Lanes, Loading,
    NumberedRequest, Readmitted, Shut,
    solo::{JOURNAL_FILE, OpenError, REWRITE_AFTER_ENTRIES, SoloGate, SoloOptions},
};
use proptest::prelude::*;
use sale::{Claim, ClaimLog, ItemId, KeyHash, ManualClock, OrderNo, OrderNumbers, UserId};

/// Whatever is waited for comes within this, or the story fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// A moment is quiet when nobody was admitted for this long.
const QUIET: Duration = Duration::from_secs(1);

struct House {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
    numbers: Arc<OrderNumbers>,
}

impl House {
    fn new() -> House {
        let clock = ManualClock::at(1_800_000_001_500);
        let numbers = Arc::new(OrderNumbers::new(0, clock.clone()));
        House { dir: tempfile::tempdir().unwrap(), clock, numbers }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn open(&self) -> SoloGate {
        self.open_with(1_000_000)
    }

    fn open_with(&self, log_claims_max: u64) -> SoloGate {
        SoloGate::open(self.path(), SoloOptions { log_claims_max }, self.clock.clone()).unwrap()
    }

    fn request_of(&self, item: ItemId, user: &str) -> NumberedRequest {
        (self.numbers.next(), ClaimRequest { item, ..one_unit(user) })
    }

    fn request(&self, user: &str, quantity: u32) -> NumberedRequest {
        (self.numbers.next(), units(user, quantity))
    }
}

fn loading(epoch: u64, left: i64) -> Loading {
    Loading {
        item: ITEM,
        epoch,
        opens_ms: 1_800_000_001_000,
        closes_ms: 1_800_000_900_000,
        limit: 2,
        shards: 1,
        left,
        marks: vec![],
        adjusted: vec![],
        shut: None,
    }
}

async fn left(gate: &SoloGate) -> i64 {
    gate.reading(ITEM).await.unwrap().unwrap().left
}

#[tokio::test]
async fn a_batch_sells_what_there_is_and_no_more() {
    let house = House::new();
    let gate = house.open();
    let missing = gate.admit(vec![house.request("early", 1)]).await;
    assert_eq!(missing, [Decision::Busy(Busy::NotLoaded)], "missing state is closed");
    assert!(gate.load(loading(1, 3)).await.unwrap());
    let batch = ["a", "b", "a", "c", "d"].map(|user| house.request(user, 1)).to_vec();
    let decisions = gate.admit(batch).await;
    let first = admitted(&decisions[0]);
    admitted(&decisions[1]);
    assert_eq!(decisions[2], Decision::AlreadyBought { order_no: first.order_no });
    admitted(&decisions[3]);
    assert!(matches!(decisions[4], Decision::SoldOut { left: 0, .. }));
    let entries = gate.take(100).await.unwrap();
    assert_eq!(entries.len(), 1, "one entry for the whole batch");
    assert_eq!(entries[0].claims.len(), 3);
}

#[tokio::test]
async fn a_restart_remembers_everything_it_said() {
    let house = House::new();
    let (claim, with_key);
    {
        let gate = house.open();
        gate.load(loading(1, 10)).await.unwrap();
        claim = admitted(&gate.admit(vec![house.request("a", 2)]).await[0]);
        let request = keyed(house.request("b", 1), 7);
        with_key = admitted(&gate.admit(vec![request]).await[0]);
        gate.release(&[give_back(&claim)]).await.unwrap();
        gate.shut(ITEM, Some(Shut::Paused)).await.unwrap();
    }
    let gate = house.open();
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks, reading.shut), (9, 1, Some(Shut::Paused)));
    assert_eq!(gate.backlog(), 2, "both claims are still owed to the ledger");
    assert_eq!(gate.last_order_no(), Some(with_key.order_no));
    let again = keyed(house.request("b", 1), 7);
    let decision = gate.admit(vec![again]).await.remove(0);
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
    let house = House::new();
    {
        let gate = house.open();
        gate.load(loading(1, 10)).await.unwrap();
        for user in ["a", "b", "c"] {
            gate.admit(vec![house.request(user, 1)]).await;
        }
        let taken = gate.take(2).await.unwrap();
        assert_eq!(taken.len(), 2, "two entries hold two claims");
        gate.ack(&[taken[0].id]).await.unwrap();
        assert_eq!(gate.backlog(), 2);
    }
    let gate = house.open();
    let users = |entries: Vec<sale::LogEntry>| -> Vec<String> {
        entries.iter().map(|entry| entry.claims[0].user.to_string()).collect()
    };
    let taken = gate.take(100).await.unwrap();
    let ids: Vec<_> = taken.iter().map(|entry| entry.id).collect();
    gate.give_back(taken).await;
    let taken = gate.take(100).await.unwrap();
    assert_eq!(users(taken), ["b", "c"]);
    gate.ack(&ids).await.unwrap();
    assert_eq!(gate.backlog(), 0);
    drop(gate);
    let gate = house.open();
    assert_eq!(gate.backlog(), 0);
    assert_eq!(left(&gate).await, 7, "settled claims keep their marks and units");
}

#[tokio::test]
async fn units_come_back_once_and_only_for_the_order_that_holds_them() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 1)).await.unwrap();
    let first = admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    assert_eq!(gate.release(&[give_back(&first)]).await.unwrap()[0].units, 1);
    assert_eq!(gate.release(&[give_back(&first)]).await.unwrap(), []);
    let second = admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    assert_eq!(gate.release(&[give_back(&first)]).await.unwrap(), [], "a late repetition");
    assert_eq!(left(&gate).await, 0);
    assert_eq!(gate.marks(ITEM).await.unwrap(), [(second.user, second.order_no)]);
}

#[tokio::test]
async fn warming_twice_changes_nothing_and_a_new_life_replaces_the_old() {
    let house = House::new();
    let gate = house.open();
    assert!(gate.load(loading(1, 5)).await.unwrap());
    let claim = admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    assert!(!gate.load(loading(1, 5)).await.unwrap());
    assert_eq!(left(&gate).await, 4);
    let next = Loading { marks: vec![claim.clone()], ..loading(2, 4) };
    assert!(gate.load(next).await.unwrap());
    assert!(!gate.load(loading(1, 99)).await.unwrap(), "a late message of the old life");
    drop(gate);
    let gate = house.open();
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.epoch, reading.left, reading.marks), (2, 4, 1));
    assert_eq!(reading.in_flight.len(), 1, "the claim of the old life is still owed");
}

#[tokio::test]
async fn frozen_lasts_until_the_load_and_ended_for_good() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 10)).await.unwrap();
    gate.shut(ITEM, Some(Shut::Frozen)).await.unwrap();
    for operator in [None, Some(Shut::Paused), None] {
        gate.shut(ITEM, operator).await.unwrap();
        let decision = gate.admit(vec![house.request("a", 1)]).await;
        assert_eq!(
            decision,
            [Decision::Busy(Busy::Frozen)],
            "the load in the making knows no claim"
        );
    }
    assert!(gate.load(loading(2, 10)).await.unwrap());
    admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    gate.shut(ITEM, Some(Shut::Ended)).await.unwrap();
    gate.shut(ITEM, None).await.unwrap();
    assert_eq!(gate.admit(vec![house.request("b", 1)]).await, [Decision::Ended]);
}

#[tokio::test]
async fn a_spent_key_is_answered_from_the_gate_though_the_cache_says_sold_out() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 1)).await.unwrap();
    let lanes = lanes(&house, gate.clone(), 10);
    let key = Some(KeyHash(7));
    let first = lanes.claim(ClaimRequest { key, ..one_unit("a") }).await;
    let first = admitted(&first);
    lanes.release(&[give_back(&first)]).await.unwrap();
    admitted(&lanes.claim(one_unit("b")).await);
    for _ in 0..2 {
        let none = lanes.claim(one_unit("c")).await;
        assert!(matches!(none, Decision::SoldOut { left: 0, .. }), "{none:?}");
    }
    let again = lanes.claim(ClaimRequest { key, ..one_unit("a") }).await;
    assert_eq!(admitted(&again).order_no, first.order_no);
    // Also when the item's row was written anew, and read back.
    let marks = vec![];
    assert!(gate.load(Loading { marks, ..loading(2, 0) }).await.unwrap());
    drop((lanes, gate));
    let gate = house.open();
    assert!(!gate.may_hold_mark(ITEM, &"c".parse().unwrap(), true));
    assert!(gate.may_hold_mark(ITEM, &"a".parse().unwrap(), true));
}

#[tokio::test]
async fn a_key_that_was_spent_on_one_item_or_quantity_buys_no_other() {
    let house = House::new();
    let gate = house.open();
    let other = ItemId(ITEM.0 + 1);
    gate.load(loading(1, 5)).await.unwrap();
    gate.load(Loading { item: other, ..loading(1, 5) }).await.unwrap();
    let lanes = lanes(&house, gate.clone(), 10);
    let claim = |item, quantity| {
        lanes.claim(ClaimRequest { item, key: Some(KeyHash(7)), ..units("a", quantity) })
    };
    let order_no = admitted(&claim(ITEM, 1).await).order_no;
    assert_eq!(claim(ITEM, 2).await, Decision::KeyReused { order_no });
    assert_eq!(claim(other, 1).await, Decision::KeyReused { order_no });
    assert_eq!(admitted(&claim(ITEM, 1).await).order_no, order_no);
    assert_eq!(gate.left(other), Some(5), "nothing was taken for a key that was spent");
}

#[tokio::test]
async fn an_adjustment_counts_once_and_never_takes_what_is_claimed() {
    let house = House::new();
    let gate = house.open();
    let number = || house.numbers.next();
    assert_eq!(gate.adjust(ITEM, number(), 5, true).await.unwrap(), AdjustOutcome::NotLoaded);
    let contained = number();
    gate.load(Loading { adjusted: vec![contained], ..loading(1, 5) }).await.unwrap();
    assert_eq!(gate.adjust(ITEM, contained, 3, true).await.unwrap(), AdjustOutcome::Repeated);
    let more = number();
    assert!(matches!(gate.adjust(ITEM, more, 3, true).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(gate.adjust(ITEM, more, 3, true).await.unwrap(), AdjustOutcome::Repeated);
    assert_eq!(left(&gate).await, 8);
    let less = number();
    assert_eq!(gate.adjust(ITEM, less, -9, false).await.unwrap(), AdjustOutcome::Short { left: 8 });
    assert!(matches!(gate.adjust(ITEM, less, -8, false).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(left(&gate).await, 0);
    drop(gate);
    let gate = house.open();
    assert_eq!(gate.forget_adjust(ITEM, less).await.unwrap().unwrap().units, 8);
    assert_eq!(gate.forget_adjust(ITEM, less).await.unwrap(), None);
    assert_eq!(left(&gate).await, 8);
}

#[tokio::test]
async fn a_number_stands_for_one_adjustment_until_the_ledger_says_otherwise() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 10)).await.unwrap();
    let no = house.numbers.next();
    assert!(matches!(gate.adjust(ITEM, no, -5, false).await.unwrap(), AdjustOutcome::Done(_)));
    for other in [-3, -8, -30, 4] {
        let refused = gate.adjust(ITEM, no, other, false).await.unwrap();
        assert_eq!(refused, AdjustOutcome::Other { delta: -5 });
        assert_eq!(left(&gate).await, 5);
    }
    // The ledger has the number for another change: the gate follows, once.
    let followed = gate.adjust(ITEM, no, -3, true).await.unwrap();
    assert!(matches!(followed, AdjustOutcome::Done(change) if change.units == 2), "{followed:?}");
    assert_eq!(gate.adjust(ITEM, no, -3, true).await.unwrap(), AdjustOutcome::Repeated);
    drop(gate);
    let gate = house.open();
    assert_eq!(left(&gate).await, 7, "also after a restart");
    assert_eq!(gate.adjusts(ITEM).await.unwrap(), [(no, -3)]);
}

#[tokio::test]
async fn a_lost_claim_is_admitted_again_if_a_unit_is_left() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 1)).await.unwrap();
    let lost = Claim {
        order_no: house.numbers.next(),
        item: ITEM,
        user: "a".parse().unwrap(),
        quantity: 1,
        epoch: 1,
        claimed_ms: 0,
        key: None,
    };
    house.clock.set(1_800_000_999_999);
    assert_eq!(gate.readmit(&lost).await.unwrap(), Readmitted::Admitted, "after the end, too");
    assert_eq!(gate.readmit(&lost).await.unwrap(), Readmitted::Known);
    let other = Claim { order_no: house.numbers.next(), ..lost.clone() };
    assert_eq!(
        gate.readmit(&other).await.unwrap(),
        Readmitted::AlreadyBought { order_no: lost.order_no }
    );
    let late = Claim { user: "b".parse().unwrap(), order_no: house.numbers.next(), ..lost.clone() };
    assert_eq!(gate.readmit(&late).await.unwrap(), Readmitted::SoldOut);
    assert_eq!(gate.take(9).await.unwrap()[0].claims[0].order_no, lost.order_no);
}

#[tokio::test]
async fn a_full_log_admits_nobody_until_the_workers_catch_up() {
    let house = House::new();
    let gate = house.open_with(2);
    gate.load(loading(1, 10)).await.unwrap();
    let batch = ["a", "b", "c", "a"].map(|user| house.request(user, 1)).to_vec();
    let decisions = gate.admit(batch).await;
    assert_eq!(decisions[2], Decision::Busy(Busy::LogFull));
    assert!(matches!(decisions[3], Decision::AlreadyBought { .. }), "what is true is still told");
    let taken = gate.take(9).await.unwrap();
    gate.ack(&[taken[0].id]).await.unwrap();
    admitted(&gate.admit(vec![house.request("c", 1)]).await[0]);
}

/// Ask until the gate decides again.
async fn admitted_at_last(gate: &SoloGate, house: &House, user: &str) -> Claim {
    let asked = Instant::now();
    loop {
        match gate.admit(vec![house.request(user, 1)]).await.remove(0) {
            Decision::Busy(Busy::Unwritable) => assert!(asked.elapsed() < PATIENCE),
            decision => return admitted(&decision),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_decides_nothing_and_loses_nothing() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 2)).await.unwrap();
    let first = admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    let taken = gate.take(9).await.unwrap();
    {
        let thief = rusqlite::Connection::open(house.path().join(JOURNAL_FILE)).unwrap();
        thief.execute_batch("BEGIN IMMEDIATE").unwrap();
        let batch = ["b", "c"].map(|user| house.request(user, 1)).to_vec();
        let decisions = gate.admit(batch).await;
        assert_eq!(decisions, vec![Decision::Busy(Busy::Unwritable); 2]);
        let at_once = gate.admit(vec![house.request("d", 1)]).await;
        assert_eq!(at_once, [Decision::Busy(Busy::Unwritable)]);
        assert!(gate.ping().await.is_err());
        assert!(gate.release(&[give_back(&first)]).await.is_err(), "nothing changes");
        assert_eq!(left(&gate).await, 1, "the units of the failed batch were not taken");
        // What the ledger has is acknowledged all the same.
        gate.ack(&[taken[0].id]).await.unwrap();
        assert_eq!(gate.backlog(), 0);
    }
    admitted_at_last(&gate, &house, "d").await;
    assert_eq!((left(&gate).await, gate.backlog()), (0, 1));
    gate.ping().await.unwrap();
    drop(gate);
    let gate = house.open();
    assert_eq!((left(&gate).await, gate.backlog()), (0, 1), "as it was said, also on the disk");
}

#[tokio::test]
async fn a_clock_that_steps_back_does_not_keep_the_gate_closed() {
    let house = House::new();
    let gate = house.open();
    gate.load(Loading { opens_ms: 0, ..loading(1, 2) }).await.unwrap();
    {
        let thief = rusqlite::Connection::open(house.path().join(JOURNAL_FILE)).unwrap();
        thief.execute_batch("BEGIN IMMEDIATE").unwrap();
        let decision = gate.admit(vec![house.request("a", 1)]).await;
        assert_eq!(decision, [Decision::Busy(Busy::Unwritable)]);
    }
    house.clock.advance(-3_600_000);
    admitted_at_last(&gate, &house, "a").await;
}

#[tokio::test]
async fn a_clock_that_steps_back_does_not_keep_an_item_sold_out() {
    let house = House::new();
    let gate = house.open();
    gate.load(Loading { opens_ms: 0, ..loading(1, 1) }).await.unwrap();
    let lanes = lanes(&house, gate.clone(), 10);
    let first = admitted(&lanes.claim(one_unit("a")).await);
    let stranger: UserId = "b".parse().unwrap();
    let none = lanes.claim(one_unit("b")).await;
    assert!(matches!(none, Decision::SoldOut { .. }));
    house.clock.advance(-3_600_000);
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
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 1_000)).await.unwrap();
    let stuck = admitted(&gate.admit(vec![house.request("stuck", 1)]).await[0]);
    let held = gate.take(1).await.unwrap().remove(0);
    let mut last = stuck.clone();
    for n in 0..ROUNDS {
        last = admitted(&gate.admit(vec![house.request(&format!("u{n}"), 1)]).await[0]);
        let taken = gate.take(9).await.unwrap();
        gate.ack(&taken.iter().map(|entry| entry.id).collect::<Vec<_>>()).await.unwrap();
        if n % 3 == 0 {
            gate.release(&[give_back(&last)]).await.unwrap();
        }
    }
    assert_eq!(gate.backlog(), 1);
    let before = left(&gate).await;
    drop(gate);
    // A restart delivers what is owed, and nothing that is in the ledger.
    let gate = house.open();
    assert_eq!(gate.backlog(), 1);
    assert_eq!(gate.queued(&stuck.user, stuck.order_no).await.unwrap(), Some(stuck.clone()));
    assert_eq!(gate.queued(&last.user, last.order_no).await.unwrap(), None);
    assert!(gate.tidy(0).await.unwrap());
    assert_eq!(entries(&house), 1, "of all entries only the stuck one is kept");
    let after = admitted(&gate.admit(vec![house.request("after", 1)]).await[0]);
    drop(gate);
    let gate = house.open();
    assert_eq!((left(&gate).await, gate.backlog()), (before - 1, 2));
    // At last the ledger takes it.
    let taken = gate.take(9).await.unwrap();
    assert_eq!(taken[0].id, held.id, "in the old order");
    assert_eq!(taken[1].claims[0].order_no, after.order_no);
    gate.ack(&taken.iter().map(|entry| entry.id).collect::<Vec<_>>()).await.unwrap();
    gate.tidy(0).await.unwrap();
    assert_eq!((gate.backlog(), entries(&house)), (0, 0));
}

#[tokio::test]
async fn numbers_of_dropped_entries_may_come_again_and_are_owed_anew() {
    let house = House::new();
    let gate = house.open();
    let other = Loading { item: ItemId(7), ..loading(1, 10) };
    gate.load(other).await.unwrap();
    gate.load(loading(1, 10)).await.unwrap();
    gate.admit(vec![house.request_of(ItemId(7), "stuck")]).await;
    let _stuck = gate.take(1).await.unwrap();
    for user in ["a", "b"] {
        gate.admit(vec![house.request(user, 1)]).await;
        let taken = gate.take(1).await.unwrap();
        gate.ack(&[taken[0].id]).await.unwrap();
    }
    // The item goes, and with it the entries with the largest numbers.
    gate.unload(ITEM).await.unwrap();
    assert_eq!(entries(&house), 1);
    drop(gate);
    let gate = house.open();
    let new = admitted(&gate.admit(vec![house.request_of(ItemId(7), "new")]).await[0]);
    drop(gate);
    let gate = house.open();
    assert_eq!(gate.backlog(), 2);
    assert!(gate.queued(&new.user, new.order_no).await.unwrap().is_some());
}

/// As on a full disk, where everybody gets the lock and nobody can write.
#[tokio::test]
async fn a_journal_that_gives_its_lock_and_takes_no_write_is_down() {
    let house = House::new();
    let gate = house.open();
    let back_door = rusqlite::Connection::open(house.path().join(JOURNAL_FILE)).unwrap();
    let full = "CREATE TRIGGER full BEFORE UPDATE ON cursor
        BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
    back_door.execute_batch(full).unwrap();
    let seen = gate.check().await;
    assert_eq!((seen.partitions, seen.silent), (1, 1));
    assert!(seen.cause.unwrap().contains("the disk is full"));
    back_door.execute_batch("DROP TRIGGER full").unwrap();
    // A moment after a failed write it is asked again.
    for _ in 0..500 {
        house.clock.advance(1_000);
        if gate.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never recovers");
}

#[tokio::test]
async fn the_age_of_the_oldest_claim_on_the_log_is_known() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 9)).await.unwrap();
    assert_eq!(gate.oldest_waits_ms().await.unwrap(), None);
    gate.admit(vec![house.request("a", 1)]).await;
    house.clock.advance(700);
    gate.admit(vec![house.request("b", 1)]).await;
    house.clock.advance(300);
    assert_eq!(gate.oldest_waits_ms().await.unwrap(), Some(1_000));
    let taken = gate.take(1).await.unwrap();
    gate.ack(&[taken[0].id]).await.unwrap();
    assert_eq!(gate.oldest_waits_ms().await.unwrap(), Some(300));
}

#[tokio::test]
async fn an_item_that_leaves_takes_its_settled_entries_along() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 9)).await.unwrap();
    gate.admit(vec![house.request("a", 1)]).await;
    let taken = gate.take(9).await.unwrap();
    gate.ack(&[taken[0].id]).await.unwrap();
    gate.admit(vec![house.request("b", 1)]).await;
    gate.unload(ITEM).await.unwrap();
    assert_eq!(gate.left(ITEM), None);
    drop(gate);
    let gate = house.open();
    assert!(gate.loaded().await.unwrap().is_empty());
    assert_eq!(gate.backlog(), 1, "the unsettled claim is still delivered");
    let journal = rusqlite::Connection::open(house.path().join(JOURNAL_FILE)).unwrap();
    let entries: i64 =
        journal.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap();
    assert_eq!(entries, 1);
}

#[tokio::test]
async fn a_newer_journal_is_refused() {
    let house = House::new();
    drop(house.open());
    let journal = rusqlite::Connection::open(house.path().join(JOURNAL_FILE)).unwrap();
    journal.pragma_update(None, "user_version", 99).unwrap();
    let opened =
        SoloGate::open(house.path(), SoloOptions { log_claims_max: 1 }, house.clock.clone());
    assert!(matches!(opened, Err(OpenError::NewerSchema(_, 99))));
}

fn lanes(house: &House, gate: SoloGate, queue_max: usize) -> Lanes {
    let options = LaneOptions { queue_max, batch_max: 64 };
    Lanes::start(options, 1_000, Arc::new(gate), house.numbers.clone(), Arc::new(|| true)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_through_the_lanes_buys_exactly_the_stock() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 100)).await.unwrap();
    let lanes = Arc::new(lanes(&house, gate.clone(), 10_000));
    let buyers = (0..2_000).map(|n| {
        let lanes = lanes.clone();
        // Every buyer comes twice at the same time.
        let request = one_unit(&format!("u{}", n / 2));
        tokio::spawn(async move { lanes.claim(request).await })
    });
    let mut won = 0;
    for buyer in buyers.collect::<Vec<_>>() {
        match buyer.await.unwrap() {
            Decision::Admitted { .. } => won += 1,
            Decision::SoldOut { .. } | Decision::AlreadyBought { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(won, 100);
    assert_eq!(gate.marks(ITEM).await.unwrap().len(), 100);

    // The cache says no to strangers, the truth to those who bought, and yields to returned units.
    let stranger: UserId = "stranger".parse().unwrap();
    assert!(lanes.is_sold_out(ITEM, &stranger, false));
    let (owner, order_no) = gate.marks(ITEM).await.unwrap().remove(0);
    assert_eq!(lanes.claim(one_unit(owner.as_str())).await, Decision::AlreadyBought { order_no });
    let unit = GiveBack { item: ITEM, user: owner, order_no, quantity: 1 };
    lanes.release(&[unit]).await.unwrap();
    admitted(&lanes.claim(one_unit("stranger")).await);

    lanes.stop().await;
    let late = lanes.claim(one_unit("late")).await;
    assert_eq!(late, Decision::Busy(Busy::Unwritable), "stopped lanes decide nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_lane_says_so_at_once() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 1_000)).await.unwrap();
    let lanes = Arc::new(lanes(&house, gate, 4));
    // While somebody holds the journal the lane cannot drain, so its queue of four fills up.
    let thief = rusqlite::Connection::open(house.path().join(JOURNAL_FILE)).unwrap();
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
fn entries(house: &House) -> i64 {
    let file = rusqlite::Connection::open(house.path().join(JOURNAL_FILE)).unwrap();
    file.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_journal_that_grew_long_is_tidied_in_a_quiet_moment() {
    const ITEMS: i64 = 150;
    let house = House::new();
    let gate = house.open();
    for item in 1..=ITEMS {
        gate.load(Loading { item: ItemId(item), ..loading(1, 1_000) }).await.unwrap();
    }
    let mut rounds = 0;
    // Each batch leaves an entry per item.
    while rounds * ITEMS as u64 <= REWRITE_AFTER_ENTRIES {
        rounds += 1;
        let one = |item| house.request_of(ItemId(item), &format!("u{rounds}"));
        gate.admit((1..=ITEMS).map(one).collect()).await;
        let taken = gate.take(usize::MAX).await.unwrap();
        gate.ack(&taken.iter().map(|entry| entry.id).collect::<Vec<_>>()).await.unwrap();
    }
    let last = admitted(&gate.admit(vec![house.request_of(ItemId(1), "last")]).await[0]);
    let admitted = Instant::now();
    gate.upkeep().await.unwrap();
    let tidied_early = (entries(&house) as u64) <= REWRITE_AFTER_ENTRIES;
    assert!(!tidied_early || admitted.elapsed() >= QUIET, "not while buyers come");
    // By the machine's own time, whatever the clock says.
    house.clock.advance(-3_600_000);
    while admitted.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gate.upkeep().await.unwrap();
    assert_eq!(entries(&house), 1, "only what the ledger does not have yet");
    drop(gate);
    let gate = house.open();
    let reading = gate.reading(ItemId(1)).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks), (1_000 - rounds as i64 - 1, rounds + 1));
    assert_eq!(reading.in_flight, [last]);
}

#[tokio::test]
async fn a_journal_that_is_far_too_long_waits_for_no_quiet_moment() {
    let house = House::new();
    let gate = house.open();
    gate.load(loading(1, 100)).await.unwrap();
    for n in 0..21 {
        gate.admit(vec![house.request(&format!("u{n}"), 1)]).await;
        assert_eq!(gate.tidy(2).await.unwrap(), n == 20, "after {n}");
    }
    assert_eq!(entries(&house), 21, "none is in the ledger");
}

#[tokio::test]
async fn a_lane_that_died_is_noticed() {
    for dies in [false, true] {
        let house = House::new();
        let gate = Arc::new(house.open());
        gate.load(loading(1, 10)).await.unwrap();
        let options = LaneOptions { queue_max: 10, batch_max: 10 };
        let may_number = Arc::new(move || !dies || panic!("a test kills this lane"));
        let numbers = house.numbers.clone();
        let lanes = Lanes::start(options, 1_000, gate, numbers, may_number).unwrap();
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
            let house = House::new();
            let mut gate = house.open();
            gate.load(loading(1, 12)).await.unwrap();
            let mut model = Model { left: 12, ..Model::default() };
            for step in steps {
                match step {
                    Step::Claims(wishes) => {
                        let wish = |(n, quantity): &(u8, u32)| house.request(&format!("u{n}"), *quantity);
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
                        let done = gate.adjust(ITEM, house.numbers.next(), delta, false).await.unwrap();
                        match done {
                            AdjustOutcome::Done(_) => model.left += delta,
                            AdjustOutcome::Short { .. } => assert!(model.left + delta < 0),
                            other => panic!("{other:?}"),
                        }
                    }
                    Step::Settle if gate.backlog() > 0 => {
                        let taken = gate.take(3).await.unwrap();
                        let ids: Vec<_> = taken.iter().map(|entry| entry.id).collect();
                        let delivered: Vec<OrderNo> =
                            taken.iter().flat_map(|e| &e.claims).map(|c| c.order_no).collect();
                        assert_eq!(delivered, model.unsettled.drain(..delivered.len()).collect::<Vec<_>>());
                        gate.ack(&ids).await.unwrap();
                    }
                    Step::Settle => {}
                    Step::Upkeep => {
                        gate.upkeep().await.unwrap();
                        gate.tidy(0).await.unwrap();
                    }
                    Step::Restart => {
                        drop(gate);
                        gate = house.open();
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
