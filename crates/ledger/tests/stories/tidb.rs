//! What a ledger meets on TiDB and nowhere else, each by what can be had here: MariaDB behind a door at which
//! it speaks as TiDB, a user with few rights, and rows that are numbered out of order. No TiDB was asked.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use faults::services::{
    MariaDb, TIDB_VERSION, TidbStandIn, numbers_in_ranges, shared_mariadb, unique_name,
};
use ledger::{
    AuditEntry, SqlLedger,
    mysql::{self, Fitness, Options, ServerSetting},
};
use mysql_async::prelude::Queryable;
use sale::CloseReason;

use crate::{
    NOON_MS, Shop,
    archive::{CYCLE_MS, archive, live_through, told, try_archive},
    audit_entry,
    back_door::BackDoor,
    mysql::{back_door, shop_at},
    numbers_of,
};

/// A database of its own: its address, that of the door before it, and the door.
fn behind_a_door(server: &MariaDb) -> (String, String, TidbStandIn) {
    let url = server.create_database(&unique_name("tidb")).unwrap();
    let door = TidbStandIn::start(server.address()).unwrap();
    let through = url.replace(&server.address().to_string(), &door.address().to_string());
    (url, through, door)
}

async fn open(url: &str) -> SqlLedger {
    mysql::open(url, sale::ManualClock::at(NOON_MS), Options::default()).await.unwrap()
}

async fn setting(ledger: &SqlLedger, name: &str) -> Option<ServerSetting> {
    let settings = mysql::health(ledger, 4).await.unwrap();
    settings.into_iter().find(|setting| setting.name == name)
}

/// What is SQL in a file: all but remarks, of Rust or of SQL.
fn without_remarks(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let is_remark =
        |line: &&str| ["//", "--"].iter().any(|mark| line.trim_start().starts_with(mark));
    text.lines().filter(|line| !is_remark(line)).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_statement_has_words_that_tidb_refuses_or_reads_over() {
    let mut folders = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("sqlite") {
                folders.push(path);
                continue;
            }
            if !path.is_file() {
                continue;
            }
            files += 1;
            let said = without_remarks(&path);
            for words in
                ["SKIP LOCKED", "READ ONLY", "LOCK IN SHARE MODE", "FOR SHARE", "LOCK TABLES"]
            {
                assert!(!said.contains(words), "{}: {words}", path.display());
            }
            // The two of the audit can be done without.
            let triggers = said.matches("CREATE TRIGGER ").count();
            let first = path.ends_with("0001_init.sql") || path.ends_with("migrations.rs");
            assert!(triggers == 0 || first, "{}: a trigger", path.display());
        }
    }
    assert!(files > 50, "{files}");
}

#[tokio::test]
async fn a_tidb_is_let_in_and_a_doctor_hears_what_it_does_without() {
    let (_, url, _door) = behind_a_door(shared_mariadb());
    let ledger = open(&url).await;
    let said = async |name: &str| {
        let setting = setting(&ledger, name).await.unwrap();
        (setting.value, setting.fitness)
    };
    assert_eq!(said("version").await, (TIDB_VERSION.into(), Fitness::Good));
    assert_eq!(said("audit_triggers").await, ("0 of 2".into(), Fitness::Risky));
    assert_eq!(said("tidb_enable_check_constraint").await, ("OFF".into(), Fitness::Risky));
    assert_eq!(said("tidb_txn_mode").await, ("pessimistic".into(), Fitness::Good));
    // Behind the door the words about numbers are a remark.
    let (tables, fitness) = said("auto_id_cache").await;
    assert!(tables.contains("tb_stock_log") && fitness == Fitness::Bad, "{tables}");
    // How MariaDB writes to its disk says nothing about TiDB.
    assert_eq!(setting(&ledger, "innodb_flush_log_at_trx_commit").await, None);
}

#[tokio::test]
async fn rules_that_were_ignored_when_the_tables_were_made_are_missed() {
    let url = shared_mariadb().create_database(&unique_name("ledger")).unwrap();
    let ledger = open(&url).await;
    let checks = setting(&ledger, "check_constraints").await.unwrap();
    assert_eq!(checks.fitness, Fitness::Good, "{checks:?}");
    let drop = "ALTER TABLE tb_seckill_product DROP CONSTRAINT ck_product_stock";
    back_door(&url).await.query_drop(drop).await.unwrap();
    let checks = setting(&ledger, "check_constraints").await.unwrap();
    assert_eq!(checks.fitness, Fitness::Risky, "{checks:?}");
}

#[tokio::test]
async fn a_sale_behind_the_door_of_a_tidb_adds_up() {
    let (straight, url, _door) = behind_a_door(shared_mariadb());
    let shop = shop_at(&url, BackDoor::Mysql(straight), Options::default()).await;
    let item = shop.sale_of(100).await;
    let claims = shop.crowd(item.id, 120);
    let settled = shop.settle(item.id, &claims).await.unwrap();
    assert_eq!((settled.created.len(), settled.void.len()), (100, 20));
    let paid = shop.found(settled.created[0]).await;
    shop.credit(&shop.money_for(&paid), NOON_MS).await.unwrap();
    // Two reads of one instant, each of several statements.
    let (basis, marks) = shop.warm_basis(item.id, &[]).await.unwrap();
    assert_eq!((basis.item.stock, crate::all(marks).await.len()), (0, 100));
    let due = paid.pay_deadline_ms;
    let closed = shop.close(&numbers_of(&claims), CloseReason::Timeout, due).await.unwrap();
    assert_eq!(closed.len(), 99);
    shop.books_add_up(item.id).await;
    assert_eq!(shop.payment_problems(10).await.unwrap(), []);
}

/// Rights to all tables of a database, of which the audit can only be read and written to its end. As
/// OPERATIONS says it.
fn grants(server: &MariaDb, database: &str) -> Vec<String> {
    let tables = server.query(&format!("SHOW TABLES FROM `{database}`")).unwrap();
    let user = format!("{database}@127.0.0.1");
    let mut grants = vec![
        format!("CREATE USER {user} IDENTIFIED BY 'x'"),
        format!("GRANT SELECT, INSERT ON `{database}`.* TO {user}"),
    ];
    let others = tables.lines().filter(|table| *table != "tb_admin_audit");
    grants.extend(
        others.map(|table| format!("GRANT UPDATE, DELETE ON `{database}`.{table} TO {user}")),
    );
    grants
}

#[tokio::test]
async fn without_triggers_the_audit_is_append_only_for_a_user_who_may_only_append() {
    let server = shared_mariadb();
    let (straight, url, _door) = behind_a_door(server);
    // The tables are made by somebody who may.
    drop(open(&url).await);
    let database = straight.rsplit('/').next().unwrap();
    for grant in grants(server, database) {
        server.query(&grant).unwrap();
    }
    let url = url.replace("root@", &format!("{database}:x@"));
    let ledger = open(&url).await;
    let audit = setting(&ledger, "audit_triggers").await.unwrap();
    assert_eq!(audit.fitness, Fitness::Good, "{audit:?}");
    assert_eq!(audit.value, "0 of 2, and this user may only append");
    let shop = shop_at(&url, BackDoor::Mysql(url.clone()), Options::default()).await;
    let entry = AuditEntry { who: "root".into(), ..audit_entry("order.refund") };
    shop.audit(&entry, NOON_MS).await.unwrap();
    let item = shop.sale_of(5).await;
    shop.bought(item.id, "ann", 1).await;
    shop.books_add_up(item.id).await;
    for sql in ["UPDATE tb_admin_audit SET who = 'nobody'", "DELETE FROM tb_admin_audit"] {
        let refused = back_door(&url).await.query_drop(sql).await.unwrap_err().to_string();
        assert!(refused.contains("denied"), "{refused}");
    }
    assert_eq!(shop.audit_log(None, 10).await.unwrap()[0].who, "root");
}

#[tokio::test]
async fn whoever_may_make_no_tables_archives_nothing_and_a_doctor_says_so() {
    let server = shared_mariadb();
    let (straight, url, _door) = behind_a_door(server);
    drop(open(&url).await);
    let database = straight.rsplit('/').next().unwrap();
    for grant in grants(server, database) {
        server.query(&grant).unwrap();
    }
    let url = url.replace("root@", &format!("{database}:x@"));
    let said = async || mysql::archive_tables(&open(&url).await).await.unwrap();
    let refused = said().await;
    assert_eq!((refused.value.as_str(), refused.fitness), ("refused", Fitness::Risky));
    let reached = || shop_at(&url, BackDoor::Mysql(straight.clone()), Options::default());
    let shop = reached().await;
    let past = live_through(&shop, 3).await;
    let before = told(&shop, &past).await;
    let until_ms = shop.now() - CYCLE_MS;
    let (done, failed) = try_archive(&shop, until_ms).await;
    assert!(done == 0 && failed.iter().all(|why| why.contains("denied")), "{failed:?}");
    assert_eq!((failed.len(), told(&shop, &past).await == before), (2, true));

    let grant = format!("GRANT CREATE ON `{database}`.* TO {database}@127.0.0.1");
    server.query(&grant).unwrap();
    assert_eq!(said().await.fitness, Fitness::Good);
    // Whoever was connected before has the rights of before.
    let now_ms = shop.now();
    let shop = reached().await;
    shop.clock.set(now_ms);
    assert_eq!(archive(&shop, until_ms).await, 2);
    assert_eq!(told(&shop, &past).await, before);
}

/// Every page of the audit from the newest number on.
async fn all_of_the_audit(shop: &Shop) -> Vec<i64> {
    let (mut ids, mut before) = (Vec::new(), None);
    loop {
        let page = shop.audit_log(before, 3).await.unwrap();
        let Some(last) = page.last() else { return ids };
        before = Some(last.id);
        ids.extend(page.iter().map(|row| row.id));
    }
}

#[tokio::test]
async fn rows_that_are_numbered_out_of_order_break_no_chain_and_lose_nothing() {
    let url = shared_mariadb().create_database(&unique_name("ranges")).unwrap();
    let shop = shop_at(&url, BackDoor::Mysql(url.clone()), Options::default()).await;
    let mut server = back_door(&url).await;
    for table in ["tb_stock_log", "tb_outbox", "tb_admin_audit", "tb_payment"] {
        for sql in numbers_in_ranges(table) {
            server.query_drop(sql).await.unwrap();
        }
    }
    let item = shop.sale_of(50).await;
    let claims = shop.crowd(item.id, 30);
    shop.settle(item.id, &claims).await.unwrap();
    let (paid, _) = shop.paid(item.id, "ann").await;
    shop.adjust_stock(item.id, 5, shop.number(), NOON_MS).await.unwrap();
    let numbers = numbers_of(&claims);
    let due = shop.found(numbers[0]).await.pay_deadline_ms;
    shop.close(&numbers[..10], CloseReason::Timeout, due).await.unwrap();
    shop.start_refund(paid.order_no, NOON_MS).await.unwrap();

    let log = shop.log(item.id).await;
    assert!(log.iter().any(|row| row.id < 1_000) && log.iter().any(|row| row.id >= 1_000_000));
    let stocks = |row: &ledger::StockLogRow| (row.before_stock, row.after_stock);
    let in_order = log.windows(2).all(|rows| stocks(&rows[0]).1 == stocks(&rows[1]).0);
    assert!(!in_order, "by their numbers they make no sense");
    shop.books_add_up(item.id).await;

    // A list that is read page by page has every row once.
    let (mut seen, mut after) = (HashSet::new(), 0);
    loop {
        let page = shop.stock_log(item.id, after, 7).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.id;
        assert!(page.iter().all(|row| seen.insert(row.id)), "{page:?}");
    }
    assert_eq!(seen.len(), log.len());
    for _ in 0..10 {
        shop.audit(&audit_entry("order.refund"), NOON_MS).await.unwrap();
    }
    let audit = all_of_the_audit(&shop).await;
    let once: HashSet<i64> = audit.iter().copied().collect();
    // One for the adjustment, one for the refund.
    assert_eq!((audit.len(), once.len()), (12, 12));

    // And everything that waits is delivered, and then gone.
    assert_eq!(shop.payment_problems(10).await.unwrap(), []);
    assert!(shop.waiting().await > 0);
    shop.deliver_all().await;
    assert_eq!(shop.waiting().await, 0);
}
