//! Webhooks: whom the shop wants told of what happens here, and what they were told.
//!
//! An event is written by the transaction that causes it, as one outbox row for all that the transaction
//! did, and only while somebody wants its kind. From there it is spread into a row for each endpoint, a
//! *delivery*, which lives until it is old: so that it can be looked at, and sent again.
//!
//! **Order.** Deliveries about the same subject (an order, an item, an activity) reach an endpoint one after
//! the other: the later ones are *behind* until the earlier one was taken. One that is given up takes those
//! behind it along, so that they are never sent before it, and sent again together.

use std::str::FromStr;

use async_trait::async_trait;
use sale::{ActivityId, ItemId, Millis, Money, OrderNo, Secret};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AuditEntry, Result};

/// What operators do with endpoints, and what the job that delivers needs.
#[async_trait]
pub trait Webhooks: Send + Sync {
    /// All that were not removed, in the order they were made.
    async fn webhook_endpoints(&self) -> Result<Vec<WebhookEndpoint>>;

    /// One that was not removed.
    async fn webhook_endpoint(&self, id: i64) -> Result<Option<WebhookEndpoint>>;

    /// `None` if there are `endpoints_max` already.
    async fn add_webhook(
        &self,
        new: &NewWebhook,
        endpoints_max: usize,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Option<WebhookEndpoint>>;

    /// Answers what it is now. Switching it on forgets since when it failed, and lets all that waits be
    /// tried.
    async fn change_webhook(
        &self,
        id: i64,
        change: &WebhookChange,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<WebhookEndpoint>;

    /// False if there was none. Its deliveries are deleted by and by.
    async fn remove_webhook(&self, id: i64, audit: &AuditEntry, now_ms: Millis) -> Result<bool>;

    /// From now on it signs with this secret, and until then with the one before as well.
    async fn rotate_webhook(
        &self,
        id: i64,
        secret: &Secret,
        previous_until_ms: Millis,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<WebhookEndpoint>;

    /// Makes those from the settings the ones that are there: new ones are added, the secrets and kinds of
    /// known addresses taken over, and those that are no longer there removed.
    async fn put_settings_webhooks(
        &self,
        wanted: &[NewWebhook],
        previous_until_ms: Millis,
        now_ms: Millis,
    ) -> Result<()>;

    /// Notes since when an endpoint takes nothing, or that it takes again: then all that waits for its next
    /// try is due.
    async fn webhook_failing(&self, id: i64, since_ms: Option<Millis>) -> Result<()>;

    /// Switches an endpoint off that was on. False if it was not.
    async fn switch_webhook_off(&self, id: i64, reason: &str, now_ms: Millis) -> Result<bool>;

    /// Tells of activities that are open and were not told of, if anybody wants to know. Answers how many.
    async fn tell_opened(&self, now_ms: Millis) -> Result<usize>;

    /// Tells of an event that no transaction of ours causes and that happened then, if anybody wants to know.
    async fn tell_webhooks(&self, event: &WebhookEvent, at_ms: Millis) -> Result<()>;

    /// Puts deliveries in the place of outbox rows. Refused as *unavailable* if somebody else did.
    async fn spread_webhooks(&self, outbox: &[i64], deliveries: &[NewDelivery]) -> Result<()>;

    /// What may be sent to an endpoint now: first what was never tried, in the order it was written, then the
    /// others by their time. What seems to wait longer than `pause_ms_max` was written by another clock.
    async fn webhooks_due(
        &self,
        endpoint: i64,
        now_ms: Millis,
        pause_ms_max: Millis,
        limit: usize,
    ) -> Result<Vec<WebhookDelivery>>;

    /// Writes down how deliveries of one endpoint went, and lets those behind them go.
    async fn webhooks_tried(&self, endpoint: i64, tried: &[Tried], now_ms: Millis) -> Result<()>;

    /// Newest first.
    async fn webhook_deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<WebhookDelivery>>;

    /// Sends one again: a failed one with those that failed behind it. False if there is none, or it is
    /// on its way.
    async fn replay_webhook(
        &self,
        endpoint: i64,
        delivery: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Replayed>;

    /// Sends a page of the failed ones again that happened since then. Answers how many it found.
    async fn replay_failed_webhooks(
        &self,
        endpoint: i64,
        since_ms: Millis,
        limit: usize,
    ) -> Result<usize>;

    /// What waits for an endpoint, up to a bound.
    async fn webhook_lag(&self, endpoint: i64) -> Result<WebhookLag>;

    /// Since when the oldest event waits for each endpoint.
    async fn webhook_ages(&self) -> Result<Vec<WebhookAge>>;

    /// Deletes what is of no more use, up to `limit` rows of each endpoint. Answers whether there is more.
    async fn forget_webhooks(&self, before: &ForgetBefore, limit: usize) -> Result<bool>;
}

/// What can be told. The bit of each is stored with every endpoint: new ones come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WebhookKind {
    #[serde(rename = "order.created")]
    OrderCreated,
    #[serde(rename = "order.paid")]
    OrderPaid,
    #[serde(rename = "order.closed")]
    OrderClosed,
    #[serde(rename = "order.refunded")]
    OrderRefunded,
    #[serde(rename = "order.void")]
    OrderVoid,
    #[serde(rename = "item.sold_out")]
    ItemSoldOut,
    #[serde(rename = "item.back_in_stock")]
    ItemBackInStock,
    #[serde(rename = "activity.opened")]
    ActivityOpened,
    #[serde(rename = "activity.ended")]
    ActivityEnded,
    #[serde(rename = "alert.raised")]
    AlertRaised,
    #[serde(rename = "alert.resolved")]
    AlertResolved,
    #[serde(rename = "payment.close_requested")]
    PaymentCloseRequested,
    #[serde(rename = "payment.refund_requested")]
    PaymentRefundRequested,
}

impl WebhookKind {
    pub const ALL: [WebhookKind; 13] = [
        WebhookKind::OrderCreated,
        WebhookKind::OrderPaid,
        WebhookKind::OrderClosed,
        WebhookKind::OrderRefunded,
        WebhookKind::OrderVoid,
        WebhookKind::ItemSoldOut,
        WebhookKind::ItemBackInStock,
        WebhookKind::ActivityOpened,
        WebhookKind::ActivityEnded,
        WebhookKind::AlertRaised,
        WebhookKind::AlertResolved,
        WebhookKind::PaymentCloseRequested,
        WebhookKind::PaymentRefundRequested,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            WebhookKind::OrderCreated => "order.created",
            WebhookKind::OrderPaid => "order.paid",
            WebhookKind::OrderClosed => "order.closed",
            WebhookKind::OrderRefunded => "order.refunded",
            WebhookKind::OrderVoid => "order.void",
            WebhookKind::ItemSoldOut => "item.sold_out",
            WebhookKind::ItemBackInStock => "item.back_in_stock",
            WebhookKind::ActivityOpened => "activity.opened",
            WebhookKind::ActivityEnded => "activity.ended",
            WebhookKind::AlertRaised => "alert.raised",
            WebhookKind::AlertResolved => "alert.resolved",
            WebhookKind::PaymentCloseRequested => "payment.close_requested",
            WebhookKind::PaymentRefundRequested => "payment.refund_requested",
        }
    }

    fn bit(self) -> i64 {
        1 << (self as u8)
    }

    /// It calls somebody, and is about us rather than about a sale.
    pub fn is_alert(self) -> bool {
        matches!(self, WebhookKind::AlertRaised | WebhookKind::AlertResolved)
    }

    /// Nothing about the same subject can have happened before it.
    pub(crate) fn comes_first(self) -> bool {
        matches!(self, WebhookKind::OrderCreated | WebhookKind::OrderVoid)
    }
}

impl FromStr for WebhookKind {
    type Err = ();
    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        WebhookKind::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(())
    }
}

/// Which kinds an endpoint wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookKinds(i64);

impl WebhookKinds {
    /// All there are, and those that later builds add.
    pub const ALL: WebhookKinds = WebhookKinds(i64::MAX);

    /// None named: all of them.
    pub fn of(kinds: &[WebhookKind]) -> WebhookKinds {
        let bits = kinds.iter().fold(0, |bits, kind| bits | kind.bit());
        if bits == 0 { WebhookKinds::ALL } else { WebhookKinds(bits) }
    }

    pub(crate) fn from_bits(bits: i64) -> WebhookKinds {
        WebhookKinds(bits)
    }

    pub(crate) fn bits(self) -> i64 {
        self.0
    }

    pub fn has(self, kind: WebhookKind) -> bool {
        self.0 & kind.bit() != 0
    }

    pub fn list(self) -> Vec<WebhookKind> {
        WebhookKind::ALL.into_iter().filter(|kind| self.has(*kind)).collect()
    }
}

/// Something that happened. What else there is to say of it never changes afterwards, and is read when it
/// is spread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "snake_case")]
pub enum WebhookEvent {
    Orders {
        kind: WebhookKind,
        orders: Vec<OrderNo>,
    },
    /// `version` is that of the item after the change, which tells one time from the next.
    Item {
        kind: WebhookKind,
        item: ItemId,
        version: i64,
        stock: i64,
    },
    Activity {
        kind: WebhookKind,
        activity: ActivityId,
    },
    /// Nothing else is known of it anywhere, so it brings all that is to be said along.
    Alert {
        kind: WebhookKind,
        event_id: String,
        subject: String,
        data: Value,
    },
    /// The shop is asked to take no money for this order any more, and to say so by then.
    Close {
        order_no: OrderNo,
        asked_ms: Millis,
        answer_by_ms: Millis,
    },
    /// The shop is asked, for the n-th time, to give this money back.
    Refund {
        order_no: OrderNo,
        provider_txn: String,
        amount: Money,
        ask: u32,
        reason: Option<String>,
        note: Option<String>,
    },
}

impl WebhookEvent {
    pub fn kind(&self) -> WebhookKind {
        match self {
            WebhookEvent::Orders { kind, .. }
            | WebhookEvent::Item { kind, .. }
            | WebhookEvent::Activity { kind, .. }
            | WebhookEvent::Alert { kind, .. } => *kind,
            WebhookEvent::Close { .. } => WebhookKind::PaymentCloseRequested,
            WebhookEvent::Refund { .. } => WebhookKind::PaymentRefundRequested,
        }
    }

    /// Nothing, if no order did this.
    pub(crate) fn orders(
        kind: WebhookKind,
        orders: impl Iterator<Item = OrderNo>,
    ) -> Option<WebhookEvent> {
        let orders: Vec<OrderNo> = orders.collect();
        (!orders.is_empty()).then_some(WebhookEvent::Orders { kind, orders })
    }

    /// What a change of an item's stock means to somebody who shows it; mostly nothing.
    pub(crate) fn stock_changed(
        item: ItemId,
        (before, after): (i64, i64),
        version: i64,
    ) -> Option<WebhookEvent> {
        let kind = match (before > 0, after > 0) {
            (true, false) => WebhookKind::ItemSoldOut,
            (false, true) => WebhookKind::ItemBackInStock,
            _ => return None,
        };
        Some(WebhookEvent::Item { kind, item, version, stock: after })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookSource {
    /// The settings file, whose author may reach any address.
    Settings,
    /// The admin API, whose callers may not.
    Api,
}

impl WebhookSource {
    pub fn as_str(self) -> &'static str {
        match self {
            WebhookSource::Settings => "settings",
            WebhookSource::Api => "api",
        }
    }
}

impl FromStr for WebhookSource {
    type Err = ();
    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        [WebhookSource::Settings, WebhookSource::Api]
            .into_iter()
            .find(|source| source.as_str() == text)
            .ok_or(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookEndpoint {
    pub id: i64,
    pub url: String,
    pub description: String,
    pub kinds: WebhookKinds,
    pub enabled: bool,
    /// Why it was switched off.
    pub reason: Option<String>,
    pub secret: Secret,
    /// The secret before it, and until when it signs as well.
    pub previous: Option<(Secret, Millis)>,
    pub source: WebhookSource,
    /// Since when it has taken nothing; `None` while it takes.
    pub failing_since_ms: Option<Millis>,
    pub created_ms: Millis,
    pub updated_ms: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWebhook {
    pub url: String,
    pub description: String,
    pub kinds: WebhookKinds,
    pub secret: Secret,
    pub source: WebhookSource,
}

/// What is not named stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookChange {
    pub url: Option<String>,
    pub description: Option<String>,
    pub kinds: Option<WebhookKinds>,
    pub enabled: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    Pending,
    Delivered,
    Failed,
    /// Pending, behind an earlier one about the same subject.
    Behind,
}

impl DeliveryState {
    pub(crate) fn code(self) -> i64 {
        self as i64
    }

    pub(crate) fn from_code(code: i64) -> Option<DeliveryState> {
        [
            DeliveryState::Pending,
            DeliveryState::Delivered,
            DeliveryState::Failed,
            DeliveryState::Behind,
        ]
        .into_iter()
        .find(|state| state.code() == code)
    }
}

/// An event on its way to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDelivery {
    pub endpoint: i64,
    /// The same for an event however often it is sent, and of no other event.
    pub event_id: String,
    pub kind: WebhookKind,
    /// What it is about: those of one subject are sent one after the other.
    pub subject: String,
    pub body: String,
    pub created_ms: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookDelivery {
    pub id: i64,
    pub event_id: String,
    /// As it was written; a newer build may know more kinds than this one.
    pub kind: String,
    pub subject: String,
    pub body: String,
    pub state: DeliveryState,
    pub tries: u32,
    pub first_try_ms: Option<Millis>,
    pub next_try_ms: Millis,
    /// What the endpoint answered last, if it did.
    pub status: Option<u32>,
    pub cause: Option<String>,
    pub created_ms: Millis,
    pub done_ms: Option<Millis>,
}

/// How a delivery went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub id: i64,
    pub subject: String,
    pub status: Option<u32>,
    pub outcome: TriedOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriedOutcome {
    Taken,
    Again { next_try_ms: Millis, cause: String },
    GivenUp { cause: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryFilter {
    pub endpoint: i64,
    /// Pending ones are those behind others, too.
    pub state: Option<DeliveryState>,
    pub subject: Option<String>,
    pub before: Option<i64>,
    pub limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// So many are on their way again.
    Again(usize),
    /// It is on its way already.
    OnItsWay,
    NotFound,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebhookLag {
    pub pending: u64,
    pub failed: u64,
    /// When the oldest pending one happened.
    pub oldest_ms: Option<Millis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookAge {
    pub endpoint: i64,
    pub enabled: bool,
    pub oldest_ms: Option<Millis>,
}

/// Rows that happened before these times are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgetBefore {
    pub delivered_ms: Millis,
    /// Those that failed, and those that wait for an endpoint that is switched off.
    pub others_ms: Millis,
    /// Endpoints that were removed before this go as soon as nothing of theirs is left.
    pub removed_ms: Millis,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_word_and_a_bit_of_its_own_that_stay() {
        for (n, kind) in WebhookKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.bit(), 1 << n, "{kind:?}");
            assert_eq!(kind.as_str().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert_eq!(WebhookKinds::of(&[]).list(), WebhookKind::ALL);
        let some = WebhookKinds::of(&[WebhookKind::OrderPaid, WebhookKind::ItemSoldOut]);
        assert_eq!(some.list(), [WebhookKind::OrderPaid, WebhookKind::ItemSoldOut]);
    }

    #[test]
    fn a_stock_that_only_changes_is_no_news() {
        let told = |before, after| {
            WebhookEvent::stock_changed(ItemId(1), (before, after), 2).map(|event| event.kind())
        };
        assert_eq!(told(5, 0), Some(WebhookKind::ItemSoldOut));
        assert_eq!(told(0, 1), Some(WebhookKind::ItemBackInStock));
        assert_eq!((told(5, 4), told(0, 0), told(1, 9)), (None, None, None));
    }
}
