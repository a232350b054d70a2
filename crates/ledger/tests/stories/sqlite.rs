//! The ledger in one SQLite file, and what can only happen to a file.

use std::{
    any::Any,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ledger::{
    AuditEntry, LedgerError, Operators, Orders, SqlLedger, VERSION_TRIES_MAX,
    sqlite::{self, BUSY_TIMEOUT_MS, OpenError, SCHEMA_VERSION},
};
use rusqlite::Connection;
use sale::{BookError, Claim, ManualClock, OrderBook};
use tempfile::TempDir;

use crate::{NOON_MS, Shop, back_door::BackDoor};

pub(crate) fn shop() -> Shop {
    shop_and_file().0
}

/// A shop, and where its ledger lies, for those who come in by the back door.
fn shop_and_file() -> (Shop, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory);
    (shop_in(&file, directory), file)
}

/// A shop whose ledger is this file, and what has to live as long as it.
fn shop_in(file: &Path, home: impl Any) -> Shop {
    let clock = ManualClock::at(NOON_MS);
    let ledger = sqlite::open(file, clock.clone()).unwrap();
    Shop::with(Box::new(ledger), clock, BackDoor::Sqlite(file.into()), home)
}

fn file_in(directory: &TempDir) -> PathBuf {
    directory.path().join("ledger.db")
}

fn open(file: &Path) -> Result<SqlLedger, OpenError> {
    sqlite::open(file, ManualClock::at(NOON_MS))
}

/// Somebody with another tool in the same file.
fn back_door(file: &Path) -> Connection {
    Connection::open(file).unwrap()
}

#[tokio::test]
async fn a_ledger_somebody_locked_says_so_at_once_and_works_again_afterwards() {
    let (shop, file) = shop_and_file();
    let item = shop.sale_of(5).await;
    let claim = [shop.claim(item.id, "ann", 1)];
    let intruder = back_door(&file);
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let asked = Instant::now();
    let locked = shop.settle(item.id, &claim).await;
    assert!(matches!(locked, Err(BookError::Unavailable(_))), "{locked:?}");
    assert!(asked.elapsed() < Duration::from_millis(BUSY_TIMEOUT_MS + 2_000));
    let locked = shop.adjust_stock(item.id, 1, shop.number(), shop.now()).await;
    assert!(matches!(locked, Err(LedgerError::Unavailable(_))), "{locked:?}");
    assert_eq!(shop.stock(item.id).await, (5, 5), "reading goes on");
    shop.ping().await.unwrap();

    intruder.execute_batch("ROLLBACK").unwrap();
    let settled = shop.settle(item.id, &claim).await.unwrap();
    assert_eq!(settled.created, [claim[0].order_no]);
    assert_eq!(shop.stock(item.id).await, (4, 5));
}

#[tokio::test]
async fn an_item_whose_version_never_stands_still_is_given_up_for_now() {
    let (shop, file) = shop_and_file();
    let item = shop.sale_of(5).await;
    let claim = [shop.claim(item.id, "ann", 1)];
    // The update changes no row, as if somebody else had changed the version first.
    let intruder = back_door(&file);
    intruder
        .execute_batch(
            "CREATE TRIGGER faster BEFORE UPDATE OF stock ON tb_seckill_product
             BEGIN SELECT RAISE(IGNORE); END",
        )
        .unwrap();
    let contended = shop.settle(item.id, &claim).await;
    assert!(matches!(contended, Err(BookError::Contended(VERSION_TRIES_MAX))), "{contended:?}");
    assert!(shop.order(claim[0].order_no).await.unwrap().is_none());
    intruder.execute_batch("DROP TRIGGER faster").unwrap();
    assert_eq!(shop.settle(item.id, &claim).await.unwrap().created, [claim[0].order_no]);
    shop.books_add_up(item.id).await;
}

#[tokio::test]
async fn a_file_of_the_first_schema_keeps_its_audit_and_learns_where_from() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory);
    // What yesterday's binary made, and how it writes, also beside today's schema.
    let before = back_door(&file);
    before.execute_batch(include_str!("../../src/sqlite/migrations/0001_init.sql")).unwrap();
    before.pragma_update(None, "user_version", 1).unwrap();
    let yesterdays = "INSERT INTO tb_admin_audit (who, action, target, detail, created_at)
         VALUES ('ann', 'token.create', 'token:bob', 'null', 1)";
    before.execute(yesterdays, []).unwrap();
    let ledger = open(&file).unwrap();
    before.execute(yesterdays, []).unwrap();
    let origin =
        ledger::Origin { address: Some("192.0.2.7".into()), request_id: Some("r-1".into()) };
    let entry = AuditEntry { origin, ..crate::audit_entry("order.refund") };
    ledger.audit(&entry, NOON_MS).await.unwrap();
    let addresses: Vec<Option<String>> =
        ledger.audit_log(None, 10).await.unwrap().into_iter().map(|row| row.address).collect();
    assert_eq!(addresses, [Some("192.0.2.7".into()), None, None]);
}

#[tokio::test]
async fn a_ledger_reopens_with_all_it_knew() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory);
    let before = shop_in(&file, ());
    let item = before.sale_of(5).await;
    let order = before.bought(item.id, "ann", 1).await;
    drop(before);
    let after = open(&file).unwrap();
    assert_eq!(after.order(order.order_no).await.unwrap(), Some(order));
    let version: i64 =
        back_door(&file).pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, SCHEMA_VERSION);
}

#[tokio::test]
async fn a_file_of_a_newer_release_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory);
    drop(open(&file).unwrap());
    back_door(&file).pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    match open(&file).err() {
        Some(OpenError::NewerSchema { found, known, .. }) => {
            assert_eq!((found, known), (SCHEMA_VERSION + 1, SCHEMA_VERSION));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_place_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing").join("ledger.db");
    let error = open(&missing).err().unwrap();
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error:?}");
    assert!(error.to_string().contains("missing"), "{error}");
    let text = directory.path().join("notes.txt");
    std::fs::write(&text, "this is not a database, it only looks long enough to be one".repeat(99))
        .unwrap();
    let error = open(&text).err().unwrap();
    assert!(matches!(error, OpenError::Other { .. }), "{error:?}");
}

#[tokio::test]
async fn clones_share_one_ledger_and_many_may_ask_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory);
    let (ledger, clock) = (open(&file).unwrap(), ManualClock::at(NOON_MS));
    let back_door = BackDoor::Sqlite(file);
    let keeper = Shop::with(Box::new(ledger.clone()), clock, back_door, directory);
    let item = keeper.sale_of(1_000).await;
    let batches: Vec<Vec<Claim>> = (0..20)
        .map(|n| (0..10).map(|m| keeper.claim(item.id, &format!("u{n}-{m}"), 1)).collect())
        .collect();
    let tasks: Vec<_> = batches
        .into_iter()
        .map(|batch| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                let settled = ledger.settle(item.id, &batch).await.unwrap();
                let found = ledger.order(batch[0].order_no).await.unwrap();
                (settled.created.len(), found.is_some())
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), (10, true));
    }
    assert_eq!(keeper.stock(item.id).await, (800, 1_000));
    keeper.books_add_up(item.id).await;
}
