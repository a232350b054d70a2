//! An order's money: opened at a provider, believed when proved, given back when late.
//!
//! The order of steps is what keeps this safe. A payment is noted in the ledger *before* the
//! provider hears of it, so a time-out always knows where to close it. Money is credited by the
//! ledger's compare-and-set alone: whichever of payment and time-out comes first wins, and money for
//! an order that lost goes back through the outbox, once.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use ledger::{Credit, LedgerError, Moved, Overdue, PaymentNotice};
use orders::{Alert, AlertKind};
use payment::{
    NoticeError, NoticeOutcome, PayRequest, Provider, ProviderError, sandbox::NoticeSink,
};
use sale::{CloseReason, Order, OrderNo, OrderStatus};

use super::{Engine, OrderView};

/// The providers this deployment sells through, by name.
pub type Providers = HashMap<String, Arc<dyn Provider>>;

#[derive(Debug, thiserror::Error)]
pub enum PayError {
    #[error("no such provider")]
    UnknownProvider,
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
    #[error("amount or currency are not the order's")]
    Mismatch,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Engine {
    /// Where the buyer pays this order.
    pub async fn open_payment(
        &self,
        view: &OrderView,
        provider_name: &str,
    ) -> Result<String, PayError> {
        let provider = self.providers.get(provider_name).ok_or(PayError::UnknownProvider)?;
        let order = in_ledger(view)?;
        let now_ms = self.clock.now_ms();
        if order.status == OrderStatus::Unpaid && now_ms >= order.pay_deadline_ms {
            return Err(PayError::TooLate);
        }
        match self.ledger.open_payment(order.order_no, provider_name, now_ms).await? {
            Moved::Done | Moved::Was(OrderStatus::Unpaid) => {}
            Moved::Was(status) => return Err(PayError::Conflict(status)),
        }
        let request = PayRequest {
            order_no: order.order_no,
            amount: order.amount,
            subject: order.item_name.clone(),
            deadline_ms: order.pay_deadline_ms,
            user: order.user.clone(),
        };
        let opened = provider.open(&request).await?;
        // The order may have been closed after the payment was noted and before the provider heard
        // of it: then the provider had nothing to close, and has now.
        let now = self.ledger.order(order.order_no).await?.ok_or(LedgerError::NotFound)?;
        if now.status == OrderStatus::Unpaid {
            return Ok(opened.payment_url);
        }
        if let Err(error) = provider.close(order.order_no).await {
            // Whoever pays all the same gets the money back.
            tracing::warn!(order_no = %order.order_no, %error, "a late payment stays open");
        }
        Err(PayError::Conflict(now.status))
    }

    /// The buyer does not want it any more. An open payment is closed at its provider first. Answers
    /// the order as it is in the ledger now.
    pub async fn cancel(&self, view: &OrderView) -> Result<Order, PayError> {
        let copy = in_ledger(view)?;
        // What the buyer was shown may be a moment old.
        let order = self.ledger.order(copy.order_no).await?.ok_or(LedgerError::NotFound)?;
        match order.status {
            OrderStatus::Unpaid => {}
            OrderStatus::Closed => return Ok(order),
            status => return Err(PayError::Conflict(status)),
        }
        let payments = self.ledger.payments(order.order_no).await?;
        let mut providers: Vec<String> = payments.into_iter().map(|row| row.provider).collect();
        providers.dedup();
        let overdue = Overdue { order, providers };
        if self.may_close(&overdue).await {
            let now_ms = self.clock.now_ms();
            self.ledger.close(&[overdue.into()], CloseReason::Cancelled, now_ms).await?;
            self.wake_outbox();
        }
        // Whoever was first: say what is true now.
        let now = self.ledger.order(copy.order_no).await?.ok_or(LedgerError::NotFound)?;
        self.renew_copy(now.order_no).await;
        match now.status {
            OrderStatus::Closed => Ok(now),
            OrderStatus::Unpaid => {
                Err(ProviderError::Unavailable("the payment could not be closed".into()).into())
            }
            status => Err(PayError::Conflict(status)),
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
        let notice = provider.verify_notice(headers, body)?;
        if notice.outcome == NoticeOutcome::Failed {
            tracing::info!(order_no = %notice.order_no, "a payment failed, the buyer may try again");
            return Ok(());
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

    /// Money a provider is sure of, whoever brought the news.
    pub(super) async fn credit(&self, money: &PaymentNotice) -> Result<Credit, NoticeFailure> {
        let credit = self.ledger.credit(money, self.clock.now_ms()).await?;
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
            Credit::UnknownOrder => {
                return Err(self.strange_money(order_no, NoticeFailure::UnknownOrder));
            }
            Credit::Mismatch => return Err(self.strange_money(order_no, NoticeFailure::Mismatch)),
        }
        self.wake_outbox();
        Ok(credit)
    }

    /// Proved to come from the provider, and yet not ours: somebody should look.
    fn strange_money(&self, order_no: OrderNo, failure: NoticeFailure) -> NoticeFailure {
        let message = "a verified payment does not fit any order";
        self.alert_about_order(AlertKind::Payment, order_no, message, &failure);
        failure
    }

    /// Wakes somebody, once per order and kind.
    pub(super) fn alert_about_order(
        &self,
        kind: AlertKind,
        order_no: OrderNo,
        message: &str,
        cause: &dyn std::fmt::Display,
    ) {
        let alert = Alert::new(kind, message, self.clock.now_ms());
        self.alert_once(order_no.as_u64(), alert.about_order(order_no).because(cause));
    }
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
pub(super) struct Notices(pub(super) Arc<Engine>);

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
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let bank = night.bank(Bank::default());
        let no = night.buy(activity.items[0].id, "ann").await;
        let engine = night.engine.clone();
        let view = OrderView::Known(engine.ledger.order(no).await.unwrap().unwrap());
        let closing = engine.clone();
        bank.while_opening(Box::new(move || {
            Box::pin(async move {
                let asked = ledger::Closing { order_no: no, providers: vec![Bank::NAME.into()] };
                let reason = CloseReason::Cancelled;
                closing.ledger.close(&[asked], reason, NOW_MS).await.unwrap();
            })
        }));
        let late = engine.open_payment(&view, Bank::NAME).await;
        assert!(matches!(late, Err(PayError::Conflict(OrderStatus::Closed))), "{late:?}");
        assert_eq!(bank.calls(), 1, "it was closed at the bank");
    }
}
