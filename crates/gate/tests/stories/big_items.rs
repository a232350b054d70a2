//! Stories of items with so many buyers that they are loaded and written in pieces, and of journals from
//! before there were any.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use gate::{
    Admission, Busy, ClaimRequest, Decision, GateFailure, Inspection, Keep, Loading, Shut, Upkeep,
    solo::{JOURNAL_FILE, SoloGate, SoloOptions},
};
use sale::{Claim, ClaimLog, ItemId, ManualClock, OrderNo};

use crate::fixture::{Home, ITEM, SoloHome, admitted, give_back, keyed, one, one_unit};

const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the process that loads where it shall work.
const PLACE: &str = "GATE_BIG_ITEM";
/// Enough for a few dozen pieces.
const BUYERS: u64 = 60_000;
const OTHER: ItemId = ItemId(43);

#[tokio::test]
async fn a_journal_from_before_there_were_pieces_opens_and_is_written_in_pieces() {
    let home = SoloHome::new();
    let path = home.path().join(JOURNAL_FILE);
    let journal = rusqlite::Connection::open(&path).unwrap();
    journal.execute_batch(include_str!("../fixtures/journal-1.sql")).unwrap();
    drop(journal);
    for round in 0..3 {
        let gate = home.open_keeping(1_000_000, Keep { ms: 3_600_000, bytes_max: 1 << 20 });
        let reading = gate.reading(ITEM).await.unwrap().unwrap();
        assert_eq!((reading.left, reading.marks, reading.marked_units), (12, 2, 3));
        assert_eq!((reading.epoch, reading.shut, reading.adjusts.len()), (3, None, 1));
        let paused = gate.reading(OTHER).await.unwrap().unwrap();
        assert_eq!((paused.left, paused.marks, paused.shut), (4, 21, Some(Shut::Paused)));
        assert_eq!(gate.backlog(), 5, "one of six claims was acknowledged");
        // The key of a claim that was given back has its answer, and so has that of one that was not.
        for (user, key) in [("c", 9), ("b", 7)] {
            let again = one(&gate, keyed(home.request(user, 1), key)).await;
            assert!(matches!(again, Decision::Admitted { repeated: true, .. }), "{again:?}");
        }
        assert!(gate.may_hold_mark(ITEM, &"c".parse().unwrap(), true));
        match round {
            // The next start finds it as it was.
            0 => {}
            _ => assert!(gate.tidy(0).await.is_ok()),
        }
    }
    let journal = rusqlite::Connection::open(&path).unwrap();
    let ask = |sql: &str| journal.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(ask("SELECT count(*) FROM item WHERE head_as_of IS NULL"), 0);
    assert!(ask("SELECT count(*) FROM piece WHERE kind = 0") >= 2);
    assert_eq!(ask("PRAGMA user_version"), 2, "a release that knows no pieces refuses it");
}

#[tokio::test]
async fn what_comes_for_an_item_that_is_being_loaded_is_refused_and_others_are_sold() {
    let home = SoloHome::new();
    let gate = home.open_solo();
    gate.load(home.loading(1, 10)).await.unwrap();
    gate.load(Loading { item: OTHER, ..home.loading(1, 10) }).await.unwrap();
    let claim = admitted(&one(&gate, home.request("a", 1)).await);
    assert!(gate.begin_load(ITEM, 2, 1).await.unwrap());
    assert!(!gate.begin_load(ITEM, 2, 1).await.unwrap(), "somebody is at it");
    let refused = gate.release(&[give_back(&claim)]).await.unwrap_err();
    assert_eq!(refused.reason, GateFailure::BeingLoaded);
    let refused = gate.adjust(ITEM, home.numbers.next(), 3, true).await.unwrap_err();
    assert_eq!(refused.reason, GateFailure::BeingLoaded);
    // Who holds something is told so all the while, and nobody else gets in.
    let again = one(&gate, home.request("a", 1)).await;
    assert_eq!(again, Decision::AlreadyBought { order_no: claim.order_no });
    assert_eq!(one(&gate, home.request("b", 1)).await, Decision::Busy(Busy::Frozen));
    let of_other = (home.numbers.next(), ClaimRequest { item: OTHER, ..one_unit("b") });
    assert!(matches!(one(&gate, of_other).await, Decision::Admitted { .. }));
    gate.abandon_load(ITEM, 2).await;
    assert!(!gate.fill(ITEM, 2, vec![claim.clone()]).await.unwrap(), "it was given up");
    gate.release(&[give_back(&claim)]).await.unwrap();
    assert_eq!(one(&gate, home.request("a", 1)).await, Decision::Busy(Busy::Frozen));
    assert!(gate.load(home.loading(3, 10)).await.unwrap());
    assert!(matches!(one(&gate, home.request("a", 1)).await, Decision::Admitted { .. }));
}

fn open(place: &Path) -> SoloGate {
    let options = SoloOptions { log_claims_max: u64::MAX, keep: Keep::NOTHING };
    SoloGate::open(place, options, ManualClock::at(1_800_000_061_000)).unwrap()
}

fn mark(n: u64, epoch: u64) -> Claim {
    let order_no = OrderNo::from_u64(epoch * 10_000_000 + n).unwrap();
    let user = format!("buyer{n}").parse().unwrap();
    Claim { order_no, item: ITEM, user, quantity: 1, epoch, claimed_ms: 5, key: None }
}

/// Every epoch has other orders of the same buyers, so that all of it is written anew.
fn loading(home: &SoloHome, epoch: u64) -> Loading {
    let marks = (1..=BUYERS).map(|n| mark(n, epoch)).collect();
    Loading { marks, ..home.loading(epoch, 1_000) }
}

#[tokio::test]
#[ignore = "started, and killed, by the story below"]
async fn somebody_loads() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let (gate, home) = (open(&place), SoloHome::new());
    let epoch = gate.loaded_item(ITEM).await.unwrap().map_or(0, |here| here.epoch) + 1;
    gate.load(loading(&home, epoch)).await.unwrap();
    panic!("nobody killed it");
}

/// Kills whoever loads when this many pieces are of the epoch that is being loaded.
fn kill_in_the_middle(mut loads: Child, place: &Path, epoch: u64, pieces: i64) {
    let began = Instant::now();
    let journal = rusqlite::Connection::open(place.join(JOURNAL_FILE)).unwrap();
    journal.busy_timeout(PATIENCE).unwrap();
    // A mark begins with its order number, whose bytes are the other way round; behind the count.
    let count = "SELECT count(*) FROM piece WHERE as_of >= ?";
    let mut first_seq = None::<i64>;
    loop {
        assert!(began.elapsed() < PATIENCE, "nothing was written of epoch {epoch}");
        let last: i64 = journal
            .query_row("SELECT coalesce(max(as_of), 0) FROM piece", [], |row| row.get(0))
            .unwrap();
        let first = *first_seq.get_or_insert(last + i64::from(epoch > 1));
        let written: i64 = journal.query_row(count, [first], |row| row.get(0)).unwrap();
        if written >= pieces {
            break;
        }
    }
    loads.kill().unwrap();
    loads.wait().unwrap();
}

#[tokio::test]
async fn whoever_is_killed_in_the_middle_of_a_load_leaves_the_item_closed_and_others_as_they_were()
{
    let home = SoloHome::new();
    let place = home.path();
    let sold = {
        let gate = open(place);
        gate.load(Loading { item: OTHER, ..home.loading(1, 10) }).await.unwrap();
        let request = (home.numbers.next(), ClaimRequest { item: OTHER, ..one_unit("z") });
        admitted(&one(&gate, request).await)
    };
    for epoch in 1..=3 {
        let loads = Command::new(std::env::current_exe().unwrap())
            .args(["big_items::somebody_loads", "--exact", "--ignored"])
            .env(PLACE, place)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        kill_in_the_middle(loads, place, epoch, 4);
        let gate = open(place);
        let of_other = gate.queued_of(&sold.user).await.unwrap();
        assert_eq!(of_other, std::slice::from_ref(&sold), "another item's");
        let here = gate.loaded_item(ITEM).await.unwrap();
        match epoch {
            // It never was here.
            1 => assert_eq!(here, None),
            _ => {
                let here = here.unwrap();
                assert_eq!((here.epoch, here.shut), (epoch - 1, Some(Shut::Frozen)));
            }
        }
        let busy = one(&gate, home.request("somebody", 1)).await;
        assert!(matches!(busy, Decision::Busy(_)), "{busy:?}");
        // As the warm job does.
        assert!(gate.load(loading(&home, epoch)).await.unwrap());
        gate.upkeep().await.unwrap();
        drop(gate);
        let gate = open(place);
        let reading = gate.reading(ITEM).await.unwrap().unwrap();
        assert_eq!((reading.epoch, reading.left, reading.marks), (epoch, 1_000, BUYERS));
        assert_eq!(reading.shut, None);
        let bought = mark(BUYERS / 2, epoch);
        let request = (home.numbers.next(), one_unit(bought.user.as_str()));
        let told = one(&gate, request).await;
        assert_eq!(told, Decision::AlreadyBought { order_no: bought.order_no });
    }
    let journal = rusqlite::Connection::open(place.join(JOURNAL_FILE)).unwrap();
    let ask = |sql: &str| journal.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let generations = ask("SELECT count(DISTINCT generation) FROM piece WHERE item_id = 42");
    assert_eq!(generations, 1, "what the first load left is gone");
    assert!(ask("SELECT max(length(body)) FROM piece") < 1 << 20);
}
