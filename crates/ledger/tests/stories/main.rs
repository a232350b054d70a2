//! Stories of buyers and operators that every ledger must tell the same way.
//!
//! They are written against `&dyn Ledger` and run by [`check`] on each engine there is. What only
//! one engine can show (a locked file, a lost connection) is in that engine's own module.

#![allow(clippy::unwrap_used)]

mod archive;
mod archive_killed;
mod back_door;
mod books;
mod buyers;
mod changed;
mod connections;
mod console;
mod deliveries;
mod disk;
mod draws;
mod failed_claims;
mod kept;
mod leases;
mod lists;
mod money;
mod mysql;
mod nodes;
mod operators;
mod outbox;
mod pages;
mod plans;
mod sqlite;
mod tidb;
mod timeouts;
mod tls;
mod volumes;
mod webhooks;
mod words;

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ledger::{
    Adjusted, AuditEntry, Closing, Ledger, MarkPages, Moved, OUTBOX_NOBODY, OutboxKind,
    OutboxMessage, OutboxRow, PaymentNotice, RefundDone, Release, StockLogRow, WarmBasis,
};
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Claim, CloseReason, Currency, Item, ItemId,
    KeyHash, ManualClock, Millis, Money, NewActivity, NewItem, Order, OrderNo, OrderNumbers,
    OrderStatus, PAY_WITHIN_MS_DEFAULT, UserId, VoidReason,
};

use crate::back_door::BackDoor;

pub(crate) const NOON_MS: Millis = 1_800_000_000_000;
pub(crate) const PRICE: i64 = 699_900;

/// Tells a story once per engine, each time on an empty ledger.
pub(crate) async fn check(story: impl AsyncFn(Shop)) {
    story(sqlite::shop()).await;
    story(mysql::shop().await).await;
}

/// Every mark that comes.
pub(crate) async fn all(mut marks: MarkPages) -> Vec<Claim> {
    let mut all = Vec::new();
    while let Some(page) = marks.next().await.unwrap() {
        all.extend(page);
    }
    all
}

/// A shop with an empty ledger, a clock that stands still, and a gate that hands out numbers.
pub(crate) struct Shop {
    ledger: Box<dyn Ledger>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) back_door: BackDoor,
    numbers: OrderNumbers,
    /// Keeps the numbers of provider transactions apart.
    transactions: AtomicU64,
    /// What has to live as long as the ledger, such as its directory.
    _home: Box<dyn std::any::Any>,
}

impl Deref for Shop {
    type Target = dyn Ledger;
    fn deref(&self) -> &Self::Target {
        &*self.ledger
    }
}

impl Shop {
    /// A shop whose ledger goes by this clock.
    pub(crate) fn with(
        ledger: Box<dyn Ledger>,
        clock: Arc<ManualClock>,
        back_door: BackDoor,
        home: impl std::any::Any,
    ) -> Shop {
        Shop {
            ledger,
            back_door,
            numbers: OrderNumbers::new(1, clock.clone()),
            clock,
            transactions: AtomicU64::new(0),
            _home: Box::new(home),
        }
    }

    pub(crate) fn now(&self) -> Millis {
        sale::Clock::now_ms(&*self.clock)
    }

    pub(crate) fn number(&self) -> OrderNo {
        self.numbers.next()
    }

    /// An activity with one item of this much stock.
    pub(crate) async fn sale_of(&self, stock: i64) -> Item {
        self.activity_of(&[stock]).await.items.remove(0)
    }

    pub(crate) async fn activity_of(&self, stocks: &[i64]) -> Activity {
        self.create_activity(&Shop::new_activity(stocks), self.now()).await.unwrap()
    }

    /// With items of this much stock.
    pub(crate) fn new_activity(stocks: &[i64]) -> NewActivity {
        let item = |stock: &i64| NewItem {
            name: "iPhone 15 Pro".into(),
            image_url: "/img/phone.jpg".into(),
            price: PRICE,
            origin_price: Some(799_900),
            currency: Currency::CNY,
            stock: *stock,
            limit_per_user: 5,
            shards: 1,
            words: Default::default(),
        };
        NewActivity {
            external_id: None,
            name: "双十一".into(),
            opens_ms: NOON_MS,
            closes_ms: NOON_MS + 3_600_000,
            pay_within_ms: PAY_WITHIN_MS_DEFAULT,
            publish_ms: None,
            door: Default::default(),
            shuffle_ms: 0,
            items: stocks.iter().map(item).collect(),
        }
    }

    pub(crate) async fn publish(&self, id: ActivityId) {
        self.move_activity(id, ActivityMove::Publish, self.now()).await.unwrap();
    }

    pub(crate) fn claim(&self, item: ItemId, user: &str, quantity: u32) -> Claim {
        let user: UserId = user.parse().unwrap();
        Claim {
            order_no: self.number(),
            item,
            key: Some(KeyHash::of(&user, b"once")),
            user,
            quantity,
            epoch: 1,
            claimed_ms: self.now() - 5,
        }
    }

    /// Claims of one unit each by buyers `u0`, `u1`, …
    pub(crate) fn crowd(&self, item: ItemId, buyers: usize) -> Vec<Claim> {
        (0..buyers).map(|n| self.claim(item, &format!("u{n}"), 1)).collect()
    }

    /// A buyer who got through: the order of one claim.
    pub(crate) async fn bought(&self, item: ItemId, user: &str, quantity: u32) -> Order {
        let claim = self.claim(item, user, quantity);
        let settled = self.settle(item, std::slice::from_ref(&claim)).await.unwrap();
        assert_eq!(settled.created, [claim.order_no]);
        self.found(claim.order_no).await
    }

    /// A buyer who got through and paid.
    pub(crate) async fn paid(&self, item: ItemId, user: &str) -> (Order, PaymentNotice) {
        let order = self.bought(item, user, 1).await;
        let notice = self.money_for(&order);
        assert_eq!(self.credit(&notice, self.now()).await.unwrap(), ledger::Credit::Paid);
        (self.found(order.order_no).await, notice)
    }

    pub(crate) async fn found(&self, no: OrderNo) -> Order {
        self.order(no).await.unwrap().unwrap()
    }

    pub(crate) async fn status(&self, no: OrderNo) -> OrderStatus {
        self.found(no).await.status
    }

    pub(crate) async fn stock(&self, item: ItemId) -> (i64, i64) {
        let item = self.item(item).await.unwrap().unwrap();
        (item.stock, item.total)
    }

    pub(crate) async fn log(&self, item: ItemId) -> Vec<StockLogRow> {
        self.stock_log(item, 0, 10_000).await.unwrap()
    }

    pub(crate) async fn close(
        &self,
        orders: &[OrderNo],
        reason: CloseReason,
        now_ms: Millis,
    ) -> ledger::Result<Vec<OrderNo>> {
        let orders: Vec<Closing> = orders.iter().map(|no| Closing::from(*no)).collect();
        self.ledger.close(&orders, reason, now_ms).await
    }

    pub(crate) async fn start_refund(
        &self,
        no: OrderNo,
        now_ms: Millis,
    ) -> ledger::Result<Moved<OrderStatus>> {
        self.ledger.start_refund(no, None, &audit_entry("order.refund"), now_ms).await
    }

    pub(crate) async fn adjust_stock(
        &self,
        item: ItemId,
        delta: i64,
        adjust_no: OrderNo,
        now_ms: Millis,
    ) -> ledger::Result<Adjusted> {
        self.ledger.adjust_stock(item, delta, adjust_no, &audit_entry("stock.adjust"), now_ms).await
    }

    pub(crate) async fn warm_basis(
        &self,
        item: ItemId,
        in_flight: &[OrderNo],
    ) -> ledger::Result<(WarmBasis, MarkPages)> {
        self.ledger.warm_basis(self.walk_turn(item).await?, item, in_flight).await
    }

    pub(crate) async fn move_activity(
        &self,
        id: ActivityId,
        step: ActivityMove,
        now_ms: Millis,
    ) -> ledger::Result<Moved<ActivityState>> {
        let action = format!("activity.{}", step.as_str());
        let moved =
            self.ledger.move_activity(id, step, Some(&audit_entry(&action)), now_ms).await?;
        Ok(if moved.moved { Moved::Done } else { Moved::Was(moved.activity.state) })
    }

    /// A provider's word that exactly the order's amount came in, under a new transaction.
    pub(crate) fn money_for(&self, order: &Order) -> PaymentNotice {
        let transaction = self.transactions.fetch_add(1, Ordering::Relaxed);
        PaymentNotice {
            provider: "wechat".into(),
            provider_txn: format!("42000{transaction}"),
            order_no: order.order_no,
            amount: order.amount,
            paid_ms: self.now() - 100,
        }
    }

    /// What is due, of all kinds.
    pub(crate) async fn outbox(&self) -> Vec<OutboxRow> {
        let mut rows = Vec::new();
        for kind in OutboxKind::ALL {
            rows.extend(self.due_rows(kind, self.now(), 1_000).await);
        }
        rows.sort_by_key(|row| row.id);
        rows
    }

    /// What is due of a kind and waits for nobody.
    pub(crate) async fn due_rows(
        &self,
        kind: OutboxKind,
        now_ms: Millis,
        limit: usize,
    ) -> Vec<OutboxRow> {
        self.outbox_due(kind, OUTBOX_NOBODY, now_ms, limit).await.unwrap()
    }

    /// How many rows wait, due or not.
    pub(crate) async fn waiting(&self) -> u64 {
        self.outstanding().await.unwrap().outbox.iter().map(|kind| kind.rows).sum()
    }

    pub(crate) async fn messages(&self) -> Vec<OutboxMessage> {
        self.outbox().await.into_iter().map(|row| row.message.unwrap()).collect()
    }

    /// All that waits is delivered.
    pub(crate) async fn deliver_all(&self) -> Vec<OutboxMessage> {
        let rows = self.outbox().await;
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        self.outbox_done(&ids).await.unwrap();
        rows.into_iter().map(|row| row.message.unwrap()).collect()
    }

    /// The books of an item add up: conservation, an unbroken chain, one record per live order.
    pub(crate) async fn books_add_up(&self, item: ItemId) {
        let books = self.item_books(item, &[]).await.unwrap();
        assert_eq!(books.item.stock + books.live_units, books.item.total, "conservation");
        assert_eq!(books.chain_breaks, Vec::<i64>::new(), "the chain is whole");
        assert!(books.chain_end.is_none_or(|end| end == books.item.stock), "the chain ends here");
        assert_eq!(books.user_record_mismatches, 0);
        assert_eq!(books.user_records, books.live_orders);
    }
}

/// What an operator did.
pub(crate) fn audit_entry(action: &str) -> AuditEntry {
    let (who, target) = ("ann".into(), "something".into());
    let (detail, origin) = (serde_json::Value::Null, ledger::Origin::default());
    AuditEntry { who, action: action.into(), target, detail, origin }
}

pub(crate) fn release(order: &Order) -> Release {
    Release {
        item: order.item,
        user: order.user.clone(),
        order_no: order.order_no,
        quantity: order.quantity,
    }
}

pub(crate) fn order_events(orders: &[&Order]) -> OutboxMessage {
    OutboxMessage::OrderEvents {
        orders: orders.iter().map(|order| (order.order_no, order.user.clone())).collect(),
    }
}

pub(crate) fn refund(notice: &PaymentNotice) -> OutboxMessage {
    OutboxMessage::Refund {
        provider: notice.provider.clone(),
        provider_txn: notice.provider_txn.clone(),
        order_no: notice.order_no,
        amount: notice.amount,
    }
}

pub(crate) fn given_back(notice: &PaymentNotice) -> RefundDone {
    RefundDone {
        provider: notice.provider.clone(),
        provider_txn: notice.provider_txn.clone(),
        order_no: notice.order_no,
        amount: notice.amount,
    }
}

pub(crate) fn yuan(minor: i64) -> Money {
    Money::new(minor, Currency::CNY)
}

pub(crate) fn numbers_of(claims: &[Claim]) -> Vec<OrderNo> {
    claims.iter().map(|claim| claim.order_no).collect()
}

pub(crate) fn all_void(claims: &[Claim], reason: VoidReason) -> Vec<(OrderNo, VoidReason)> {
    claims.iter().map(|claim| (claim.order_no, reason)).collect()
}
