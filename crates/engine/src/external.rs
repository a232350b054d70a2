//! The shop's own cashier. Most shops take money already; this is a provider that they are themselves.
//!
//! **The road of money.** The buyer opens a payment and is sent to the shop's cashier. When the shop has the
//! money, its backend says so (`POST /orders/{no}/paid`), signed, and the order is paid by the same
//! compare-and-set as with any provider. What it says is told apart by its transaction id: twice is once.
//!
//! **It cannot be asked, so it is told.** Where another provider would be called, an event goes to the
//! shop's webhook endpoints, written in the transaction that notes that it was asked:
//!
//! - `payment.close_requested`, when the time of an order is over. The shop answers with
//!   `POST /orders/{no}/payment-closed`, or `/paid` if it has the money. One that says nothing within
//!   `payment.external.close_answer_ms_max`, or has no endpoint, is not waited for: units must not wait for a
//!   shop that is away. Money that it took all the same goes back.
//! - `payment.refund_requested`, when money has to go back. It is repeated every
//!   `payment.external.refund_repeat_ms` until the shop says `POST /orders/{no}/refunded`, or an operator
//!   does.
//!
//! **A crash** between the note and the post leaves the event in the outbox. One after `/paid` was committed
//! and before it was answered makes the shop say it again, and the answer is the same.

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderMap;
use ledger::{
    CloseAsked, Credit, LedgerError, Overdue, PaymentNotice, RefundDone, RefundReason,
    RefundRequested, RefundTold,
};
use payment::{
    CloseOutcome, Notice, NoticeAnswer, NoticeError, Opened, PayRequest, Provider, ProviderError,
    QueryOutcome, RefundOutcome, RefundRequest,
};
use sale::{CloseReason, Millis, Money, Order, OrderNo, OrderStatus};
use serde_json::json;
use webhooks::{NotSigned, SigningSecret, verify};

use crate::{NoticeFailure, Payments, actor::Actor, shared::Shared};

/// Its name in addresses and in the ledger.
pub const EXTERNAL: &str = "external";
/// The shop's transaction ids are at most so long.
pub const TRANSACTION_ID_CHARS_MAX: usize = 128;

/// What an address of the shop's cashier may name of an order, in braces.
pub const CASHIER_URL_NAMES: [&str; 7] =
    ["order_no", "amount", "currency", "user_id", "subject", "deadline", "return_url"];

/// Can buyers be sent there? Empty is well, too: the shop sends them there by itself.
pub fn is_cashier_url(url: &str) -> bool {
    let leads = ["https://", "http://", "/"]
        .iter()
        .any(|start| url.len() > start.len() && url.starts_with(start));
    let plain = url.chars().all(|c| c.is_ascii_graphic());
    url.is_empty()
        || (leads && plain && filled(url, |name| is_name(name).then(String::new)).is_some())
}

fn is_name(name: &str) -> bool {
    CASHIER_URL_NAMES.contains(&name)
}

/// The address with what its names stand for. `None` if it has a brace too many, or a name of nothing.
fn filled(url: &str, value: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut parts = url.split('{');
    let mut written = parts.next()?.to_owned();
    if written.contains('}') {
        return None;
    }
    for part in parts {
        let (name, rest) = part.split_once('}')?;
        if rest.contains('}') {
            return None;
        }
        written.push_str(&value(name)?);
        written.push_str(rest);
    }
    Some(written)
}

/// As a part of an address.
fn encoded(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            written.push(char::from(byte));
        } else {
            written.push_str(&format!("%{byte:02X}"));
        }
    }
    written
}

/// The provider that the shop is.
pub(crate) struct External {
    shared: Arc<Shared>,
    secrets: Vec<SigningSecret>,
}

impl External {
    /// None where no secret is set.
    pub(crate) fn of(shared: &Arc<Shared>) -> Option<Arc<External>> {
        let secrets = shared.settings.external.secrets.iter();
        let secrets: Vec<SigningSecret> =
            secrets.filter_map(|secret| SigningSecret::parse(secret.expose()).ok()).collect();
        (!secrets.is_empty()).then(|| Arc::new(External { shared: shared.clone(), secrets }))
    }

    fn url_for(&self, request: &PayRequest) -> Option<String> {
        let value = |name: &str| {
            Some(match name {
                "order_no" => request.order_no.to_string(),
                "amount" => request.amount.minor.to_string(),
                "currency" => request.amount.currency.to_string(),
                "user_id" => encoded(request.user.as_str()),
                "subject" => encoded(&request.subject),
                "deadline" => request.deadline_ms.to_string(),
                "return_url" => encoded(request.return_url.as_deref().unwrap_or_default()),
                _ => return None,
            })
        };
        let url = &self.shared.settings.external.url;
        if url.is_empty() { None } else { filled(url, value) }
    }

    /// Asks the shop to close the payments of these orders, or looks whether it has. One outcome for each.
    pub(crate) async fn close_all(&self, orders: &[OrderNo]) -> ledger::Result<Vec<CloseAsked>> {
        let (within_ms, now_ms) =
            (self.shared.settings.external.close_answer_ms_max, self.shared.now_ms());
        let asked = self.shared.ledger.ask_to_close(EXTERNAL, orders, within_ms, now_ms).await?;
        assert_eq!(asked.len(), orders.len(), "one outcome for each order");
        if asked.contains(&CloseAsked::Waiting) {
            self.shared.wake.webhooks_written();
        }
        Ok(asked)
    }
}

fn unavailable(error: LedgerError) -> ProviderError {
    ProviderError::Unavailable(error.to_string())
}

#[async_trait]
impl Provider for External {
    fn name(&self) -> &'static str {
        EXTERNAL
    }

    async fn open(&self, request: &PayRequest) -> Result<Opened, ProviderError> {
        Ok(Opened { payment_url: self.url_for(request), ..Opened::default() })
    }

    async fn close(&self, order_no: OrderNo) -> Result<CloseOutcome, ProviderError> {
        let asked = self.close_all(&[order_no]).await.map_err(unavailable)?;
        Ok(match asked.first() {
            Some(CloseAsked::Waiting) => CloseOutcome::Asked,
            Some(CloseAsked::Closed) => CloseOutcome::Closed,
            Some(CloseAsked::NeverOpened) | None => CloseOutcome::NeverOpened,
        })
    }

    /// It tells by itself. Whether a payment is closed there is asked by closing it.
    async fn query(&self, _: OrderNo) -> Result<QueryOutcome, ProviderError> {
        Ok(QueryOutcome::Open)
    }

    fn can_be_asked(&self) -> bool {
        false
    }

    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError> {
        let (repeat_ms, now_ms) =
            (self.shared.settings.external.refund_repeat_ms, self.shared.now_ms());
        let (ledger, txn) = (&self.shared.ledger, &request.provider_txn);
        match ledger.ask_to_refund(EXTERNAL, txn, repeat_ms, now_ms).await {
            Ok(RefundRequested::Refunded) => Ok(RefundOutcome::Done),
            Ok(RefundRequested::Waiting) => Ok(RefundOutcome::Pending),
            Ok(RefundRequested::Asked(_)) => {
                self.shared.wake.webhooks_written();
                Ok(RefundOutcome::Pending)
            }
            Ok(RefundRequested::NobodyToAsk) => {
                let why = "no webhook endpoint wants payment.refund_requested: give the money back at \
                     the shop's cashier, and tell /orders/{no}/refunded or mark it refunded";
                Err(ProviderError::Refused(why.into()))
            }
            Err(error @ LedgerError::NotFound) => Err(ProviderError::Refused(error.to_string())),
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn verify_notice(&self, _: &HeaderMap, _: &[u8]) -> Result<Notice, NoticeError> {
        let where_to = "the shop's cashier tells of money at /orders/{no}/paid and /refunded";
        Err(NoticeError::Malformed(where_to.into()))
    }

    fn answer(&self, _: NoticeAnswer) -> (u16, &'static str, String) {
        (400, "text/plain", "tell of money at /api/v1/orders/{no}/paid and /refunded".into())
    }
}

/// What the shop says of money for an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldMoney {
    pub order_no: OrderNo,
    pub transaction_id: String,
    pub amount: Money,
    pub at_ms: Millis,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldOutcome {
    /// It counts, since now.
    Done,
    /// It was told before.
    Repeated,
    /// The money is not ours to keep: the shop has to give it back.
    RefundDue(RefundReason),
}

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
pub enum ToldError {
    #[error("the shop's own cashier is not switched on")]
    Off,
    #[error("no such order")]
    UnknownOrder,
    /// Say it again in a moment.
    #[error("the order is on its way to the ledger")]
    Queued,
    #[error("the amount is not the order's, which is {0}")]
    OtherAmount(Money),
    /// It was told with another order or amount.
    #[error("the transaction id was used before")]
    TransactionUsed,
    #[error("no such transaction was told")]
    UnknownTransaction,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What the shop's backend tells.
impl Payments {
    /// Is this request the shop's? None if it has no cashier of its own here.
    pub fn shop_has_signed(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Option<Result<(), NotSigned>> {
        let external = self.external.as_ref()?;
        let now_s = self.shared.now_ms().div_euclid(1_000);
        Some(verify(&external.secrets, headers, body, now_s))
    }

    pub fn has_external(&self) -> bool {
        self.external.is_some()
    }

    /// The shop has this money. `teller` is the token that says so, if it is not signed.
    pub async fn told_paid(
        &self,
        teller: Option<&Actor>,
        told: &ToldMoney,
    ) -> Result<(ToldOutcome, Order), ToldError> {
        self.external.as_ref().ok_or(ToldError::Off)?;
        self.note_teller(teller, "order.paid", told).await?;
        let money = PaymentNotice {
            provider: EXTERNAL.into(),
            provider_txn: told.transaction_id.clone(),
            order_no: told.order_no,
            amount: told.amount,
            paid_ms: told.at_ms,
        };
        let outcome = match self.credit(&money).await {
            Ok(Credit::Repeated) => ToldOutcome::Repeated,
            Ok(Credit::Refunding(was)) => ToldOutcome::RefundDue(RefundReason::of_money_for(was)),
            Ok(_) => ToldOutcome::Done,
            Err(NoticeFailure::NotYet) => return Err(ToldError::Queued),
            Err(NoticeFailure::Ledger(error)) => return Err(error.into()),
            Err(NoticeFailure::Mismatch) => {
                let order = self.shared.ledger.order(told.order_no).await?;
                let other = order.filter(|order| order.amount != told.amount);
                let used = ToldError::TransactionUsed;
                return Err(other.map_or(used, |order| ToldError::OtherAmount(order.amount)));
            }
            Err(_) => return Err(ToldError::UnknownOrder),
        };
        Ok((outcome, self.known(told.order_no).await?))
    }

    /// The shop has given this money back, because we asked for it or for a reason of its own.
    pub async fn told_refunded(
        &self,
        teller: Option<&Actor>,
        told: &ToldMoney,
    ) -> Result<(ToldOutcome, Order), ToldError> {
        self.external.as_ref().ok_or(ToldError::Off)?;
        self.note_teller(teller, "order.refunded", told).await?;
        let done = RefundDone {
            provider: EXTERNAL.into(),
            provider_txn: told.transaction_id.clone(),
            order_no: told.order_no,
            amount: told.amount,
        };
        let noted = self.shared.ledger.refund_told(&done, None, self.shared.now_ms()).await;
        let outcome = match noted {
            Ok(RefundTold::Noted(_)) => ToldOutcome::Done,
            Ok(RefundTold::Repeated(_)) => ToldOutcome::Repeated,
            Ok(RefundTold::Mismatch(order, amount)) if order == told.order_no => {
                return Err(ToldError::OtherAmount(amount));
            }
            Ok(RefundTold::Mismatch(..)) => return Err(ToldError::TransactionUsed),
            Ok(RefundTold::UnknownPayment) => {
                self.known(told.order_no).await?;
                return Err(ToldError::UnknownTransaction);
            }
            Err(LedgerError::NotFound) => return Err(ToldError::UnknownOrder),
            Err(error) => return Err(error.into()),
        };
        self.shared.wake.outbox_written();
        Ok((outcome, self.known(told.order_no).await?))
    }

    /// The shop takes no more money for this order. If that was asked for, the order is closed at once.
    pub async fn told_closed(
        &self,
        teller: Option<&Actor>,
        no: OrderNo,
        closed_ms: Millis,
    ) -> Result<Order, ToldError> {
        self.external.as_ref().ok_or(ToldError::Off)?;
        if let Some(who) = teller {
            let detail = json!({"provider": EXTERNAL});
            self.shared.audit(who, "order.payment_closed", format!("order:{no}"), detail).await?;
        }
        let now_ms = self.shared.now_ms();
        let order = self.known(no).await?;
        match self.shared.ledger.payment_closed(EXTERNAL, no, closed_ms).await {
            Ok(Some(_asked)) if order.status == OrderStatus::Unpaid => {
                self.close_what_was_asked(order, now_ms).await?;
            }
            // It did so by itself, and the buyer may open another payment; or no payment was opened.
            Ok(_) | Err(LedgerError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        self.known(no).await
    }

    async fn close_what_was_asked(&self, order: Order, now_ms: Millis) -> Result<(), ToldError> {
        let due = now_ms >= order.pay_deadline_ms;
        let reason = if due { CloseReason::Timeout } else { CloseReason::Cancelled };
        let payments = self.shared.ledger.payments(order.order_no).await?;
        let mut providers: Vec<String> = payments.into_iter().map(|row| row.provider).collect();
        providers.dedup();
        let overdue = Overdue { order, providers };
        if self.close_at_providers(&overdue).await {
            self.shared.ledger.close(&[overdue.into()], reason, now_ms).await?;
            self.shared.wake.outbox_written();
        }
        Ok(())
    }

    /// The order as the ledger has it now.
    async fn known(&self, no: OrderNo) -> Result<Order, ToldError> {
        if let Some(order) = self.shared.ledger.order(no).await? {
            return Ok(order);
        }
        match self.of_no_order(no).await {
            NoticeFailure::NotYet => Err(ToldError::Queued),
            _ => Err(ToldError::UnknownOrder),
        }
    }

    /// What is signed is proved to be the shop's. A token has a name, which is written down.
    async fn note_teller(
        &self,
        teller: Option<&Actor>,
        action: &str,
        told: &ToldMoney,
    ) -> ledger::Result<()> {
        let Some(who) = teller else { return Ok(()) };
        let detail = json!({
            "provider": EXTERNAL, "transaction_id": told.transaction_id,
            "amount": told.amount.minor, "currency": told.amount.currency,
        });
        self.shared.audit(who, action, format!("order:{}", told.order_no), detail).await
    }
}

#[cfg(test)]
mod tests {
    use ledger::{
        NewWebhook, OUTBOX_NOBODY, OutboxKind, OutboxMessage, WebhookEvent, WebhookKind,
        WebhookKinds, WebhookSource,
    };
    use sale::{Activity, Currency, Secret};

    use super::*;
    use crate::{
        OrderView, PayChoice, PayError,
        actor::audit_entry,
        jobs::Job,
        test_engine::{NOW_MS, TestEngine},
    };

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ANSWER_MS_MAX: Millis = 10_000;
    const PAY_WITHIN_MS: Millis = 60_000;

    async fn shop() -> (TestEngine, Activity) {
        TestEngine::with_a_sale(|settings| settings.external.secrets = vec![Secret::new(SECRET)])
            .await
    }

    /// Somebody is there who wants to be told.
    async fn listens(shop: &TestEngine) {
        let new = NewWebhook {
            url: "http://127.0.0.1:9/".into(),
            description: String::new(),
            kinds: WebhookKinds::ALL,
            secret: Secret::new(SECRET),
            source: WebhookSource::Settings,
        };
        let entry = audit_entry("ann", "webhook.create", "webhook".into(), json!({}));
        shop.engine.shared.ledger.add_webhook(&new, 1, &entry, NOW_MS).await.unwrap();
    }

    /// What was asked of the shop so far, in the order of asking.
    async fn asked(shop: &TestEngine, kind: WebhookKind) -> Vec<WebhookEvent> {
        let ledger = &shop.engine.shared.ledger;
        let rows = ledger.outbox_due(OutboxKind::Webhook, OUTBOX_NOBODY, Millis::MAX, 99).await;
        let events = rows.unwrap().into_iter().filter_map(|row| match row.message {
            Ok(OutboxMessage::Webhook { events }) => Some(events),
            _ => None,
        });
        events.flatten().filter(|event| event.kind() == kind).collect()
    }

    /// An order with a payment open at the shop.
    async fn opened(shop: &TestEngine, activity: &Activity, user: &str) -> OrderNo {
        let no = shop.buy(activity.items[0].id, user).await;
        let order = shop.engine.shared.ledger.order(no).await.unwrap().unwrap();
        let choice = PayChoice::at(EXTERNAL);
        let opened = shop.engine.payments.open(&OrderView::Known(order), choice).await.unwrap();
        assert_eq!(opened, Opened::default(), "the shop sends its buyers there by itself");
        no
    }

    fn money(no: OrderNo, txn: &str) -> ToldMoney {
        let amount = Money::new(1, Currency::CNY);
        ToldMoney { order_no: no, transaction_id: txn.into(), amount, at_ms: NOW_MS }
    }

    async fn status(shop: &TestEngine, no: OrderNo) -> OrderStatus {
        shop.engine.shared.ledger.order(no).await.unwrap().unwrap().status
    }

    #[test]
    fn an_address_is_filled_with_what_the_order_is() {
        for good in ["", "/pay/{order_no}", "https://shop.example/?no={order_no}&u={user_id}"] {
            assert!(is_cashier_url(good), "{good}");
        }
        for bad in [
            "pay/{order_no}",
            "https://",
            "https://x/{order}",
            "https://x/{order_no",
            "https://x/order_no}",
            "https://x/{{order_no}}",
            "https://x/ y",
            "javascript:alert(1)",
        ] {
            assert!(!is_cashier_url(bad), "{bad}");
        }
        let value = |name: &str| Some(encoded(&format!("{name}/é &")));
        let written = filled("/p?a={amount}&s={subject}.", value).unwrap();
        assert_eq!(written, "/p?a=amount%2F%C3%A9%20%26&s=subject%2F%C3%A9%20%26.");
    }

    #[tokio::test]
    async fn a_shop_that_answers_in_time_decides_what_becomes_of_an_order_that_is_due() {
        let (shop, activity) = shop().await;
        listens(&shop).await;
        let (paid, unpaid) =
            (opened(&shop, &activity, "ann").await, opened(&shop, &activity, "bob").await);
        shop.clock.advance(PAY_WITHIN_MS);
        let timeout = async || {
            shop.engine.jobs.timeout.run().await.unwrap();
            shop.pauses_end();
        };
        for _ in 0..3 {
            timeout().await;
        }
        let requests = asked(&shop, WebhookKind::PaymentCloseRequested).await;
        assert_eq!(requests.len(), 2, "each is asked for once: {requests:?}");
        let now_ms = NOW_MS + PAY_WITHIN_MS;
        let by_ms = now_ms + ANSWER_MS_MAX;
        let request = WebhookEvent::Close { order_no: paid, asked_ms: now_ms, answer_by_ms: by_ms };
        assert!(requests.contains(&request), "{requests:?}");
        assert_eq!(status(&shop, paid).await, OrderStatus::Unpaid, "it waits for the shop");
        let payments = &shop.engine.payments;
        let (outcome, order) = payments.told_paid(None, &money(paid, "T1")).await.unwrap();
        assert_eq!((outcome, order.status), (ToldOutcome::Done, OrderStatus::Paid));
        let order = payments.told_closed(None, unpaid, now_ms).await.unwrap();
        assert_eq!(order.status, OrderStatus::Closed, "it is closed with the answer");
        assert_eq!(order.reason, Some(sale::Reason::Timeout));
        let order = payments.told_closed(None, paid, now_ms).await.unwrap();
        assert_eq!(order.status, OrderStatus::Paid, "what is paid stays so");
    }

    #[tokio::test]
    async fn a_shop_that_is_away_is_waited_for_so_long_and_gives_late_money_back() {
        let (shop, activity) = shop().await;
        listens(&shop).await;
        let no = opened(&shop, &activity, "ann").await;
        let timeout = async || {
            shop.engine.jobs.timeout.run().await.unwrap();
            shop.pauses_end();
        };
        shop.clock.advance(PAY_WITHIN_MS);
        timeout().await;
        shop.clock.advance(ANSWER_MS_MAX - 1);
        timeout().await;
        assert_eq!(status(&shop, no).await, OrderStatus::Unpaid);
        shop.clock.advance(1);
        timeout().await;
        assert_eq!(status(&shop, no).await, OrderStatus::Closed, "units do not wait for ever");

        let payments = &shop.engine.payments;
        let (outcome, order) = payments.told_paid(None, &money(no, "T1")).await.unwrap();
        assert_eq!(outcome, ToldOutcome::RefundDue(RefundReason::Late));
        assert_eq!(order.status, OrderStatus::Refunding);
        let refund = async || shop.engine.jobs.refund.run().await.unwrap();
        let requests = async || asked(&shop, WebhookKind::PaymentRefundRequested).await;
        shop.rounds_until(&*shop.engine.jobs.refund, async || requests().await.len() == 1).await;
        for _ in 0..3 {
            shop.clock.advance(60_000);
            refund().await;
        }
        assert_eq!(requests().await.len(), 1, "not again before its time");
        shop.clock.advance(shop.engine.shared.settings.external.refund_repeat_ms);
        shop.rounds_until(&*shop.engine.jobs.refund, async || requests().await.len() == 2).await;
        let WebhookEvent::Refund { provider_txn, ask, reason, .. } = &requests().await[1] else {
            panic!("it is a refund")
        };
        assert_eq!((provider_txn.as_str(), *ask, reason.as_deref()), ("T1", 2, Some("late")));
        let (outcome, order) = payments.told_refunded(None, &money(no, "T1")).await.unwrap();
        assert_eq!((outcome, order.status), (ToldOutcome::Done, OrderStatus::Refunded));
        let rows =
            shop.engine.shared.ledger.outbox_due(OutboxKind::Refund, OUTBOX_NOBODY, Millis::MAX, 9);
        assert_eq!(rows.await.unwrap(), [], "nobody is asked any more");
    }

    #[tokio::test]
    async fn a_shop_that_nobody_can_ask_is_not_waited_for() {
        let (shop, activity) = shop().await;
        let no = opened(&shop, &activity, "ann").await;
        shop.clock.advance(PAY_WITHIN_MS);
        shop.engine.jobs.timeout.run().await.unwrap();
        assert_eq!(status(&shop, no).await, OrderStatus::Closed);
    }

    #[tokio::test]
    async fn a_buyer_who_gives_up_is_told_to_wait_until_the_shop_has_closed() {
        let (shop, activity) = shop().await;
        listens(&shop).await;
        let no = opened(&shop, &activity, "ann").await;
        let view = OrderView::Known(shop.engine.shared.ledger.order(no).await.unwrap().unwrap());
        let payments = shop.engine.payments.clone();
        let early = payments.cancel(&view).await;
        assert!(matches!(early, Err(PayError::Provider(ProviderError::Unavailable(_)))));
        let order = payments.told_closed(None, no, NOW_MS).await.unwrap();
        assert_eq!(order.status, OrderStatus::Closed);
        assert_eq!(order.reason, Some(sale::Reason::Cancelled));
        assert_eq!(payments.cancel(&view).await.unwrap().status, OrderStatus::Closed);
    }

    #[tokio::test]
    async fn what_the_shop_closed_by_itself_may_be_opened_again() {
        let (shop, activity) = shop().await;
        listens(&shop).await;
        let no = opened(&shop, &activity, "ann").await;
        let order = shop.engine.payments.told_closed(None, no, NOW_MS).await.unwrap();
        assert_eq!(order.status, OrderStatus::Unpaid, "nobody asked for it");
        let view = OrderView::Known(order);
        shop.engine.payments.open(&view, PayChoice::at(EXTERNAL)).await.unwrap();
        shop.clock.advance(PAY_WITHIN_MS);
        shop.engine.jobs.timeout.run().await.unwrap();
        assert_eq!(status(&shop, no).await, OrderStatus::Unpaid, "and is asked about again");
        assert_eq!(asked(&shop, WebhookKind::PaymentCloseRequested).await.len(), 1);
    }
}
