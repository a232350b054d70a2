//! Buyers: getting an order, getting none, changing one's mind, coming too late.

use ledger::{Closing, Credit, OrderFilter, Orders, OutboxMessage, StockLogType};
use sale::{
    BookError, Claim, CloseReason, Currency, ItemId, Money, OrderNo, OrderStatus,
    PAY_WITHIN_MS_DEFAULT, Reason, VoidReason,
};

use crate::{NOON_MS, PRICE, all, all_void, check, numbers_of, order_events, release, yuan};

#[tokio::test]
async fn a_claim_becomes_the_order_it_was_promised_to_be() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let claim = shop.claim(item.id, "用户1002", 2);
        shop.clock.advance(50);
        let settled = shop.settle(item.id, std::slice::from_ref(&claim)).await.unwrap();
        assert_eq!(settled.created, [claim.order_no]);
        let order = shop.found(claim.order_no).await;
        assert_eq!((order.user.as_str(), order.item, order.quantity), ("用户1002", item.id, 2));
        assert_eq!((order.price, order.amount), (yuan(PRICE), yuan(2 * PRICE)));
        assert_eq!((order.status, order.reason), (OrderStatus::Unpaid, None));
        assert_eq!((order.created_ms, order.epoch), (NOON_MS + 50, 1));
        assert_eq!(order.pay_deadline_ms, NOON_MS + 50 + PAY_WITHIN_MS_DEFAULT);
        assert_eq!((order.item_name, order.activity), (item.name, item.activity));
        assert_eq!(shop.stock(item.id).await, (8, 10));
        let (_, marks) = shop.warm_basis(item.id, &[]).await.unwrap();
        assert_eq!(all(marks).await, [claim], "the claim can be rebuilt from its order");
    })
    .await;
}

#[tokio::test]
async fn a_short_stock_serves_whom_it_can_and_tells_the_others() {
    check(async |shop| {
        let item = shop.sale_of(3).await;
        let wants = [("ann", 2), ("bob", 2), ("cat", 1), ("dan", 1)];
        let batch: Vec<Claim> =
            wants.iter().map(|(user, quantity)| shop.claim(item.id, user, *quantity)).collect();
        let settled = shop.settle(item.id, &batch).await.unwrap();
        assert_eq!(settled.created, [batch[0].order_no, batch[2].order_no]);
        let short = VoidReason::StockShort;
        assert_eq!(settled.void, [(batch[1].order_no, short), (batch[3].order_no, short)]);
        assert_eq!(shop.stock(item.id).await, (0, 3));

        let bob = shop.found(batch[1].order_no).await;
        assert_eq!((bob.status, bob.reason), (OrderStatus::Void, Some(Reason::StockShort)));
        assert_eq!(bob.amount, yuan(2 * PRICE));
        let mut told = Vec::new();
        for n in [0, 2, 1, 3] {
            told.push(shop.found(batch[n].order_no).await);
        }
        let releases = vec![release(&told[2]), release(&told[3])];
        let told = order_events(&told.iter().collect::<Vec<_>>());
        assert_eq!(shop.messages().await, [OutboxMessage::Release { releases }, told]);
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn a_batch_delivered_again_changes_nothing() {
    check(async |shop| {
        let item = shop.sale_of(2).await;
        let mut batch = shop.crowd(item.id, 3);
        shop.settle(item.id, &batch).await.unwrap();
        let (log, outbox) = (shop.log(item.id).await, shop.outbox().await);
        shop.clock.advance(9);
        let again = shop.settle(item.id, &batch).await.unwrap();
        assert_eq!(again.repeated, numbers_of(&batch));
        assert!(again.created.is_empty() && again.void.is_empty());
        assert_eq!((shop.log(item.id).await, shop.outbox().await), (log, outbox));

        // Half old, half new, and one of them twice in the same batch.
        shop.close(&[batch[0].order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
        let late = shop.claim(item.id, "late", 1);
        batch.extend([late.clone(), late.clone()]);
        let mixed = shop.settle(item.id, &batch).await.unwrap();
        assert_eq!(mixed.created, [late.order_no]);
        assert_eq!(mixed.repeated.len(), 4);
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn the_same_buyer_gets_one_order_of_an_item() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let twice = [shop.claim(item.id, "ann", 1), shop.claim(item.id, "ann", 1)];
        let settled = shop.settle(item.id, &twice).await.unwrap();
        assert_eq!(settled.created, [twice[0].order_no]);
        assert_eq!(settled.void, all_void(&twice[1..], VoidReason::AlreadyBought));
        let third = [shop.claim(item.id, "ann", 1)];
        let settled = shop.settle(item.id, &third).await.unwrap();
        assert_eq!(settled.void, all_void(&third, VoidReason::AlreadyBought));

        // Another item is another matter, and so is this one after the order is closed.
        let other = shop.sale_of(1).await;
        shop.bought(other.id, "ann", 1).await;
        shop.close(&[twice[0].order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
        shop.bought(item.id, "ann", 1).await;
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn a_claim_above_the_limit_is_void_even_if_the_gate_let_it_through() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let limit = item.limit_per_user;
        let batch = [shop.claim(item.id, "ann", limit + 1), shop.claim(item.id, "bob", limit)];
        let settled = shop.settle(item.id, &batch).await.unwrap();
        assert_eq!(settled.created, [batch[1].order_no]);
        assert_eq!(settled.void, [(batch[0].order_no, VoidReason::OverLimit)]);
        let order = shop.found(batch[0].order_no).await;
        assert_eq!((order.status, order.reason), (OrderStatus::Void, Some(Reason::OverLimit)));
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn claims_of_an_item_nobody_knows_are_void() {
    check(async |shop| {
        let nowhere = ItemId(404);
        let batch = shop.crowd(nowhere, 2);
        let settled = shop.settle(nowhere, &batch).await.unwrap();
        assert_eq!(settled.void, all_void(&batch, VoidReason::UnknownItem));
        let order = shop.found(batch[0].order_no).await;
        assert_eq!((order.status, order.reason), (OrderStatus::Void, Some(Reason::UnknownItem)));
        assert_eq!(order.amount, Money::new(0, "XXX".parse::<Currency>().unwrap()));
        assert_eq!(shop.settle(nowhere, &batch).await.unwrap().repeated, numbers_of(&batch));
    })
    .await;
}

#[tokio::test]
async fn a_number_that_is_somebody_elses_is_no_redelivery() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let ann = shop.bought(item.id, "ann", 1).await;
        let thief = Claim { order_no: ann.order_no, ..shop.claim(item.id, "thief", 1) };
        let refused = shop.settle(item.id, &[thief]).await;
        assert!(matches!(refused, Err(BookError::Rejected(_))), "{refused:?}");
        let elsewhere = shop.claim(ItemId(item.id.0 + 1), "bob", 1);
        let refused = shop.settle(item.id, &[elsewhere]).await;
        assert!(matches!(refused, Err(BookError::Rejected(_))), "{refused:?}");
        assert_eq!(shop.stock(item.id).await, (9, 10));
    })
    .await;
}

#[tokio::test]
async fn a_thousand_units_leave_an_unbroken_chain() {
    check(async |shop| {
        let item = shop.sale_of(1_000).await;
        let claims = shop.crowd(item.id, 1_100);
        let (mut created, mut void) = (0, 0);
        for batch in claims.chunks(137) {
            let settled = shop.settle(item.id, batch).await.unwrap();
            created += settled.created.len();
            void += settled.void.len();
        }
        assert_eq!((created, void), (1_000, 100));
        let log = shop.log(item.id).await;
        assert_eq!(log.len(), 1_000);
        for (n, row) in log.iter().enumerate() {
            let left = 1_000 - n as i64;
            assert_eq!((row.before_stock, row.after_stock), (left, left - 1));
            assert_eq!((row.kind, row.quantity), (StockLogType::Deduct, 1));
        }
        let paged = shop.stock_log(item.id, log[499].id, 10).await.unwrap();
        assert_eq!(paged, log[500..510]);
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn an_order_nobody_pays_is_closed_and_its_units_return() {
    check(async |shop| {
        let activity = shop.activity_of(&[5, 5]).await;
        let (one, two) = (activity.items[0].id, activity.items[1].id);
        let ann = shop.bought(one, "ann", 2).await;
        let bob = shop.bought(two, "bob", 1).await;
        shop.clock.advance(1_000);
        let late = shop.bought(one, "cat", 1).await;
        shop.open_payment(ann.order_no, "wechat", None, shop.now()).await.unwrap();
        shop.open_payment(ann.order_no, "wechat", None, shop.now()).await.unwrap();
        shop.open_payment(ann.order_no, "alipay", None, shop.now()).await.unwrap();
        shop.deliver_all().await;

        let due = ann.pay_deadline_ms;
        assert!(shop.overdue(due - 1, 10).await.unwrap().is_empty());
        let overdue = shop.overdue(due, 10).await.unwrap();
        let numbers: Vec<_> = overdue.iter().map(|overdue| overdue.order.order_no).collect();
        assert_eq!(numbers, [ann.order_no, bob.order_no]);
        assert_eq!(overdue[0].providers, ["wechat", "alipay"]);

        // One that is not due yet stays, whoever asks.
        let mut asked: Vec<Closing> = overdue.into_iter().map(Closing::from).collect();
        asked.push(late.order_no.into());
        let close = async || Orders::close(&*shop, &asked, CloseReason::Timeout, due).await;
        assert_eq!(close().await.unwrap(), numbers);
        assert!(close().await.unwrap().is_empty());
        assert_eq!((shop.stock(one).await, shop.stock(two).await), ((4, 5), (5, 5)));
        let ann = shop.found(ann.order_no).await;
        assert_eq!((ann.status, ann.reason), (OrderStatus::Closed, Some(Reason::Timeout)));
        assert_eq!(ann.closed_ms, Some(due));
        // A row for each item, so that the units of one never wait for another.
        let released = |order| OutboxMessage::Release { releases: vec![release(order)] };
        let expected = [released(&ann), released(&bob), order_events(&[&ann, &bob])];
        assert_eq!(shop.messages().await, expected);
        shop.books_add_up(one).await;
        shop.books_add_up(two).await;
        shop.bought(one, "ann", 1).await;
    })
    .await;
}

#[tokio::test]
async fn cancelling_and_paying_at_once_has_one_winner() {
    check(async |shop| {
        let item = shop.sale_of(20).await;
        for n in 0..10 {
            let order = shop.bought(item.id, &format!("u{n}"), 1).await;
            let (notice, numbers) = (shop.money_for(&order), [order.order_no]);
            let pay = shop.credit(&notice, NOON_MS);
            let cancel = shop.close(&numbers, CloseReason::Cancelled, NOON_MS);
            let (credit, closed) = if n % 2 == 0 {
                tokio::join!(pay, cancel)
            } else {
                let (closed, credit) = tokio::join!(cancel, pay);
                (credit, closed)
            };
            let status = shop.status(order.order_no).await;
            match (credit.unwrap(), closed.unwrap().len()) {
                (Credit::Paid, 0) => assert_eq!(status, OrderStatus::Paid),
                (Credit::Refunding(OrderStatus::Closed), 1) => {
                    assert_eq!(status, OrderStatus::Refunding);
                }
                both => panic!("{both:?}"),
            }
            shop.books_add_up(item.id).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_buyer_and_an_operator_find_their_orders() {
    check(async |shop| {
        let activity = shop.activity_of(&[50, 50]).await;
        let (one, two) = (activity.items[0].id, activity.items[1].id);
        let a = shop.bought(one, "ann", 1).await;
        shop.clock.advance(1_000);
        let b = shop.bought(two, "ann", 1).await;
        let c = shop.bought(one, "bob", 1).await;
        shop.close(&[c.order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
        let c = shop.found(c.order_no).await;
        let find = async |filter: OrderFilter| {
            shop.orders(&OrderFilter { limit: 10, ..filter }).await.unwrap()
        };
        let ann = Some(a.user.clone());
        let none = OrderFilter::default;
        let newest_first = [c.clone(), b.clone(), a.clone()];
        assert_eq!(find(none()).await, newest_first);
        assert_eq!(find(OrderFilter { user: ann.clone(), ..none() }).await, newest_first[1..]);
        assert_eq!(find(OrderFilter { item: Some(two), ..none() }).await, newest_first[1..2]);
        let before = Some(b.order_no);
        assert_eq!(find(OrderFilter { user: ann, before, ..none() }).await, newest_first[2..]);
        let status = Some(OrderStatus::Closed);
        assert_eq!(find(OrderFilter { status, ..none() }).await, [c]);
        let from_ms = Some(NOON_MS + 1);
        assert_eq!(find(OrderFilter { from_ms, ..none() }).await.len(), 2);
        assert_eq!(find(OrderFilter { to_ms: from_ms, ..none() }).await, [a]);
        let activity = Some(activity.id);
        assert_eq!(find(OrderFilter { activity, ..none() }).await.len(), 3);
        let one_row = OrderFilter { limit: 1, ..none() };
        assert_eq!(shop.orders(&one_row).await.unwrap(), newest_first[..1]);
    })
    .await;
}

#[tokio::test]
async fn many_orders_are_found_by_their_numbers_at_once() {
    check(async |shop| {
        let item = shop.sale_of(1_200).await;
        let batch = shop.crowd(item.id, 1_200);
        shop.settle(item.id, &batch).await.unwrap();
        let mut asked = numbers_of(&batch);
        asked.push(shop.number());
        let mut found: Vec<OrderNo> =
            shop.orders_by_no(&asked).await.unwrap().iter().map(|order| order.order_no).collect();
        found.sort();
        assert_eq!(found, numbers_of(&batch));
        assert!(shop.orders_by_no(&[]).await.unwrap().is_empty());
    })
    .await;
}
