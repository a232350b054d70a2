//! What goes into the ledger and comes out of it, beside the words of `sale`.

use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Claim, Epoch, Invalid, Item, ItemId, Millis,
    Money, Order, OrderNo, OrderStatus, UserId,
};
use serde::{Deserialize, Serialize};

use crate::OrderNos;

/// The answer of a compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved<S> {
    /// This call moved it.
    Done,
    /// It was, and is, in this state; nothing was changed.
    Was(S),
}

impl<S> Moved<S> {
    pub fn is_done(&self) -> bool {
        matches!(self, Moved::Done)
    }
}

/// An activity after a compare-and-set of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedActivity {
    /// As it is now, whoever moved it.
    pub activity: Activity,
    /// This call moved it; otherwise nothing was changed.
    pub moved: bool,
}

/// An activity after a compare-and-set of its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditedActivity {
    /// As it is now, whoever changed it.
    pub activity: Activity,
    /// This call changed it; otherwise nothing was changed.
    pub edited: bool,
}

#[derive(Clone, Debug)]
pub struct WarmBasis {
    pub activity: Activity,
    pub item: Item,
    /// The live orders of the item, as the claims they came from: the gate marks their buyers.
    pub marks: Vec<Claim>,
    /// Those of the asked claims that are orders or void already.
    pub settled: OrderNos,
    /// Claims waiting for a retry or dead: they hold units, though neither log nor orders show them.
    pub failed: Vec<Claim>,
    /// Every adjustment of this item that `item.stock` already contains, so that the gate does not
    /// apply it again when its outbox message arrives.
    pub adjusted: Vec<OrderNo>,
}

/// What the ledger has under the number of an adjustment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAdjustment {
    pub item: ItemId,
    pub delta: i64,
}

impl From<StockLogRow> for KnownAdjustment {
    fn from(row: StockLogRow) -> Self {
        KnownAdjustment { item: row.item, delta: row.quantity }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjusted {
    pub before: i64,
    pub after: i64,
    /// It had been done before, under the same number.
    pub repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StockLogType {
    Deduct,
    Return,
    Adjust,
}

impl StockLogType {
    pub fn code(self) -> i64 {
        match self {
            StockLogType::Deduct => 1,
            StockLogType::Return => 2,
            StockLogType::Adjust => 3,
        }
    }

    pub fn from_code(code: i64) -> Option<Self> {
        [StockLogType::Deduct, StockLogType::Return, StockLogType::Adjust]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StockLogRow {
    pub id: i64,
    pub order_no: OrderNo,
    pub item: ItemId,
    pub item_name: String,
    /// Units moved; always positive for deduct and return, signed for adjust.
    pub quantity: i64,
    pub before_stock: i64,
    pub after_stock: i64,
    #[serde(rename = "type")]
    pub kind: StockLogType,
    pub created_ms: Millis,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderFilter {
    pub order_no: Option<OrderNo>,
    pub user: Option<UserId>,
    pub activity: Option<ActivityId>,
    pub item: Option<ItemId>,
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

/// A payment that was opened at a provider, of which we heard nothing since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPayment {
    pub id: i64,
    pub order_no: OrderNo,
    pub provider: String,
    pub opened_ms: Millis,
    /// Since when the order is not to be paid any more (closed, or paid elsewhere); none if it is
    /// unpaid.
    pub order_over_ms: Option<Millis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentKind {
    /// Opened at the provider, not paid as far as we know.
    Open,
    /// Money received.
    Pay,
    /// Money given back.
    Refund,
}

impl PaymentKind {
    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        [PaymentKind::Open, PaymentKind::Pay, PaymentKind::Refund]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// Money the provider says, and proved, it received for an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentNotice {
    pub provider: String,
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: Money,
    pub paid_ms: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// The order is paid now.
    Paid,
    /// This transaction had been credited before.
    Repeated,
    /// The order was over; the money goes back.
    Refunding(OrderStatus),
    /// No such order. Nothing recorded.
    UnknownOrder,
    /// Amount or currency differ from the order's. Nothing recorded.
    Mismatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundDone {
    pub provider: String,
    /// The payment that was refunded.
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: Money,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaymentRow {
    pub provider: String,
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub kind: PaymentKind,
    pub amount: Money,
    pub created_ms: Millis,
}

impl PaymentRow {
    /// We only ever ask for a payment to be given back whole; anything else is somebody else's
    /// refund.
    pub(crate) fn check_refund(&self, done: &RefundDone) -> Result<(), Invalid> {
        if self.order_no != done.order_no {
            let problem = format!("the payment was for {}", self.order_no);
            return Err(Invalid::new("order_no", problem));
        }
        if self.amount != done.amount {
            let Money { minor, currency } = self.amount;
            return Err(Invalid::new("amount", format!("the payment was {minor} {currency}")));
        }
        Ok(())
    }
}

/// Units to give back to the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    pub item: ItemId,
    pub user: UserId,
    pub order_no: OrderNo,
    pub quantity: u32,
}

/// An effect outside the ledger that a committed transaction still owes. The tag carries a version:
/// yesterday's rows are read by today's binary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum OutboxMessage {
    /// Give these units back at the gate.
    #[serde(rename = "release.v1")]
    Release { releases: Vec<Release> },
    /// An operator changed the stock of an item.
    #[serde(rename = "adjust.v1")]
    Adjust { item: ItemId, adjust_no: OrderNo, delta: i64 },
    /// These orders changed: tell their buyers.
    #[serde(rename = "news.v1")]
    News { orders: Vec<(OrderNo, UserId)> },
    /// Give money back.
    #[serde(rename = "refund.v1")]
    Refund { provider: String, provider_txn: String, order_no: OrderNo, amount: Money },
}

/// Who delivers a message. Two queues, so that a provider that takes its time over a refund holds up
/// no unit on its way back to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxQueue {
    /// Releases, adjustments and news: to the gate and to the buyers.
    House,
    /// Refunds: to the payment providers.
    Refunds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    pub id: i64,
    pub message: OutboxMessage,
    pub tries: u32,
    pub created_ms: Millis,
}

/// What waits to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// By kind, in the order of their names; kinds without rows are left out.
    pub outbox: Vec<OutstandingRows>,
    /// By item; items without failed claims are left out.
    pub claims: Vec<OutstandingClaims>,
}

/// Outbox rows of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutstandingRows {
    /// `release`, `adjust`, `news`, `refund`, or what a newer binary wrote.
    pub kind: String,
    pub rows: u64,
    /// When the oldest of them was written.
    pub oldest_ms: Millis,
}

/// Claims of one item that failed, and the units they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutstandingClaims {
    pub item: ItemId,
    pub retrying: u64,
    pub dead: u64,
    pub units: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterState {
    /// Waiting for its next try.
    Retrying,
    /// All tries failed; waiting for a person.
    Dead,
    /// Became an order (or was refused by the ledger) after all.
    Settled,
    /// Given up by an operator.
    Voided,
}

impl DeadLetterState {
    pub const ALL: [DeadLetterState; 4] = [
        DeadLetterState::Retrying,
        DeadLetterState::Dead,
        DeadLetterState::Settled,
        DeadLetterState::Voided,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            DeadLetterState::Retrying => "retrying",
            DeadLetterState::Dead => "dead",
            DeadLetterState::Settled => "settled",
            DeadLetterState::Voided => "voided",
        }
    }

    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        DeadLetterState::ALL.into_iter().find(|state| state.code() == code)
    }

    /// Does the claim still hold its units?
    pub fn is_open(self) -> bool {
        matches!(self, DeadLetterState::Retrying | DeadLetterState::Dead)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    pub claim: Claim,
    pub state: DeadLetterState,
    pub tries: u32,
    pub next_try_ms: Option<Millis>,
    pub cause: String,
    pub created_ms: Millis,
    pub updated_ms: Millis,
}

/// What an admin token may do; each role may do all that the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read.
    Viewer,
    /// Run sales.
    Operator,
    /// Everything: refunds and tokens, too.
    Admin,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        [Role::Viewer, Role::Operator, Role::Admin]
            .into_iter()
            .find(|role| role.as_str() == s)
            .ok_or_else(|| format!("{s:?} is none of viewer, operator, admin"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminToken {
    pub name: String,
    pub role: Role,
    pub created_ms: Millis,
}

#[derive(Clone, Debug)]
pub struct NewAudit {
    /// The name of the admin token, or `system` for what a job healed.
    pub who: String,
    /// What was done, e.g. `activity.publish`.
    pub action: String,
    /// To what, e.g. `activity:7`.
    pub target: String,
    pub detail: serde_json::Value,
    pub origin: Origin,
}

/// Where somebody asked from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The client's address, or `cli` for a command without a server. Absent for what a job did.
    pub address: Option<String>,
    /// The id of the request, as its answer and the log have it.
    pub request_id: Option<String>,
}

impl NewAudit {
    /// The same with one more detail, which only the transaction itself knows.
    pub(crate) fn with(&self, name: &str, value: impl Into<serde_json::Value>) -> NewAudit {
        let mut entry = self.clone();
        match &mut entry.detail {
            serde_json::Value::Object(details) => _ = details.insert(name.into(), value.into()),
            other => *other = serde_json::json!({ name: value.into() }),
        }
        entry
    }

    /// As it is written down of a move of an activity that was in this state; not at all if the move
    /// could not be made.
    pub(crate) fn of_move(&self, step: ActivityMove, from: ActivityState) -> Option<NewAudit> {
        if step.may_leave(from) {
            return Some(self.clone());
        }
        (from == step.to()).then(|| self.with("repeated", true))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct AuditRow {
    pub id: i64,
    pub who: String,
    pub action: String,
    pub target: String,
    pub detail: serde_json::Value,
    pub created_ms: Millis,
    /// As in [`Origin`]; absent in rows that are older than these columns.
    pub address: Option<String>,
    pub request_id: Option<String>,
}

#[derive(Clone, Debug)]
pub struct NewJobRun {
    pub job: String,
    pub started_ms: Millis,
    pub ended_ms: Millis,
    pub ok: bool,
    pub report: serde_json::Value,
}

#[derive(Clone, Debug, Serialize)]
pub struct JobRun {
    pub id: i64,
    pub job: String,
    pub started_ms: Millis,
    pub ended_ms: Millis,
    pub ok: bool,
    pub report: serde_json::Value,
}

/// One item as the ledger sees it at one instant.
#[derive(Clone, Debug)]
pub struct ItemBooks {
    pub item: Item,
    /// Epoch of the item at that instant, for comparing with the gate's.
    pub epoch: Epoch,
    /// Units of unpaid and paid orders.
    pub live_units: i64,
    pub live_orders: u64,
    /// Rows of `tb_user_seckill`.
    pub user_records: u64,
    /// Live orders without a user record of theirs, or the other way round.
    pub user_record_mismatches: u64,
    /// Of the asked claims: those that are orders or void already.
    pub settled: OrderNos,
    /// Claims retrying or dead, with their units.
    pub failed: Vec<Claim>,
    /// Units that pending outbox rows will still give to the gate (releases).
    pub pending_releases: Vec<Release>,
    /// Adjustments that wait in the outbox for the gate, with their delta.
    pub pending_adjusts: Vec<(OrderNo, i64)>,
    /// Ids of stock log rows whose `before_stock` is not the `after_stock` of the row before, or
    /// whose arithmetic is wrong; at most 100.
    pub chain_breaks: Vec<i64>,
    /// `after_stock` of the last stock log row.
    pub chain_end: Option<i64>,
}

/// A payment that does not add up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum PaymentProblem {
    /// The order says paid, no money is on record.
    PaidWithoutMoney { order_no: OrderNo },
    /// Money is owed back (refunding order, or money beyond the first payment), no refund is on
    /// record and none waits in the outbox.
    RefundNotQueued { order_no: OrderNo, provider: String, provider_txn: String },
    /// More was given back than received.
    RefundedTooMuch { order_no: OrderNo },
}
