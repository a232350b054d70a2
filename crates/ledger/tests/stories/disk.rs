//! The ledger's file on a disk that fails and forgets: what was answered is there after the power cut,
//! the books agree with themselves, and the ledger works again by itself.

use std::{
    collections::HashSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use faults::disk::{self, Fault, ForgetfulDisk};
use ledger::{
    Activities, Books, Orders, SqlLedger,
    sqlite::{self, OpenError},
};
use sale::{Claim, Clock, Item, OrderBook, SystemClock};

use crate::Shop;

const STOCK: i64 = 1_000;
const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);
/// Tells the process that writes where it shall work.
const PLACE: &str = "LEDGER_STORY";
/// The exit code of a ledger that could not be opened: whoever supervises it starts it again.
const NOT_OPENED: i32 = 3;

fn open(data: &Path) -> Result<SqlLedger, OpenError> {
    sqlite::open(&data.join("ledger.db"), Arc::new(SystemClock))
}

/// Do it until the ledger can.
async fn at_last<T, E: std::fmt::Display>(mut what: impl AsyncFnMut() -> Result<T, E>) -> T {
    let asked = Instant::now();
    loop {
        match what().await {
            Ok(done) => return done,
            Err(error) => assert!(asked.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The item on sale; made if there is none.
async fn item(ledger: &SqlLedger) -> Item {
    let known = at_last(async || ledger.activities(None, 1).await).await;
    match known.into_iter().next() {
        Some(mut activity) => activity.items.remove(0),
        None => {
            let new = Shop::new_activity(&[STOCK]);
            at_last(async || ledger.create_activity(&new, 0).await).await.items.remove(0)
        }
    }
}

#[tokio::test]
#[ignore = "started by the stories of this file, on a disk that fails"]
async fn claims_become_orders() {
    let Some(data) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let Ok(ledger) = open(&data) else { std::process::exit(NOT_OPENED) };
    let item = item(&ledger).await;
    let told = data.with_extension("told");
    let mut told = fs::File::options().create(true).append(true).open(told).unwrap();
    let numbers = sale::OrderNumbers::new(0, Arc::new(SystemClock));
    let last = at_last(async || ledger.last_order_no().await).await;
    last.into_iter().for_each(|seen| numbers.start_after(seen));
    for round in 0..ROUNDS {
        let claim = |n: usize| Claim {
            order_no: numbers.next(),
            item: item.id,
            user: format!("u{}-{round}-{n}", std::process::id()).parse().unwrap(),
            quantity: 1,
            epoch: item.epoch,
            claimed_ms: SystemClock.now_ms(),
            key: None,
        };
        let claims: Vec<Claim> = (0..3).map(claim).collect();
        // Asked again with the same numbers until it answers: done twice is done once.
        at_last(async || ledger.settle(item.id, &claims).await).await;
        for claim in &claims {
            // In one piece: the process may die in the middle of many, and the next one writes on.
            told.write_all(format!("{}\n", claim.order_no).as_bytes()).unwrap();
        }
        // Readers come and go, also while the file is mended.
        at_last(async || ledger.order(claims[0].order_no).await).await.unwrap();
    }
    // As a kill would: nothing is closed.
    std::process::exit(0);
}

fn sell(disk: &ForgetfulDisk, data: &Path) -> Option<i32> {
    let mut command = disk::again("disk::claims_become_orders").unwrap();
    command.envs(disk.env()).env(PLACE, data).status().unwrap().code()
}

/// False if nothing failed.
fn every_answer_outlives_the_power_cut(fault: Fault) -> bool {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    let disk = ForgetfulDisk::under(&data).unwrap();
    disk.fail("ledger", fault).unwrap();
    let mut ended = sell(&disk, &data);
    let hit = disk.hits().unwrap() > 0;
    disk.heal().unwrap();
    if matches!(ended, Some(disk::DIED | NOT_OPENED)) {
        ended = sell(&disk, &data);
    }
    assert_eq!(ended, Some(0), "{fault:?}");
    disk.power_cut().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(answers_are_kept(&data, fault));
    hit
}

async fn answers_are_kept(data: &Path, fault: Fault) {
    let ledger = open(data).unwrap();
    let told = fs::read_to_string(data.with_extension("told")).unwrap();
    let told: HashSet<&str> = told.lines().collect();
    for order_no in &told {
        let order = ledger.order(order_no.parse().unwrap()).await.unwrap();
        assert!(order.is_some(), "{order_no} was answered and is gone: {fault:?}");
    }
    let item = item(&ledger).await;
    let books = ledger.item_books(item.id, &[]).await.unwrap();
    assert_eq!(books.item.stock + books.live_units, STOCK, "{fault:?}");
    assert_eq!((books.user_record_mismatches, books.chain_breaks.len()), (0, 0), "{fault:?}");
    // One that was killed before it could answer has done it all the same.
    assert!(books.live_orders as usize >= told.len(), "{fault:?}");
    drop(ledger);
    let file = rusqlite::Connection::open(data.join("ledger.db")).unwrap();
    let whole: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok", "{fault:?}");
}

#[test]
fn whatever_the_disk_does_what_was_answered_outlives_the_power_cut() {
    disk::at_every_operation(7, every_answer_outlives_the_power_cut);
}
