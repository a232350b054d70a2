//! The books: what a reconcile run sees, and that nothing anyone does ever unbalances them.

use std::collections::HashMap;

use ledger::{BooksPoint, Credit, LedgerError, OrderFilter, PaymentKind, PaymentRow};
use proptest::prelude::*;
use sale::{Claim, CloseReason, ItemId, Order, OrderNo, OrderStatus, UserId};

use crate::{PaymentNotice, Shop, check, mysql, numbers_of, release, sqlite};

#[tokio::test]
async fn the_books_of_an_item_show_everything_that_holds_units() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let order = shop.bought(item.id, "ann", 2).await;
        let gone = shop.bought(item.id, "bob", 1).await;
        shop.close(&[gone.order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
        let stuck = shop.claim(item.id, "stuck", 1);
        let failed = sale::FailedClaim {
            claim: stuck.clone(),
            tries: 1,
            next_try_ms: None,
            cause: "why".into(),
        };
        shop.defer(&[failed]).await.unwrap();
        shop.begin_warm(item.id, 0).await.unwrap();
        let in_flight = shop.claim(item.id, "queued", 1).order_no;
        let asked = [order.order_no, gone.order_no, in_flight];
        let books = shop.item_books(item.id, &asked).await.unwrap();
        assert_eq!((books.item.stock, books.item.total, books.epoch), (8, 10, 1));
        assert_eq!((books.live_units, books.live_orders, books.user_records), (2, 1, 1));
        assert_eq!(books.settled, asked[..2].iter().copied().collect());
        assert_eq!(books.failed, [stuck]);
        assert_eq!(books.pending_releases, [release(&gone)]);
        assert_eq!((books.chain_end, books.chain_breaks), (Some(8), vec![]));
        shop.deliver_all().await;
        let books = shop.item_books(item.id, &[]).await.unwrap();
        assert_eq!(books.pending_releases, []);
        assert!(matches!(shop.item_books(ItemId(99), &[]).await, Err(LedgerError::NotFound)));
    })
    .await;
}

#[tokio::test]
async fn a_hundred_thousand_claims_in_flight_can_be_asked_about() {
    check(async |shop| {
        let item = shop.sale_of(10).await;
        let mut asked: Vec<OrderNo> = (0..100_000).map(|_| shop.number()).collect();
        let batch = shop.crowd(item.id, 3);
        shop.settle(item.id, &batch).await.unwrap();
        asked.extend(numbers_of(&batch));
        let settled = numbers_of(&batch).into_iter().collect();
        assert_eq!(shop.item_books(item.id, &asked).await.unwrap().settled, settled);
        assert_eq!(shop.warm_basis(item.id, &asked).await.unwrap().0.settled, settled);
    })
    .await;
}

/// Something that happens to a sale. Numbers choose among what exists, modulo how much there is.
#[derive(Clone, Debug)]
enum Step {
    Settle(Vec<(u8, u32)>),
    Redeliver(usize),
    Cancel(usize),
    TimeOut,
    Credit(usize),
    CreditAgain(usize),
    Refund(usize),
    GivenBack(usize),
    Adjust(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec((0u8..8, 1u32..4), 1..6).prop_map(Step::Settle),
        1 => any::<usize>().prop_map(Step::Redeliver),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => Just(Step::TimeOut),
        3 => any::<usize>().prop_map(Step::Credit),
        1 => any::<usize>().prop_map(Step::CreditAgain),
        2 => any::<usize>().prop_map(Step::Refund),
        2 => any::<usize>().prop_map(Step::GivenBack),
        2 => (-6i64..7).prop_map(Step::Adjust),
    ];
    prop::collection::vec(step, 1..25)
}

/// A sale and all that was ever sent to it.
struct History {
    shop: Shop,
    item: ItemId,
    claims: Vec<Claim>,
    notices: Vec<PaymentNotice>,
    /// What the books came to after each step.
    points: Vec<BooksPoint>,
}

fn pick<T: Clone>(all: &[T], n: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[n % all.len()].clone())
}

impl History {
    async fn live_through(&mut self, step: Step) {
        let (shop, now) = (&self.shop, self.shop.now());
        match step {
            Step::Settle(wants) => {
                let claim = |(user, quantity): (u8, u32)| {
                    shop.claim(self.item, &format!("u{user}"), quantity)
                };
                let batch: Vec<Claim> = wants.into_iter().map(claim).collect();
                shop.settle(self.item, &batch).await.unwrap();
                self.claims.extend(batch);
            }
            Step::Redeliver(n) => {
                if let Some(claim) = pick(&self.claims, n) {
                    let again = shop.settle(self.item, std::slice::from_ref(&claim)).await.unwrap();
                    assert_eq!(again.repeated, [claim.order_no]);
                }
            }
            Step::Cancel(n) => {
                if let Some(claim) = pick(&self.claims, n) {
                    let cancelled = CloseReason::Cancelled;
                    shop.close(&[claim.order_no], cancelled, now).await.unwrap();
                }
            }
            Step::TimeOut => {
                shop.clock.advance(sale::PAY_WITHIN_MS_DEFAULT / 2);
                let overdue = shop.overdue(shop.now(), 100).await.unwrap();
                let numbers: Vec<_> = overdue.iter().map(|late| late.order.order_no).collect();
                let closed = shop.close(&numbers, CloseReason::Timeout, shop.now()).await.unwrap();
                assert_eq!(closed, numbers);
            }
            Step::Adjust(delta) => {
                let done = shop.adjust_stock(self.item, delta, shop.number(), now).await;
                assert!(matches!(done, Ok(_) | Err(LedgerError::Refused(_))), "{done:?}");
            }
            money => self.live_through_money(money).await,
        }
    }

    async fn live_through_money(&mut self, step: Step) {
        let (shop, now) = (&self.shop, self.shop.now());
        match step {
            Step::Credit(n) => {
                if let Some(claim) = pick(&self.claims, n) {
                    let notice = shop.money_for(&shop.found(claim.order_no).await);
                    let credit = shop.credit(&notice, now).await.unwrap();
                    assert!(matches!(credit, Credit::Paid | Credit::Refunding(_)), "{credit:?}");
                    self.notices.push(notice);
                }
            }
            Step::CreditAgain(n) => {
                if let Some(notice) = pick(&self.notices, n) {
                    assert_eq!(shop.credit(&notice, now).await.unwrap(), Credit::Repeated);
                }
            }
            Step::Refund(n) => {
                if let Some(claim) = pick(&self.claims, n) {
                    shop.start_refund(claim.order_no, now).await.unwrap();
                }
            }
            Step::GivenBack(n) => {
                // The provider only gives back what the outbox asked it to.
                let refunds: Vec<_> = shop.messages().await.into_iter().filter_map(asked).collect();
                if let Some(done) = pick(&refunds, n) {
                    shop.refunded(&done, now).await.unwrap();
                }
            }
            _ => unreachable!("the other steps were taken"),
        }
    }

    async fn holds(&mut self) {
        self.shop.books_add_up(self.item).await;
        self.counted_on_from_any_point_they_are_the_same().await;
        assert_eq!(self.shop.payment_problems(10).await.unwrap(), []);
        let all = OrderFilter { limit: 10_000, ..OrderFilter::default() };
        let orders = self.shop.orders(&all).await.unwrap();
        assert_eq!(orders.len(), self.claims.len(), "one claim, one order");
        let mut live: HashMap<&UserId, u32> = HashMap::new();
        for order in orders.iter().filter(|order| order.status.is_live()) {
            *live.entry(&order.user).or_default() += 1;
        }
        assert!(live.values().all(|orders| *orders == 1), "{live:?}");
        for order in &orders {
            self.money_holds(order).await;
        }
    }
}

impl History {
    async fn counted_on_from_any_point_they_are_the_same(&mut self) {
        let books = self.shop.item_books(self.item, &[]).await.unwrap();
        let last = self.points.len().saturating_sub(1);
        for n in [0, last / 2, last] {
            let Some(point) = self.points.get(n) else { continue };
            let since = self.shop.item_books_since(self.item, &[], point).await.unwrap().unwrap();
            assert_eq!(since.point(), books.point(), "counted on from step {n}");
            assert_eq!((since.user_record_mismatches, since.chain_breaks), (0, vec![]));
        }
        self.points.push(books.point());
    }

    /// What is kept of the money is one payment if the order is paid; all else went back or is on
    /// its way.
    async fn money_holds(&self, order: &Order) {
        let payments = self.shop.payments(order.order_no).await.unwrap();
        let of = |kind| payments.iter().filter(|payment| payment.kind == kind).count();
        let (pays, refunds) = (of(PaymentKind::Pay), of(PaymentKind::Refund));
        let waiting = self.shop.messages().await.into_iter().filter_map(asked);
        let waiting = waiting.filter(|refund| refund.order_no == order.order_no);
        let waiting = waiting.filter(|refund| {
            let given = |payment: &PaymentRow| {
                payment.kind == PaymentKind::Refund && payment.provider_txn == refund.provider_txn
            };
            !payments.iter().any(given)
        });
        let kept = usize::from(order.status == OrderStatus::Paid);
        assert_eq!(pays, refunds + waiting.count() + kept, "{order:?}");
    }
}

fn asked(message: ledger::OutboxMessage) -> Option<ledger::RefundDone> {
    match message {
        ledger::OutboxMessage::Refund { provider, provider_txn, order_no, amount } => {
            Some(ledger::RefundDone { provider, provider_txn, order_no, amount })
        }
        _ => None,
    }
}

/// Lives through the steps in a shop of this stock and looks at the books after each.
fn live_through_all(shop: impl AsyncFnOnce() -> Shop, stock: i64, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let shop = shop().await;
        let item = shop.sale_of(stock).await.id;
        let mut history = History { shop, item, claims: vec![], notices: vec![], points: vec![] };
        for step in steps {
            history.live_through(step).await;
            history.holds().await;
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_books_add_up(stock in 1i64..15, steps in steps()) {
        live_through_all(async || sqlite::shop(), stock, steps);
    }
}

proptest! {
    // A database of its own for each, which takes a while to make.
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_books_add_up_on_a_server(stock in 1i64..15, steps in steps()) {
        live_through_all(async || mysql::shop().await, stock, steps);
    }
}
