//! Asks providers about payments that they have not told of: a notice may be lost, or late.
//!
//! Half a minute after a payment was opened its provider is asked for the first time, then after pauses that
//! grow, until the order is not unpaid any more; from then on reconcile asks, and the time-out closes. Each
//! provider has a visit of its own, which goes on beside the rounds of the job: one that hangs delays nobody
//! else, and one that does not answer is asked about nothing more for a while.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use ledger::{PaymentAsked, PaymentToAsk, Share, in_share};
use payment::{Provider, ProviderError, QueryOutcome};
use sale::{Millis, OrderStatus};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{Job, JobResult, Progress};
use crate::{
    NoticeFailure, Payments,
    payments::{PROVIDER_CALLS_MAX, money_of},
    shared::{AnyError, Shared},
    silence::Silence,
};

/// The pauses after the first, second … asking. The last one repeats.
const ASK_PAUSES_MS: [Millis; 6] = [60_000, 120_000, 300_000, 600_000, 1_800_000, ASK_PAUSE_MS_MAX];
const ASK_PAUSE_MS_MAX: Millis = 3_600_000;
/// When payments are asked about again whose provider did not answer.
const SILENT_PAUSE_MS: Millis = 30_000;
/// Payments of a provider that are read at once.
const DUE_AT_ONCE: usize = 200;
/// How long a round waits for its visits before it goes on beside them.
const ROUND_MS_MAX: u64 = 250;

pub(crate) struct Ask {
    visitor: Arc<Visitor>,
    visits: Mutex<Visits>,
}

struct Visitor {
    shared: Arc<Shared>,
    payments: Arc<Payments>,
}

#[derive(Default)]
struct Visits {
    under_way: JoinSet<(String, Result<(), AnyError>)>,
    busy: HashSet<String>,
}

impl Ask {
    pub(super) fn new(shared: Arc<Shared>, payments: Arc<Payments>) -> Ask {
        Ask { visitor: Arc::new(Visitor { shared, payments }), visits: Mutex::default() }
    }

    /// Visits that are under way are broken off; what they were about stays due.
    pub(super) async fn stop(&self) {
        self.visits.lock().await.under_way.shutdown().await;
    }
}

#[async_trait]
impl Job for Ask {
    async fn run(&self) -> JobResult {
        let mut visits = self.visits.lock().await;
        while let Some(visit) = visits.under_way.try_join_next() {
            visits.over(visit);
        }
        for name in self.visitor.payments.provider_names() {
            let Some(provider) = self.visitor.payments.provider(&name).cloned() else { continue };
            if !provider.can_be_asked() || !visits.busy.insert(name.clone()) {
                continue;
            }
            let visitor = self.visitor.clone();
            let visit = async move {
                let asked = visitor.ask_all(&name, &*provider).await;
                (name, asked)
            };
            visits.under_way.spawn(in_share(Share::Jobs, visit));
        }
        let until = Instant::now() + Duration::from_millis(ROUND_MS_MAX);
        while let Ok(Some(visit)) = timeout_at(until, visits.under_way.join_next()).await {
            visits.over(visit);
        }
        Ok(Progress::CaughtUp)
    }
}

impl Visits {
    fn over(&mut self, visit: Result<(String, Result<(), AnyError>), tokio::task::JoinError>) {
        match visit {
            Ok((provider, asked)) => {
                self.busy.remove(&provider);
                if let Err(error) = asked {
                    tracing::warn!(provider, %error, "payments were not asked about, will try again");
                }
            }
            // A bug is told of by whoever runs the job; nobody stays busy for it.
            Err(error) => {
                self.busy.clear();
                if error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    }
}

/// The provider did not answer.
struct Silent;

impl Visitor {
    /// Asks about all payments of a provider that are due, unless it stops answering.
    async fn ask_all(&self, name: &str, provider: &dyn Provider) -> Result<(), AnyError> {
        loop {
            let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
            let due = ledger.payments_to_ask(name, now_ms, ASK_PAUSE_MS_MAX, DUE_AT_ONCE).await?;
            let full = due.len() == DUE_AT_ONCE;
            if due.is_empty() {
                return Ok(());
            }
            let silence = &Silence::default();
            let asked = stream::iter(due).map(|due| async move {
                // An outage uses up none of the askings of which the pauses grow.
                let (pause_ms, asks) = match self.ask(name, provider, &due, silence).await {
                    Ok(pause_ms) => (pause_ms, due.asks.saturating_add(1)),
                    Err(Silent) => (Some(SILENT_PAUSE_MS), due.asks),
                };
                let next_ms = pause_ms.map(|pause_ms| now_ms.saturating_add(pause_ms));
                PaymentAsked { id: due.id, asks, next_ms }
            });
            let asked: Vec<PaymentAsked> = asked.buffered(PROVIDER_CALLS_MAX).collect().await;
            ledger.payments_asked(&asked).await?;
            if silence.is_away() || !full {
                return Ok(());
            }
        }
    }

    /// Asks about one. Answers after which pause it is asked about again, if it is.
    async fn ask(
        &self,
        name: &str,
        provider: &dyn Provider,
        due: &PaymentToAsk,
        silence: &Silence,
    ) -> Result<Option<Millis>, Silent> {
        if due.status != OrderStatus::Unpaid {
            return Ok(None);
        }
        if silence.is_away() {
            return Err(Silent);
        }
        let again = ASK_PAUSES_MS.get(due.asks as usize).copied().unwrap_or(ASK_PAUSE_MS_MAX);
        let answer = provider.query(due.order_no).await;
        let is_away_now = silence.note(&answer);
        match answer {
            Ok(QueryOutcome::Paid(paid)) => {
                tracing::info!(order_no = %due.order_no, provider = name,
                    "a payment was asked about and is paid; no notice had come");
                match self.payments.credit(&money_of(name, due.order_no, paid)).await {
                    Ok(_) => Ok(None),
                    Err(NoticeFailure::Ledger(_)) => Ok(Some(SILENT_PAUSE_MS)),
                    // Somebody was woken for it.
                    Err(_) => Ok(Some(again)),
                }
            }
            Ok(_) | Err(ProviderError::Refused(_)) => Ok(Some(again)),
            Err(error @ ProviderError::Unavailable(_)) => {
                if is_away_now {
                    tracing::warn!(provider = name, %error,
                        "a provider does not answer; it is asked about its payments later");
                }
                Err(Silent)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ledger::PAYMENT_ASK_MS_FIRST;
    use sale::OrderNo;

    use super::*;
    use crate::test_engine::{Bank, NOW_MS, TestEngine};

    async fn opened(shop: &TestEngine, item: sale::ItemId, user: &str) -> OrderNo {
        let no = shop.buy(item, user).await;
        let ledger = &shop.engine.shared.ledger;
        ledger.open_payment(no, Bank::NAME, None, NOW_MS).await.unwrap();
        no
    }

    #[tokio::test]
    async fn a_payment_whose_notice_is_lost_is_asked_about_soon() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let (paid, open) = (opened(&shop, item, "ann").await, opened(&shop, item, "bob").await);
        shop.bank.pay(paid, 1, NOW_MS);
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        shop.clock.advance(PAYMENT_ASK_MS_FIRST - 1);
        engine.jobs.ask.run().await.unwrap();
        assert_eq!(shop.bank.calls(), 0, "the notice may still come");
        shop.clock.advance(1);
        shop.rounds_until(&*engine.jobs.ask, async || status(paid).await == OrderStatus::Paid)
            .await;
        shop.rounds_until(&*engine.jobs.ask, async || shop.bank.calls() == 2).await;
        assert_eq!(status(open).await, OrderStatus::Unpaid);
        for _ in 0..3 {
            engine.jobs.ask.run().await.unwrap();
        }
        assert_eq!(shop.bank.calls(), 2, "each was asked about once");
        let due = async |at_ms| {
            let ledger = &engine.shared.ledger;
            ledger.payments_to_ask(Bank::NAME, at_ms, ASK_PAUSE_MS_MAX, 9).await.unwrap()
        };
        let asked_ms = NOW_MS + PAYMENT_ASK_MS_FIRST;
        assert_eq!(due(asked_ms + 59_999).await, []);
        assert_eq!(due(asked_ms + 60_000).await.len(), 1, "the one that is open");
    }

    #[tokio::test]
    async fn a_provider_that_hangs_is_asked_about_nothing_more_for_a_while() {
        let (shop, activity) = TestEngine::beside_a_bank(Duration::from_millis(100)).await;
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        for user in ["ann", "bob", "cat"] {
            opened(&shop, item, user).await;
        }
        shop.bank.hang(true);
        shop.clock.advance(PAYMENT_ASK_MS_FIRST);
        let run = tokio::time::timeout(Duration::from_secs(5), engine.jobs.ask.run()).await;
        run.expect("the round does not wait for the bank").unwrap();
        let ledger = &engine.shared.ledger;
        let due = async || {
            let now_ms = engine.shared.now_ms();
            ledger.payments_to_ask(Bank::NAME, now_ms, ASK_PAUSE_MS_MAX, 9).await.unwrap().len()
        };
        shop.rounds_until(&*engine.jobs.ask, async || due().await == 0).await;
        let calls = shop.bank.calls();
        assert!(calls <= 3, "{calls}");
        engine.jobs.ask.run().await.unwrap();
        assert_eq!(shop.bank.calls(), calls);
        shop.clock.advance(SILENT_PAUSE_MS);
        assert_eq!(due().await, 3, "and then about all of them");
    }
}
