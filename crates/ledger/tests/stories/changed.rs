//! What changed lately, and items in a few numbers: what those ask for who look at everything all the time.

use std::time::Duration;

use ledger::{ActivityFilter, NewJobRun, OrderFilter, OutlinePage};
use sale::{ActivityMove, ActivityState, ItemId, OrderNo};
use serde_json::json;

use crate::{Shop, check};

const MINUTE_MS: i64 = 60_000;

impl Shop {
    async fn trace(&self, item: ItemId) -> (u32, i64) {
        let activity = self.item(item).await.unwrap().unwrap().activity;
        let changed = self.changed_activities(MINUTE_MS).await.unwrap();
        let changed = changed.iter().find(|changed| changed.id == activity).unwrap();
        assert!(changed.age_ms < MINUTE_MS);
        // The next change is marked with another millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
        changed.trace
    }

    async fn outlines(&self, limit: usize) -> Vec<ledger::ItemOutline> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let all = ActivityFilter::all(ActivityState::Draft);
            let page = self.item_outlines(&all, after, limit).await.unwrap();
            let OutlinePage { items, next } = page;
            found.extend(items);
            if next.is_none() {
                return found;
            }
            after = next;
        }
    }
}

#[tokio::test]
async fn whatever_is_changed_of_an_activity_is_told() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let mut before = shop.trace(item.id).await;
        let mut changes = async |what: &str| {
            let now = shop.trace(item.id).await;
            assert_ne!(now, before, "{what}");
            before = now;
        };
        shop.begin_warm(item.id, 0).await.unwrap();
        changes("it is being loaded").await;
        shop.finish_warm(item.id, 1).await.unwrap();
        changes("it is at the gate").await;
        shop.bought(item.id, "ann", 1).await;
        changes("somebody bought one").await;
        shop.adjust_stock(item.id, 1, shop.number(), shop.now()).await.unwrap();
        changes("there is one more").await;
        let now_ms = shop.now();
        shop.move_activity(item.activity, ActivityMove::Publish, now_ms).await.unwrap();
        changes("it is published").await;
        assert_eq!(shop.changed_activities(-1).await.unwrap(), [], "nothing changed in the future");
        let brief = shop.activities_of_briefly(&[item.activity], &[]).await.unwrap();
        let whole = shop.activity(item.activity).await.unwrap().unwrap();
        assert_eq!(brief[0].items[0].epoch, 1);
        assert_eq!((brief[0].state, brief[0].items.len()), (whole.state, whole.items.len()));
    })
    .await;
}

#[tokio::test]
async fn an_outline_follows_whatever_changes_the_books_of_its_item() {
    check(async |shop| {
        let untouched = shop.sale_of(3).await;
        let mut items = Vec::new();
        for _ in 0..5 {
            let item = shop.sale_of(10).await;
            shop.begin_warm(item.id, 0).await.unwrap();
            items.push(item.id);
        }
        for limit in [1, 2, 100] {
            let mut told: Vec<_> = shop.outlines(limit).await.iter().map(|one| one.item).collect();
            told.sort();
            assert_eq!(told, items, "{untouched:?} has nothing that could differ");
        }
        let one = items[2];
        let mut before = None;
        let mut changes = async |what: &str| {
            let all = shop.outlines(100).await;
            let now = *all.iter().find(|outline| outline.item == one).unwrap();
            assert_ne!(before.replace(now), Some(now), "{what}");
            now
        };
        assert_eq!(changes("at first").await.log_end, None);
        let order = shop.bought(one, "ann", 2).await;
        let bought = changes("somebody bought two").await;
        let books = shop.item_books(one, &[]).await.unwrap();
        assert_eq!((bought.stock, bought.log_end), (8, books.log_end));
        shop.close(&[order.order_no], sale::CloseReason::Cancelled, shop.now()).await.unwrap();
        changes("they came back").await;
        shop.adjust_stock(one, 1, shop.number(), shop.now()).await.unwrap();
        assert_eq!(changes("there is one more").await.total, 11);
        shop.finish_warm(one, 1).await.unwrap();
        changes("it is at the gate").await;
    })
    .await;
}

#[tokio::test]
async fn books_are_not_counted_on_from_a_point_that_is_not_theirs() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        shop.bought(item.id, "ann", 1).await;
        let point = shop.item_books(item.id, &[]).await.unwrap().point();
        let since = async |point| shop.item_books_since(item.id, &[], &point).await.unwrap();
        assert_eq!(since(point).await.unwrap().point(), point);
        let end = point.log_end.unwrap();
        for strange in [
            ledger::BooksPoint { version: point.version + 1, ..point },
            ledger::BooksPoint { log_end: Some(ledger::LogEnd { after_stock: 3, ..end }), ..point },
            ledger::BooksPoint { log_end: Some(ledger::LogEnd { id: end.id + 1, ..end }), ..point },
        ] {
            assert!(since(strange).await.is_none(), "{strange:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn reports_of_runs_are_kept_up_to_a_number_of_bytes() {
    check(async |shop| {
        let run = |size: usize| NewJobRun {
            job: "reconcile".into(),
            started_ms: 1,
            ended_ms: 2,
            ok: true,
            report: json!({ "text": "x".repeat(size) }),
        };
        for _ in 0..12 {
            shop.record_run(&run(1 << 20)).await.unwrap();
        }
        assert_eq!(shop.job_runs("reconcile", 100).await.unwrap().len(), 7, "eight megabytes");
        let last = shop.record_run(&run(9 << 20)).await.unwrap();
        let kept = shop.job_runs("reconcile", 100).await.unwrap();
        assert_eq!(kept.iter().map(|run| run.id).collect::<Vec<_>>(), [last], "the newest stays");
    })
    .await;
}

#[tokio::test]
async fn a_search_by_time_or_activity_finds_also_what_failed_for_long() {
    check(async |shop| {
        let day_ms = 24 * 60 * MINUTE_MS;
        let mut plan = Shop::new_activity(&[10]);
        plan.closes_ms = plan.opens_ms + 90 * day_ms;
        let mut sales = Vec::new();
        for _ in 0..2 {
            let made = shop.create_activity(&plan, shop.now()).await.unwrap();
            sales.extend(made.items);
        }
        let (item, other) = (&sales[0], &sales[1]);
        // Its number is of long ago, and somebody settles it now.
        let old = shop.claim(item.id, "old", 1);
        let failed = sale::FailedClaim {
            claim: old.clone(),
            tries: 1,
            next_try_ms: None,
            cause: "why".into(),
        };
        shop.defer(&[failed]).await.unwrap();
        shop.clock.advance(60 * day_ms);
        let from_ms = shop.now();
        let new = shop.bought(item.id, "new", 1).await;
        shop.bought(other.id, "other", 1).await;
        shop.settle(item.id, std::slice::from_ref(&old)).await.unwrap();
        let found = async |filter: OrderFilter| -> Vec<OrderNo> {
            let filter = OrderFilter { limit: 9, ..filter };
            let orders = shop.orders(&filter).await.unwrap();
            orders.iter().map(|order| order.order_no).collect()
        };
        let all = || OrderFilter::default();
        let of_activity = OrderFilter { activity: Some(item.activity), ..all() };
        let lately = OrderFilter { from_ms: Some(from_ms), ..of_activity.clone() };
        assert_eq!(found(of_activity).await, [new.order_no, old.order_no]);
        assert_eq!(found(lately).await, [new.order_no, old.order_no]);
        assert_eq!(found(OrderFilter { from_ms: Some(from_ms), ..all() }).await.len(), 3);
        assert!(found(OrderFilter { to_ms: Some(from_ms), ..all() }).await.is_empty());
        let later = OrderFilter { from_ms: Some(from_ms + day_ms), ..all() };
        assert!(found(later).await.is_empty());
    })
    .await;
}
