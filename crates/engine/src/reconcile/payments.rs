//! Comparing payments: what the ledger says of them beside what their providers say.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use ledger::{Credit, OpenPayment, PaymentNotice, PaymentProblem};
use parking_lot::Mutex;
use payment::{CloseOutcome, Paid, Provider, ProviderError, QueryOutcome};
use sale::{Millis, OrderNo};
use serde_json::json;

use super::{Finding, ReconcileError};
use crate::{Engine, NoticeFailure, jobs::PROVIDER_CALLS_MAX};

const PAYMENT_PROBLEMS_MAX: usize = 1_000;
/// Payments whose providers are asked in one run. The next run goes on where this one ended.
const ASKED_PAYMENTS_MAX: usize = 1_000;
/// How long after the end of its order money may still arrive for a payment that its provider calls
/// closed.
const UNDER_WAY_MS_MAX: Millis = 24 * 60 * 60 * 1_000;
/// A notice takes its time; only when none has come this long after the payment is it lost.
const NOTICE_MS_MAX: Millis = 60_000;

/// What a provider says of a payment.
enum Told {
    /// It has the money, and a notice of it is overdue.
    Money(Paid),
    /// Nobody can pay any more.
    Closed,
    /// It may be paid yet, or the provider does not answer.
    Open,
}

impl Engine {
    pub(super) async fn reconcile_payments(
        &self,
        heal: bool,
    ) -> Result<Vec<Finding>, ReconcileError> {
        let mut findings = Vec::new();
        for problem in self.ledger.payment_problems(PAYMENT_PROBLEMS_MAX).await? {
            let finding = match &problem {
                PaymentProblem::PaidWithoutMoney { order_no } => {
                    Finding::new("payment_missing", format!("{order_no} is paid without money"))
                }
                PaymentProblem::RefundedTooMuch { order_no } => Finding::new(
                    "refund_too_much",
                    format!("{order_no} got back more than it paid"),
                ),
                PaymentProblem::RefundNotQueued { order_no, provider, provider_txn } => {
                    let detail = format!("{order_no}: {provider} {provider_txn} is owed back");
                    let mut finding = Finding::new("refund_forgotten", detail);
                    let now_ms = self.clock.now_ms();
                    if heal && self.ledger.requeue_refund(provider, provider_txn, now_ms).await? {
                        self.wake_outbox();
                        finding.healed = Some("put back into the outbox".into());
                    }
                    finding
                }
            };
            findings.push(finding);
        }
        Ok(findings)
    }

    /// Payments that were made and that nobody told us of.
    pub(super) async fn unnoticed_payments(
        &self,
        heal: bool,
    ) -> Result<Vec<Finding>, ReconcileError> {
        let after = self.asked_up_to.lock().unwrap_or(0);
        let page = self.ledger.open_payments(after, ASKED_PAYMENTS_MAX).await?;
        let full = page.len() == ASKED_PAYMENTS_MAX;
        *self.asked_up_to.lock() = page.last().filter(|_| full).map(|last| last.id);
        // A clock that is ahead must not give up money that is under way.
        let now_ms = self.clock.now_ms().min(self.ledger.now_ms().await?);
        let silent = Mutex::new(HashSet::new());
        let silent = &silent;
        let question = |open: OpenPayment| async move {
            let told = self.ask_provider(&open, heal, silent).await;
            (open, told)
        };
        let answers = stream::iter(page).map(question).buffer_unordered(PROVIDER_CALLS_MAX);
        let answers: Vec<_> = answers.collect().await;
        let (mut findings, mut over) = (Vec::new(), Vec::new());
        for (open, told) in answers {
            match told {
                Told::Money(paid) => {
                    findings
                        .extend(self.unnoticed(open.order_no, open.provider, paid, heal).await?);
                }
                Told::Closed if heal && nothing_is_under_way(&open, now_ms) => over.push(open.id),
                Told::Closed | Told::Open => {}
            }
        }
        if !over.is_empty() {
            self.ledger.payments_over(&over, now_ms).await?;
        }
        Ok(findings)
    }

    /// A provider that does not answer is not asked again in this run.
    async fn ask_provider(
        &self,
        open: &OpenPayment,
        heal: bool,
        silent: &Mutex<HashSet<String>>,
    ) -> Told {
        let name = &open.provider;
        let known = self.providers.get(name);
        if silent.lock().contains(name) {
            return Told::Open;
        }
        let told = match known {
            Some(provider) => self.ask_about(&**provider, open, heal).await,
            None => Err(ProviderError::Unavailable("it is not configured".into())),
        };
        told.unwrap_or_else(|error| {
            if silent.lock().insert(name.clone()) {
                tracing::warn!(provider = name, %error, "payments cannot be asked for now");
            }
            Told::Open
        })
    }

    async fn ask_about(
        &self,
        provider: &dyn Provider,
        open: &OpenPayment,
        heal: bool,
    ) -> Result<Told, ProviderError> {
        let no = open.order_no;
        Ok(match provider.query(no).await? {
            QueryOutcome::Paid(paid) => self.unless_told_soon(paid),
            QueryOutcome::Closed | QueryOutcome::NeverOpened | QueryOutcome::Refunded(_) => {
                Told::Closed
            }
            // Whoever closed the order did not reach the provider.
            QueryOutcome::Open if heal && open.order_over_ms.is_some() => {
                match provider.close(no).await? {
                    CloseOutcome::AlreadyPaid(paid) => self.unless_told_soon(paid),
                    CloseOutcome::Closed | CloseOutcome::NeverOpened => Told::Closed,
                }
            }
            QueryOutcome::Open => Told::Open,
        })
    }

    /// A notice takes its time. One from a future that is not near was made by another clock, and says
    /// nothing about how long we have waited.
    fn unless_told_soon(&self, paid: Paid) -> Told {
        let age_ms = self.clock.now_ms() - paid.paid_ms;
        if age_ms.abs() > NOTICE_MS_MAX { Told::Money(paid) } else { Told::Open }
    }

    async fn unnoticed(
        &self,
        no: OrderNo,
        provider: String,
        paid: Paid,
        heal: bool,
    ) -> Result<Option<Finding>, ReconcileError> {
        let detail = format!("{no}: {provider} has money for it and its notice never came");
        let mut finding = Finding::new("payment_unnoticed", detail);
        if !heal {
            return Ok(Some(finding));
        }
        let money = PaymentNotice {
            provider,
            provider_txn: paid.provider_txn,
            order_no: no,
            amount: paid.amount,
            paid_ms: paid.paid_ms,
        };
        let how = match self.credit(&money).await {
            Ok(Credit::Repeated) => return Ok(None),
            Ok(Credit::Refunding(_)) => "the order was over, the money goes back",
            Ok(_) => "credited",
            Err(NoticeFailure::Ledger(error)) => return Err(error.into()),
            // Somebody was woken already.
            Err(failure) => {
                finding.detail.push_str(&format!(", but {failure}"));
                return Ok(Some(finding));
            }
        };
        finding.healed = Some(how.into());
        let entry = ledger::AuditEntry {
            who: "system".into(),
            action: "reconcile.heal".into(),
            target: format!("order:{no}"),
            detail: json!({"how": how, "findings": [finding]}),
            origin: ledger::Origin::default(),
        };
        self.ledger.audit(&entry, self.clock.now_ms()).await?;
        Ok(Some(finding))
    }
}

/// The order has been over for so long that money which was under way then has arrived.
fn nothing_is_under_way(open: &OpenPayment, now_ms: Millis) -> bool {
    let over_ms = open.order_over_ms.map(|over_ms| over_ms.max(open.opened_ms));
    over_ms.is_some_and(|over_ms| now_ms - over_ms > UNDER_WAY_MS_MAX)
}

#[cfg(test)]
mod tests {
    use sale::{CloseReason, OrderStatus};

    use super::*;
    use crate::test_engine::{Bank, NOW_MS, TestEngine};

    const DAY_MS: Millis = 24 * 60 * 60 * 1_000;

    #[tokio::test]
    async fn a_payment_whose_notice_got_lost_is_found_and_credited() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let bank = night.bank(Bank::default());
        let (engine, item) = (night.engine.clone(), activity.items[0].id);
        let mut orders = Vec::new();
        for user in ["ann", "bob", "cat", "dan"] {
            let no = night.buy(item, user).await;
            engine.ledger.open_payment(no, Bank::NAME, NOW_MS).await.unwrap();
            orders.push(no);
        }
        let [paid, late, wrong, unpaid] = orders[..] else { panic!() };
        bank.pay(paid, 1, NOW_MS);
        bank.pay(late, 1, NOW_MS);
        bank.pay(wrong, 7, NOW_MS);
        let asked = ledger::Closing { order_no: late, providers: vec![Bank::NAME.into()] };
        engine.ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();

        let soon = engine.reconcile(true).await.unwrap();
        assert_eq!(soon.differences, 0, "the notices may still come: {:?}", soon.payments);
        night.clock.advance(NOTICE_MS_MAX + 1);
        let looked = engine.reconcile(false).await.unwrap();
        assert_eq!((looked.differences, looked.left), (3, 3), "{:?}", looked.payments);
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(paid).await, OrderStatus::Unpaid, "only looked at");
        let healed = engine.reconcile(true).await.unwrap();
        assert!(healed.payments.iter().all(|found| found.kind == "payment_unnoticed"));
        assert_eq!((healed.differences, healed.healed), (3, 2), "{:?}", healed.payments);
        assert_eq!(status(paid).await, OrderStatus::Paid);
        assert_eq!(status(late).await, OrderStatus::Refunding);
        assert_eq!(status(wrong).await, OrderStatus::Unpaid, "not that amount");
        assert_eq!(status(unpaid).await, OrderStatus::Unpaid);
        assert_eq!(engine.reconcile(true).await.unwrap().differences, 1, "the wrong one");
        let audit = engine.ledger.audit_log(None, 10).await.unwrap();
        assert_eq!(audit.iter().filter(|row| row.action == "reconcile.heal").count(), 2);
    }

    /// An order that may be paid within three days, with its payment opened at the bank.
    async fn order_of_three_days() -> (TestEngine, Bank, OrderNo) {
        let mut night = TestEngine::without_a_sale(|_| {}).await;
        let bank = night.bank(Bank::default());
        let engine = night.engine.clone();
        let window = (NOW_MS - 1, NOW_MS + 3_600_000);
        let slow = night.another_sale("sofa", window, 3 * DAY_MS).await;
        engine.warm_activity("ann", slow.id, false).await.unwrap();
        let no = night.buy(slow.items[0].id, "ann").await;
        engine.ledger.open_payment(no, Bank::NAME, NOW_MS).await.unwrap();
        (night, bank, no)
    }

    #[tokio::test]
    async fn late_money_is_given_back_however_long_the_order_could_be_paid() {
        let (night, bank, no) = order_of_three_days().await;
        let engine = &night.engine;
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        night.clock.advance(3 * DAY_MS);
        engine.time_out().await.unwrap();
        assert_eq!(status(no).await, OrderStatus::Closed);
        // The money was under way when the bank closed the payment, and its notice is lost.
        let landed_ms = NOW_MS + 3 * DAY_MS + 5;
        bank.pay(no, 1, landed_ms);
        night.clock.advance(NOTICE_MS_MAX + 6);
        let report = engine.reconcile(true).await.unwrap();
        assert_eq!((report.differences, report.healed), (1, 1), "{:?}", report.payments);
        assert_eq!(status(no).await, OrderStatus::Refunding);
        engine.deliver_refunds().await.unwrap();
        assert_eq!(status(no).await, OrderStatus::Refunded);
        let calls = bank.calls();
        engine.reconcile(true).await.unwrap();
        assert_eq!(bank.calls(), calls, "it told of its money and is not asked again");
    }

    #[tokio::test]
    async fn a_payment_is_asked_about_until_its_provider_says_that_it_is_closed() {
        let (night, bank, no) = order_of_three_days().await;
        let engine = &night.engine;
        // The order was closed, and whoever did it never reached the bank.
        let asked = ledger::Closing { order_no: no, providers: vec![Bank::NAME.into()] };
        engine.ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();
        bank.hang(true);
        night.clock.advance(30 * DAY_MS);
        let asking = tokio::spawn({
            let engine = engine.clone();
            async move { engine.reconcile(true).await.unwrap() }
        });
        bank.called().await;
        bank.hang(false);
        asking.await.unwrap();
        assert!(bank.is_closed(no), "a month later it is closed at last");
        assert!(engine.ledger.open_payments(0, 9).await.unwrap().is_empty());
        let calls = bank.calls();
        engine.reconcile(true).await.unwrap();
        assert_eq!(bank.calls(), calls);
    }

    #[tokio::test]
    async fn money_under_way_has_a_day_after_its_payment_was_closed() {
        let (night, bank, no) = order_of_three_days().await;
        let engine = &night.engine;
        night.clock.advance(3 * DAY_MS);
        engine.time_out().await.unwrap();
        assert!(bank.is_closed(no));
        night.clock.advance(UNDER_WAY_MS_MAX);
        engine.reconcile(true).await.unwrap();
        assert_eq!(engine.ledger.open_payments(0, 9).await.unwrap().len(), 1, "it may still come");
        night.clock.advance(1);
        engine.reconcile(false).await.unwrap();
        assert_eq!(engine.ledger.open_payments(0, 9).await.unwrap().len(), 1, "only looked at");
        engine.reconcile(true).await.unwrap();
        assert!(engine.ledger.open_payments(0, 9).await.unwrap().is_empty());
    }
}
