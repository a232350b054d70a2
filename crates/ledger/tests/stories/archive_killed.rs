//! A process that archives is killed again and again, wherever it is, and nobody who asks notices.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use ledger::{Archive, ArchiveStep, OldActivity, mysql, sqlite};
use sale::{Millis, SystemClock};

use crate::{
    Shop,
    archive::{CYCLE_MS, live_through, told},
    back_door::BackDoor,
    check,
};

/// Tells the process which ledger, and until when.
const LEDGER: &str = "ARCHIVED_LEDGER";
const UNTIL: &str = "ARCHIVED_UNTIL_MS";
const KILLS: i64 = 12;

async fn in_books(shop: &Shop) -> i64 {
    let orders = shop.back_door.number("SELECT COUNT(*) FROM tb_seckill_order").await;
    orders + shop.back_door.number("SELECT COUNT(*) FROM tb_stock_log").await
}

fn start(shop: &Shop, until_ms: Millis) -> Child {
    let ledger = match &shop.back_door {
        BackDoor::Sqlite(file) => file.to_str().unwrap().to_owned(),
        BackDoor::Mysql(url) => url.clone(),
    };
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "archive_killed::the_process_that_is_killed"])
        .env(LEDGER, ledger)
        .env(UNTIL, until_ms.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Until so many rows are gone, or it has nothing left to do.
async fn watch(shop: &Shop, child: &mut Child, rows: i64) {
    let before = in_books(shop).await;
    while child.try_wait().unwrap().is_none() && before - in_books(shop).await < rows {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_job_that_is_killed_again_and_again_loses_nothing_and_tells_nothing_twice() {
    check(async |shop| {
        let past = live_through(&shop, 14).await;
        let before = told(&shop, &past).await;
        let (all, until_ms) = (in_books(&shop).await, shop.now() - CYCLE_MS);
        for rows in 0..KILLS {
            let mut child = start(&shop, until_ms);
            watch(&shop, &mut child, rows).await;
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(told(&shop, &past).await, before, "killed after {rows} rows");
        }
        assert!(in_books(&shop).await < all);
        assert!(start(&shop, until_ms).wait().unwrap().success());
        assert_eq!(told(&shop, &past).await, before);
        assert_eq!(in_books(&shop).await * 14, all);
    })
    .await;
}

/// Not a story of its own: it plays the process.
#[tokio::test]
#[ignore = "the process that another story kills"]
async fn the_process_that_is_killed() {
    let Ok(place) = std::env::var(LEDGER) else { return };
    let until_ms: Millis = std::env::var(UNTIL).unwrap().parse().unwrap();
    let clock = Arc::new(SystemClock);
    let ledger = if place.starts_with("mysql:") {
        mysql::open(&place, clock, mysql::Options::default()).await.unwrap()
    } else {
        sqlite::open(place.as_ref(), clock).unwrap()
    };
    for old in ledger.old_activities(until_ms, OldActivity::FIRST, 100).await.unwrap() {
        while let ArchiveStep::Moved { .. } =
            ledger.archive_step(old.id, 2, until_ms).await.unwrap()
        {}
    }
}
