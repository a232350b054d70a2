//! The net under the relay: what is on the log for too long, and what nobody will deliver any more, is
//! published again ([`super`] says what that may be).

use std::{collections::HashSet, time::Duration};

use sale::{EntryId, LogEntry, Millis, SharedClock};
use tracing::warn;

use super::{RelayOptions, have_passed, meters, relay::Publisher};
use crate::outage::Stopped;

/// It is looked so many times within `republish_after_ms`.
const LOOKS: u32 = 2;
/// Pages that are looked at in one round.
const PAGES_MAX: u32 = 64;

pub(super) struct Net {
    pub(super) publisher: Publisher,
    pub(super) options: RelayOptions,
    pub(super) clock: SharedClock,
}

impl Net {
    pub(super) async fn run(mut self) {
        let every = Duration::from_millis(self.options.republish_after_ms) / LOOKS;
        loop {
            // Several processes look, and should not all find the same.
            let pause = every.mul_f64(0.75 + fastrand::f64() / 2.0);
            if !self.publisher.stop.sleep(pause).await || self.round(every).await.is_err() {
                return;
            }
        }
    }

    async fn round(&mut self, wait_max: Duration) -> Result<(), Stopped> {
        let mut after = None;
        for _ in 0..PAGES_MAX {
            let Some(page) = self.page(after).await else { return Ok(()) };
            after = page.last().map(|entry| entry.id);
            if after.is_none() {
                return Ok(());
            }
            let mut stop = self.publisher.stop.clone();
            let left = tokio::select! {
                biased;
                () = stop.stopped() => return Err(Stopped),
                left = self.left_of(&page, wait_max) => left,
            };
            if left.is_empty() {
                continue;
            }
            warn!(
                entries = left.len(),
                "claims are on the log for long and the broker has no message of them: published again"
            );
            meters::republished(left.len());
            self.publisher.clone().carry(left, true).await?;
        }
        Ok(())
    }

    async fn page(&self, after: Option<EntryId>) -> Option<Vec<LogEntry>> {
        let before_ms = self.clock.now_ms() - self.options.republish_after_ms as Millis;
        match self.publisher.source.overdue(before_ms, after).await {
            Ok(page) => Some(page),
            Err(error) => {
                warn!(%error, "the log cannot be looked through for what is overdue");
                None
            }
        }
    }

    /// Those that are still on the log when the consumers have passed everything that is at the broker now.
    /// None, if they do not get that far: what waits there will be delivered.
    async fn left_of(&self, page: &[LogEntry], wait_max: Duration) -> Vec<LogEntry> {
        let broker = &*self.publisher.broker;
        let Ok(ends) = broker.queues().await else { return Vec::new() };
        if !matches!(have_passed(broker, &ends, wait_max).await, Ok(true)) {
            return Vec::new();
        }
        let ids: HashSet<EntryId> = page.iter().map(|entry| entry.id).collect();
        let first = page.first().map(|entry| entry.id);
        // From just before the first of them, which may be gone.
        let before = first.and_then(|id| before(id.place));
        let before = before.map(|place| EntryId { place, content: 0 });
        let still = self.page(before).await.unwrap_or_default();
        still.into_iter().filter(|entry| ids.contains(&entry.id)).collect()
    }
}

fn before((major, minor): (u64, u64)) -> Option<(u64, u64)> {
    match minor.checked_sub(1) {
        Some(minor) => Some((major, minor)),
        None => Some((major.checked_sub(1)?, u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_before_it_or_is_the_first() {
        assert_eq!(before((7, 3)), Some((7, 2)));
        assert_eq!(before((7, 0)), Some((6, u64::MAX)));
        assert_eq!(before((0, 0)), None, "the beginning");
    }
}
