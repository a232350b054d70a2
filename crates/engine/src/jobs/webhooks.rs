//! Tells the shop's backend: spreads events into deliveries, and posts them to those who want them.
//!
//! **The road of an event.** The transaction that caused it left it in the outbox. This job, run by one
//! process at a time, turns outbox rows into deliveries, one for each event and endpoint, in one transaction
//! for many (`ledger::Webhooks::spread_webhooks`), and then visits every endpoint that is switched on.
//!
//! **A visit** belongs to one endpoint. It posts what is due, several at once, writes down how each went,
//! and goes on until nothing is due. It goes on beside the rounds of the job, so that an endpoint that hangs
//! delays only its own. What it may post is what the ledger calls pending, and that is one event of each
//! order at a time.
//!
//! **One that takes nothing** is down after a few failures in a row: from then on one event at a time is
//! tried, after pauses that grow, however many wait. Each try is of another event, so that one that nobody
//! would take does not stand for all. With the first that is taken everything that waited is due. A pause of
//! the endpoint is measured by a clock that nobody can set; so is what `now` means here.
//!
//! **A crash** after a post and before it was written down makes the same post again, with the same id. So
//! does a lease that went to somebody else in the middle: a visit posts nothing new once the job has not
//! been run for a moment, but what is under way may arrive twice.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ledger::{
    ForgetBefore, NewWebhook, OUTBOX_NOBODY, OutboxKind, OutboxMessage, OutboxRow, Share, Tried,
    TriedOutcome, WebhookDelivery, WebhookEndpoint, WebhookKind, WebhookKinds, WebhookSource,
    in_share,
};
use orders::{Alert, AlertKind};
use sale::Millis;
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{Job, JobResult, Progress};
use crate::{
    Webhooks,
    shared::{AnyError, Shared},
    webhooks::{Posted, deliveries_of},
};

/// Outbox rows that are spread at once. A row may hold a batch of orders.
const ROWS_AT_ONCE: usize = 20;
/// So many events at the most are spread in one transaction, unless one row holds more.
const EVENTS_AT_ONCE: usize = 1_000;
/// Deliveries that a visit reads at once.
const DUE_AT_ONCE: usize = 200;
/// How long a round waits for its visits before it goes on beside them.
const ROUND_MS_MAX: u64 = 250;
/// An endpoint that refused so many in a row is down.
const FAILURES_UNTIL_DOWN: u32 = 5;
/// The pauses of one that is down double from this to `webhooks.down_pause_ms_max`.
const DOWN_PAUSE_MS_MIN: u64 = 1_000;
/// A visit posts nothing new if the job was not run for so long: somebody else may hold its lease.
const LED_WITHIN: Duration = Duration::from_secs(4);
/// A visit that goes on looks so often whether its endpoint was changed, switched off or removed meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often old deliveries are looked for, and how many are deleted at once.
const FORGET_EVERY: Duration = Duration::from_secs(30);
const FORGET_ROWS_MAX: usize = 1_000;
/// Endpoints that were removed are forgotten after this, so that nothing is spread to them any more.
const REMOVED_KEPT_MS: Millis = 3_600_000;

pub(crate) struct Dispatch {
    visitor: Arc<Visitor>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    visits: JoinSet<(i64, Health)>,
    health: HashMap<i64, Health>,
    busy: HashSet<i64>,
    /// Those of the settings are in the ledger.
    settings_put: bool,
    /// The outbox had nothing for us while there was no endpoint.
    idle: bool,
    forgotten: Option<Instant>,
}

/// What every visit needs.
struct Visitor {
    shared: Arc<Shared>,
    webhooks: Arc<Webhooks>,
    /// When the job was last run here.
    led: parking_lot::Mutex<Instant>,
    start: (Instant, Millis),
}

/// How an endpoint does, as far as this process knows.
#[derive(Clone, Debug, Default)]
struct Health {
    failures: u32,
    /// When the first of these failures was.
    since_ms: Option<Millis>,
    /// It takes nothing: the last pause.
    down_pause_ms: Option<u64>,
    again: Option<Instant>,
}

impl Health {
    /// Of one that the ledger knows to be down.
    fn of(endpoint: &WebhookEndpoint) -> Health {
        let down = endpoint.failing_since_ms;
        Health {
            failures: 0,
            since_ms: down,
            down_pause_ms: down.map(|_| DOWN_PAUSE_MS_MIN),
            again: None,
        }
    }

    fn is_due(&self) -> bool {
        self.again.is_none_or(|again| again <= Instant::now())
    }

    fn is_down(&self) -> bool {
        self.down_pause_ms.is_some()
    }
}

impl Dispatch {
    pub(super) fn new(shared: Arc<Shared>, webhooks: Arc<Webhooks>) -> Dispatch {
        let now = Instant::now();
        let (led, start) = (parking_lot::Mutex::new(now), (now, shared.now_ms()));
        let visitor = Arc::new(Visitor { shared, webhooks, led, start });
        Dispatch { visitor, state: Mutex::default() }
    }

    /// Posts that are under way are broken off, and made again by the next process.
    pub(super) async fn stop(&self) {
        self.state.lock().await.visits.shutdown().await;
    }
}

#[async_trait]
impl Job for Dispatch {
    async fn run(&self) -> JobResult {
        let mut state = self.state.lock().await;
        let (visitor, state) = (&self.visitor, &mut *state);
        *visitor.led.lock() = Instant::now();
        if !state.settings_put {
            visitor.put_settings().await?;
            state.settings_put = true;
        }
        state.gather();
        let endpoints = visitor.shared.ledger.webhook_endpoints().await?;
        visitor.shared.wake.has_webhooks.store(!endpoints.is_empty(), Ordering::Relaxed);
        let forgets = state.forgotten.is_none_or(|last| last.elapsed() >= FORGET_EVERY);
        if endpoints.is_empty() && state.idle && !forgets {
            return Ok(Progress::CaughtUp);
        }
        let now_ms = visitor.shared.now_ms();
        visitor.shared.ledger.tell_opened(now_ms).await?;
        let more = visitor.spread(&endpoints).await?;
        state.idle = endpoints.is_empty() && !more;
        state.health.retain(|id, _| endpoints.iter().any(|endpoint| endpoint.id == *id));
        for endpoint in endpoints.into_iter().filter(|endpoint| endpoint.enabled) {
            state.visit(visitor, endpoint);
        }
        let until = Instant::now() + Duration::from_millis(ROUND_MS_MAX);
        while let Ok(Some(visit)) = timeout_at(until, state.visits.join_next()).await {
            state.over(visit);
        }
        if forgets {
            let more = visitor.forget().await?;
            state.forgotten = (!more).then(Instant::now);
        }
        Ok(Progress::after(more))
    }
}

impl State {
    fn visit(&mut self, visitor: &Arc<Visitor>, endpoint: WebhookEndpoint) {
        let id = endpoint.id;
        let mut health = self.health.remove(&id).unwrap_or_else(|| Health::of(&endpoint));
        if health.is_down() && endpoint.failing_since_ms.is_none() {
            // An operator switched it on, or changed its address.
            health = Health::of(&endpoint);
        }
        if self.busy.contains(&id) || !health.is_due() {
            self.health.insert(id, health);
            return;
        }
        self.busy.insert(id);
        self.health.insert(id, health.clone());
        let visitor = visitor.clone();
        let visit = async move {
            let health = visitor.visit(&endpoint, health).await;
            (id, health)
        };
        self.visits.spawn(in_share(Share::Jobs, visit));
    }

    fn gather(&mut self) {
        while let Some(visit) = self.visits.try_join_next() {
            self.over(visit);
        }
    }

    fn over(&mut self, visit: Result<(i64, Health), tokio::task::JoinError>) {
        match visit {
            Ok((id, health)) => {
                self.busy.remove(&id);
                self.health.insert(id, health);
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

impl Visitor {
    /// Goes on where the clock on the wall is set back.
    fn now_ms(&self) -> Millis {
        let (started, started_ms) = self.start;
        let steady_ms = started_ms.saturating_add(started.elapsed().as_millis() as Millis);
        self.shared.now_ms().max(steady_ms)
    }

    fn may_go_on(&self) -> bool {
        self.led.lock().elapsed() < LED_WITHIN
    }

    async fn put_settings(&self) -> Result<(), AnyError> {
        let settings = &self.shared.settings.webhooks;
        let wanted: Vec<NewWebhook> = settings
            .endpoints
            .iter()
            .map(|one| NewWebhook {
                url: one.url.clone(),
                description: "from the settings".into(),
                kinds: WebhookKinds::of(&one.events),
                secret: one.secret.clone(),
                source: WebhookSource::Settings,
            })
            .collect();
        let now_ms = self.shared.now_ms();
        let until_ms = now_ms.saturating_add(settings.rotation_ms);
        Ok(self.shared.ledger.put_settings_webhooks(&wanted, until_ms, now_ms).await?)
    }

    /// Puts deliveries in the place of outbox rows. Answers whether there are more.
    async fn spread(&self, endpoints: &[WebhookEndpoint]) -> Result<bool, AnyError> {
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        let rows = ledger.outbox_due(OutboxKind::Webhook, OUTBOX_NOBODY, now_ms, ROWS_AT_ONCE);
        let rows = rows.await?;
        let more = rows.len() == ROWS_AT_ONCE;
        let mut batch: Vec<OutboxRow> = Vec::new();
        let mut events = 0;
        for row in rows {
            if let Err(cause) = &row.message {
                // A newer build wrote it, and will read it.
                tracing::warn!(outbox = row.id, cause, "a webhook row cannot be read and waits");
                let next_ms = now_ms + ledger::OUTBOX_PAUSE_MS_MAX;
                ledger.outbox_later(row.id, next_ms, cause).await?;
                continue;
            }
            events += events_in(&row);
            batch.push(row);
            if events >= EVENTS_AT_ONCE {
                self.spread_batch(&std::mem::take(&mut batch), endpoints).await?;
                events = 0;
            }
        }
        self.spread_batch(&batch, endpoints).await?;
        Ok(more)
    }

    async fn spread_batch(
        &self,
        rows: &[OutboxRow],
        endpoints: &[WebhookEndpoint],
    ) -> Result<(), AnyError> {
        if rows.is_empty() {
            return Ok(());
        }
        let deliveries = deliveries_of(&*self.shared.ledger, rows, endpoints).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        Ok(self.shared.ledger.spread_webhooks(&ids, &deliveries).await?)
    }

    async fn forget(&self) -> Result<bool, AnyError> {
        let (settings, now_ms) = (&self.shared.settings.webhooks, self.shared.now_ms());
        let before = ForgetBefore {
            delivered_ms: now_ms - settings.keep_delivered_ms,
            others_ms: now_ms - settings.keep_failed_ms,
            removed_ms: now_ms - REMOVED_KEPT_MS,
        };
        Ok(self.shared.ledger.forget_webhooks(&before, FORGET_ROWS_MAX).await?)
    }

    /// Posts what is due to one endpoint until nothing is, it is down, or the job is run elsewhere.
    async fn visit(&self, endpoint: &WebhookEndpoint, mut health: Health) -> Health {
        if let Err(error) = self.post_due(endpoint, &mut health).await {
            tracing::warn!(endpoint = endpoint.id, %error,
                "how webhooks were taken could not be read or written; they are sent again");
            health.again = Some(Instant::now() + Duration::from_millis(DOWN_PAUSE_MS_MIN));
        }
        health
    }

    async fn post_due(
        &self,
        endpoint: &WebhookEndpoint,
        health: &mut Health,
    ) -> Result<(), AnyError> {
        let settings = &self.shared.settings.webhooks;
        let (mut endpoint, mut looked) = (Arc::new(endpoint.clone()), Instant::now());
        let mut under_way: FuturesUnordered<BoxFuture<'_, (WebhookDelivery, Posted)>> =
            FuturesUnordered::new();
        let (mut ids, mut ready) = (HashSet::new(), VecDeque::new());
        let (mut is_off, mut started) = (false, 0_usize);
        loop {
            let together_max = if health.is_down() { 1 } else { settings.concurrent_max };
            if looked.elapsed() >= LOOK_EVERY {
                let now = self.shared.ledger.webhook_endpoint(endpoint.id).await?;
                match now.filter(|now| now.enabled) {
                    Some(now) => endpoint = Arc::new(now),
                    None => is_off = true,
                }
                looked = Instant::now();
            }
            // Of one that is down one is tried, and no more in this visit.
            let may_start = self.may_go_on()
                && health.is_due()
                && !is_off
                && !(health.is_down() && started > 0);
            if may_start && ready.is_empty() && under_way.len() < together_max {
                let limit = if health.is_down() { 1 } else { DUE_AT_ONCE + ids.len() };
                let due = self.due(&endpoint, limit).await?;
                ready.extend(due.into_iter().filter(|one| !ids.contains(&one.id)));
            }
            while may_start
                && under_way.len() < together_max
                && let Some(one) = ready.pop_front()
            {
                ids.insert(one.id);
                started += 1;
                let endpoint = endpoint.clone();
                let post = async move {
                    let posted = self.webhooks.post(&endpoint, &one.event_id, &one.body).await;
                    (one, posted)
                };
                under_way.push(post.boxed());
            }
            let Some(first) = under_way.next().await else { return Ok(()) };
            let mut over = vec![first];
            while let Some(Some(next)) = under_way.next().now_or_never() {
                over.push(next);
            }
            for (one, _) in &over {
                ids.remove(&one.id);
            }
            is_off |= !self.note(&endpoint, health, over).await?;
            if health.is_down() || is_off {
                ready.clear();
            }
        }
    }

    async fn due(
        &self,
        endpoint: &WebhookEndpoint,
        limit: usize,
    ) -> ledger::Result<Vec<WebhookDelivery>> {
        let longest_ms = self.shared.settings.webhooks.retry_ladder_ms.iter().max();
        // With the most that jitter adds.
        let pause_ms_max = longest_ms.map_or(0, |ms| ms.saturating_mul(5) / 4);
        self.shared.ledger.webhooks_due(endpoint.id, self.now_ms(), pause_ms_max, limit).await
    }

    /// Writes down how posts went, and what that says of the endpoint. False if it was switched off.
    async fn note(
        &self,
        endpoint: &WebhookEndpoint,
        health: &mut Health,
        over: Vec<(WebhookDelivery, Posted)>,
    ) -> Result<bool, AnyError> {
        let (now_ms, mut gone, mut taken) = (self.now_ms(), false, false);
        let mut failed = None;
        let mut tried = Vec::with_capacity(over.len());
        for (one, posted) in over {
            let outcome = match &posted {
                Posted::Taken(_) => {
                    taken = true;
                    health.failures = 0;
                    TriedOutcome::Taken
                }
                Posted::Gone | Posted::Refused { .. } => {
                    gone |= posted == Posted::Gone;
                    health.failures += 1;
                    health.since_ms.get_or_insert(now_ms);
                    let cause = match &posted {
                        Posted::Refused { cause, .. } => cause.clone(),
                        _ => "410 Gone".into(),
                    };
                    failed = Some(cause.clone());
                    self.again_or_never(endpoint, &one, cause, now_ms)
                }
            };
            let word = if outcome == TriedOutcome::Taken { "taken" } else { "failed" };
            metrics::counter!("seckill_webhook_posts_total", "outcome" => word).increment(1);
            let status = match posted {
                Posted::Taken(status) => Some(status.into()),
                Posted::Gone => Some(410),
                Posted::Refused { status, .. } => status.map(Into::into),
            };
            tried.push(Tried { id: one.id, subject: one.subject, status, outcome });
        }
        self.shared.ledger.webhooks_tried(endpoint.id, &tried, now_ms).await?;
        if taken {
            if health.is_down() {
                self.shared.ledger.webhook_failing(endpoint.id, None).await?;
                tracing::info!(endpoint = endpoint.id, "takes webhooks again");
            }
            *health = Health { failures: health.failures, ..Health::default() };
        }
        let Some(cause) = failed else { return Ok(true) };
        if gone {
            return self.switch_off(endpoint, "it answered 410 Gone").await.map(|()| false);
        }
        if taken || (!health.is_down() && health.failures < FAILURES_UNTIL_DOWN) {
            return Ok(true);
        }
        self.is_down(endpoint, health, &cause).await
    }

    /// It has refused everything for a while. False if that was for too long.
    async fn is_down(
        &self,
        endpoint: &WebhookEndpoint,
        health: &mut Health,
        cause: &str,
    ) -> Result<bool, AnyError> {
        let now_ms = self.now_ms();
        let since_ms = *health.since_ms.get_or_insert(now_ms);
        let pause_ms = match health.down_pause_ms {
            Some(last_ms) => last_ms * 2,
            None => {
                self.shared.ledger.webhook_failing(endpoint.id, Some(since_ms)).await?;
                tracing::warn!(
                    endpoint = endpoint.id,
                    cause,
                    "takes no webhooks; what is for it waits, and nobody else waits for it"
                );
                DOWN_PAUSE_MS_MIN
            }
        };
        let pause_ms = pause_ms.min(self.shared.settings.webhooks.down_pause_ms_max);
        health.down_pause_ms = Some(pause_ms);
        let pause = Duration::from_millis(pause_ms).mul_f64(0.75 + fastrand::f64() / 2.0);
        health.again = Some(Instant::now() + pause);
        if now_ms - since_ms >= self.shared.settings.webhooks.switch_off_after_ms {
            let reason = format!("it took nothing since {}: {cause}", sale::iso_time(since_ms));
            self.switch_off(endpoint, &reason).await?;
            return Ok(false);
        }
        Ok(true)
    }

    /// When a delivery that failed is tried again, if it is.
    fn again_or_never(
        &self,
        endpoint: &WebhookEndpoint,
        one: &WebhookDelivery,
        cause: String,
        now_ms: Millis,
    ) -> TriedOutcome {
        let settings = &self.shared.settings.webhooks;
        let first_ms = one.first_try_ms.unwrap_or(now_ms);
        if now_ms - first_ms >= settings.give_up_after_ms {
            let told = format!(
                "webhook {} did not take {} and is not asked any more",
                endpoint.id, one.event_id
            );
            // That an alert was not taken is no alert, or each would cause the next one.
            if one.kind.parse().is_ok_and(WebhookKind::is_alert) {
                tracing::error!(cause, "{told}");
            } else {
                let alert = Alert::new(AlertKind::WebhookGivenUp, told, self.shared.now_ms());
                self.shared.alerts.raise(alert.because(&cause));
            }
            return TriedOutcome::GivenUp { cause };
        }
        let ladder = &settings.retry_ladder_ms;
        let step = ladder.get(one.tries as usize).or(ladder.last()).copied().unwrap_or(5_000);
        // A quarter more or less, so that those that failed together do not come together again.
        let pause_ms = (step as f64 * (0.75 + fastrand::f64() / 2.0)) as Millis;
        TriedOutcome::Again { next_try_ms: now_ms.saturating_add(pause_ms.max(1)), cause }
    }

    async fn switch_off(&self, endpoint: &WebhookEndpoint, reason: &str) -> Result<(), AnyError> {
        let now_ms = self.shared.now_ms();
        if self.shared.ledger.switch_webhook_off(endpoint.id, reason, now_ms).await? {
            let told = format!("webhook {} was switched off", endpoint.id);
            let alert = Alert::new(AlertKind::WebhookSwitchedOff, told, now_ms);
            self.shared.alerts.raise(alert.because(reason));
        }
        Ok(())
    }
}

fn events_in(row: &OutboxRow) -> usize {
    let Ok(OutboxMessage::Webhook { events }) = &row.message else { return 0 };
    let count = |event: &ledger::WebhookEvent| match event {
        ledger::WebhookEvent::Orders { orders, .. } => orders.len(),
        _ => 1,
    };
    events.iter().map(count).sum()
}
