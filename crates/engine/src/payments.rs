//! An order's money: opened at a provider, believed when proved, given back when late.
//!
//! The order of steps is what keeps this safe. A payment is noted in the ledger *before* the
//! provider hears of it, so a time-out always knows where to close it. Money is credited by the
//! ledger's compare-and-set alone: whichever of payment and time-out comes first wins, and money for
//! an order that lost goes back through the outbox, once.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::HeaderMap;
use ledger::{
    CloseAsked, Credit, LedgerError, Moved, Overdue, PaymentKind, PaymentNotice, RefundDone,
};
use orders::AlertKind;
use payment::{
    CloseOutcome, Notice, NoticeAnswer, NoticeError, NoticeOutcome, Opened, Paid, PayMethod,
    PayRequest, Provider, ProviderError,
    sandbox::{NoticeSink, Sandbox},
};
use sale::{CloseReason, Millis, Order, OrderNo, OrderStatus};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    OrderView, StoreError,
    actor::Actor,
    external::{EXTERNAL, External},
    order_lookup::{Found, OrderLookup},
    sale_tokens::Hoarding,
    shared::Shared,
};

/// Calls of providers that somebody who works through many payments makes at the same time.
pub(crate) const PROVIDER_CALLS_MAX: usize = 16;

/// How long a buyer who cancels waits for a shop to close its payment, and how often that is looked at.
const CANCEL_WAIT_MAX: Duration = Duration::from_secs(2);
const CANCEL_POLL: Duration = Duration::from_millis(50);
/// An order that nobody knows so long after its number was made is not on its way any more.
const UNKNOWN_ORDER_MS_ALARMING: Millis = 60_000;

/// How closing the payments of an order went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Closed,
    /// A provider was asked, and answers later.
    Asked,
    /// One has the money, or does not answer.
    Open,
}

/// The providers this deployment sells through, by name.
pub type Providers = HashMap<String, Arc<dyn Provider>>;

#[derive(Debug, thiserror::Error)]
pub enum PayError {
    #[error("no such provider")]
    UnknownProvider,
    /// The provider is there, but does not take money this way.
    #[error("the provider has no such way to pay")]
    UnknownMethod,
    #[error("the provider does not take the order's currency")]
    OtherCurrency,
    /// The order is not one that can be paid (or cancelled) now.
    #[error("the order is {0}")]
    Conflict(OrderStatus),
    #[error("the order's time to pay is over")]
    TooLate,
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What a provider's notice came to.
#[derive(Debug, thiserror::Error)]
pub enum NoticeFailure {
    #[error("no such provider")]
    UnknownProvider,
    #[error(transparent)]
    NotBelieved(#[from] NoticeError),
    #[error("no such order")]
    UnknownOrder,
    /// Tell it again in a moment.
    #[error("the order is on its way to the ledger")]
    NotYet,
    #[error("amount or currency are not the order's")]
    Mismatch,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// How a buyer wants to pay.
#[derive(Clone, Debug, Default)]
pub struct PayChoice {
    pub provider: String,
    pub method: Option<PayMethod>,
    pub payer: Option<String>,
    pub client_ip: Option<IpAddr>,
    pub return_url: Option<String>,
}

impl PayChoice {
    /// At this provider, its usual way.
    pub fn at(provider: impl Into<String>) -> PayChoice {
        PayChoice { provider: provider.into(), ..PayChoice::default() }
    }
}

pub struct Payments {
    pub(crate) shared: Arc<Shared>,
    orders: Arc<OrderLookup>,
    hoarding: Arc<Hoarding>,
    providers: Providers,
    /// The built-in cashier, if it is switched on. It is one of the providers.
    sandbox: Option<Sandbox>,
    /// The shop's own cashier, if it has one here. It is one of the providers.
    pub(crate) external: Option<Arc<External>>,
}

impl Payments {
    pub(crate) fn new(
        shared: Arc<Shared>,
        orders: Arc<OrderLookup>,
        hoarding: Arc<Hoarding>,
        mut providers: Providers,
        sandbox: Option<Sandbox>,
    ) -> Payments {
        let external = External::of(&shared);
        if let Some(external) = &external {
            // Not one that may hang: it asks the ledger alone.
            providers.insert(EXTERNAL.into(), external.clone());
        }
        Payments { shared, orders, hoarding, providers, sandbox, external }
    }

    /// The names of the providers, in the order of the alphabet.
    pub fn provider_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.providers.keys().cloned().collect();
        names.sort();
        names
    }

    /// The providers themselves, in the order of the alphabet.
    pub fn offered(&self) -> impl Iterator<Item = &dyn Provider> {
        let mut offered: Vec<&dyn Provider> = self.providers.values().map(|one| &**one).collect();
        offered.sort_by_key(|provider| provider.name());
        offered.into_iter()
    }

    pub fn has_provider(&self, name: &str) -> bool {
        self.providers.contains_key(name)
    }

    pub(crate) fn provider(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.providers.get(name)
    }

    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandbox.as_ref()
    }

    /// What a provider wants to hear after its notice: a status, the type of the body and the body.
    /// `None` if there is no such provider.
    pub fn answer_to_notice(
        &self,
        provider: &str,
        answer: NoticeAnswer,
    ) -> Option<(u16, &'static str, String)> {
        Some(self.provider(provider)?.answer(answer))
    }

    /// What the buyer needs to pay this order.
    pub async fn open(&self, view: &OrderView, choice: PayChoice) -> Result<Opened, PayError> {
        let PayChoice { provider: provider_name, method, payer, client_ip, return_url } = choice;
        let provider = self.providers.get(&provider_name).ok_or(PayError::UnknownProvider)?;
        if method.is_some_and(|method| !provider.methods().contains(&method)) {
            return Err(PayError::UnknownMethod);
        }
        let order = in_ledger(view)?;
        if !provider.takes(order.amount.currency) {
            return Err(PayError::OtherCurrency);
        }
        let now_ms = self.shared.now_ms();
        if order.status == OrderStatus::Unpaid && now_ms >= order.pay_deadline_ms {
            return Err(PayError::TooLate);
        }
        let method = method.or_else(|| provider.methods().first().copied());
        let way = method.map(PayMethod::as_str);
        let noted = self.shared.ledger.open_payment(order.order_no, &provider_name, way, now_ms);
        match noted.await? {
            Moved::Done | Moved::Was(OrderStatus::Unpaid) => {}
            Moved::Was(status) => return Err(PayError::Conflict(status)),
        }
        let request = PayRequest {
            order_no: order.order_no,
            amount: order.amount,
            subject: order.item_name.clone(),
            deadline_ms: order.pay_deadline_ms,
            user: order.user.clone(),
            method,
            payer,
            client_ip,
            return_url,
        };
        let opened = provider.open(&request).await?;
        // The order may have been closed after the payment was noted and before the provider heard
        // of it: then the provider had nothing to close, and has now.
        let now = self.shared.ledger.order(order.order_no).await?.ok_or(LedgerError::NotFound)?;
        if now.status == OrderStatus::Unpaid {
            return Ok(opened);
        }
        if let Err(error) = provider.close(order.order_no).await {
            // Whoever pays all the same gets the money back.
            tracing::warn!(order_no = %order.order_no, %error,
                "the payment of an order that is over could not be closed; money that comes goes back");
        }
        Err(PayError::Conflict(now.status))
    }

    /// The buyer does not want it any more. Whoever does that too often has to wait. Answers the order as
    /// it is in the ledger now.
    pub async fn cancel(&self, view: &OrderView) -> Result<Order, PayError> {
        let order = self.close_unpaid(view).await?;
        self.hoarding.closed(vec![order.user.clone()]).await;
        Ok(order)
    }

    /// An open payment is closed at its provider first.
    async fn close_unpaid(&self, view: &OrderView) -> Result<Order, PayError> {
        let no = in_ledger(view)?.order_no;
        // What the buyer was shown may be a moment old.
        let order = self.shared.ledger.order(no).await?.ok_or(LedgerError::NotFound)?;
        match order.status {
            OrderStatus::Unpaid => {}
            OrderStatus::Closed => return Ok(order),
            status => return Err(PayError::Conflict(status)),
        }
        let payments = self.shared.ledger.payments(order.order_no).await?;
        let mut providers: Vec<String> = payments.into_iter().map(|row| row.provider).collect();
        providers.dedup();
        let overdue = Overdue { order, providers };
        if self.closed_in_a_moment(&overdue).await {
            let now_ms = self.shared.now_ms();
            self.shared.ledger.close(&[overdue.into()], CloseReason::Cancelled, now_ms).await?;
            self.shared.wake.outbox_written();
        }
        // Whoever was first: say what is true now.
        let now = self.shared.ledger.order(no).await?.ok_or(LedgerError::NotFound)?;
        match now.status {
            OrderStatus::Closed => Ok(now),
            OrderStatus::Unpaid => {
                Err(ProviderError::Unavailable("the payment could not be closed".into()).into())
            }
            status => Err(PayError::Conflict(status)),
        }
    }

    /// A buyer who gives up waits for a shop that closes its payment, a moment and no longer.
    async fn closed_in_a_moment(&self, overdue: &Overdue) -> bool {
        let until = Instant::now() + CANCEL_WAIT_MAX;
        loop {
            match self.close_at(overdue, overdue.providers.iter()).await {
                Closing::Asked if Instant::now() < until => {
                    tokio::time::sleep(CANCEL_POLL).await;
                }
                closing => return closing == Closing::Closed,
            }
        }
    }

    /// A provider says something. Believed only with proof; credited only once.
    pub async fn notice(
        &self,
        provider_name: &str,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), NoticeFailure> {
        let provider = self.providers.get(provider_name).ok_or(NoticeFailure::UnknownProvider)?;
        let notice = provider.verify_notice(headers, body).await?;
        match notice.outcome {
            NoticeOutcome::Paid => {}
            NoticeOutcome::Failed => {
                tracing::info!(order_no = %notice.order_no, "a payment failed, the buyer may try again");
                return Ok(());
            }
            NoticeOutcome::Refunded => {
                return self.refund_noticed(provider_name, &notice).await;
            }
            NoticeOutcome::RefundFailed => {
                // One that is done by now, or that nobody here asked for, is not ours to see to.
                if self.refund_is_due(provider_name, &notice.provider_txn).await? {
                    let message = "a provider could not give money back the way it came: see to it there, \
                         or hand it back and mark the order refunded";
                    let (kind, cause) = (AlertKind::RefundRefused, &notice.provider_txn);
                    self.shared.alerts.about_order(kind, notice.order_no, message, cause);
                }
                return Ok(());
            }
        }
        let money = PaymentNotice {
            provider: provider_name.into(),
            provider_txn: notice.provider_txn,
            order_no: notice.order_no,
            amount: notice.amount,
            paid_ms: notice.paid_ms,
        };
        self.credit(&money).await.map(drop)
    }

    /// The refund job asks until it knows, and has reason to ask now. False if it has nothing to ask about.
    async fn refund_is_due(&self, provider: &str, provider_txn: &str) -> ledger::Result<bool> {
        let waits = self.shared.ledger.refund_is_due(provider, provider_txn).await?;
        if waits {
            self.shared.wake.refund.notify_one();
        }
        Ok(waits)
    }

    /// A provider says that money went back. If nobody here asked for it, the whole of a charge is written
    /// down, and a part of one is for a person to see to.
    async fn refund_noticed(&self, name: &str, notice: &Notice) -> Result<(), NoticeFailure> {
        let (no, txn) = (notice.order_no, &notice.provider_txn);
        if self.refund_is_due(name, txn).await? {
            return Ok(());
        }
        let rows = self.shared.ledger.payments(no).await?;
        let of_it = |kind| rows.iter().find(|row| row.kind == kind && row.provider_txn == *txn);
        let Some(paid) = of_it(PaymentKind::Pay) else {
            return Err(self.of_no_order(no).await);
        };
        if of_it(PaymentKind::Refund).is_some() {
            return Ok(());
        }
        if notice.amount != paid.amount {
            let message =
                "a provider gave money back that nobody here asked for, and not all of it";
            self.shared.alerts.about_order(AlertKind::Payment, no, message, txn);
            return Ok(());
        }
        let done = RefundDone {
            provider: name.into(),
            provider_txn: txn.clone(),
            order_no: no,
            amount: paid.amount,
        };
        self.shared.ledger.refund_told(&done, None, self.shared.now_ms()).await?;
        tracing::warn!(order_no = %no, provider = name, "money went back that nobody here asked for");
        self.shared.wake.outbox_written();
        Ok(())
    }

    /// Money a provider is sure of, whoever told us of it.
    pub(crate) async fn credit(&self, money: &PaymentNotice) -> Result<Credit, NoticeFailure> {
        let credit = self.shared.ledger.credit(money, self.shared.now_ms()).await?;
        let order_no = money.order_no;
        match credit {
            Credit::Paid => {
                metrics::counter!("seckill_payments_credited_total").increment(1);
            }
            Credit::Repeated => tracing::debug!(%order_no, "a payment was told again"),
            Credit::Refunding(was) => {
                metrics::counter!("seckill_payments_late_total").increment(1);
                tracing::warn!(%order_no, %was, "money for an order that is over or paid, giving it back");
            }
            Credit::UnknownOrder => return Err(self.of_no_order(order_no).await),
            Credit::Mismatch => return Err(self.strange_money(order_no, NoticeFailure::Mismatch)),
        }
        self.shared.wake.outbox_written();
        Ok(credit)
    }

    /// Money for an order that the ledger does not have. It may be on its way there, be it long; and one
    /// whose number is young may be presented again by its buyer. Of any other nobody knows.
    pub(crate) async fn of_no_order(&self, no: OrderNo) -> NoticeFailure {
        match self.orders.find(no).await {
            Ok(None) => {}
            Ok(Some(_)) => return NoticeFailure::NotYet,
            Err(StoreError::Ledger(error)) => return NoticeFailure::Ledger(error),
            Err(StoreError::Gate(error)) => {
                return NoticeFailure::Ledger(LedgerError::Unavailable(error.to_string()));
            }
        }
        if (self.shared.now_ms() - no.made_ms()).abs() < UNKNOWN_ORDER_MS_ALARMING {
            return NoticeFailure::UnknownOrder;
        }
        self.strange_money(no, NoticeFailure::UnknownOrder)
    }

    /// Proved to come from the provider, and yet not ours: somebody should look.
    fn strange_money(&self, order_no: OrderNo, failure: NoticeFailure) -> NoticeFailure {
        let message = "a verified payment does not fit any order";
        self.shared.alerts.about_order(AlertKind::Payment, order_no, message, &failure);
        failure
    }

    /// Orders with open payments are closed at their providers first. Answers those that may be closed now,
    /// and those that stay open: a provider has the money, or has not answered yet.
    pub(crate) async fn close_all_at_providers(
        &self,
        overdue: Vec<Overdue>,
    ) -> (Vec<Overdue>, Vec<Overdue>) {
        let (overdue, mut kept) = self.close_all_at_shop(overdue).await;
        let closing = stream::iter(overdue).map(|overdue| async move {
            let others =
                overdue.providers.iter().filter(|name| *name != EXTERNAL || !self.has_external());
            let closing = self.close_at(&overdue, others).await;
            (overdue, closing == Closing::Closed)
        });
        let asked: Vec<(Overdue, bool)> =
            closing.buffer_unordered(PROVIDER_CALLS_MAX).collect().await;
        let (closable, open): (Vec<_>, Vec<_>) = asked.into_iter().partition(|(_, may)| *may);
        kept.extend(open.into_iter().map(|(overdue, _)| overdue));
        (closable.into_iter().map(|(overdue, _)| overdue).collect(), kept)
    }

    /// Of these, the shop's own cashier is asked about all in one transaction. Answers those that do not
    /// wait for it, and those that do.
    async fn close_all_at_shop(&self, overdue: Vec<Overdue>) -> (Vec<Overdue>, Vec<Overdue>) {
        let Some(external) = &self.external else { return (overdue, Vec::new()) };
        let (at_shop, mut others): (Vec<_>, Vec<_>) = overdue
            .into_iter()
            .partition(|overdue| overdue.providers.iter().any(|name| name == EXTERNAL));
        if at_shop.is_empty() {
            return (others, Vec::new());
        }
        let numbers: Vec<OrderNo> = at_shop.iter().map(|overdue| overdue.order.order_no).collect();
        let asked = match external.close_all(&numbers).await {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(%error, "the shop could not be asked to close payments");
                return (others, at_shop);
            }
        };
        let mut waiting = Vec::new();
        for (overdue, asked) in at_shop.into_iter().zip(asked) {
            let line = if asked == CloseAsked::Waiting { &mut waiting } else { &mut others };
            line.push(overdue);
        }
        (others, waiting)
    }

    /// One order with open payments is closed at their providers.
    pub(crate) async fn close_at_providers(&self, overdue: &Overdue) -> bool {
        self.close_at(overdue, overdue.providers.iter()).await == Closing::Closed
    }

    /// If a provider has the money, the order is paid; if it does not answer, the order stays open until
    /// it does.
    async fn close_at(
        &self,
        overdue: &Overdue,
        providers: impl Iterator<Item = &String>,
    ) -> Closing {
        for name in providers {
            let Some(provider) = self.provider(name) else {
                let message = "an order whose time is over keeps its units: its payment is at a \
                     provider that is not configured";
                let order_no = overdue.order.order_no;
                self.shared.alerts.about_order(AlertKind::Unclosable, order_no, message, name);
                return Closing::Open;
            };
            match provider.close(overdue.order.order_no).await {
                Ok(CloseOutcome::Closed | CloseOutcome::NeverOpened) => {}
                Ok(CloseOutcome::Asked) => return Closing::Asked,
                Ok(CloseOutcome::AlreadyPaid(paid)) => {
                    let money = money_of(name, overdue.order.order_no, paid);
                    if let Err(NoticeFailure::Ledger(error)) = self.credit(&money).await {
                        tracing::warn!(%error, "a payment could not be credited, will try again");
                    }
                    return Closing::Open;
                }
                Err(error) => {
                    tracing::warn!(provider = name, %error, "a payment could not be closed");
                    return Closing::Open;
                }
            }
        }
        Closing::Closed
    }

    /// An operator gives up an unpaid order in its buyer's place, by the same steps.
    pub async fn cancel_by(&self, who: impl Into<Actor>, no: OrderNo) -> Result<Order, PayError> {
        let order = match self.orders.find(no).await {
            Ok(Some(Found { view: OrderView::Known(order), .. })) => order,
            Ok(Some(_)) => return Err(PayError::Conflict(OrderStatus::Queued)),
            Ok(None) => return Err(LedgerError::NotFound.into()),
            Err(StoreError::Ledger(error)) => return Err(error.into()),
            Err(StoreError::Gate(error)) => {
                return Err(LedgerError::Unavailable(error.to_string()).into());
            }
        };
        let detail = match order.status {
            OrderStatus::Unpaid => Value::Null,
            OrderStatus::Closed => json!({"repeated": true}),
            status => return Err(PayError::Conflict(status)),
        };
        self.shared.audit(who, "order.cancel", format!("order:{no}"), detail).await?;
        self.close_unpaid(&OrderView::Known(order)).await
    }
}

/// What a provider says when it is asked, as a notice of it would have said.
pub(crate) fn money_of(provider: &str, order_no: OrderNo, paid: Paid) -> PaymentNotice {
    let Paid { provider_txn, amount, paid_ms } = paid;
    PaymentNotice { provider: provider.into(), provider_txn, order_no, amount, paid_ms }
}

/// An order that can be paid or given up: one that the ledger has, as far as it can be asked.
fn in_ledger(view: &OrderView) -> Result<&Order, PayError> {
    match view {
        OrderView::Known(order) => Ok(order),
        OrderView::Queued(_) => Err(PayError::Conflict(OrderStatus::Queued)),
        OrderView::LastQueued(_) | OrderView::LastKnown(..) => {
            let why = "it did not tell what the order is now".to_owned();
            Err(LedgerError::Unavailable(why).into())
        }
    }
}

/// The road of the sandbox's notices: the same steps as the HTTP endpoint, without the network.
pub(crate) struct Notices(pub(crate) Arc<Payments>);

#[async_trait]
impl NoticeSink for Notices {
    async fn deliver(&self, provider: &str, headers: HeaderMap, body: Bytes) -> bool {
        match self.0.notice(provider, &headers, &body).await {
            Ok(()) => true,
            Err(failure) => {
                tracing::warn!(provider, %failure, "a notice was not accepted");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::{Bank, NOW_MS, TestEngine};

    #[tokio::test]
    async fn no_payment_stays_open_for_an_order_closed_while_it_was_opened() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let bank = shop.bank.clone();
        let no = shop.buy(activity.items[0].id, "ann").await;
        let engine = shop.engine.clone();
        let view = OrderView::Known(engine.shared.ledger.order(no).await.unwrap().unwrap());
        let closing = engine.clone();
        bank.while_opening(Box::new(move || {
            Box::pin(async move {
                let asked = ledger::Closing { order_no: no, providers: vec![Bank::NAME.into()] };
                let reason = CloseReason::Cancelled;
                closing.shared.ledger.close(&[asked], reason, NOW_MS).await.unwrap();
            })
        }));
        let late = engine.payments.open(&view, PayChoice::at(Bank::NAME)).await;
        assert!(matches!(late, Err(PayError::Conflict(OrderStatus::Closed))), "{late:?}");
        assert_eq!(bank.calls(), 1, "it was closed at the bank");
    }
}
