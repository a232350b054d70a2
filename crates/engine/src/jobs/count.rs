//! Counts what waits in the ledger, for `/metrics` and for operators: one process of a cluster does, and the
//! others read what it found.

use std::sync::Arc;

use async_trait::async_trait;
use ledger::{OutboxKind, Outstanding, OutstandingClaims};
use parking_lot::Mutex;
use sale::Millis;

use super::{Job, JobResult, Progress};
use crate::shared::Shared;

pub(crate) struct Count {
    shared: Arc<Shared>,
    /// As it was last counted; `None` where nobody counts.
    last: Mutex<Option<Arc<Outstanding>>>,
    /// Endpoints of webhooks that a number was shown for.
    endpoints: Mutex<Vec<i64>>,
}

impl Count {
    pub(crate) fn new(shared: Arc<Shared>) -> Count {
        Count { shared, last: Mutex::default(), endpoints: Mutex::default() }
    }

    /// What waits, as it was last counted; `None` if nobody has counted yet.
    pub(crate) fn last(&self) -> Option<Arc<Outstanding>> {
        self.last.lock().clone()
    }

    /// Counts now, because somebody asks who wants to know.
    pub(crate) async fn count(&self) -> ledger::Result<Arc<Outstanding>> {
        let counted = Arc::new(self.shared.ledger.outstanding().await?);
        *self.last.lock() = Some(counted.clone());
        Ok(counted)
    }
}

impl Count {
    /// How far behind each endpoint is: two looks into an index for each.
    async fn show_webhooks(&self, now_ms: Millis) -> ledger::Result<()> {
        let ages = self.shared.ledger.webhook_ages().await?;
        let age_s = |oldest_ms: Option<Millis>| {
            oldest_ms.map_or(0.0, |oldest_ms| (now_ms - oldest_ms).max(0) as f64 / 1_000.0)
        };
        let show = |endpoint: String, age_s: f64| {
            metrics::gauge!("seckill_webhook_oldest_age_seconds", "endpoint" => endpoint)
                .set(age_s);
        };
        let mut shown = self.endpoints.lock();
        for gone in shown.iter().filter(|id| ages.iter().all(|age| age.endpoint != **id)) {
            show(gone.to_string(), 0.0);
        }
        *shown = ages.iter().map(|age| age.endpoint).collect();
        ages.iter().for_each(|age| show(age.endpoint.to_string(), age_s(age.oldest_ms)));
        show("all".into(), age_s(ages.iter().filter_map(|age| age.oldest_ms).min()));
        let off = ages.iter().filter(|age| !age.enabled).count();
        metrics::gauge!("seckill_webhook_endpoints_off").set(off as f64);
        Ok(())
    }
}

#[async_trait]
impl Job for Count {
    async fn run(&self) -> JobResult {
        let age_ms_max = self.shared.settings.jobs.count_every_ms as Millis;
        let outstanding = Arc::new(self.shared.ledger.outstanding_lately(age_ms_max).await?);
        *self.last.lock() = Some(outstanding.clone());
        let now_ms = self.shared.now_ms();
        for kind in OutboxKind::ALL.map(OutboxKind::as_str) {
            let of_kind = outstanding.outbox.iter().find(|rows| rows.kind == kind);
            let oldest_ms = of_kind.map_or(now_ms, |rows| rows.oldest_ms);
            let age_s = (now_ms - oldest_ms).max(0) as f64 / 1_000.0;
            let rows = of_kind.map_or(0, |rows| rows.rows);
            metrics::gauge!("seckill_outbox_rows", "kind" => kind).set(rows as f64);
            metrics::gauge!("seckill_outbox_oldest_age_seconds", "kind" => kind).set(age_s);
        }
        let sum =
            |of: fn(&OutstandingClaims) -> u64| outstanding.claims.iter().map(of).sum::<u64>();
        metrics::gauge!("seckill_dead_letters").set(sum(|claims| claims.dead) as f64);
        metrics::gauge!("seckill_retrying_claims").set(sum(|claims| claims.retrying) as f64);
        self.show_webhooks(now_ms).await?;
        Ok(Progress::CaughtUp)
    }
}
