//! What committed transactions still owe: each kind a queue of its own, and in it a line for whoever is
//! silent.

use ledger::{
    OUTBOX_PAUSE_MS_MAX, OutboxKind, OutboxMessage, OutboxRow, OutboxWait, Outstanding,
    OutstandingClaims, OutstandingRows, Release,
};
use sale::{CloseReason, VoidReason};

use crate::{NOON_MS, check, failed_claims::failed, release};

#[tokio::test]
async fn the_outbox_keeps_order_and_remembers_what_failed() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        for user in ["ann", "bob", "cat"] {
            shop.bought(item.id, user, 1).await;
        }
        let rows = shop.outbox().await;
        assert_eq!(shop.waiting().await, 3);
        assert!(rows.is_sorted_by_key(|row| row.id));
        shop.outbox_later(rows[0].id, NOON_MS + 1_000, "the gate is down").await.unwrap();
        let ids = async |now_ms, limit| -> Vec<(i64, u32)> {
            let due = shop.due_rows(OutboxKind::News, now_ms, limit).await;
            due.iter().map(|row| (row.id, row.tries)).collect()
        };
        assert_eq!(ids(NOON_MS, 10).await, [(rows[1].id, 0), (rows[2].id, 0)]);
        assert_eq!(ids(NOON_MS, 1).await, [(rows[1].id, 0)]);
        let tried_again = [(rows[1].id, 0), (rows[2].id, 0), (rows[0].id, 1)];
        assert_eq!(ids(NOON_MS + 1_000, 3).await, tried_again, "what was never tried comes first");
        shop.outbox_done(&[rows[0].id, rows[2].id]).await.unwrap();
        assert_eq!(ids(NOON_MS + 1_000, 10).await, [(rows[1].id, 0)]);
        shop.outbox_done(&[rows[1].id]).await.unwrap();
        assert_eq!(shop.waiting().await, 0);
        // A number that was used is never used again, or a late "done" would delete the wrong row.
        shop.bought(item.id, "dan", 1).await;
        assert!(shop.outbox().await[0].id > rows[2].id);
    })
    .await;
}

#[tokio::test]
async fn each_kind_waits_in_a_queue_of_its_own() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let (order, _) = shop.paid(item.id, "ann").await;
        shop.deliver_all().await;
        shop.start_refund(order.order_no, shop.now()).await.unwrap();
        for (kind, rows) in OutboxKind::ALL.into_iter().zip([1, 0, 1, 1, 0]) {
            let due = shop.due_rows(kind, NOON_MS, 10).await;
            assert_eq!(due.len(), rows, "{kind:?}");
            assert!(due.iter().all(|row| row.message.as_ref().unwrap().kind() == kind));
        }
        // A kind that only a newer build knows is nobody's here, and is counted.
        shop.back_door
            .run("UPDATE tb_outbox SET kind = 'telegram' WHERE kind = 'news'")
            .await
            .unwrap();
        assert_eq!((shop.outbox().await.len(), shop.waiting().await), (2, 3));
    })
    .await;
}

#[tokio::test]
async fn rows_for_somebody_silent_wait_in_that_ones_line_and_are_not_read_with_the_others() {
    check(async |shop| {
        let items = [shop.sale_of(10).await, shop.sale_of(10).await];
        let mut closings = Vec::new();
        for (item, user) in [(&items[0], "ann"), (&items[1], "bob"), (&items[0], "cat")] {
            closings.push(shop.bought(item.id, user, 1).await.order_no);
        }
        shop.deliver_all().await;
        shop.close(&closings, CloseReason::Cancelled, shop.now()).await.unwrap();
        let rows = shop.due_rows(OutboxKind::Release, NOON_MS, 10).await;
        let units = |row: &OutboxRow| match &row.message {
            Ok(OutboxMessage::Release { releases }) => releases.len(),
            _ => 0,
        };
        let of_items: Vec<usize> = rows.iter().map(units).collect();
        assert_eq!(of_items, [2, 1], "a row for each item");
        // One is split in the place of the row, once: of two who do so the second finds it gone.
        let Ok(OutboxMessage::Release { releases }) = &rows[0].message else { unreachable!() };
        let one = |release: &Release| OutboxMessage::Release { releases: vec![release.clone()] };
        let parts: Vec<OutboxMessage> = releases.iter().map(one).collect();
        shop.outbox_split(&rows[0], &parts).await.unwrap();
        shop.outbox_split(&rows[0], &parts).await.unwrap();
        let rows = shop.due_rows(OutboxKind::Release, NOON_MS, 10).await;
        assert_eq!(rows.iter().map(units).collect::<Vec<_>>(), [1, 1, 1]);
        let wait = |party: &str, next_try_ms, tried| OutboxWait {
            waits_for: party.into(),
            next_try_ms,
            tried,
            cause: "no answer".into(),
        };
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        shop.outbox_wait(&ids[1..], &wait("p7", 0, false)).await.unwrap();
        shop.outbox_wait(&ids[..1], &wait("p9", 0, true)).await.unwrap();
        assert!(shop.due_rows(OutboxKind::Release, NOON_MS, 10).await.is_empty());
        let parties = async |after, limit| {
            shop.outbox_parties(OutboxKind::Release, after, limit).await.unwrap()
        };
        assert_eq!(parties("", 9).await, ["p7", "p9"]);
        assert_eq!(
            (parties("", 1).await, parties("p7", 9).await),
            (vec!["p7".into()], vec!["p9".into()])
        );
        assert!(shop.outbox_parties(OutboxKind::News, "", 9).await.unwrap().is_empty());
        let line = async |party, limit| -> Vec<(i64, u32)> {
            let due = shop.outbox_due(OutboxKind::Release, party, NOON_MS, limit).await.unwrap();
            due.iter().map(|row| (row.id, row.tries)).collect()
        };
        assert_eq!(
            (line("p7", 1).await, line("p9", 9).await),
            (vec![(ids[1], 0)], vec![(ids[0], 1)])
        );
        // The one that was tried goes to the end, and does not keep the others from being tried.
        shop.outbox_wait(&ids[1..2], &wait("p7", NOON_MS + 500, true)).await.unwrap();
        assert_eq!(line("p7", 9).await, [(ids[2], 0)]);
        // What fails for a reason of its own leaves the line.
        shop.outbox_later(ids[2], NOON_MS, "refused").await.unwrap();
        assert_eq!(shop.due_rows(OutboxKind::Release, NOON_MS, 10).await[0].id, ids[2]);
        for item in items {
            let books = shop.item_books(item.id, &[]).await.unwrap();
            let expected = books.pending_releases.iter().map(|release| release.item);
            assert!(expected.clone().all(|of| of == item.id) && expected.count() > 0);
        }
        assert_eq!(shop.waiting().await, 4, "with the news");
    })
    .await;
}

#[tokio::test]
async fn rows_that_the_build_before_writes_are_found_and_counted() {
    check(async |shop| {
        let (item, other) = (shop.sale_of(10).await, shop.sale_of(10).await);
        let orders = [shop.bought(item.id, "ann", 1).await, shop.bought(other.id, "bob", 2).await];
        shop.deliver_all().await;
        let releases: Vec<Release> = orders.iter().map(release).collect();
        let body = serde_json::to_string(&OutboxMessage::Release { releases }).unwrap();
        let row = format!(
            "INSERT INTO tb_outbox (kind, body, created_at) VALUES ('release', '{body}', 5)"
        );
        shop.back_door.run(&row).await.unwrap();
        assert_eq!(shop.due_rows(OutboxKind::Release, NOON_MS, 10).await.len(), 1);
        for order in &orders {
            let books = shop.item_books(order.item, &[]).await.unwrap();
            assert_eq!(books.pending_releases, [release(order)], "a row of several items");
        }
        let rows = [OutstandingRows { kind: "release".into(), rows: 1, oldest_ms: 5 }];
        assert_eq!(shop.outstanding().await.unwrap().outbox, rows);
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_stretch_the_pauses_of_the_outbox() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        shop.bought(item.id, "ann", 1).await;
        let row = shop.outbox().await[0].id;
        shop.outbox_later(row, shop.now() + OUTBOX_PAUSE_MS_MAX, "later").await.unwrap();
        assert!(shop.outbox().await.is_empty(), "the longest pause there is");
        shop.clock.advance(-1);
        assert_eq!(shop.outbox().await[0].id, row, "nobody waits longer than that");
        shop.clock.advance(-3_600_000);
        assert_eq!(shop.outbox().await[0].id, row);
    })
    .await;
}

#[tokio::test]
async fn what_waits_is_counted_by_kind_and_by_item() {
    check(async |shop| {
        assert_eq!(shop.outstanding().await.unwrap(), Outstanding::default());
        let (item, other) = (shop.sale_of(10).await, shop.sale_of(10).await);
        let order = shop.bought(item.id, "ann", 1).await;
        let [dead, retrying, over] = ["bob", "cat", "dan"].map(|user| shop.claim(item.id, user, 2));
        let elsewhere = shop.claim(other.id, "eve", 1);
        let later = Some(shop.now() + 1_000);
        let failed = [
            failed(&dead, 3, None),
            failed(&retrying, 1, later),
            failed(&over, 1, later),
            failed(&elsewhere, 1, None),
        ];
        shop.defer(&failed).await.unwrap();
        shop.void(&[over], VoidReason::Operator, shop.now()).await.unwrap();
        let outstanding = shop.outstanding().await.unwrap();
        let of = |item, retrying, dead, units| OutstandingClaims { item, retrying, dead, units };
        assert_eq!(outstanding.claims, [of(item.id, 1, 1, 4), of(other.id, 0, 1, 1)]);
        // News of the order and of the void claim, and the units of the latter.
        let rows = |kind: &str, rows| OutstandingRows {
            kind: kind.into(),
            rows,
            oldest_ms: order.created_ms,
        };
        assert_eq!(outstanding.outbox, [rows("news", 2), rows("release", 1)]);
    })
    .await;
}
