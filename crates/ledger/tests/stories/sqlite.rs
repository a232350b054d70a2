//! The ledger in one SQLite file, and what can only happen to a file.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use ledger::{
    AuditEntry, Ledger, LedgerError, Operators, Orders, PaymentProblem, VERSION_TRIES_MAX,
    sqlite::{BUSY_TIMEOUT_MS, OpenError, SCHEMA_VERSION, SqliteLedger},
};
use rusqlite::Connection;
use sale::{BookError, Claim, ManualClock, OrderBook};
use serde_json::json;
use tempfile::TempDir;

use crate::{NOON_MS, Shop};

pub(crate) fn shop() -> Shop {
    shop_and_file().0
}

/// A shop, and where its ledger lies, for those who come in by the back door.
fn shop_and_file() -> (Shop, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory);
    let open = |clock: Arc<ManualClock>| -> Box<dyn Ledger> {
        Box::new(SqliteLedger::open(&file, clock).unwrap())
    };
    (Shop::new(open, directory), file.clone())
}

fn file_in(directory: &TempDir) -> PathBuf {
    directory.path().join("ledger.db")
}

fn open(file: &Path) -> Result<SqliteLedger, OpenError> {
    SqliteLedger::open(file, ManualClock::at(NOON_MS))
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
async fn a_poisoned_claim_takes_nothing_of_its_batch_into_the_ledger() {
    let (shop, file) = shop_and_file();
    let item = shop.sale_of(5).await;
    back_door(&file)
        .execute_batch(
            "CREATE TRIGGER poison BEFORE INSERT ON tb_user_seckill WHEN NEW.user_id = 'evil'
             BEGIN SELECT RAISE(ABORT, 'this row is refused'); END",
        )
        .unwrap();
    let users = ["ann", "evil", "bob"];
    let batch: Vec<Claim> = users.iter().map(|user| shop.claim(item.id, user, 1)).collect();
    match shop.settle(item.id, &batch).await {
        Err(BookError::Rejected(why)) => assert!(why.contains("this row is refused"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(shop.stock(item.id).await, (5, 5));
    assert!(shop.log(item.id).await.is_empty() && shop.outbox().await.is_empty());
    for claim in &batch {
        assert!(shop.order(claim.order_no).await.unwrap().is_none());
    }
    // Without it the others go through, and it can still be voided.
    let good = [batch[0].clone(), batch[2].clone()];
    assert_eq!(shop.settle(item.id, &good).await.unwrap().created.len(), 2);
    let nothing = Claim { quantity: 0, ..shop.claim(item.id, "zero", 1) };
    let refused = shop.settle(item.id, std::slice::from_ref(&nothing)).await;
    assert!(matches!(refused, Err(BookError::Rejected(_))), "{refused:?}");
    let evil = [batch[1].clone(), nothing];
    let voided = shop.void(&evil, sale::VoidReason::Operator, NOON_MS).await.unwrap();
    assert_eq!(voided.len(), 2);
    shop.books_add_up(item.id).await;
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
async fn the_audit_log_cannot_be_rewritten() {
    let (shop, file) = shop_and_file();
    let entry = AuditEntry {
        who: "root".into(),
        action: "order.refund".into(),
        target: "order:SK".into(),
        detail: json!({}),
        origin: ledger::Origin::default(),
    };
    shop.audit(&entry, NOON_MS).await.unwrap();
    let intruder = back_door(&file);
    for sql in ["UPDATE tb_admin_audit SET who = 'nobody'", "DELETE FROM tb_admin_audit"] {
        let refused = intruder.execute(sql, []).unwrap_err().to_string();
        assert!(refused.contains("append-only"), "{refused}");
    }
    assert_eq!(shop.audit_log(None, 10).await.unwrap()[0].who, "root");
}

#[tokio::test]
async fn a_ledger_reopens_with_all_it_knew() {
    let directory = tempfile::tempdir().unwrap();
    let file = file_in(&directory);
    let opened = |clock: Arc<ManualClock>| -> Box<dyn Ledger> {
        Box::new(SqliteLedger::open(&file, clock).unwrap())
    };
    let before = Shop::new(opened, ());
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
async fn the_books_show_what_somebody_broke() {
    let (shop, file) = shop_and_file();
    let item = shop.sale_of(10).await;
    for user in ["ann", "bob", "cat"] {
        shop.bought(item.id, user, 1).await;
    }
    let (paid, notice) = shop.paid(item.id, "dan").await;
    let log = shop.log(item.id).await;
    let intruder = back_door(&file);
    intruder.pragma_update(None, "ignore_check_constraints", true).unwrap();
    intruder.execute("UPDATE tb_stock_log SET after_stock = 3 WHERE id = ?1", [log[1].id]).unwrap();
    intruder.execute("DELETE FROM tb_user_seckill WHERE user_id = 'ann'", []).unwrap();
    intruder.execute("UPDATE tb_seckill_order SET status = 2 WHERE user_id = 'bob'", []).unwrap();
    let books = shop.item_books(item.id, &[]).await.unwrap();
    assert_eq!(books.chain_breaks, [log[1].id, log[2].id]);
    assert_eq!((books.live_orders, books.user_records), (3, 3));
    assert_eq!(books.user_record_mismatches, 2);

    intruder.execute("UPDATE tb_payment SET kind = 2", []).unwrap();
    let order_no = paid.order_no;
    let problems = shop.payment_problems(10).await.unwrap();
    let expected = [
        PaymentProblem::PaidWithoutMoney { order_no },
        PaymentProblem::RefundedTooMuch { order_no },
    ];
    assert_eq!(problems, expected);
    let few = shop.payment_problems(1).await.unwrap();
    assert_eq!(few, expected, "one kind hides no other");
    // A paid order without money on record has nothing to give back.
    assert!(matches!(
        shop.start_refund(notice.order_no, NOON_MS).await,
        Err(LedgerError::Refused(_))
    ));
}

#[tokio::test]
async fn an_outbox_row_nobody_can_read_holds_up_nothing() {
    let (shop, file) = shop_and_file();
    let item = shop.sale_of(10).await;
    shop.bought(item.id, "ann", 1).await;
    back_door(&file)
        .execute(r#"UPDATE tb_outbox SET body = '{"kind":"from.the.future.v9"}'"#, [])
        .unwrap();
    shop.bought(item.id, "bob", 1).await;
    let due = shop.outbox_due(ledger::OutboxQueue::GateAndBuyers, NOON_MS, 1).await.unwrap();
    assert_eq!(due.len(), 1);
    assert_eq!(shop.outbox_depth().await.unwrap(), 2, "it is still there for whoever can");
    shop.books_add_up(item.id).await;
}

#[tokio::test]
async fn clones_share_one_ledger_and_many_may_ask_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(&file_in(&directory)).unwrap();
    let keeper = Shop::new(|_| Box::new(ledger.clone()), directory);
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
