//! The task that hands alerts over to whoever writes them down for others, one after the other.
//!
//! Unlike somebody who is told by a post, a record is never given up: while it cannot be written the alerts
//! wait here, a few of each kind and the rest counted, and over a restart with whoever keeps what waits. What
//! it says about an alert is its own matter.

use std::sync::Arc;

use async_trait::async_trait;
use tracing::{info, warn};

use super::{Alert, AlertOptions, Queue};
use crate::outage::{Backoff, StopSignal};

/// Where alerts are written down.
#[async_trait]
pub trait AlertRecord: Send + Sync + 'static {
    /// Writes it down, or says why it could not. The same alert may come again.
    async fn keep(&self, alert: &Alert) -> Result<(), String>;
}

/// Until the process stops. What could not be written down then stays in the queue.
pub(super) async fn run(
    record: Arc<dyn AlertRecord>,
    queue: Arc<Queue>,
    options: AlertOptions,
    mut stop: StopSignal,
) {
    loop {
        let came = queue.came.notified();
        while let Some(next) = queue.take() {
            let mut backoff =
                Backoff::new(options.webhook_pause_ms_min, options.webhook_pause_ms_max);
            while let Err(cause) = record.keep(&next.alert).await {
                let kind = next.alert.kind.as_str();
                if queue.note(Some(cause.clone())) {
                    warn!(kind, cause, "an alert cannot be written down for webhooks, and waits");
                }
                if !stop.sleep(backoff.next()).await {
                    return;
                }
            }
            if queue.note(None) {
                info!("alerts are written down again");
            }
            queue.done();
        }
        if stop.is_stopped() {
            return;
        }
        tokio::select! {
            () = stop.stopped() => {}
            () = came => {}
        }
    }
}
