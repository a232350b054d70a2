//! Connections to a server that many instances share.

use std::{sync::Arc, time::Duration};

use faults::services::{MariaDb, MariaDbOptions, unique_name};
use ledger::{
    Books, Orders, Outbox, OutboxKind, Share, SqlLedger, Stock, Upkeep, in_share,
    mysql::{self, CONNECTIONS_MAX_DEFAULT, Fitness, Options},
};
use mysql_async::prelude::Queryable;
use sale::{OrderNo, SystemClock};

use crate::mysql::back_door;

const INSTANCES: usize = 31;

async fn open(url: &str, options: Options) -> Arc<SqlLedger> {
    Arc::new(mysql::open(url, Arc::new(SystemClock), options).await.unwrap())
}

async fn connected(server: &MariaDb) -> usize {
    let status = server.query("SHOW GLOBAL STATUS LIKE 'Threads_connected'").unwrap();
    status.split_whitespace().last().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_one_instances_fit_on_a_server_with_its_usual_limit() {
    let extra = vec!["--max-connections=151".to_owned()];
    let server = MariaDb::start(MariaDbOptions { extra, ..MariaDbOptions::default() }).unwrap();
    let url = server.create_database(&unique_name("ledger")).unwrap();
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(open(&url, Options { answer_ms_max: 60_000, ..Options::default() }).await);
    }
    // Nobody is answered until all have all the connections they may have.
    let mut holder = back_door(&url).await;
    holder.query_drop("LOCK TABLES tb_seckill_order WRITE").await.unwrap();
    let mut asking = tokio::task::JoinSet::new();
    for instance in &instances {
        for share in Share::ALL {
            for _ in 0..CONNECTIONS_MAX_DEFAULT {
                let instance = instance.clone();
                asking.spawn(in_share(share, async move { instance.ping().await }));
            }
        }
    }
    let wanted = INSTANCES * CONNECTIONS_MAX_DEFAULT;
    // With that of the holder, and the one that asks.
    let all = async {
        while connected(&server).await < wanted + 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(50), all).await.expect("all are open");
    println!("{INSTANCES} instances hold {wanted} connections of 151");
    holder.query_drop("UNLOCK TABLES").await.unwrap();
    while let Some(answered) = asking.join_next().await {
        answered.unwrap().unwrap();
    }
    let room = async |connections_max| {
        let settings = mysql::health(&instances[0], connections_max).await.unwrap();
        settings.into_iter().find(|setting| setting.name == "max_connections").unwrap()
    };
    let crowded = room(CONNECTIONS_MAX_DEFAULT).await;
    assert!(crowded.value.contains("room for 37 instances"), "{crowded:?}");
    assert_eq!(room(100).await.fitness, Fitness::Risky, "two of them do not fit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_whose_statements_hang_keep_no_buyer_and_no_worker_waiting() {
    let server = faults::services::shared_mariadb();
    let url = server.create_database(&unique_name("ledger")).unwrap();
    let ledger = open(&url, Options { answer_ms_max: 60_000, ..Options::default() }).await;
    let mut holder = back_door(&url).await;
    holder.query_drop("LOCK TABLES tb_outbox WRITE").await.unwrap();
    let mut jobs = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let ledger = ledger.clone();
        jobs.spawn(in_share(Share::Jobs, async move {
            ledger.outbox_due(OutboxKind::News, "", 0, 1).await
        }));
    }
    let no = OrderNo::from_u64(1).unwrap();
    for share in [Share::Web, Share::Worker] {
        for _ in 0..20 {
            let answer = in_share(share, ledger.order(no));
            let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
            assert_eq!(answer.expect("nobody waits for the jobs").unwrap(), None);
        }
    }
    holder.query_drop("UNLOCK TABLES").await.unwrap();
    while let Some(answered) = jobs.join_next().await {
        answered.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_all_orders_of_an_item_are_read_everything_else_goes_on() {
    const ORDERS: usize = 20_000;
    const SOON: Duration = Duration::from_secs(8);
    let shop = crate::mysql::shop().await;
    let (large, small) = (shop.sale_of(ORDERS as i64).await, shop.sale_of(10).await);
    for some in shop.crowd(large.id, ORDERS).chunks(5_000) {
        shop.settle(large.id, some).await.unwrap();
    }
    let order = shop.bought(small.id, "ann", 1).await;
    // Nobody takes the pages.
    let (_, pages) = shop.warm_basis(large.id, &[]).await.unwrap();
    for share in Share::ALL {
        let others = async {
            let due = shop.overdue(order.pay_deadline_ms + 1, 1).await.unwrap();
            assert_eq!(due.len(), 1);
            assert!(shop.activity(small.activity).await.unwrap().is_some());
            let (_, marks) = shop.warm_basis(small.id, &[]).await.unwrap();
            assert_eq!(crate::all(marks).await.len(), 1, "a small item is loaded");
        };
        let others = tokio::time::timeout(SOON, in_share(share, others)).await;
        others.expect("nobody waits for the pages");
    }
    // Another large one would have to wait, and knows it before anything is frozen.
    let moment = Duration::from_millis(500);
    assert!(tokio::time::timeout(moment, shop.walk_turn(large.id)).await.is_err());
    drop(pages);
    let turn = tokio::time::timeout(SOON, shop.walk_turn(large.id)).await.unwrap().unwrap();
    // It has its turn, and needs no other one.
    let read = Stock::warm_basis(&*shop, turn, large.id, &[]);
    let (_, pages) = tokio::time::timeout(SOON, read).await.unwrap().unwrap();
    assert_eq!(crate::all(pages).await.len(), ORDERS);
}

#[tokio::test]
async fn what_waits_is_counted_by_one_instance_for_all() {
    let server = faults::services::shared_mariadb();
    let url = server.create_database(&unique_name("ledger")).unwrap();
    let [one, other] = [open(&url, Options::default()).await, open(&url, Options::default()).await];
    let counted = one.outstanding_lately(60_000).await.unwrap();
    assert!(counted.outbox.is_empty());
    let mut back = back_door(&url).await;
    let row = "INSERT INTO tb_outbox (kind, body, created_at) VALUES ('news', '{}', 5)";
    back.query_drop(row).await.unwrap();
    assert_eq!(other.outstanding_lately(60_000).await.unwrap(), counted, "as the other one found");
    let anew = other.outstanding_lately(0).await.unwrap();
    assert_eq!((anew.outbox[0].rows, anew.outbox[0].oldest_ms), (1, 5));
    assert_eq!(one.outstanding_lately(60_000).await.unwrap(), anew);
    // A count of the future is of a clock that was set back, and one that cannot be read is made anew.
    for nonsense in ["counted_at = counted_at + 3600000", "body = 'what?'"] {
        back.query_drop("DELETE FROM tb_outbox").await.unwrap();
        back.query_drop(format!("UPDATE tb_outstanding SET {nonsense}")).await.unwrap();
        assert_eq!(one.outstanding_lately(60_000).await.unwrap(), counted);
        back.query_drop(row).await.unwrap();
    }
}
