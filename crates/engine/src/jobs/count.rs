//! Counts what waits in the ledger, for `/metrics`.

use ledger::{OUTBOX_KINDS, OutstandingClaims};

use super::{JobResult, Progress};
use crate::Engine;

impl Engine {
    /// Count what waits in the ledger, for `/metrics`.
    pub(crate) async fn count_waiting(&self) -> JobResult {
        let outstanding = self.ledger.outstanding().await?;
        let now_ms = self.clock.now_ms();
        for kind in OUTBOX_KINDS {
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
        *self.outstanding.lock() = Some(outstanding);
        Ok(Progress::CaughtUp)
    }
}
