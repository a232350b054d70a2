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
}

impl Count {
    pub(crate) fn new(shared: Arc<Shared>) -> Count {
        Count { shared, last: Mutex::default() }
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
        Ok(Progress::CaughtUp)
    }
}
