//! The ledger on a MariaDB server, and what can only happen to a server: others on it at the same
//! time, locks, lost connections, a kill.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use faults::services::{MariaDb, MariaDbOptions, shared_mariadb, unique_name};
use ledger::{
    Credit, Leases, LedgerError, OrderFilter, Orders, Outbox, Payments, SqlLedger, Upkeep,
    VERSION_TRIES_MAX,
    mysql::{self, Fitness, LOCK_TRIES_MAX, OpenError, Options, SCHEMA_VERSION},
};
use mysql_async::{Conn, prelude::Queryable};
use sale::{BookError, Claim, CloseReason, ManualClock, OrderBook, OrderStatus, SystemClock};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{NOON_MS, Shop, back_door::BackDoor, numbers_of};

pub(crate) async fn shop() -> Shop {
    shop_and_url().await.0
}

/// A shop, and where its ledger lies, for those who come in by the back door.
pub(crate) async fn shop_and_url() -> (Shop, String) {
    shop_on(shared_mariadb(), Options::default()).await
}

async fn shop_on(server: &MariaDb, options: Options) -> (Shop, String) {
    let url = server.create_database(&unique_name("ledger")).unwrap();
    (shop_at(&url, BackDoor::Mysql(url.clone()), options).await, url)
}

/// A shop whose ledger is reached so, while others come in by the back door.
pub(crate) async fn shop_at(url: &str, back_door: BackDoor, options: Options) -> Shop {
    let clock = ManualClock::at(NOON_MS);
    let ledger = mysql::open(url, clock.clone(), options).await.unwrap();
    Shop::with(Box::new(ledger), clock, back_door, ())
}

async fn open(url: &str) -> Result<SqlLedger, OpenError> {
    mysql::open(url, ManualClock::at(NOON_MS), Options::default()).await
}

/// Somebody with another tool on the same database.
pub(crate) async fn back_door(url: &str) -> Conn {
    Conn::from_url(format!("{url}?prefer_socket=false")).await.unwrap()
}

/// Options of somebody who will not wait for long.
fn impatient() -> Options {
    Options {
        answer_ms_max: 1_500,
        connect_ms_max: 1_000,
        lock_wait_s_max: 1,
        ..Options::default()
    }
}

#[tokio::test]
async fn an_item_somebody_locked_is_given_up_for_now_and_works_again_afterwards() {
    let options = Options { lock_wait_s_max: 1, ..Options::default() };
    let (shop, url) = shop_on(shared_mariadb(), options).await;
    let item = shop.sale_of(5).await;
    let claim = [shop.claim(item.id, "ann", 1)];
    let mut intruder = back_door(&url).await;
    intruder.query_drop("BEGIN").await.unwrap();
    intruder.query_drop("SELECT * FROM tb_seckill_product FOR UPDATE").await.unwrap();
    let asked = Instant::now();
    let locked = shop.settle(item.id, &claim).await;
    assert!(matches!(locked, Err(BookError::Locked(_))), "{locked:?}");
    assert!(asked.elapsed() < Duration::from_secs(u64::from(LOCK_TRIES_MAX) + 2));
    assert_eq!(shop.stock(item.id).await, (5, 5), "reading goes on");
    shop.ping().await.unwrap();

    // Whoever still waits when the lock is let go gets through without noticing.
    let numbers = numbers_of(&claim);
    let waiting = shop.settle(item.id, &claim);
    let letting_go = async {
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        intruder.query_drop("ROLLBACK").await.unwrap();
    };
    let (settled, ()) = tokio::join!(waiting, letting_go);
    assert_eq!(settled.unwrap().created, numbers);
    assert_eq!(shop.stock(item.id).await, (4, 5));
}

/// A line to the server that can fall silent without being cut, as that of a process that was
/// stopped, or of a machine that is gone.
struct Line {
    address: std::net::SocketAddr,
    silent: Arc<watch::Sender<bool>>,
}

impl Line {
    async fn to(server: std::net::SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, silent) =
            (listener.local_addr().unwrap(), Arc::new(watch::Sender::new(false)));
        let says = silent.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (near_read, near_write) = near.into_split();
                let far = TcpStream::connect(server).await.unwrap();
                let (far_read, far_write) = far.into_split();
                tokio::spawn(pass_on(near_read, far_write, says.subscribe()));
                tokio::spawn(pass_on(far_read, near_write, says.subscribe()));
            }
        });
        Line { address, silent }
    }
}

async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut silent: watch::Receiver<bool>,
) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        silent.wait_for(|silent| !silent).await.unwrap();
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_frozen_in_a_transaction_stops_one_item_and_not_for_long() {
    let server = shared_mariadb();
    let options = Options { lock_wait_s_max: 1, silence_s_max: 3, ..Options::default() };
    let (shop, url) = shop_on(server, options.clone()).await;
    let items = shop.activity_of(&[5, 5]).await.items;
    let (frozen, free) = (items[0].id, items[1].id);
    let line = Line::to(server.address()).await;
    let far_url = url.replace(&server.address().to_string(), &line.address.to_string());
    let patient = Options { lock_wait_s_max: 30, answer_ms_max: 60_000, ..options };
    let worker = mysql::open(&far_url, shop.clock.clone(), patient).await.unwrap();

    // A record between the two items. When the intruder's row below is rolled back, InnoDB turns the
    // worker's wait for that row into a lock on the gap up to the next record, even at READ COMMITTED;
    // without one, that gap would reach over the records of every later item. Only a row written by
    // the back door can be waited for at all: whoever else writes an item's records holds its lock.
    let bobs = [shop.claim(frozen, "bob", 1)];
    assert_eq!(shop.settle(frozen, &bobs).await.unwrap().created, numbers_of(&bobs));

    // It holds the item and waits for a buyer's record when it freezes.
    let mut intruder = back_door(&url).await;
    intruder.query_drop("BEGIN").await.unwrap();
    let record = format!("INSERT INTO tb_user_seckill VALUES ('ann', {frozen}, 'SK', 1, 0)");
    intruder.query_drop(record).await.unwrap();
    let anns = [shop.claim(frozen, "ann", 1)];
    let settling = tokio::spawn(async move { worker.settle(frozen, &anns).await.is_ok() });
    // Delivered again and again until it meets the lock.
    while !matches!(shop.settle(frozen, &bobs).await, Err(BookError::Locked(_))) {}
    line.silent.send_replace(true);
    intruder.query_drop("ROLLBACK").await.unwrap();

    let asked = Instant::now();
    shop.bought(free, "cat", 1).await;
    assert!(asked.elapsed() < Duration::from_secs(1), "another item waits for nobody");
    let dans = [shop.claim(frozen, "dan", 1)];
    let settled = loop {
        match shop.settle(frozen, &dans).await {
            Err(BookError::Locked(_)) => assert!(asked.elapsed() < Duration::from_secs(15)),
            settled => break settled.unwrap(),
        }
    };
    assert_eq!(settled.created, numbers_of(&dans));
    assert!(asked.elapsed() > Duration::from_secs(1), "it was really frozen");
    shop.books_add_up(frozen).await;
    settling.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_frozen_while_it_asks_for_leases_keeps_nobody_from_theirs() {
    let server = shared_mariadb();
    let options = Options { lock_wait_s_max: 1, silence_s_max: 60, ..Options::default() };
    let (shop, url) = shop_on(server, options.clone()).await;
    let line = Line::to(server.address()).await;
    let far_url = url.replace(&server.address().to_string(), &line.address.to_string());
    let patient = Options { lock_wait_s_max: 30, answer_ms_max: 60_000, ..options };
    let frozen = mysql::open(&far_url, shop.clock.clone(), patient).await.unwrap();
    let names = ["end", "timeout", "warm"];
    assert_eq!(shop.take_leases(&["end"], "bob", 30_000).await.unwrap(), [Some(1)]);
    shop.take_leases(&names[1..], "joe", 0).await.unwrap();

    // It waits for the last of those that are free, and freezes.
    let mut intruder = back_door(&url).await;
    intruder.query_drop("BEGIN").await.unwrap();
    let last = "SELECT name FROM tb_lease WHERE name = 'warm' FOR UPDATE";
    intruder.query_drop(last).await.unwrap();
    let asking = tokio::spawn(async move { frozen.take_leases(&names, "ann", 30_000).await });
    let mut looking = back_door(&url).await;
    let other = "SELECT name FROM tb_lease WHERE name = 'timeout' FOR UPDATE NOWAIT";
    while looking.query_drop(other).await.is_ok() {}
    line.silent.send_replace(true);
    intruder.query_drop("ROLLBACK").await.unwrap();

    assert_eq!(shop.take_leases(&["end"], "bob", 30_000).await.unwrap(), [Some(1)]);
    let answered = shop.take_leases(&names, "bob", 30_000).await.unwrap();
    assert_eq!(answered[0], Some(1), "{answered:?}");
    asking.abort();
}

#[tokio::test]
async fn a_row_that_was_left_as_it_was_does_not_count_as_written() {
    let url = shared_mariadb().create_database(&unique_name("ledger")).unwrap();
    let asked = format!("{url}?client_found_rows=true");
    let clock = ManualClock::at(NOON_MS);
    let ledger = mysql::open(&asked, clock.clone(), Options::default()).await.unwrap();
    let shop = Shop::with(Box::new(ledger), clock, BackDoor::Mysql(url), ());
    let item = shop.sale_of(5).await;
    let (order, notice) = shop.paid(item.id, "ann").await;
    shop.start_refund(order.order_no, NOON_MS).await.unwrap();
    let again = shop.requeue_refund(&notice.provider, &notice.provider_txn, NOON_MS).await;
    assert!(!again.unwrap(), "it waits already");
}

#[tokio::test]
async fn a_user_who_may_not_make_triggers_gets_a_ledger_without() {
    let server = MariaDb::start(MariaDbOptions {
        extra: vec!["--log-bin".into(), "--binlog-format=ROW".into()],
        ..MariaDbOptions::default()
    })
    .unwrap();
    let name = unique_name("ledger");
    let url = server.create_database(&name).unwrap();
    server.query("CREATE USER shop@'127.0.0.1' IDENTIFIED BY 'x'").unwrap();
    server.query(&format!("GRANT ALL ON `{name}`.* TO shop@'127.0.0.1'")).unwrap();
    let ledger = open(&url.replace("root@", "shop:x@")).await.unwrap();
    let settings = mysql::health(&ledger, 4).await.unwrap();
    let triggers = settings.iter().find(|setting| setting.name == "audit_triggers").unwrap();
    assert_eq!((triggers.fitness, &*triggers.value), (Fitness::Risky, "0 of 2"));
    let clock = ManualClock::at(NOON_MS);
    let shop = Shop::with(Box::new(ledger), clock, BackDoor::Mysql(url), ());
    let item = shop.sale_of(5).await;
    shop.bought(item.id, "ann", 1).await;
}

#[tokio::test]
async fn a_race_lost_every_time_is_given_up_for_now() {
    let (shop, url) = shop_and_url().await;
    let item = shop.sale_of(5).await;
    let claim = [shop.claim(item.id, "ann", 1)];
    // As if somebody else had always just written the same order.
    let faster = "CREATE TRIGGER faster BEFORE INSERT ON tb_seckill_order FOR EACH ROW
         SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062,
             MESSAGE_TEXT = 'Duplicate entry for key \\'PRIMARY\\''";
    let mut intruder = back_door(&url).await;
    intruder.query_drop(faster).await.unwrap();
    let contended = shop.settle(item.id, &claim).await;
    assert!(matches!(contended, Err(BookError::Contended(VERSION_TRIES_MAX))), "{contended:?}");
    assert_eq!(shop.stock(item.id).await, (5, 5));
    intruder.query_drop("DROP TRIGGER faster").await.unwrap();
    assert_eq!(shop.settle(item.id, &claim).await.unwrap().created, [claim[0].order_no]);
    shop.books_add_up(item.id).await;
}

#[tokio::test]
async fn buyers_are_told_apart_by_every_bit_of_their_names() {
    let (shop, _) = shop_and_url().await;
    let item = shop.sale_of(50).await;
    let longest = "😀".repeat(64);
    let users = [
        "ann",
        "Ann",
        "ANN",
        "änn",
        "a\u{308}nn",
        "ａｎｎ",
        "straße",
        "strasse",
        "o'hara",
        "o\\'hara",
        "\\",
        "\\\\",
        "'",
        "\"",
        "%",
        "_",
        "`;--",
        "0x41",
        "\u{200b}",
        "1",
        "01",
        "1.0",
        &longest,
    ];
    let batch: Vec<Claim> = users.iter().map(|user| shop.claim(item.id, user, 1)).collect();
    let settled = shop.settle(item.id, &batch).await.unwrap();
    assert_eq!(settled.created, numbers_of(&batch));
    for claim in &batch {
        assert_eq!(shop.found(claim.order_no).await.user, claim.user);
        let user = Some(claim.user.clone());
        let found = shop.orders(&OrderFilter { user, limit: 9, ..OrderFilter::default() }).await;
        assert_eq!(found.unwrap().len(), 1, "{}", claim.user);
    }
    let closed = shop.close(&numbers_of(&batch), CloseReason::Cancelled, NOON_MS).await.unwrap();
    assert_eq!(closed.len(), batch.len());
    shop.books_add_up(item.id).await;
}

#[tokio::test]
async fn a_batch_longer_than_a_statement_may_be_is_still_one_transaction() {
    let (shop, _) = shop_and_url().await;
    let item = shop.sale_of(3_000).await;
    let names = (0..3_500).map(|n| format!("{}{n:04}", "😀".repeat(60)));
    let batch: Vec<Claim> = names.map(|user| shop.claim(item.id, &user, 1)).collect();
    let settled = shop.settle(item.id, &batch).await.unwrap();
    assert_eq!((settled.created.len(), settled.void.len()), (3_000, 500));
    assert_eq!(shop.settle(item.id, &batch).await.unwrap().repeated, numbers_of(&batch));
    shop.books_add_up(item.id).await;
    let closed = shop.close(&settled.created, CloseReason::Cancelled, NOON_MS).await.unwrap();
    assert_eq!(closed, settled.created);
    shop.books_add_up(item.id).await;
    assert_eq!(shop.stock(item.id).await, (3_000, 3_000));
}

#[tokio::test]
async fn many_instances_may_start_on_an_empty_database() {
    let url = shared_mariadb().create_database(&unique_name("ledger")).unwrap();
    let starts: Vec<_> = (0..6)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { open(&url).await.map(drop) })
        })
        .collect();
    for start in starts {
        start.await.unwrap().unwrap();
    }
    let mut intruder = back_door(&url).await;
    let versions: Vec<i64> = intruder.query("SELECT version FROM tb_schema_version").await.unwrap();
    assert_eq!(versions, (1..=SCHEMA_VERSION).collect::<Vec<_>>());
    // A start that was interrupted is finished by the next one.
    intruder.query_drop("DROP TABLE tb_secret, tb_job_run").await.unwrap();
    intruder.query_drop("DELETE FROM tb_schema_version").await.unwrap();
    let ledger = open(&url).await.unwrap();
    assert_eq!(ledger.shared_secret("one", NOON_MS).await.unwrap(), "one");
}

#[tokio::test]
async fn a_database_of_a_newer_release_is_left_alone() {
    let url = shared_mariadb().create_database(&unique_name("ledger")).unwrap();
    drop(open(&url).await.unwrap());
    let newer = format!("INSERT INTO tb_schema_version VALUES ({}, 0)", SCHEMA_VERSION + 1);
    back_door(&url).await.query_drop(newer).await.unwrap();
    match open(&url).await.err() {
        Some(OpenError::NewerSchema { found, known, .. }) => {
            assert_eq!((found, known), (SCHEMA_VERSION + 1, SCHEMA_VERSION));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_named_without_its_password() {
    let there = shared_mariadb().address();
    let nobody = faults::services::Relay::start(there).map(|relay| relay.address()).unwrap();
    for url in [
        format!("mysql://nobody:s3cret@{there}/nowhere"),
        format!("mysql://root:s3cret@{there}/nowhere"),
        format!("mysql://root@{there}/nowhere"),
        format!("mysql://root:s3cret@{nobody}/nowhere"),
    ] {
        let error = open(&url).await.err().unwrap();
        if url.contains(&nobody.to_string()) {
            assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
        } else {
            assert!(matches!(error, OpenError::Refused { .. }), "{error:?}");
        }
        let said = format!("{error} {error:?}");
        assert!(said.contains("/nowhere") && !said.contains("s3cret"), "{said}");
    }
    for url in [format!("mysql://root:s3cret@{there}"), "redis://root:s3cret@x/y".into()] {
        let error = open(&url).await.err().unwrap();
        assert!(matches!(error, OpenError::BadUrl(_)), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

#[tokio::test]
async fn two_who_empty_the_outbox_do_each_other_no_harm() {
    let (shop, url) = shop_and_url().await;
    let other = open(&url).await.unwrap();
    let item = shop.sale_of(10).await;
    for user in ["ann", "bob", "cat"] {
        shop.bought(item.id, user, 1).await;
    }
    let ids: Vec<i64> = shop.outbox().await.iter().map(|row| row.id).collect();
    let (one, two) = tokio::join!(shop.outbox_done(&ids), other.outbox_done(&ids));
    one.unwrap();
    two.unwrap();
    other.outbox_later(ids[0], NOON_MS, "too late").await.unwrap();
    assert_eq!(shop.waiting().await, 0);
}

/// Several workers, each delivering batches that overlap with the others', while buyers cancel and
/// pay what they got.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_on_one_item_sell_every_unit_once() {
    let (shop, url) = shop_and_url().await;
    let item = shop.sale_of(500).await;
    let claims = shop.crowd(item.id, 600);
    let mut workers = Vec::new();
    for n in 0..6 {
        let ledger = open(&url).await.unwrap();
        let mine: Vec<Vec<Claim>> = claims.chunks(40).map(<[Claim]>::to_vec).collect();
        workers.push(tokio::spawn(async move {
            let mut created = Vec::new();
            // Each begins elsewhere and delivers every batch at least once.
            for batch in mine.iter().cycle().skip(n * 3).take(mine.len()) {
                let settled = ledger.settle(item.id, batch).await.unwrap();
                let first = settled.created.first().copied();
                created.extend(settled.created);
                let Some(first) = first else { continue };
                let order = ledger.order(first).await.unwrap().unwrap();
                let notice = ledger::PaymentNotice {
                    provider: "wechat".into(),
                    provider_txn: first.to_string(),
                    order_no: first,
                    amount: order.amount,
                    paid_ms: NOON_MS,
                };
                let numbers = [first.into()];
                let (credit, closed) = tokio::join!(
                    ledger.credit(&notice, NOON_MS),
                    ledger.close(&numbers, CloseReason::Cancelled, NOON_MS)
                );
                let (credit, closed) = (credit.unwrap(), closed.unwrap());
                assert_eq!(closed.is_empty(), credit == Credit::Paid, "{credit:?} {closed:?}");
            }
            created.len()
        }));
    }
    let mut created = 0;
    for worker in workers {
        created += worker.await.unwrap();
    }
    let all = shop.orders(&OrderFilter { limit: 10_000, ..OrderFilter::default() }).await.unwrap();
    assert_eq!(all.len(), claims.len(), "one claim, one order");
    let void = all.iter().filter(|order| order.status == OrderStatus::Void).count();
    assert_eq!(created + void, claims.len());
    assert!(created >= 500, "{created} of 500 units");
    shop.books_add_up(item.id).await;
    assert_eq!(shop.payment_problems(10).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_is_used_again_as_soon_as_it_is_back() {
    let server = MariaDb::start(MariaDbOptions::default()).unwrap();
    let (shop, _) = shop_on(&server, Options::default()).await;
    let item = shop.sale_of(10).await;
    shop.bought(item.id, "ann", 1).await;
    // Several idle connections, all of which will be dead.
    tokio::try_join!(shop.ping(), shop.ping(), shop.outstanding(), shop.item(item.id)).unwrap();

    server.kill().unwrap();
    let asked = Instant::now();
    let claim = [shop.claim(item.id, "bob", 1)];
    let down = shop.settle(item.id, &claim).await;
    assert!(matches!(down, Err(BookError::Unavailable(_))), "{down:?}");
    assert!(matches!(shop.ping().await, Err(LedgerError::Unavailable(_))));
    assert!(asked.elapsed() < Duration::from_secs(5), "it says so at once");

    server.restart().unwrap();
    assert_eq!(shop.settle(item.id, &claim).await.unwrap().created, numbers_of(&claim));
    // And with idle connections that died without anybody asking meanwhile.
    tokio::try_join!(shop.ping(), shop.ping(), shop.ping()).unwrap();
    server.restart().unwrap();
    shop.ping().await.unwrap();
    shop.bought(item.id, "cat", 1).await;
    tokio::try_join!(shop.ping(), shop.ping(), shop.ping()).unwrap();
    server.restart().unwrap();
    shop.bought(item.id, "dan", 1).await;
    shop.books_add_up(item.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_waited_for_so_long_and_no_longer() {
    let server = MariaDb::start(MariaDbOptions::default()).unwrap();
    let (shop, _) = shop_on(&server, Options { connections_max: 2, ..impatient() }).await;
    let item = shop.sale_of(10).await;
    shop.bought(item.id, "ann", 1).await;
    server.pause().unwrap();
    let claim = [shop.claim(item.id, "bob", 1)];
    for _ in 0..3 {
        let asked = Instant::now();
        let hung = shop.settle(item.id, &claim).await;
        assert!(matches!(hung, Err(BookError::Unavailable(_) | BookError::CutOff(_))), "{hung:?}");
        assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    }
    server.resume().unwrap();
    let settled = shop.settle(item.id, &claim).await.unwrap();
    assert_eq!(settled.created.len() + settled.repeated.len(), 1, "{settled:?}");
    shop.books_add_up(item.id).await;
}

/// Kills the server again and again under a worker that delivers what it is not sure of again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_is_lost_or_made_twice_when_the_server_is_killed_under_load() {
    const ROUNDS: usize = 4;
    let server = Arc::new(MariaDb::start(MariaDbOptions::default()).unwrap());
    let (shop, _) = shop_on(&server, Options::default()).await;
    let item = shop.sale_of(100_000).await;
    let (mut created, mut unknown, mut claims) = (0, 0, Vec::new());
    for round in 0..ROUNDS {
        let killer = server.clone();
        let killing = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(120 + 70 * round as u64));
            killer.kill().unwrap();
            killer.restart().unwrap();
        });
        while !killing.is_finished() {
            let batch: Vec<Claim> = (0..50)
                .map(|n| shop.claim(item.id, &format!("u{}-{n}", claims.len()), 1))
                .collect();
            claims.extend(numbers_of(&batch));
            let settled = loop {
                match shop.settle(item.id, &batch).await {
                    Ok(settled) => break settled,
                    Err(BookError::Unavailable(_) | BookError::CutOff(_)) => unknown += 1,
                    Err(other) => panic!("{other:?}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert_eq!(settled.created.len() + settled.repeated.len(), 50, "{settled:?}");
            created += settled.created.len();
        }
        killing.await.unwrap();
    }
    assert!(unknown >= ROUNDS, "the kills were noticed: {unknown}");
    let books = shop.item_books(item.id, &claims).await.unwrap();
    assert_eq!(books.settled.len(), claims.len());
    assert_eq!(books.live_orders as usize, claims.len());
    assert!(created <= claims.len());
    shop.books_add_up(item.id).await;
}

#[tokio::test]
async fn a_doctor_is_told_what_the_server_is_set_to() {
    let server = shared_mariadb();
    let url = server.create_database(&unique_name("ledger")).unwrap();
    let ledger = mysql::open(&url, Arc::new(SystemClock), Options::default()).await.unwrap();
    let settings = mysql::health(&ledger, 4).await.unwrap();
    let of = |name: &str| settings.iter().find(|setting| setting.name == name).unwrap().clone();
    assert_eq!(of("version").value.contains("MariaDB"), !server.is_mysql());
    assert_eq!(of("innodb_flush_log_at_trx_commit").value, "1");
    let good = ["version", "innodb_flush_log_at_trx_commit", "read_only", "clock_offset_ms"];
    for name in good.into_iter().chain(["audit_triggers", "check_constraints"]) {
        assert_eq!(of(name).fitness, Fitness::Good, "{:?}", of(name));
    }
    for name in ["sync_binlog", "binlog_format", "transaction_isolation", "wsrep_on"] {
        assert!(!of(name).value.is_empty(), "{name}");
    }
    let slow = mysql::open(&url, ManualClock::at(NOON_MS), Options::default()).await.unwrap();
    let settings = mysql::health(&slow, 4).await.unwrap();
    let offset = settings.iter().find(|setting| setting.name == "clock_offset_ms").unwrap();
    assert_eq!(offset.fitness, Fitness::Risky, "{offset:?}");
}
