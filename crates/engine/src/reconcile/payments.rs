//! Comparing payments: what the ledger says of them beside what their providers say.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use futures_util::{StreamExt, stream};
use ledger::{CheckedPayments, OWED_TOLD_MAX, OpenPayment, PaymentProblem, PaymentsSince};
use parking_lot::Mutex;
use payment::{CloseOutcome, Paid, Provider, ProviderError, QueryOutcome};
use sale::{Millis, OrderNo};

use super::{Finding, found_money};
use crate::{
    Payments, StoreError,
    payments::{PROVIDER_CALLS_MAX, money_of},
    shared::Shared,
    silence::Silence,
};

const PAYMENT_PROBLEMS_MAX: usize = 1_000;
/// A payment carries the time of the process that noted it, before it was committed: clocks differ, and a
/// commit may take a while.
const PAYMENTS_OVERLAP_MS: Millis = 10 * 60 * 1_000;
/// Payments whose providers are asked in one run. The next run goes on where this one ended.
const ASKED_PAYMENTS_MAX: usize = 1_000;
/// How long after the end of its order money may still arrive for a payment that its provider calls
/// closed.
const UNDER_WAY_MS_MAX: Millis = 24 * 60 * 60 * 1_000;
/// A notice takes its time; only when none has come this long after the payment is it lost.
const NOTICE_MS_MAX: Millis = 60_000;

/// What a provider says of a payment.
enum PaymentState {
    /// It has the money, and a notice of it is overdue.
    Money(Paid),
    /// Nobody can pay any more.
    Closed,
    /// It may be paid yet, or the provider does not answer.
    Open,
}

pub(super) struct PaymentComparison {
    shared: Arc<Shared>,
    payments: Arc<Payments>,
    /// Up to which payment the last run asked the providers, if it did not get to the end.
    asked_up_to: Mutex<Option<i64>>,
}

impl PaymentComparison {
    pub(super) fn new(shared: Arc<Shared>, payments: Arc<Payments>) -> PaymentComparison {
        PaymentComparison { shared, payments, asked_up_to: Mutex::default() }
    }

    pub(super) async fn compare(
        &self,
        heal: bool,
        now_ms: Millis,
        point: &mut Option<PaymentsSince>,
    ) -> Result<Vec<Finding>, StoreError> {
        let problems = self.problems_since(now_ms, point).await?;
        let mut findings = self.findings(problems, heal).await?;
        findings.extend(self.unnoticed_payments(heal).await?);
        Ok(findings)
    }

    /// What does not add up among what may have changed since the point, which is moved on.
    async fn problems_since(
        &self,
        now_ms: Millis,
        point: &mut Option<PaymentsSince>,
    ) -> Result<Vec<PaymentProblem>, StoreError> {
        let since = point.as_ref().map(|point| {
            let since_ms = point.since_ms.min(now_ms) - PAYMENTS_OVERLAP_MS;
            PaymentsSince { since_ms, ..point.clone() }
        });
        let checked = self.shared.ledger.check_payments(since.as_ref(), PAYMENT_PROBLEMS_MAX).await;
        let CheckedPayments { problems, owed } = checked?;
        let orders: BTreeSet<OrderNo> = problems.iter().map(PaymentProblem::order_no).collect();
        let orders = orders.into_iter().collect();
        // Of more than can be told nobody knows which to ask about again: then the next look is at all.
        let all_told = owed.len() <= OWED_TOLD_MAX;
        *point = all_told.then_some(PaymentsSince { since_ms: now_ms, owed, orders });
        Ok(problems)
    }

    async fn findings(
        &self,
        problems: Vec<PaymentProblem>,
        heal: bool,
    ) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for problem in problems {
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
                    let now_ms = self.shared.now_ms();
                    if heal
                        && self.shared.ledger.requeue_refund(provider, provider_txn, now_ms).await?
                    {
                        self.shared.wake.outbox_written();
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
    async fn unnoticed_payments(&self, heal: bool) -> Result<Vec<Finding>, StoreError> {
        let after = self.asked_up_to.lock().unwrap_or(0);
        let page = self.shared.ledger.open_payments(after, ASKED_PAYMENTS_MAX).await?;
        let full = page.len() == ASKED_PAYMENTS_MAX;
        *self.asked_up_to.lock() = page.last().filter(|_| full).map(|last| last.id);
        // A clock that is ahead must not give up money that is under way.
        let now_ms = self.shared.now_ms().min(self.shared.ledger.now_ms().await?);
        let silences: HashMap<String, Silence> =
            page.iter().map(|open| (open.provider.clone(), Silence::default())).collect();
        let silences = &silences;
        let question = |open: OpenPayment| async move {
            let answer = self.ask_provider(&open, heal, silences).await;
            (open, answer)
        };
        let answers = stream::iter(page).map(question).buffer_unordered(PROVIDER_CALLS_MAX);
        let answers: Vec<_> = answers.collect().await;
        let (mut findings, mut over) = (Vec::new(), Vec::new());
        for (open, answer) in answers {
            match answer {
                PaymentState::Money(paid) => {
                    findings
                        .extend(self.unnoticed(open.order_no, open.provider, paid, heal).await?);
                }
                PaymentState::Closed if heal && nothing_is_under_way(&open, now_ms) => {
                    over.push(open.id)
                }
                PaymentState::Closed | PaymentState::Open => {}
            }
        }
        if !over.is_empty() {
            self.shared.ledger.payments_over(&over, now_ms).await?;
        }
        Ok(findings)
    }

    /// A provider that is away is not asked again in this run.
    async fn ask_provider(
        &self,
        open: &OpenPayment,
        heal: bool,
        silences: &HashMap<String, Silence>,
    ) -> PaymentState {
        let name = &open.provider;
        let Some(silence) = silences.get(name) else { return PaymentState::Open };
        if silence.is_away() {
            return PaymentState::Open;
        }
        let answer = match self.payments.provider(name) {
            Some(provider) => self.ask_about(&**provider, open, heal).await,
            None => Err(ProviderError::Unavailable("it is not configured".into())),
        };
        let is_away_now = silence.note(&answer);
        answer.unwrap_or_else(|error| {
            if is_away_now {
                tracing::warn!(provider = name, %error,
                    "a provider does not answer; the next run asks it about its payments");
            }
            PaymentState::Open
        })
    }

    async fn ask_about(
        &self,
        provider: &dyn Provider,
        open: &OpenPayment,
        heal: bool,
    ) -> Result<PaymentState, ProviderError> {
        let no = open.order_no;
        Ok(match provider.query(no).await? {
            QueryOutcome::Paid(paid) => self.unless_notice_may_come(paid),
            QueryOutcome::Closed | QueryOutcome::NeverOpened | QueryOutcome::Refunded(_) => {
                PaymentState::Closed
            }
            // Whoever closed the order did not reach the provider.
            QueryOutcome::Open if heal && open.order_over_ms.is_some() => {
                match provider.close(no).await? {
                    CloseOutcome::AlreadyPaid(paid) => self.unless_notice_may_come(paid),
                    CloseOutcome::Closed | CloseOutcome::NeverOpened => PaymentState::Closed,
                    CloseOutcome::Asked => PaymentState::Open,
                }
            }
            QueryOutcome::Open => PaymentState::Open,
        })
    }

    /// A notice takes its time. One from a future that is not near was made by another clock, and says
    /// nothing about how long we have waited.
    fn unless_notice_may_come(&self, paid: Paid) -> PaymentState {
        let age_ms = self.shared.now_ms() - paid.paid_ms;
        if age_ms.abs() > NOTICE_MS_MAX { PaymentState::Money(paid) } else { PaymentState::Open }
    }

    async fn unnoticed(
        &self,
        no: OrderNo,
        provider: String,
        paid: Paid,
        heal: bool,
    ) -> Result<Option<Finding>, StoreError> {
        let detail = format!("{no}: {provider} has money for it and its notice never came");
        let finding = Finding::new("payment_unnoticed", detail);
        if !heal {
            return Ok(Some(finding));
        }
        found_money::credit(&self.payments, &money_of(&provider, no, paid), finding).await
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
    use crate::{
        jobs::Job,
        test_engine::{Bank, NOW_MS, TestEngine},
    };

    const DAY_MS: Millis = 24 * 60 * 60 * 1_000;

    #[tokio::test]
    async fn a_payment_whose_notice_got_lost_is_found_and_credited() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let bank = shop.bank.clone();
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let mut orders = Vec::new();
        for user in ["ann", "bob", "cat", "dan"] {
            let no = shop.buy(item, user).await;
            engine.shared.ledger.open_payment(no, Bank::NAME, None, NOW_MS).await.unwrap();
            orders.push(no);
        }
        let [paid, late, wrong, unpaid] = orders[..] else { panic!() };
        bank.pay(paid, 1, NOW_MS);
        bank.pay(late, 1, NOW_MS);
        bank.pay(wrong, 7, NOW_MS);
        let asked = ledger::Closing { order_no: late, providers: vec![Bank::NAME.into()] };
        engine.shared.ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();

        let soon = engine.reconcile.run(true).await.unwrap();
        assert_eq!(soon.differences, 0, "the notices may still come: {:?}", soon.payments);
        shop.clock.advance(NOTICE_MS_MAX + 1);
        let looked = engine.reconcile.run(false).await.unwrap();
        assert_eq!((looked.differences, looked.left), (3, 3), "{:?}", looked.payments);
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(paid).await, OrderStatus::Unpaid, "only looked at");
        let healed = engine.reconcile.run(true).await.unwrap();
        assert!(healed.payments.iter().all(|found| found.kind == "payment_unnoticed"));
        assert_eq!((healed.differences, healed.healed), (3, 2), "{:?}", healed.payments);
        assert_eq!(status(paid).await, OrderStatus::Paid);
        assert_eq!(status(late).await, OrderStatus::Refunding);
        assert_eq!(status(wrong).await, OrderStatus::Unpaid, "not that amount");
        assert_eq!(status(unpaid).await, OrderStatus::Unpaid);
        assert_eq!(engine.reconcile.run(true).await.unwrap().differences, 1, "the wrong one");
        let audit = engine.shared.ledger.audit_log(None, 10).await.unwrap();
        assert_eq!(audit.iter().filter(|row| row.action == "reconcile.heal").count(), 2);
    }

    #[tokio::test]
    async fn a_provider_that_loses_an_answer_now_and_then_is_asked_about_all_of_them() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let engine = shop.engine.clone();
        for n in 0..10 {
            let no = shop.buy(activity.items[0].id, &format!("u{n}")).await;
            engine.shared.ledger.open_payment(no, Bank::NAME, None, NOW_MS).await.unwrap();
            shop.bank.pay(no, 1, NOW_MS);
        }
        shop.clock.advance(NOTICE_MS_MAX + 1);
        shop.bank.lose_every(3);
        let healed = engine.reconcile.run(true).await.unwrap().healed;
        assert_eq!(healed, 7, "three answers were lost, and nothing else");
    }

    /// An order that may be paid within three days, with its payment opened at the bank.
    async fn order_of_three_days() -> (TestEngine, Bank, OrderNo) {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let bank = shop.bank.clone();
        let engine = shop.engine.clone();
        let window = (NOW_MS - 1, NOW_MS + 3_600_000);
        let slow = shop.another_sale("sofa", window, 3 * DAY_MS).await;
        engine.operations.warm_activity("ann", slow.id, false).await.unwrap();
        let no = shop.buy(slow.items[0].id, "ann").await;
        engine.shared.ledger.open_payment(no, Bank::NAME, None, NOW_MS).await.unwrap();
        (shop, bank, no)
    }

    #[tokio::test]
    async fn late_money_is_given_back_however_long_the_order_could_be_paid() {
        let (shop, bank, no) = order_of_three_days().await;
        let engine = &shop.engine;
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        shop.clock.advance(3 * DAY_MS);
        engine.jobs.timeout.run().await.unwrap();
        assert_eq!(status(no).await, OrderStatus::Closed);
        // The money was under way when the bank closed the payment, and its notice is lost.
        let landed_ms = NOW_MS + 3 * DAY_MS + 5;
        bank.pay(no, 1, landed_ms);
        shop.clock.advance(NOTICE_MS_MAX + 6);
        let report = engine.reconcile.run(true).await.unwrap();
        assert_eq!((report.differences, report.healed), (1, 1), "{:?}", report.payments);
        assert_eq!(status(no).await, OrderStatus::Refunding);
        engine.jobs.refund.run().await.unwrap();
        assert_eq!(status(no).await, OrderStatus::Refunded);
        let calls = bank.calls();
        engine.reconcile.run(true).await.unwrap();
        assert_eq!(bank.calls(), calls, "it told of its money and is not asked again");
    }

    #[tokio::test]
    async fn a_payment_is_asked_about_until_its_provider_says_that_it_is_closed() {
        let (shop, bank, no) = order_of_three_days().await;
        let engine = &shop.engine;
        // The order was closed, and whoever did it never reached the bank.
        let asked = ledger::Closing { order_no: no, providers: vec![Bank::NAME.into()] };
        engine.shared.ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();
        bank.hang(true);
        shop.clock.advance(30 * DAY_MS);
        let asking = tokio::spawn({
            let engine = engine.clone();
            async move { engine.reconcile.run(true).await.unwrap() }
        });
        bank.called().await;
        bank.hang(false);
        asking.await.unwrap();
        assert!(bank.is_closed(no), "a month later it is closed at last");
        assert!(engine.shared.ledger.open_payments(0, 9).await.unwrap().is_empty());
        let calls = bank.calls();
        engine.reconcile.run(true).await.unwrap();
        assert_eq!(bank.calls(), calls);
    }

    #[tokio::test]
    async fn money_under_way_has_a_day_after_its_payment_was_closed() {
        let (shop, bank, no) = order_of_three_days().await;
        let engine = &shop.engine;
        shop.clock.advance(3 * DAY_MS);
        engine.jobs.timeout.run().await.unwrap();
        assert!(bank.is_closed(no));
        shop.clock.advance(UNDER_WAY_MS_MAX);
        engine.reconcile.run(true).await.unwrap();
        assert_eq!(
            engine.shared.ledger.open_payments(0, 9).await.unwrap().len(),
            1,
            "it may still come"
        );
        shop.clock.advance(1);
        engine.reconcile.run(false).await.unwrap();
        assert_eq!(
            engine.shared.ledger.open_payments(0, 9).await.unwrap().len(),
            1,
            "only looked at"
        );
        engine.reconcile.run(true).await.unwrap();
        assert!(engine.shared.ledger.open_payments(0, 9).await.unwrap().is_empty());
    }
}
