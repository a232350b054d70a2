//! One process: it leads everything, and has nobody to tell.

use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;
use parking_lot::Mutex;
use sale::Millis;
use tokio::sync::broadcast;

use super::{Coordination, Hint, MINUTE_MS, SPENT_PER_MINUTE_MAX, Spending};

pub struct LocalCoordination {
    hints: broadcast::Sender<Hint>,
    /// Challenges that were spent, by the minute in which they are over.
    spent: Mutex<BTreeMap<Millis, HashSet<u64>>>,
}

impl Default for LocalCoordination {
    fn default() -> Self {
        LocalCoordination { hints: broadcast::Sender::new(1), spent: Mutex::default() }
    }
}

#[async_trait]
impl Coordination for LocalCoordination {
    async fn hold(&self, _: &'static str) -> Result<bool, String> {
        Ok(true)
    }

    async fn tell(&self, _: &Hint) {}

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn spend(
        &self,
        challenge: u64,
        expires_ms: Millis,
        now_ms: Millis,
    ) -> Result<Spending, String> {
        let mut spent = self.spent.lock();
        // What is left is not over yet.
        *spent = spent.split_off(&now_ms.div_euclid(MINUTE_MS));
        let minute = spent.entry(expires_ms.div_euclid(MINUTE_MS)).or_default();
        if minute.contains(&challenge) {
            return Ok(Spending::Before);
        }
        if minute.len() >= SPENT_PER_MINUTE_MAX {
            return Ok(Spending::NoRoom);
        }
        minute.insert(challenge);
        Ok(Spending::Done)
    }

    async fn witness_node(&self, _: u16, _: &str) -> Result<bool, String> {
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_challenge_is_spent_once_and_forgotten_when_it_is_over() {
        let coordination = LocalCoordination::default();
        let spend = |challenge, now_ms| coordination.spend(challenge, 90_000, now_ms);
        assert_eq!(spend(1, 0).await, Ok(Spending::Done));
        assert_eq!(spend(1, 80_000).await, Ok(Spending::Before));
        assert_eq!(spend(2, 80_000).await, Ok(Spending::Done));
        assert_eq!(coordination.spend(3, 300_000, 120_000).await, Ok(Spending::Done));
        assert_eq!(coordination.spent.lock().len(), 1, "nobody can come back with the others");
    }
}
