//! Delivering notices until they are accepted.

use std::{pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use sale::Millis;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::{NAME, Sandbox, book::DueNotice, signature};
use crate::ProviderError;

/// Where notices go: the merchant's notify address, by whatever road.
#[async_trait]
pub trait NoticeSink: Send + Sync {
    /// True if the merchant accepted it. False or no answer in time: it is delivered again.
    async fn deliver(&self, provider: &str, headers: HeaderMap, body: Bytes) -> bool;
}

/// What became of one delivery.
pub(super) struct Delivery {
    pub(super) id: i64,
    pub(super) next: Next,
}

pub(super) enum Next {
    Accepted,
    TryAt(Millis),
    GiveUp,
}

impl Sandbox {
    /// Deliver notices as they fall due, until `shutdown` comes. What is undelivered then is
    /// delivered after the next start.
    pub async fn deliver(&self, sink: Arc<dyn NoticeSink>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            let wait = match self.deliver_due(&sink).await {
                Ok(wait) => wait,
                Err(fault) => {
                    warn!(%fault, "the sandbox cannot read its notices");
                    self.poll()
                }
            };
            tokio::select! {
                biased;
                () = &mut shutdown => return,
                () = self.0.wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// One round: everything that is due, a bounded number at a time. Answers how long there will
    /// be nothing to do.
    async fn deliver_due(&self, sink: &Arc<dyn NoticeSink>) -> Result<Duration, ProviderError> {
        let (limit, now_ms) = (self.0.options.notices_in_flight_max, self.0.clock.now_ms());
        let (due, next_due_ms) =
            self.with_book(move |book| Ok::<_, ProviderError>(book.due(now_ms, limit)?)).await?;
        if due.is_empty() {
            let wait = next_due_ms.map(|at| Duration::from_millis((at - now_ms).max(1) as u64));
            return Ok(wait.map_or(self.poll(), |wait| wait.min(self.poll())));
        }
        let mut under_way = JoinSet::new();
        for notice in due {
            under_way.spawn(self.clone().deliver_one(sink.clone(), notice));
        }
        // One that died in a panic of the sink is not in here, and so is still due.
        let mut done = Vec::new();
        let mut died = false;
        while let Some(ended) = under_way.join_next().await {
            match ended {
                Ok(delivery) => done.push(delivery),
                Err(panic) => {
                    warn!(%panic, "delivering a notice failed badly");
                    died = true;
                }
            }
        }
        self.with_book(move |book| Ok::<_, ProviderError>(book.note_deliveries(&done)?)).await?;
        Ok(if died { self.poll() } else { Duration::ZERO })
    }

    async fn deliver_one(self, sink: Arc<dyn NoticeSink>, notice: DueNotice) -> Delivery {
        let options = &self.0.options;
        let body = Bytes::from(notice.body);
        let now_ms = self.0.clock.now_ms();
        let headers = signature::sign(&options.notify_secret, &body, now_ms);
        let limit = Duration::from_millis(options.notice_answer_ms_max);
        let answer = tokio::time::timeout(limit, sink.deliver(NAME, headers, body)).await;
        let tries = notice.tries.saturating_add(1);
        let next = match (answer, options.retry_in_ms(tries)) {
            (Ok(true), _) => Next::Accepted,
            (_, Some(wait_ms)) => Next::TryAt(now_ms + wait_ms),
            (_, None) => {
                warn!(tries, "the sandbox gave up on a notice that nobody accepts");
                Next::GiveUp
            }
        };
        debug!(
            id = notice.id,
            tries,
            accepted = matches!(next, Next::Accepted),
            "notice delivered"
        );
        Delivery { id: notice.id, next }
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(self.0.options.notice_poll_ms_max)
    }
}
