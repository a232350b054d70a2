//! Orders: found, listed, counted, closed, and written as void.

use async_trait::async_trait;
use sale::{
    ActivityId, Claim, CloseReason, Invalid, ItemId, Millis, Order, OrderNo, OrderStatus, UserId,
    VoidReason,
};

use crate::Result;

/// Orders as buyers, operators and the time-out see them. [`sale::OrderBook`] makes them.
#[async_trait]
pub trait Orders: Send + Sync {
    async fn order(&self, no: OrderNo) -> Result<Option<Order>>;

    /// Those of these orders that exist, in any order.
    async fn orders_by_no(&self, numbers: &[OrderNo]) -> Result<Vec<Order>>;

    /// Newest first, those before `before` if given; by payment ([`OrderFilter::by_payment`]) the
    /// latest payment first.
    async fn orders(&self, filter: &OrderFilter) -> Result<Vec<Order>>;

    /// Counts at most `limit` orders of an item, those numbered above `after`: a whole sale is counted
    /// piece by piece, so that no reader is held up by millions.
    async fn count_orders(
        &self,
        item: ItemId,
        after: Option<OrderNo>,
        limit: usize,
    ) -> Result<OrderCount>;

    /// Orders unpaid past their deadline, earliest deadline first.
    async fn overdue(&self, now_ms: Millis, limit: usize) -> Result<Vec<Overdue>> {
        self.overdue_after(now_ms, None, limit).await
    }

    /// The same, of those behind this one.
    async fn overdue_after(
        &self,
        now_ms: Millis,
        after: Option<OverdueKey>,
        limit: usize,
    ) -> Result<Vec<Overdue>>;

    /// The same among these orders.
    async fn overdue_among(&self, orders: &[OrderNo], now_ms: Millis) -> Result<Vec<Overdue>>;

    /// `Unpaid` becomes `Closed` for each of these that is still unpaid: units back to the item
    /// (stock log type 2), the user record deleted, outbox `Release` and `OrderEvents`. One transaction.
    /// With `CloseReason::Timeout` only orders whose deadline is at or before `now_ms` are closed.
    /// Answers the ones closed now. An order with a payment at a provider that its [`Closing`] does
    /// not name is left alone.
    async fn close(
        &self,
        orders: &[Closing],
        reason: CloseReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>>;

    /// Record these claims as void orders with outbox `Release` and `OrderEvents`; claims that are orders
    /// already are left alone. Also resolves their dead letters. Answers the ones voided now.
    async fn void(
        &self,
        claims: &[Claim],
        reason: VoidReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>>;

    /// The largest order number in the ledger, so that a new generator starts after it.
    async fn last_order_no(&self) -> Result<Option<OrderNo>>;
}

/// Items of one `sku` whose orders are searched together, each by its index.
pub const SKU_ITEMS_MAX: usize = 100;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderFilter {
    pub order_no: Option<OrderNo>,
    pub user: Option<UserId>,
    pub activity: Option<ActivityId>,
    pub item: Option<ItemId>,
    /// Of the items that the shop knows by this id: the newest [`SKU_ITEMS_MAX`] of them.
    pub sku: Option<String>,
    pub status: Option<OrderStatus>,
    pub from_ms: Option<Millis>,
    pub to_ms: Option<Millis>,
    /// When it was paid. With either of these the latest payment comes first.
    pub paid_from_ms: Option<Millis>,
    pub paid_to_ms: Option<Millis>,
    pub before: Option<OrderNo>,
    pub limit: usize,
}

impl OrderFilter {
    pub fn by_payment(&self) -> bool {
        self.paid_from_ms.is_some() || self.paid_to_ms.is_some()
    }

    /// A page begins after an order; if it is by payment, that is one that was paid.
    pub(crate) fn page_after_paid(paid_ms: Option<Millis>) -> Result<Millis, Invalid> {
        paid_ms.ok_or_else(|| Invalid::new("before", "must be an order that was paid"))
    }

    /// As pages are.
    pub(crate) fn sort(&self, orders: &mut [Order]) {
        let paid_ms = |order: &Order| if self.by_payment() { order.paid_ms } else { None };
        orders.sort_by_key(|order| std::cmp::Reverse((paid_ms(order), order.order_no)));
    }

    /// The one bound at which a page by payment begins in the index: of two, SQLite would take the
    /// wider one, and read all pages before this one to get here.
    pub(crate) fn paid_below_ms(&self, after_paid: Option<Millis>) -> Option<Millis> {
        let page_ms = after_paid.map(|paid_ms| paid_ms.saturating_add(1));
        match (self.paid_to_ms, page_ms) {
            (Some(to_ms), Some(page_ms)) => Some(to_ms.min(page_ms)),
            (to_ms, page_ms) => to_ms.or(page_ms),
        }
    }
}

/// Orders of one item in one status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusCount {
    pub orders: u64,
    pub units: i64,
    pub amount: i64,
}

impl std::ops::AddAssign for StatusCount {
    fn add_assign(&mut self, more: StatusCount) {
        self.orders += more.orders;
        self.units += more.units;
        self.amount += more.amount;
    }
}

/// A piece of the count of an item's orders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderCount {
    pub by_status: Vec<(OrderStatus, StatusCount)>,
    /// Where the next piece begins; `None` if this was the last.
    pub next: Option<OrderNo>,
}

impl OrderCount {
    /// From rows of a status, its count and the last number of it.
    pub(crate) fn of(rows: Vec<(OrderStatus, StatusCount, OrderNo)>, limit: usize) -> OrderCount {
        let counted: u64 = rows.iter().map(|(_, count, _)| count.orders).sum();
        let last = rows.iter().map(|(_, _, last)| *last).max();
        OrderCount {
            by_status: rows.into_iter().map(|(status, count, _)| (status, count)).collect(),
            next: last.filter(|_| counted >= limit as u64),
        }
    }

    /// What is counted elsewhere.
    pub(crate) fn add(&mut self, more: Vec<(OrderStatus, StatusCount)>) {
        for (status, count) in more {
            match self.by_status.iter_mut().find(|(known, _)| *known == status) {
                Some((_, known)) => *known += count,
                None => self.by_status.push((status, count)),
            }
        }
    }
}

/// Where an order stands among those that are overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OverdueKey {
    pub deadline_ms: Millis,
    pub order_no: OrderNo,
}

impl Overdue {
    pub fn key(&self) -> OverdueKey {
        OverdueKey { deadline_ms: self.order.pay_deadline_ms, order_no: self.order.order_no }
    }
}

/// An order past its deadline, and where a payment was opened for it.
#[derive(Clone, Debug)]
pub struct Overdue {
    pub order: Order,
    pub providers: Vec<String>,
}

/// An order to be closed, and the providers that will not take money for it any more. One with a
/// payment at a provider beyond these is not closed: that payment was opened after they were asked.
#[derive(Clone, Debug)]
pub struct Closing {
    pub order_no: OrderNo,
    pub providers: Vec<String>,
}

impl Closing {
    pub(crate) fn covers(&self, opened: &[String]) -> bool {
        opened.iter().all(|provider| self.providers.contains(provider))
    }
}

/// An order no payment was ever opened for, as far as the caller knows.
impl From<OrderNo> for Closing {
    fn from(order_no: OrderNo) -> Self {
        Closing { order_no, providers: Vec::new() }
    }
}

impl From<Overdue> for Closing {
    fn from(overdue: Overdue) -> Self {
        Closing { order_no: overdue.order.order_no, providers: overdue.providers }
    }
}
