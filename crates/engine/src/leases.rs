//! Which process of a cluster runs which job: leases in the ledger, for without it no job works.
//!
//! A lease decides who does the work, not whether it is right: every effect is compare-and-set or
//! idempotent where it lands, so a holder that overslept does no harm.
//!
//! All that a process wants it asks for at once, and no more often than every `ASK_EVERY`; what is asked
//! in between is answered from memory. A lease that nobody here asks for any more ends by itself.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use ledger::Ledger;
use parking_lot::Mutex;

/// A holder that dies is replaced after so long.
const LEASE: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_millis(1_500);

pub(crate) enum Leases {
    /// One process: it leads everything.
    Alone,
    InLedger(Box<LedgerLeases>),
}

impl Leases {
    pub(crate) fn in_ledger(ledger: Arc<dyn Ledger>, holder: String) -> Leases {
        let (known, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        Leases::InLedger(Box::new(LedgerLeases { ledger, holder, known, asking }))
    }

    /// May this process run the job now? The number grows with every new holder: in a log, the larger
    /// one was the later one.
    pub(crate) async fn lead(&self, job: &'static str) -> Option<u64> {
        match self {
            Leases::Alone => Some(0),
            Leases::InLedger(leases) => leases.lead(job).await,
        }
    }
}

pub(crate) struct LedgerLeases {
    ledger: Arc<dyn Ledger>,
    holder: String,
    known: Mutex<BTreeMap<&'static str, Known>>,
    /// One at a time asks the ledger; the others wait for the same answer.
    asking: tokio::sync::Mutex<()>,
}

/// What is known of a lease that this process wants.
struct Known {
    wanted: Instant,
    asked: Option<Instant>,
    /// Our number and until when it surely holds.
    held: Option<(u64, Instant)>,
}

impl LedgerLeases {
    async fn lead(&self, job: &'static str) -> Option<u64> {
        self.want(job);
        if let Some(answer) = self.remembered(job) {
            return answer;
        }
        let _turn = self.asking.lock().await;
        if let Some(answer) = self.remembered(job) {
            return answer;
        }
        self.ask().await;
        self.remembered(job).flatten()
    }

    fn want(&self, job: &'static str) {
        let wanted = Instant::now();
        let new = || Known { wanted, asked: None, held: None };
        self.known.lock().entry(job).or_insert_with(new).wanted = wanted;
    }

    /// An answer that is not old.
    fn remembered(&self, job: &'static str) -> Option<Option<u64>> {
        let known = self.known.lock();
        let known = known.get(job)?;
        known.asked.filter(|asked| asked.elapsed() < ASK_EVERY)?;
        Some(known.held.filter(|(_, until)| Instant::now() < *until).map(|(fence, _)| fence))
    }

    async fn ask(&self) {
        let names: Vec<&'static str> = {
            let mut known = self.known.lock();
            known.retain(|_, known| known.wanted.elapsed() < LEASE);
            known.keys().copied().collect()
        };
        let asked = Instant::now();
        let for_ms = LEASE.as_millis() as sale::Millis;
        let answer = self.ledger.take_leases(&names, &self.holder, for_ms).await;
        if let Err(error) = &answer {
            tracing::debug!(%error, "the ledger gives no leases");
        }
        let mut known = self.known.lock();
        for (n, name) in names.iter().enumerate() {
            let Some(known) = known.get_mut(name) else { continue };
            known.asked = Some(Instant::now());
            // Without an answer what was held is held until it ends.
            if let Ok(fences) = &answer {
                known.held = fences[n].map(|fence| (fence, asked + LEASE));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::TestEngine;

    #[tokio::test]
    async fn each_job_is_led_by_one_of_two_processes_and_by_the_other_when_it_is_gone() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let leases = |who: &str| Leases::in_ledger(shop.engine.shared.ledger.clone(), who.into());
        let (ann, bob) = (leases("ann"), leases("bob"));
        assert_eq!(ann.lead("warm").await, Some(1));
        assert_eq!(ann.lead("warm").await, Some(1), "from memory");
        assert_eq!((bob.lead("warm").await, bob.lead("end").await), (None, Some(1)));
        assert_eq!(ann.lead("end").await, None);
        drop(ann);
        shop.clock.advance(LEASE.as_millis() as i64 + 1);
        // He has asked a moment ago, and asks again in a moment.
        while bob.lead("warm").await != Some(2) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
