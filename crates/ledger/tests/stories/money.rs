//! Money: credited once, given back once, whatever arrives and however often.

use ledger::{
    Credit, LedgerError, Moved, OpenPayment, Orders, OutboxMessage, PaymentKind, PaymentNotice,
    PaymentProblem, RefundDone,
};
use sale::{CloseReason, OrderNo, OrderStatus, VoidReason};

use crate::{NOON_MS, PRICE, Shop, check, given_back, order_events, refund, release, yuan};

/// The refunds among what waits in the outbox.
async fn waiting_refunds(shop: &Shop) -> Vec<OutboxMessage> {
    let is_refund = |message: &OutboxMessage| matches!(message, OutboxMessage::Refund { .. });
    shop.messages().await.into_iter().filter(is_refund).collect()
}

#[tokio::test]
async fn a_payment_is_credited_once_however_often_it_is_told() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let order = shop.bought(item.id, "ann", 1).await;
        assert_eq!(
            shop.open_payment(order.order_no, "wechat", None, shop.now()).await.unwrap(),
            Moved::Done
        );
        shop.deliver_all().await;
        let notice = shop.money_for(&order);
        assert_eq!(shop.credit(&notice, shop.now()).await.unwrap(), Credit::Paid);
        let paid = shop.found(order.order_no).await;
        assert_eq!((paid.status, paid.paid_ms), (OrderStatus::Paid, Some(notice.paid_ms)));
        for _ in 0..3 {
            assert_eq!(shop.credit(&notice, shop.now()).await.unwrap(), Credit::Repeated);
        }
        let kinds: Vec<_> = shop.payments(order.order_no).await.unwrap();
        let kinds: Vec<_> = kinds.iter().map(|payment| payment.kind).collect();
        assert_eq!(kinds, [PaymentKind::Open, PaymentKind::Pay]);
        assert_eq!(shop.messages().await, [order_events(&[&paid])]);
        let opened = shop.open_payment(order.order_no, "alipay", None, shop.now()).await.unwrap();
        assert_eq!(opened, Moved::Was(OrderStatus::Paid));
        let closed = shop.close(&[order.order_no], CloseReason::Cancelled, shop.now()).await;
        assert!(closed.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn it_is_known_how_a_buyer_paid_and_why_money_goes_back() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let order = shop.bought(item.id, "ann", 1).await;
        let no = order.order_no;
        for method in [Some("page"), None, Some("qr"), None] {
            shop.open_payment(no, "wechat", method, shop.now()).await.unwrap();
        }
        let first = shop.money_for(&order);
        let second = PaymentNotice { provider_txn: "another".into(), ..first.clone() };
        for notice in [&first, &second] {
            shop.credit(notice, shop.now()).await.unwrap();
        }
        let note = Some("It broke on its way.");
        let audit = crate::audit_entry("order.refund");
        for note in [note, Some("What is said later changes nothing.")] {
            shop.ledger.start_refund(no, note, &audit, shop.now()).await.unwrap();
        }
        let rows = shop.payments_of(&[no, shop.number()]).await.unwrap();
        assert_eq!(rows, shop.payments(no).await.unwrap());
        assert_eq!(rows[0].method.as_deref(), Some("qr"), "as it was asked for last");
        let why = |n: usize| {
            let refund: &ledger::RefundAsked = rows[n].refund.as_ref().unwrap();
            (refund.reason, refund.note.as_deref())
        };
        assert_eq!(why(1), (ledger::RefundReason::Operator, note));
        assert_eq!(why(2), (ledger::RefundReason::Double, None));

        let late = shop.bought(item.id, "bob", 1).await;
        let closed = shop.close(&[late.order_no], CloseReason::Cancelled, shop.now()).await;
        assert_eq!(closed.unwrap(), [late.order_no]);
        let credit = shop.credit(&shop.money_for(&late), shop.now()).await.unwrap();
        assert_eq!(credit, Credit::Refunding(OrderStatus::Closed));
        let rows = shop.payments(late.order_no).await.unwrap();
        assert_eq!(rows[0].refund.as_ref().unwrap().reason, ledger::RefundReason::Late);
    })
    .await;
}

#[tokio::test]
async fn payments_nobody_told_us_of_are_known_until_their_providers_let_go() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let mut orders = Vec::new();
        for user in ["ann", "bob", "cat", "dan"] {
            orders.push(shop.bought(item.id, user, 1).await);
        }
        let [ann, bob, cat, dan] = &orders[..] else { panic!() };
        // Whoever bought last pays first: it is the payment that counts, not the order's number.
        for (order, provider) in
            [(cat, "wechat"), (bob, "wechat"), (ann, "alipay"), (ann, "wechat"), (dan, "alipay")]
        {
            shop.open_payment(order.order_no, provider, None, shop.now()).await.unwrap();
        }
        shop.clock.advance(5);
        let asked = ledger::Closing { order_no: cat.order_no, providers: vec!["wechat".into()] };
        let closed = Orders::close(&*shop, &[asked], CloseReason::Cancelled, shop.now()).await;
        assert_eq!(closed.unwrap(), [cat.order_no]);
        let waiting = async |after, limit| -> Vec<OpenPayment> {
            shop.open_payments(after, limit).await.unwrap()
        };
        let named = |payments: &[OpenPayment]| -> Vec<(OrderNo, String)> {
            payments.iter().map(|open| (open.order_no, open.provider.clone())).collect()
        };
        let of = |order: &sale::Order, provider: &str| (order.order_no, provider.to_owned());
        let all = waiting(0, 10).await;
        let expected = [of(cat, "wechat"), of(bob, "wechat"), of(ann, "alipay"), of(ann, "wechat")];
        assert_eq!(named(&all)[..4], expected, "a closed order may have been paid all the same");
        assert_eq!(all[0].order_over_ms, Some(NOON_MS + 5));
        assert_eq!((all[1].order_over_ms, all[1].opened_ms), (None, NOON_MS));
        // To the end, page by page.
        let (first, rest) = (waiting(0, 2).await, waiting(all[1].id, 10).await);
        assert_eq!([first, rest].concat(), all);
        // The providers tell: one of ann's two, and bob's only one.
        for order in [ann, bob] {
            shop.credit(&shop.money_for(order), shop.now()).await.unwrap();
        }
        let left = waiting(0, 10).await;
        assert_eq!(named(&left), [of(cat, "wechat"), of(ann, "alipay"), of(dan, "alipay")]);
        assert_eq!(left[1].order_over_ms, Some(NOON_MS - 100 + 5), "since it was paid elsewhere");
        shop.payments_over(&[left[0].id, left[1].id], shop.now()).await.unwrap();
        shop.payments_over(&[], shop.now()).await.unwrap();
        assert_eq!(named(&waiting(0, 10).await), [of(dan, "alipay")]);
        assert_eq!(shop.payments(cat.order_no).await.unwrap().len(), 1, "it is still on record");
    })
    .await;
}

#[tokio::test]
async fn an_order_is_not_closed_past_a_payment_whose_provider_was_not_asked() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let order = shop.bought(item.id, "ann", 1).await;
        let due_ms = order.pay_deadline_ms;
        let overdue = shop.overdue(due_ms, 10).await.unwrap();
        // While the providers of what is overdue are asked, the buyer opens a payment.
        shop.open_payment(order.order_no, "wechat", None, shop.now()).await.unwrap();
        let closing: Vec<ledger::Closing> = overdue.into_iter().map(Into::into).collect();
        let closed = Orders::close(&*shop, &closing, CloseReason::Timeout, due_ms).await.unwrap();
        assert_eq!(closed, []);
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Unpaid);
        let overdue = shop.overdue(due_ms, 10).await.unwrap();
        let closing: Vec<ledger::Closing> = overdue.into_iter().map(Into::into).collect();
        let closed = Orders::close(&*shop, &closing, CloseReason::Timeout, due_ms).await.unwrap();
        assert_eq!(closed, [order.order_no]);
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn what_operators_do_to_money_and_units_is_audited_or_not_done() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let (order, _) = shop.paid(item.id, "ann").await;
        shop.start_refund(order.order_no, shop.now()).await.unwrap();
        shop.start_refund(order.order_no, shop.now()).await.unwrap();
        let number = shop.number();
        shop.adjust_stock(item.id, 3, number, shop.now()).await.unwrap();
        shop.adjust_stock(item.id, 3, number, shop.now()).await.unwrap();
        shop.adjust_stock(item.id, -90, shop.number(), shop.now()).await.unwrap_err();
        let log = shop.audit_log(None, 10).await.unwrap();
        let said: Vec<_> =
            log.iter().map(|row| (row.action.as_str(), row.detail.clone())).collect();
        let expected = [
            ("stock.adjust", serde_json::json!({"before": 5, "after": 8})),
            ("order.refund", serde_json::json!({"repeated": true})),
            ("order.refund", serde_json::Value::Null),
        ];
        assert_eq!(said, expected);
    })
    .await;
}

#[tokio::test]
async fn money_that_does_not_fit_is_not_recorded() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let (ann, bob) =
            (shop.bought(item.id, "ann", 1).await, shop.bought(item.id, "bob", 1).await);
        let good = shop.money_for(&ann);
        let credit = async |notice: PaymentNotice| shop.credit(&notice, shop.now()).await.unwrap();
        let short = PaymentNotice { amount: yuan(PRICE - 1), ..good.clone() };
        assert_eq!(credit(short).await, Credit::Mismatch);
        let dollars = sale::Money::new(PRICE, "USD".parse().unwrap());
        assert_eq!(
            credit(PaymentNotice { amount: dollars, ..good.clone() }).await,
            Credit::Mismatch
        );
        let unknown = PaymentNotice { order_no: shop.number(), ..good.clone() };
        assert_eq!(credit(unknown).await, Credit::UnknownOrder);
        assert!(shop.payments(ann.order_no).await.unwrap().is_empty());
        assert_eq!(credit(good.clone()).await, Credit::Paid);
        // One transaction cannot pay two orders.
        let stolen = PaymentNotice { order_no: bob.order_no, ..good };
        assert_eq!(credit(stolen).await, Credit::Mismatch);
        assert_eq!(shop.status(bob.order_no).await, OrderStatus::Unpaid);
    })
    .await;
}

#[tokio::test]
async fn money_that_comes_too_late_goes_back_once() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let order = shop.bought(item.id, "ann", 1).await;
        shop.close(&[order.order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
        shop.deliver_all().await;
        let notice = shop.money_for(&order);
        let late = Credit::Refunding(OrderStatus::Closed);
        assert_eq!(shop.credit(&notice, shop.now()).await.unwrap(), late);
        assert_eq!(shop.credit(&notice, shop.now()).await.unwrap(), Credit::Repeated);
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Refunding);
        assert_eq!(shop.deliver_all().await, [order_events(&[&order]), refund(&notice)]);
        // Its units went back when it was closed; they do not go back again.
        assert_eq!(shop.stock(item.id).await, (5, 5));

        for _ in 0..2 {
            shop.refunded(&given_back(&notice), shop.now()).await.unwrap();
            assert_eq!(shop.status(order.order_no).await, OrderStatus::Refunded);
        }
        assert_eq!(shop.deliver_all().await, [order_events(&[&order])]);
        let payments = shop.payments(order.order_no).await.unwrap();
        let refunds = payments.iter().filter(|payment| payment.kind == PaymentKind::Refund);
        assert_eq!(refunds.count(), 1);
        assert_eq!(shop.payment_problems(10).await.unwrap(), []);
        shop.books_add_up(item.id).await;
    })
    .await;
}

#[tokio::test]
async fn a_buyer_who_pays_twice_gets_the_second_back_and_keeps_the_order() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let (order, _first) = shop.paid(item.id, "ann").await;
        let second = shop.money_for(&order);
        let extra = Credit::Refunding(OrderStatus::Paid);
        assert_eq!(shop.credit(&second, shop.now()).await.unwrap(), extra);
        assert_eq!(shop.credit(&second, shop.now()).await.unwrap(), Credit::Repeated);
        assert_eq!(waiting_refunds(&shop).await, [refund(&second)]);
        shop.refunded(&given_back(&second), shop.now()).await.unwrap();
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Paid);
        assert_eq!(shop.payment_problems(10).await.unwrap(), []);
        assert_eq!(shop.stock(item.id).await, (4, 5));
    })
    .await;
}

#[tokio::test]
async fn an_operators_refund_returns_units_and_all_money_once() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let (order, first) = shop.paid(item.id, "ann").await;
        let second = shop.money_for(&order);
        shop.credit(&second, shop.now()).await.unwrap();
        assert_eq!(shop.start_refund(order.order_no, shop.now()).await.unwrap(), Moved::Done);
        let again = shop.start_refund(order.order_no, shop.now()).await.unwrap();
        assert_eq!(again, Moved::Was(OrderStatus::Refunding));
        // The refund of the second payment waited already and is not asked for twice.
        assert_eq!(waiting_refunds(&shop).await, [refund(&second), refund(&first)]);
        assert_eq!(shop.stock(item.id).await, (5, 5));
        let released = OutboxMessage::Release { releases: vec![release(&order)] };
        assert_eq!(shop.messages().await.iter().filter(|sent| **sent == released).count(), 1);
        shop.books_add_up(item.id).await;

        shop.refunded(&given_back(&second), shop.now()).await.unwrap();
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Refunding);
        let third = shop.money_for(&order);
        let more = Credit::Refunding(OrderStatus::Refunding);
        assert_eq!(shop.credit(&third, shop.now()).await.unwrap(), more);
        shop.refunded(&given_back(&first), shop.now()).await.unwrap();
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Refunding);
        shop.refunded(&given_back(&third), shop.now()).await.unwrap();
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Refunded);
        assert_eq!(shop.payment_problems(10).await.unwrap(), []);
        shop.bought(item.id, "ann", 1).await;
    })
    .await;
}

#[tokio::test]
async fn money_for_a_void_claim_goes_back_and_it_stays_void() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let claim = shop.claim(item.id, "ann", 1);
        shop.void(std::slice::from_ref(&claim), VoidReason::Lost, shop.now()).await.unwrap();
        let order = shop.found(claim.order_no).await;
        let notice = shop.money_for(&order);
        let back = Credit::Refunding(OrderStatus::Void);
        assert_eq!(shop.credit(&notice, shop.now()).await.unwrap(), back);
        assert_eq!(waiting_refunds(&shop).await, [refund(&notice)]);
        shop.refunded(&given_back(&notice), shop.now()).await.unwrap();
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Void);
        assert_eq!(shop.payment_problems(10).await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn a_refund_nobody_asked_for_is_refused() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let (order, notice) = shop.paid(item.id, "ann").await;
        let (other, _) = shop.paid(item.id, "bob").await;
        let good = given_back(&notice);
        let refused = async |done: RefundDone| shop.refunded(&done, shop.now()).await.unwrap_err();
        let part = refused(RefundDone { amount: yuan(1), ..good.clone() }).await;
        assert!(matches!(part, LedgerError::Refused(ref why) if why.field == "amount"));
        let foreign = refused(RefundDone { order_no: other.order_no, ..good.clone() }).await;
        assert!(matches!(foreign, LedgerError::Refused(ref why) if why.field == "order_no"));
        let unknown = refused(RefundDone { provider_txn: "never".into(), ..good }).await;
        assert!(matches!(unknown, LedgerError::NotFound));
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Paid);
        let missing = shop.start_refund(shop.number(), shop.now()).await.unwrap_err();
        assert!(matches!(missing, LedgerError::NotFound));
    })
    .await;
}

#[tokio::test]
async fn a_refund_that_fell_out_of_the_outbox_is_noticed_and_put_back() {
    check(async |shop| {
        let item = shop.sale_of(5).await;
        let (order, first) = shop.paid(item.id, "ann").await;
        let second = shop.money_for(&order);
        shop.credit(&second, shop.now()).await.unwrap();
        let requeue = async |notice: &PaymentNotice| {
            let (provider, txn) = (&notice.provider, &notice.provider_txn);
            shop.requeue_refund(provider, txn, shop.now()).await.unwrap()
        };
        assert!(!requeue(&second).await, "it waits already");
        shop.deliver_all().await;
        let missing = PaymentProblem::RefundNotQueued {
            order_no: order.order_no,
            provider: second.provider.clone(),
            provider_txn: second.provider_txn.clone(),
        };
        assert_eq!(shop.payment_problems(10).await.unwrap(), [missing]);
        assert_eq!(shop.payment_problems(0).await.unwrap(), []);
        assert!(requeue(&second).await);
        assert_eq!(shop.messages().await, [refund(&second)]);
        assert_eq!(shop.payment_problems(10).await.unwrap(), []);
        assert!(!requeue(&first).await, "that money is ours");
        shop.deliver_all().await;
        shop.refunded(&given_back(&second), shop.now()).await.unwrap();
        assert!(!requeue(&second).await, "it was given back");
    })
    .await;
}
