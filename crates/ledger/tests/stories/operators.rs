//! Operators: sales prepared, stock changed, tokens given, and who did what.

use ledger::{
    ActivityFilter, ActivityOrder, Adjusted, AuditEntry, KnownAdjustment, LedgerError, Moved,
    NewJobRun, OrderFilter, Origin, OutboxMessage, Role, StatusCount, StockLogType, TokenBounds,
};
use sale::{
    ActivityId, ActivityMove, ActivityState, CloseReason, ItemId, ItemState, NewActivity, OrderNo,
    STOCK_MAX, VoidReason,
};
use serde_json::json;
use std::collections::BTreeMap;

use crate::{NOON_MS, PRICE, Shop, all, audit_entry, check, failed_claims::failed, numbers_of};

#[tokio::test]
async fn an_activity_is_prepared_published_and_ended_for_good() {
    check(async |shop| {
        let draft = shop.activity_of(&[10, 20]).await;
        assert_eq!((draft.state, draft.items.len()), (ActivityState::Draft, 2));
        let phone = &draft.items[0];
        assert_eq!((phone.stock, phone.total, phone.version, phone.epoch), (10, 10, 0, 0));
        assert_eq!((phone.limit_per_user, phone.origin_price), (5, Some(799_900)));
        assert!(shop.log(phone.id).await.is_empty());
        let does = async |step| shop.move_activity(draft.id, step, shop.now()).await.unwrap();
        let was = Moved::Was;
        assert_eq!(does(ActivityMove::Pause).await, was(ActivityState::Draft));
        assert_eq!(does(ActivityMove::Resume).await, was(ActivityState::Draft));
        assert_eq!(does(ActivityMove::Publish).await, Moved::Done);
        assert_eq!(does(ActivityMove::Publish).await, was(ActivityState::Published));
        assert_eq!(does(ActivityMove::Pause).await, Moved::Done);
        assert_eq!(does(ActivityMove::Publish).await, was(ActivityState::Paused), "not resumed");
        assert_eq!(does(ActivityMove::Resume).await, Moved::Done);
        assert_eq!(does(ActivityMove::End).await, Moved::Done);
        let ended = shop.activity(draft.id).await.unwrap().unwrap();
        assert!(ended.items.iter().all(|item| item.state == ItemState::Ended));
        assert_eq!(does(ActivityMove::Resume).await, was(ActivityState::Ended));
        let nowhere = shop.move_activity(ActivityId(99), ActivityMove::End, 0).await;
        assert!(matches!(nowhere, Err(LedgerError::NotFound)));
        // Written down is what was done, and that it was asked for again; not what was refused.
        let mut written = shop.audit_log(None, 99).await.unwrap();
        written.reverse();
        let written: Vec<_> = written
            .iter()
            .map(|row| (row.action.as_str(), row.detail["repeated"] == true))
            .collect();
        assert_eq!(
            written,
            [
                ("activity.publish", false),
                ("activity.publish", true),
                ("activity.pause", false),
                ("activity.resume", false),
                ("activity.end", false)
            ]
        );
    })
    .await;
}

#[tokio::test]
async fn what_is_due_is_found_by_what_it_is_to_the_last_page() {
    check(async |shop| {
        let mut made = Vec::new();
        for n in 0..7 {
            // Of two neighbours one closes with the other.
            let (opens_ms, closes_ms) = (NOON_MS + 10 - n, NOON_MS + 1_000 + n / 2);
            let new = NewActivity { opens_ms, closes_ms, ..Shop::new_activity(&[1, 2]) };
            made.push(shop.create_activity(&new, shop.now()).await.unwrap().id);
        }
        for id in &made[..6] {
            shop.move_activity(*id, ActivityMove::Publish, shop.now()).await.unwrap();
        }
        shop.move_activity(made[5], ActivityMove::End, shop.now()).await.unwrap();
        let published = ActivityFilter::all(ActivityState::Published);
        let pages = async |filter: ActivityFilter, limit| -> Vec<ActivityId> {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = shop.activities_where(&filter, after, limit).await.unwrap();
                assert!(page.iter().all(|activity| activity.items.len() == 2));
                found.extend(page.iter().map(|activity| activity.id));
                let Some(last) = page.last().filter(|_| page.len() == limit) else { return found };
                after = Some(filter.order.key_of(last));
            }
        };
        let backwards = |ids: &[ActivityId]| ids.iter().rev().copied().collect::<Vec<_>>();
        for limit in [1, 2, 3, 100] {
            assert_eq!(pages(published, limit).await, made[..5]);
            let opening = published.in_order(ActivityOrder::OpensFirst);
            assert_eq!(pages(opening, limit).await, backwards(&made[..5]));
            let last = published.in_order(ActivityOrder::ClosesLast);
            assert_eq!(pages(last, limit).await, backwards(&made[..5]));
            let soon = opening.opening_by(NOON_MS + 8);
            assert_eq!(pages(soon, limit).await, backwards(&made[2..5]));
            let (over, not_over) =
                (published.closing_by(NOON_MS + 1_001), published.closing_after(NOON_MS + 1_001));
            assert_eq!(pages(over, limit).await, made[..4]);
            assert_eq!(pages(not_over, limit).await, made[4..5]);
        }
        assert_eq!(pages(ActivityFilter::all(ActivityState::Ended), 2).await, made[5..6]);
        assert_eq!(pages(ActivityFilter::all(ActivityState::Paused), 2).await, []);
    })
    .await;
}

#[tokio::test]
async fn activities_are_leafed_through_and_looked_up() {
    check(async |shop| {
        let (one, two) = (shop.activity_of(&[1]).await, shop.activity_of(&[1, 1]).await);
        let three = shop.activity_of(&[1]).await;
        let listed = async |before, limit| -> Vec<ActivityId> {
            let found = shop.activities(before, limit).await.unwrap();
            found.iter().map(|activity| activity.id).collect()
        };
        assert_eq!(listed(None, 2).await, [three.id, two.id]);
        assert_eq!(listed(Some(two.id), 2).await, [one.id]);
        let found = async |activities: &[ActivityId], items: &[ItemId]| {
            let mut found = shop.activities_of(activities, items, &[]).await.unwrap();
            found.sort_by_key(|activity| activity.id);
            found
        };
        let (items, nobody) = (&two.items, ItemId(99));
        let by_item = found(&[], &[items[0].id, items[1].id, nobody]).await;
        assert_eq!(by_item, std::slice::from_ref(&two));
        assert_eq!(found(&[one.id, two.id], &[items[1].id]).await, [one, two]);
        assert_eq!(found(&[], &[]).await, []);
        assert!(shop.activity(ActivityId(99)).await.unwrap().is_none());
        assert!(shop.item(nobody).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn one_of_two_who_warm_at_once_wins() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        assert_eq!(shop.begin_warm(item.id, 0).await.unwrap(), Some(1));
        assert_eq!(shop.begin_warm(item.id, 0).await.unwrap(), None);
        assert!(!shop.finish_warm(item.id, 0).await.unwrap());
        assert!(shop.finish_warm(item.id, 1).await.unwrap());
        assert!(!shop.finish_warm(item.id, 1).await.unwrap());
        let ready = shop.item(item.id).await.unwrap().unwrap();
        assert_eq!((ready.state, ready.epoch), (ItemState::Ready, 1));
        // A gate that lost its memory is warmed again, under the next epoch.
        assert_eq!(shop.begin_warm(item.id, 1).await.unwrap(), Some(2));
        shop.move_activity(item.activity, ActivityMove::End, shop.now()).await.unwrap();
        assert!(!shop.finish_warm(item.id, 2).await.unwrap());
        assert_eq!(shop.begin_warm(item.id, 2).await.unwrap(), None);
        assert!(matches!(shop.begin_warm(ItemId(99), 0).await, Err(LedgerError::NotFound)));
    })
    .await;
}

#[tokio::test]
async fn marks_are_of_the_instant_of_the_stock_however_late_they_are_taken() {
    const ORDERS: usize = 20_000;
    check(async |shop| {
        let item = shop.sale_of(ORDERS as i64 + 10).await;
        let batch = shop.crowd(item.id, ORDERS);
        for some in batch.chunks(5_000) {
            shop.settle(item.id, some).await.unwrap();
        }
        let (basis, mut marks) = shop.warm_basis(item.id, &[]).await.unwrap();
        let mut taken = marks.next().await.unwrap().unwrap();
        assert!(taken.len() < ORDERS / 2, "a page is a part of them");
        // What happens meanwhile, to one of the last of them and to the stock, is not in it.
        let last = batch.last().unwrap();
        shop.close(&[last.order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
        shop.adjust_stock(item.id, 5, shop.number(), shop.now()).await.unwrap();
        shop.bought(item.id, "late", 1).await;
        taken.extend(all(marks).await);
        assert_eq!(taken, batch);
        assert_eq!((basis.item.stock, basis.adjusted.len()), (10, 0));
        // Whoever does not want the rest leaves nothing behind that others would have to wait for.
        for _ in 0..40 {
            let (basis, _) = shop.warm_basis(item.id, &[]).await.unwrap();
            assert_eq!(basis.item.stock, 15);
        }
    })
    .await;
}

#[tokio::test]
async fn warming_knows_who_owns_what() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let batch = shop.crowd(item.id, 3);
        shop.settle(item.id, &batch[..1]).await.unwrap();
        shop.void(&batch[1..2], VoidReason::Lost, shop.now()).await.unwrap();
        let stuck = shop.claim(item.id, "stuck", 2);
        shop.defer(&[failed(&stuck, 1, Some(NOON_MS + 10_000))]).await.unwrap();
        let adjust_no = shop.number();
        shop.adjust_stock(item.id, 5, adjust_no, shop.now()).await.unwrap();
        let (basis, marks) = shop.warm_basis(item.id, &numbers_of(&batch)).await.unwrap();
        assert_eq!(basis.settled, numbers_of(&batch[..2]).into_iter().collect());
        assert_eq!((all(marks).await, basis.failed), (batch[..1].to_vec(), vec![stuck]));
        assert_eq!((basis.item.stock, basis.adjusted), (14, vec![adjust_no]));
        assert_eq!(basis.activity.items, [basis.item]);
        assert!(matches!(shop.warm_basis(ItemId(99), &[]).await, Err(LedgerError::NotFound)));
    })
    .await;
}

#[tokio::test]
async fn stock_is_adjusted_once_per_number_and_never_below_what_is_sold() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        shop.bought(item.id, "ann", 4).await;
        shop.deliver_all().await;
        let adjust = async |delta, no| shop.adjust_stock(item.id, delta, no, shop.now()).await;
        let (up, down) = (shop.number(), shop.number());
        let raised = Adjusted { before: 6, after: 11, repeated: false };
        assert_eq!(adjust(5, up).await.unwrap(), raised);
        assert_eq!(adjust(5, up).await.unwrap(), Adjusted { repeated: true, ..raised });
        let lowered = Adjusted { before: 11, after: 0, repeated: false };
        assert_eq!(adjust(-11, down).await.unwrap(), lowered);
        assert_eq!(shop.stock(item.id).await, (0, 4));
        for (delta, no, field) in [
            (-1, shop.number(), "delta"),
            (0, shop.number(), "delta"),
            (STOCK_MAX, shop.number(), "delta"),
            (i64::MIN, shop.number(), "delta"),
            (6, up, "adjust_no"),
        ] {
            let refused = adjust(delta, no).await.unwrap_err();
            assert!(matches!(&refused, LedgerError::Refused(why) if why.field == field));
        }
        let nowhere = shop.adjust_stock(ItemId(99), 1, shop.number(), 0).await;
        assert!(matches!(nowhere, Err(LedgerError::NotFound)));
        // Neither is the number good for another item.
        let other = shop.sale_of(10).await;
        let elsewhere = shop.adjust_stock(other.id, -11, down, shop.now()).await.unwrap_err();
        assert!(matches!(&elsewhere, LedgerError::Refused(why) if why.field == "adjust_no"));
        let known = KnownAdjustment { item: item.id, delta: -11 };
        assert_eq!(shop.adjustment(down).await.unwrap(), Some(known));
        assert_eq!(shop.adjustment(shop.number()).await.unwrap(), None);
        let told = [(up, 5), (down, -11)].map(|(adjust_no, delta)| OutboxMessage::Adjust {
            item: item.id,
            adjust_no,
            delta,
        });
        assert_eq!(shop.messages().await, told);
        assert_eq!(
            shop.item_books(item.id, &[]).await.unwrap().pending_adjusts,
            [(up, 5), (down, -11)]
        );
        let kinds: Vec<_> = shop.log(item.id).await.iter().map(|row| row.kind).collect();
        assert_eq!(kinds, [StockLogType::Deduct, StockLogType::Adjust, StockLogType::Adjust]);
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn tokens_are_given_replaced_and_taken_away() {
    check(async |shop| {
        let (one, two) = ([1u8; 32], [2u8; 32]);
        shop.put_admin_token("root", Role::Admin, &one, NOON_MS).await.unwrap();
        shop.put_admin_token("eve", Role::Viewer, &two, NOON_MS).await.unwrap();
        let found = shop.admin_token(&one).await.unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.role), ("root", Role::Admin));
        let shared = shop.put_admin_token("bob", Role::Admin, &two, NOON_MS).await;
        assert!(matches!(shared, Err(LedgerError::Refused(_))));
        // Replacing makes the old secret worthless.
        let three = [3u8; 32];
        shop.put_admin_token("root", Role::Operator, &three, NOON_MS + 1).await.unwrap();
        assert!(shop.admin_token(&one).await.unwrap().is_none());
        assert_eq!(shop.admin_token(&three).await.unwrap().unwrap().role, Role::Operator);
        assert!(shop.revoke_admin_token("eve", NOON_MS).await.unwrap());
        assert!(!shop.revoke_admin_token("eve", NOON_MS).await.unwrap());
        assert!(shop.admin_token(&two).await.unwrap().is_none());
        let names: Vec<_> = shop.admin_tokens().await.unwrap();
        assert_eq!(names.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["root"]);
        shop.put_admin_token("eve", Role::Viewer, &two, NOON_MS).await.unwrap();
        assert!(shop.admin_token(&two).await.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn a_token_keeps_its_bounds_and_its_last_use() {
    check(async |shop| {
        let made = audit_entry("token.create");
        let bounds = TokenBounds {
            expires_ms: Some(NOON_MS + 5),
            addresses: vec!["10.0.0.0/8".into(), "2001:db8::/32".into()],
        };
        let secret = [1u8; 32];
        assert!(
            shop.add_admin_token("ann", Role::Viewer, &secret, &bounds, &made, NOON_MS)
                .await
                .unwrap()
        );
        let found = async || shop.admin_token(&secret).await.unwrap().unwrap();
        assert_eq!((found().await.bounds, found().await.last_used_ms), (bounds, None));
        let note = async |used_ms| {
            let uses = [("ann".to_owned(), used_ms), ("nobody".to_owned(), used_ms)];
            shop.note_token_uses(&uses).await.unwrap();
            found().await.last_used_ms
        };
        assert_eq!(note(NOON_MS + 7).await, Some(NOON_MS + 7));
        assert_eq!(note(NOON_MS + 3).await, Some(NOON_MS + 7), "another instance was later");
        assert_eq!(note(NOON_MS + 9).await, Some(NOON_MS + 9));
        shop.note_token_uses(&[]).await.unwrap();
        // What replaces it is bound to nothing.
        shop.put_admin_token("ann", Role::Admin, &secret, NOON_MS).await.unwrap();
        assert_eq!(found().await.bounds, TokenBounds::default());
        assert_eq!(shop.admin_tokens().await.unwrap(), [found().await]);
    })
    .await;
}

#[tokio::test]
async fn of_two_who_want_a_name_one_gets_it_for_good() {
    check(async |shop| {
        let secrets = [[1u8; 32], [2u8; 32]];
        let made = audit_entry("token.create");
        let bounds = TokenBounds::default();
        let add =
            |secret| shop.add_admin_token("ann", Role::Viewer, secret, &bounds, &made, NOON_MS);
        let (one, two) = tokio::join!(add(&secrets[0]), add(&secrets[1]));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(one != two, "one of them");
        let winner = if one { secrets[0] } else { secrets[1] };
        assert_eq!(shop.admin_token(&winner).await.unwrap().unwrap().name, "ann");
        let bob = shop.add_admin_token("bob", Role::Admin, &winner, &bounds, &made, NOON_MS);
        let shared = bob.await;
        assert!(matches!(shared, Err(LedgerError::Refused(_))));
        assert!(shop.revoke_admin_token("ann", NOON_MS).await.unwrap());
        assert!(!add(&[3; 32]).await.unwrap(), "ann stays ann in the audit");
        assert_eq!(
            shop.audit_log(None, 9).await.unwrap().len(),
            1,
            "no entry for what was not done"
        );
    })
    .await;
}

#[tokio::test]
async fn what_operators_and_jobs_did_can_be_read_back() {
    check(async |shop| {
        for n in 0..3 {
            let entry = AuditEntry {
                who: "root".into(),
                action: "stock.adjust".into(),
                target: format!("item:{n}"),
                detail: json!({ "delta": n }),
                origin: Origin {
                    address: (n == 2).then(|| "192.0.2.7".into()),
                    request_id: (n == 2).then(|| "r-2".into()),
                },
            };
            shop.audit(&entry, NOON_MS + n).await.unwrap();
        }
        let newest = shop.audit_log(None, 2).await.unwrap();
        let targets: Vec<_> = newest.iter().map(|row| row.target.as_str()).collect();
        assert_eq!(targets, ["item:2", "item:1"]);
        assert_eq!(newest[0].detail, json!({ "delta": 2 }));
        let origin = |n: usize| (newest[n].address.as_deref(), newest[n].request_id.as_deref());
        assert_eq!((origin(0), origin(1)), ((Some("192.0.2.7"), Some("r-2")), (None, None)));
        let oldest = shop.audit_log(Some(newest[1].id), 10).await.unwrap();
        assert_eq!(oldest[0].target, "item:0");

        let run = |job: &str, ok| NewJobRun {
            job: job.into(),
            started_ms: NOON_MS,
            ended_ms: NOON_MS + 7,
            ok,
            report: json!({ "differences": [] }),
        };
        let first = shop.record_run(&run("reconcile", true)).await.unwrap();
        let second = shop.record_run(&run("reconcile", false)).await.unwrap();
        shop.record_run(&run("timeout", true)).await.unwrap();
        let runs = shop.job_runs("reconcile", 10).await.unwrap();
        let told: Vec<_> = runs.iter().map(|run| (run.id, run.ok)).collect();
        assert_eq!(told, [(second, false), (first, true)]);
        assert_eq!(runs[0].report, json!({ "differences": [] }));
    })
    .await;
}

#[tokio::test]
async fn numbers_go_on_after_the_largest_the_ledger_has_seen() {
    check(async |shop| {
        assert_eq!(shop.last_order_no().await.unwrap(), None);
        let item = shop.sale_of(10).await;
        let order = shop.bought(item.id, "ann", 1).await;
        assert_eq!(shop.last_order_no().await.unwrap(), Some(order.order_no));
        let adjust_no = shop.number();
        shop.adjust_stock(item.id, 1, adjust_no, shop.now()).await.unwrap();
        assert_eq!(shop.last_order_no().await.unwrap(), Some(adjust_no));
        let claim = shop.claim(item.id, "bob", 1);
        shop.defer(&[failed(&claim, 1, None)]).await.unwrap();
        assert_eq!(shop.last_order_no().await.unwrap(), Some(claim.order_no));
        shop.ping().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn all_instances_share_the_first_secret() {
    check(async |shop| {
        let first = shop.shared_secret("the first candidate", shop.now()).await.unwrap();
        assert_eq!(first, "the first candidate");
        let second = shop.shared_secret("another candidate", shop.now()).await.unwrap();
        assert_eq!(second, first);
    })
    .await;
}

#[tokio::test]
async fn orders_are_found_by_when_they_were_paid_page_by_page() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let mut paid = Vec::new();
        for n in 0..4 {
            // Two of them in the same millisecond.
            shop.clock.set(NOON_MS + [0, 20, 20, 30][n]);
            paid.push(shop.paid(item.id, &format!("u{n}")).await.0);
        }
        shop.bought(item.id, "unpaid", 1).await;
        // The notice is of 100 ms before.
        let (from, to) = (NOON_MS - 80, NOON_MS - 70);
        let found = async |filter: OrderFilter| -> Vec<OrderNo> {
            let found = shop.orders(&filter).await.unwrap();
            found.into_iter().map(|order| order.order_no).collect()
        };
        let between = |from, to, before, limit| OrderFilter {
            paid_from_ms: from,
            paid_to_ms: to,
            before,
            limit,
            ..OrderFilter::default()
        };
        let no = |n: usize| paid[n].order_no;
        let all = found(between(Some(0), None, None, 9)).await;
        assert_eq!(all, [no(3), no(2), no(1), no(0)], "the latest payment first");
        assert_eq!(found(between(Some(from), Some(to), None, 9)).await, [no(2), no(1)]);
        let mut pages = Vec::new();
        let mut before = None;
        loop {
            let page = found(between(None, Some(i64::MAX), before, 1)).await;
            let Some(last) = page.last() else { break };
            before = Some(*last);
            pages.extend(page);
        }
        assert_eq!(pages, all, "a page begins after the one before it");
        let unpaid = shop.bought(item.id, "other", 1).await.order_no;
        let lost = shop.orders(&between(Some(0), None, Some(unpaid), 9)).await.unwrap_err();
        assert!(matches!(lost, LedgerError::Refused(why) if why.field == "before"));
        let one = OrderFilter { order_no: Some(no(1)), limit: 9, ..OrderFilter::default() };
        assert_eq!(found(one).await, [no(1)]);

        let money = shop.payments_of(&[no(0), no(3), unpaid]).await.unwrap();
        let of: Vec<_> = money.iter().map(|row| (row.order_no, row.provider.as_str())).collect();
        assert_eq!(of, [(no(0), "wechat"), (no(3), "wechat")]);
    })
    .await;
}

#[tokio::test]
async fn the_orders_of_an_item_are_counted_piece_by_piece() {
    check(async |shop| {
        let activity = shop.activity_of(&[100, 100]).await;
        let (item, other) = (activity.items[0].id, activity.items[1].id);
        for n in 0..3 {
            shop.paid(item, &format!("u{n}")).await;
        }
        shop.bought(item, "two", 2).await;
        shop.bought(other, "elsewhere", 1).await;
        let closed = shop.bought(item, "gone", 3).await.order_no;
        shop.close(&[closed], CloseReason::Cancelled, shop.now()).await.unwrap();
        for limit in [1, 2, 4, 100] {
            let (mut counted, mut after) = (BTreeMap::new(), None);
            loop {
                let piece = shop.count_orders(item, after, limit).await.unwrap();
                for (status, count) in piece.by_status {
                    *counted.entry(status.code()).or_insert(StatusCount::default()) += count;
                }
                after = piece.next;
                if after.is_none() {
                    break;
                }
            }
            let count = |orders, units| StatusCount { orders, units, amount: units * PRICE };
            let expected = [(0, count(1, 2)), (1, count(3, 3)), (2, count(1, 3))];
            assert_eq!(counted, BTreeMap::from(expected), "{limit} at a time");
        }
    })
    .await;
}
