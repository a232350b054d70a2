//! What the ledger does when somebody with another tool was in its tables.

use std::path::PathBuf;

use ledger::{AuditEntry, LedgerError, OutboxKind, PaymentProblem};
use mysql_async::{Conn, prelude::Queryable};
use sale::{BookError, Claim, CloseReason, VoidReason};

use crate::{NOON_MS, audit_entry, check};

/// Where the tables of a ledger lie.
pub(crate) enum BackDoor {
    Sqlite(PathBuf),
    Mysql(String),
}

impl BackDoor {
    /// Runs a statement past the ledger and past the checks of its columns. An error is what the
    /// database says.
    pub(crate) async fn run(&self, sql: &str) -> Result<(), String> {
        match self {
            BackDoor::Sqlite(file) => {
                let conn = rusqlite::Connection::open(file).unwrap();
                conn.pragma_update(None, "ignore_check_constraints", true).unwrap();
                conn.execute_batch(sql).map_err(|error| error.to_string())
            }
            BackDoor::Mysql(url) => {
                let mut conn = crate::mysql::back_door(url).await;
                if conn.query_drop("SET check_constraint_checks = 0").await.is_err() {
                    without_checks(&mut conn, sql).await;
                }
                conn.query_drop(sql).await.map_err(|error| error.to_string())
            }
        }
    }

    /// What a statement answers that asks for one number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        match self {
            BackDoor::Sqlite(file) => {
                let conn = rusqlite::Connection::open(file).unwrap();
                conn.query_row(sql, [], |row| row.get(0)).unwrap()
            }
            BackDoor::Mysql(url) => {
                crate::mysql::back_door(url).await.query_first(sql).await.unwrap().unwrap()
            }
        }
    }

    /// Makes the tables refuse the record of a buyer.
    async fn poison(&self, user: &str) {
        let refused = "this row is refused";
        let trigger = "CREATE TRIGGER poison BEFORE INSERT ON tb_user_seckill";
        let sql = match self {
            BackDoor::Sqlite(_) => format!(
                "{trigger} WHEN NEW.user_id = '{user}' BEGIN SELECT RAISE(ABORT, '{refused}'); END"
            ),
            BackDoor::Mysql(_) => format!(
                "{trigger} FOR EACH ROW IF NEW.user_id = '{user}' THEN
                     SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{refused}';
                 END IF"
            ),
        };
        self.run(&sql).await.unwrap();
    }
}

/// MySQL has no such setting: the rules of the table that this changes are switched off for good.
async fn without_checks(conn: &mut Conn, sql: &str) {
    let Some(table) = sql.strip_prefix("UPDATE ").and_then(|rest| rest.split(' ').next()) else {
        return;
    };
    let rules = "SELECT constraint_name FROM information_schema.table_constraints
         WHERE constraint_schema = DATABASE() AND constraint_type = 'CHECK' AND table_name = ?";
    let rules: Vec<String> = conn.exec(rules, (table,)).await.unwrap();
    for rule in rules {
        let off = format!("ALTER TABLE {table} ALTER CHECK `{rule}` NOT ENFORCED");
        conn.query_drop(off).await.unwrap();
    }
}

#[tokio::test]
async fn a_poisoned_claim_takes_nothing_of_its_batch_into_the_ledger() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        shop.back_door.poison("evil").await;
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
        match shop.settle(item.id, std::slice::from_ref(&nothing)).await {
            Err(BookError::Rejected(why)) => assert!(why.contains("quantity"), "{why}"),
            other => panic!("{other:?}"),
        }
        let evil = [batch[1].clone(), nothing];
        let voided = shop.void(&evil, VoidReason::Operator, NOON_MS).await.unwrap();
        assert_eq!(voided.len(), 2);
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn the_audit_log_cannot_be_rewritten() {
    check(async |shop| {
        let entry = AuditEntry { who: "root".into(), ..audit_entry("order.refund") };
        shop.audit(&entry, NOON_MS).await.unwrap();
        for sql in ["UPDATE tb_admin_audit SET who = 'nobody'", "DELETE FROM tb_admin_audit"] {
            let refused = shop.back_door.run(sql).await.unwrap_err();
            assert!(refused.contains("append-only"), "{refused}");
        }
        assert_eq!(shop.audit_log(None, 10).await.unwrap()[0].who, "root");
    })
    .await;
}

#[tokio::test]
async fn the_books_show_what_somebody_broke() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        for user in ["ann", "bob", "cat"] {
            shop.bought(item.id, user, 1).await;
        }
        let (paid, notice) = shop.paid(item.id, "dan").await;
        let log = shop.log(item.id).await;
        for sql in [
            &format!("UPDATE tb_stock_log SET after_stock = 3 WHERE id = {}", log[1].id),
            "DELETE FROM tb_user_seckill WHERE user_id = 'ann'",
            "UPDATE tb_seckill_order SET status = 2 WHERE user_id = 'bob'",
        ] {
            shop.back_door.run(sql).await.unwrap();
        }
        let books = shop.item_books(item.id, &[]).await.unwrap();
        assert_eq!(books.chain_breaks, [log[1].id, log[2].id]);
        assert_eq!((books.live_orders, books.user_records), (3, 3));
        assert_eq!(books.user_record_mismatches, 2);

        shop.back_door.run("UPDATE tb_payment SET kind = 2").await.unwrap();
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
        let refused = shop.start_refund(notice.order_no, NOON_MS).await;
        assert!(matches!(refused, Err(LedgerError::Refused(_))), "{refused:?}");
    })
    .await;
}

#[tokio::test]
async fn a_chain_is_whole_in_whatever_order_its_rows_are_numbered() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        for user in ["ann", "bob", "cat"] {
            shop.bought(item.id, user, 2).await;
        }
        let gone = shop.bought(item.id, "dan", 1).await;
        shop.close(&[gone.order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
        shop.adjust_stock(item.id, 3, shop.number(), NOON_MS).await.unwrap();
        shop.back_door.run("UPDATE tb_stock_log SET id = 1000000 - id").await.unwrap();
        let log = shop.log(item.id).await;
        assert_eq!(log[0].after_stock, 7, "the last change comes first: {log:?}");
        let books = shop.item_books(item.id, &[]).await.unwrap();
        assert_eq!((books.chain_breaks, books.chain_end), (vec![], Some(7)));

        // One that is broken is broken in any order, however well each row is reckoned.
        let missing = "DELETE FROM tb_stock_log WHERE before_stock = 8 AND after_stock = 6";
        shop.back_door.run(missing).await.unwrap();
        let books = shop.item_books(item.id, &[]).await.unwrap();
        assert!(!books.chain_breaks.is_empty());
    })
    .await;
}

#[tokio::test]
async fn an_outbox_row_nobody_can_read_holds_up_nothing() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        shop.bought(item.id, "ann", 1).await;
        let future = r#"UPDATE tb_outbox SET body = '{"kind":"from.the.future.v9"}'"#;
        shop.back_door.run(future).await.unwrap();
        shop.bought(item.id, "bob", 1).await;
        let due = shop.due_rows(OutboxKind::News, NOON_MS, 9).await;
        assert_eq!(due.iter().map(|row| row.message.is_ok()).collect::<Vec<_>>(), [false, true]);
        shop.outbox_later(due[0].id, NOON_MS + 1, "it cannot be read").await.unwrap();
        assert_eq!(shop.due_rows(OutboxKind::News, NOON_MS, 1).await[0].id, due[1].id);
        assert_eq!(shop.waiting().await, 2, "it is still there for whoever can");
        shop.books_add_up(item.id).await;
    })
    .await;
}
