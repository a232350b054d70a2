//! Turning claims into orders, whatever the ledger answers.
//!
//! [`Settler::settle`] does not come back before every claim it was given is in the ledger: as an
//! order, as void, or as a failed claim with its next try. The exceptions are named in its answer:
//! the workers were told to stop, somebody else holds the item's rows, or a claim is so broken that
//! the ledger cannot even remember it (its entry then stays on the log).

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use sale::{
    BookError, Claim, FailedClaim, ItemId, OrderBook, OrderNo, Settled, SharedClock, UserId,
};

use crate::{
    Alert, AlertKind, Alerts, Options,
    ladder::Ladder,
    meters,
    outage::{Backoff, Outage, StopSignal, Stopped},
};

/// Longer causes are cut: the ledger must be able to store what is said about a failure.
const CAUSE_CHARS_MAX: usize = 500;

/// A part that was cut off by the ledger's time limit so often in a row is tried in halves: perhaps it
/// is too much for a ledger that is slow today.
const CUT_OFFS_MAX: u32 = 2;
/// A part this small is never too much.
const PART_CLAIMS_MIN: usize = 16;

/// What tells one claim from another. The number alone would do, were it not for the day on which two
/// instances believed in the same node: then the second claim would vanish without a word.
pub(crate) type ClaimId = (OrderNo, ItemId, UserId);

pub(crate) fn id_of(claim: &Claim) -> ClaimId {
    (claim.order_no, claim.item, claim.user.clone())
}

/// How often each claim was tried before this pass; a claim not in it was never tried.
pub(crate) type TriesBefore = HashMap<OrderNo, u32>;

#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Created, repeated and void together.
    pub(crate) settled: usize,
    /// Neither settled nor remembered. They must stay where they came from.
    pub(crate) stuck: Vec<FailedClaim>,
    /// Somebody else holds the item's rows. Some of the claims may be settled; all must be delivered
    /// again, which does those no harm.
    pub(crate) locked: bool,
}

/// Why a batch was not settled to its end.
enum NotSettled {
    Stopped,
    Locked,
}

impl From<Stopped> for NotSettled {
    fn from(_: Stopped) -> Self {
        NotSettled::Stopped
    }
}

#[derive(Clone)]
pub(crate) struct Settler {
    pub(crate) book: Arc<dyn OrderBook>,
    pub(crate) clock: SharedClock,
    pub(crate) alerts: Alerts,
    pub(crate) ladder: Ladder,
    pub(crate) backoff: Backoff,
    pub(crate) batch_claims_max: usize,
    pub(crate) ledger: Arc<Outage>,
    pub(crate) stop: StopSignal,
    /// Set by every pause. A round that waited says nothing about how fast the ledger works.
    pub(crate) paused: bool,
}

impl Settler {
    pub(crate) fn new(
        options: &Options,
        book: Arc<dyn OrderBook>,
        clock: SharedClock,
        alerts: Alerts,
        ledger: Arc<Outage>,
        stop: StopSignal,
    ) -> Self {
        Settler {
            book,
            clock,
            alerts,
            ladder: Ladder::new(&options.retry_ladder_ms),
            backoff: Backoff::new(options.pause_ms_min, options.pause_ms_max),
            batch_claims_max: options.batch_claims_max,
            ledger,
            stop,
            paused: false,
        }
    }

    /// Settle claims of one item, in their order, in as few transactions as the maximum allows.
    pub(crate) async fn settle(
        &mut self,
        item: ItemId,
        claims: &[Claim],
        tries_before: &TriesBefore,
    ) -> Result<Pass, Stopped> {
        let mut pass = Pass::default();
        for batch in claims.chunks(self.batch_claims_max) {
            match self.settle_or_defer(item, batch, tries_before, &mut pass).await {
                Ok(()) => {}
                Err(NotSettled::Locked) => {
                    pass.locked = true;
                    break;
                }
                Err(NotSettled::Stopped) => return Err(Stopped),
            }
        }
        Ok(pass)
    }

    async fn settle_or_defer(
        &mut self,
        item: ItemId,
        batch: &[Claim],
        tries_before: &TriesBefore,
        pass: &mut Pass,
    ) -> Result<(), NotSettled> {
        let (settled, failed) = self.settle_batch(item, batch, tries_before).await?;
        pass.settled += settled;
        pass.stuck.extend(self.defer(failed).await?);
        Ok(())
    }

    /// Settle one batch, halving what is rejected until the claims at fault stand alone: finding
    /// one among a thousand takes about twenty calls, and the other 999 commit on the way.
    async fn settle_batch(
        &mut self,
        item: ItemId,
        batch: &[Claim],
        tries_before: &TriesBefore,
    ) -> Result<(usize, Vec<FailedClaim>), NotSettled> {
        let (mut settled, mut failed) = (0, Vec::new());
        // A stack with the earlier half on top, so that claims are settled in their order.
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            match self.settle_part(item, part).await? {
                Ok(()) => settled += part.len(),
                Err(BookError::Rejected(_) | BookError::CutOff(_)) if part.len() > 1 => {
                    let (earlier, later) = part.split_at(part.len() / 2);
                    parts.extend([later, earlier]);
                }
                Err(BookError::Locked(_)) => return Err(NotSettled::Locked),
                Err(fault) => {
                    let cause: String = fault.to_string().chars().take(CAUSE_CHARS_MAX).collect();
                    failed.extend(part.iter().map(|claim| self.failed(claim, tries_before, &cause)))
                }
            }
        }
        Ok((settled, failed))
    }

    /// One call, repeated for as long as the ledger does not answer. Asking again is safe even if
    /// the lost answer was a yes, because settling twice is a no-op. A large part that is cut off
    /// again and again is given up as it stands.
    async fn settle_part(
        &mut self,
        item: ItemId,
        part: &[Claim],
    ) -> Result<Result<(), BookError>, Stopped> {
        let (mut backoff, mut cut_offs) = (self.backoff, 0);
        loop {
            let started = Instant::now();
            match self.book.settle(item, part).await {
                Err(BookError::Unavailable(cause)) => {
                    cut_offs = 0;
                    self.pause(&mut backoff, &cause).await?;
                }
                Err(BookError::CutOff(cause))
                    if cut_offs + 1 < CUT_OFFS_MAX || part.len() <= PART_CLAIMS_MIN =>
                {
                    cut_offs += 1;
                    self.pause(&mut backoff, &cause).await?;
                }
                Err(fault) => {
                    self.ledger.end();
                    return Ok(Err(fault));
                }
                Ok(settled) => {
                    self.ledger.end();
                    self.measure(&settled, part, started.elapsed());
                    return Ok(accounted_for(&settled, part));
                }
            }
        }
    }

    /// Remember failed claims in the ledger, and raise an alert for each that is a dead letter
    /// now. Answers those that could not be remembered.
    async fn defer(&mut self, failed: Vec<FailedClaim>) -> Result<Vec<FailedClaim>, NotSettled> {
        if failed.is_empty() {
            return Ok(Vec::new());
        }
        match self.defer_part(&failed).await? {
            Ok(()) => {
                self.remembered(&failed);
                Ok(Vec::new())
            }
            Err(BookError::Locked(_)) => Err(NotSettled::Locked),
            // One of them is what the ledger chokes on. They are few: find it one by one.
            Err(_) => {
                let mut stuck = Vec::new();
                for one in failed {
                    match self.defer_part(std::slice::from_ref(&one)).await? {
                        Ok(()) => self.remembered(std::slice::from_ref(&one)),
                        Err(BookError::Locked(_)) => return Err(NotSettled::Locked),
                        Err(fault) => stuck.push(FailedClaim { cause: fault.to_string(), ..one }),
                    }
                }
                Ok(stuck)
            }
        }
    }

    async fn defer_part(
        &mut self,
        failed: &[FailedClaim],
    ) -> Result<Result<(), BookError>, Stopped> {
        let mut backoff = self.backoff;
        loop {
            match self.book.defer(failed).await {
                Err(
                    fault @ (BookError::Unavailable(_)
                    | BookError::CutOff(_)
                    | BookError::Contended(_)),
                ) => {
                    self.pause(&mut backoff, &fault.to_string()).await?;
                }
                answer => {
                    self.ledger.end();
                    return Ok(answer);
                }
            }
        }
    }

    pub(crate) async fn pause(
        &mut self,
        backoff: &mut Backoff,
        cause: &str,
    ) -> Result<(), Stopped> {
        self.paused = true;
        self.ledger.begin(&cause);
        if self.stop.sleep(backoff.next()).await { Ok(()) } else { Err(Stopped) }
    }

    fn failed(&self, claim: &Claim, tries_before: &TriesBefore, cause: &str) -> FailedClaim {
        let tries = tries_before.get(&claim.order_no).copied().unwrap_or(0).saturating_add(1);
        FailedClaim {
            claim: claim.clone(),
            tries,
            next_try_ms: self.ladder.next_try_ms(tries, self.clock.now_ms()),
            cause: cause.to_owned(),
        }
    }

    fn remembered(&self, failed: &[FailedClaim]) {
        let dead = failed.iter().filter(|one| one.next_try_ms.is_none());
        for letter in dead.clone() {
            let message = format!(
                "a claim on item {} failed {} times and waits for an operator",
                letter.claim.item, letter.tries
            );
            let alert = Alert::new(AlertKind::DeadLetter, message, self.clock.now_ms());
            self.alerts.raise(alert.about_order(letter.claim.order_no).because(&letter.cause));
        }
        meters::deferred(failed.len() - dead.clone().count());
        meters::dead(dead.count());
    }

    /// The ledger can neither settle this claim nor remember that it failed. Its entry stays on
    /// the log, unacknowledged, and comes again after a restart; the others go on.
    pub(crate) fn report_stuck(&self, stuck: &FailedClaim) {
        meters::stuck();
        let message =
            "the ledger can neither settle a claim nor note that it failed; its log entry is kept";
        let alert = Alert::new(AlertKind::ClaimStuck, message, self.clock.now_ms());
        self.alerts.raise(alert.about_order(stuck.claim.order_no).because(&stuck.cause));
    }

    fn measure(&self, settled: &Settled, part: &[Claim], took: Duration) {
        meters::settled(settled, took);
        if let Some(oldest_ms) = part.iter().map(|claim| claim.claimed_ms).min()
            && !settled.created.is_empty()
        {
            meters::claim_to_order_ms(self.clock.now_ms() - oldest_ms);
        }
    }
}

/// The ledger must answer for every claim it was given. One it forgot would be acknowledged and
/// gone, so an answer that does not add up counts as a rejection: the claims end up on the ladder,
/// visible, instead of nowhere.
fn accounted_for(settled: &Settled, part: &[Claim]) -> Result<(), BookError> {
    let answered = settled.created.len() + settled.repeated.len() + settled.void.len();
    if answered == part.len() {
        return Ok(());
    }
    let given = part.len();
    Err(BookError::Rejected(format!("the ledger answered for {answered} of {given} claims")))
}

/// The claims of each item in the order given, items in the order they first appear. A claim that
/// came twice (delivered, handed back, delivered again) is kept once: one transaction must not meet
/// it twice.
pub(crate) fn by_item(claims: impl IntoIterator<Item = Claim>) -> Vec<(ItemId, Vec<Claim>)> {
    let mut groups: Vec<(ItemId, Vec<Claim>)> = Vec::new();
    let mut place: HashMap<ItemId, usize> = HashMap::new();
    let mut seen: HashSet<ClaimId> = HashSet::new();
    for claim in claims {
        if !seen.insert(id_of(&claim)) {
            continue;
        }
        let at = *place.entry(claim.item).or_insert_with(|| {
            groups.push((claim.item, Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push(claim);
    }
    groups
}
