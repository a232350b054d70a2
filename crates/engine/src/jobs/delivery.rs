//! Delivering what waits in the outbox: at least once, and harmless where it arrives twice.
//!
//! Each kind of rows has a [`Courier`], run by one process at a time. A row is for one *party*, who must
//! answer for it to be delivered: a partition of the gate, a provider. A row for several is split first.
//!
//! **One who does not answer delays only their own.** A round reads what is due, sorts it by party, and
//! hands over to all of them at once. It does not wait for long: who has not answered by then is *busy*,
//! and a visit to them goes on beside the next rounds. What comes for somebody who is busy, or silent, is
//! put into their line in the ledger, by one statement and without being tried, so that it never fills a
//! batch again. Of a line one row is tried now and then; when its party answers, the line is delivered
//! batch by batch. So a million rows for a server that hangs cost one try every [`LINE_PAUSE_MS_MAX`].
//!
//! **A row of its own trouble** (one that cannot be read, or that its party refuses) is tried again after
//! a pause that grows, for ever if need be; somebody is woken for it. In a line it goes to the end after
//! its try.
//!
//! **Order.** What waits for nobody is handed over in the order it was written; a row that failed is
//! overtaken by later ones. Nothing depends on more: a release acts on the mark of its own order only, an
//! adjustment is a delta by number, news say *look again*, and a refund names its payment.
//!
//! **A crash, or a lease that went to somebody else** in the middle of a visit: the rows are still there,
//! and are delivered twice. The lines are in the ledger, so the next holder finds them; who is silent
//! they find out by trying one row of each.

use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt;
use ledger::{
    OUTBOX_NOBODY, OUTBOX_PAUSE_MS_MAX, OutboxKind, OutboxMessage, OutboxRow, OutboxWait, Share,
    in_share,
};
use orders::{Alert, AlertKind};
use sale::Millis;
use tokio::{
    sync::{Mutex, Notify},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{JobResult, Progress};
use crate::shared::{AnyError, Shared};

/// The pauses between deliveries of an outbox row double from this to [`OUTBOX_PAUSE_MS_MAX`].
const OUTBOX_PAUSE_MS_MIN: Millis = 500;
/// Those between tries of somebody who is silent double from the same to this.
const LINE_PAUSE_MS_MAX: Millis = 5_000;
/// A row that was not delivered so often, after about a minute, wakes somebody.
pub(super) const OUTBOX_TRIES_ALARMING: u32 = 8;
/// Whoever is silent while a row of theirs gets this old wakes somebody, once.
pub(super) const LINE_AGE_MS_ALARMING: Millis = 60_000;
/// A row that somebody works on wakes somebody else when it is so old.
pub(super) const UNDER_WAY_MS_ALARMING: Millis = 24 * 60 * 60 * 1_000;
/// How long a round waits for those it hands over to, before it goes on without them.
const ROUND_MS_MAX: u64 = 250;
/// Parties that are visited in one round, and beside each other.
const VISITS_MAX: usize = 256;

/// Where the rows of one kind go.
#[async_trait]
pub(super) trait Delivery: Send + Sync + 'static {
    /// Who has to answer for this message to be delivered.
    fn party(&self, message: &OutboxMessage) -> String;

    /// One message for each party, if it is for several.
    fn split(&self, _message: &OutboxMessage) -> Option<Vec<OutboxMessage>> {
        None
    }

    /// Delivers messages of one party. One outcome for each, in their order.
    async fn deliver(&self, messages: &[OutboxMessage]) -> Vec<Result<(), Undelivered>>;
}

/// Why a message was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undelivered {
    /// This party does not answer: others that are for it need not be tried.
    #[error("{party} does not answer: {cause}")]
    Silent { party: String, cause: String },
    /// For a reason of its own.
    #[error("{0}")]
    Refused(AnyError),
    /// It was taken and is not done: whoever works on it may need days.
    #[error("{0}")]
    UnderWay(&'static str),
}

/// Delivers the rows of one kind.
pub(super) struct Courier<D> {
    round: Arc<Round<D>>,
    lines: Mutex<Lines>,
}

/// What every visit needs.
struct Round<D> {
    shared: Arc<Shared>,
    kind: OutboxKind,
    delivery: D,
    /// Ends the pause between two rounds.
    wake: Arc<Notify>,
}

/// Who is busy or silent, as far as this process knows.
#[derive(Default)]
struct Lines {
    visits: JoinSet<Visit>,
    parties: HashMap<String, Party>,
    /// Where the next round goes on looking for lines.
    after: String,
}

#[derive(Default)]
struct Party {
    busy: bool,
    silence: Option<Silence>,
}

struct Silence {
    pause_ms: Millis,
    again_ms: Millis,
    alerted: bool,
}

/// A visit that is over, perhaps by a panic.
struct Visit {
    party: String,
    outcome: std::thread::Result<Result<Visited, AnyError>>,
}

#[derive(Default)]
struct Visited {
    /// Nobody answered, though these were tried; the oldest of them was written then.
    silent_since_ms: Option<Millis>,
    cause: String,
    /// There may be more in their line.
    full: bool,
}

/// A row that can be read.
struct Parcel {
    id: i64,
    tries: u32,
    created_ms: Millis,
    message: OutboxMessage,
}

impl<D: Delivery> Courier<D> {
    pub(super) fn new(
        shared: Arc<Shared>,
        kind: OutboxKind,
        delivery: D,
        wake: Arc<Notify>,
    ) -> Courier<D> {
        let round = Arc::new(Round { shared, kind, delivery, wake });
        Courier { round, lines: Mutex::default() }
    }

    /// One round.
    pub(super) async fn run(&self) -> JobResult {
        let mut lines = self.lines.lock().await;
        let mut more = false;
        while let Some(Ok(visit)) = lines.visits.try_join_next() {
            more |= lines.over(&self.round, visit);
        }
        more |= self.hand_over(&mut lines).await?;
        self.visit_lines(&mut lines).await?;
        let until = Instant::now() + Duration::from_millis(ROUND_MS_MAX);
        while let Ok(Some(Ok(visit))) = timeout_at(until, lines.visits.join_next()).await {
            more |= lines.over(&self.round, visit);
        }
        Ok(Progress::after(more))
    }

    /// Visits that are under way are broken off; their rows are delivered again by the next process.
    pub(super) async fn stop(&self) {
        self.lines.lock().await.visits.shutdown().await;
    }

    /// Hands over what waits for nobody. Answers whether there is more of it.
    async fn hand_over(&self, lines: &mut Lines) -> Result<bool, AnyError> {
        let round = &self.round;
        let (parcels, mut more) = round.due(OUTBOX_NOBODY, round.batch_max()).await?;
        let mut by_party: BTreeMap<String, Vec<Parcel>> = BTreeMap::new();
        for parcel in parcels {
            if let Some(parts) = round.delivery.split(&parcel.message) {
                let Parcel { id, tries, created_ms, message } = parcel;
                let row = OutboxRow { id, message: Ok(message), tries, created_ms };
                round.shared.ledger.outbox_split(&row, &parts).await?;
                more = true;
            } else {
                let party = round.delivery.party(&parcel.message);
                by_party.entry(party).or_default().push(parcel);
            }
        }
        for (party, parcels) in by_party {
            if lines.may_begin(&party) {
                let round = round.clone();
                lines.begin(party, async move |party| round.deliver(party, parcels, 0).await);
            } else {
                round.line_up(&party, &parcels).await?;
            }
        }
        Ok(more)
    }

    /// Visits those for whom something waits and who may be tried now.
    async fn visit_lines(&self, lines: &mut Lines) -> Result<(), AnyError> {
        let (round, now_ms) = (&self.round, self.round.shared.now_ms());
        let ledger = &round.shared.ledger;
        let found = ledger.outbox_parties(round.kind, &lines.after, VISITS_MAX).await?;
        let to_the_end = found.len() < VISITS_MAX;
        lines.after = found.last().filter(|_| !to_the_end).cloned().unwrap_or_default();
        for party in found {
            if lines.is_due(&party, now_ms) && lines.visits.len() < VISITS_MAX {
                let (round, pause_ms) = (round.clone(), lines.next_pause_ms(&party));
                lines.begin(party, async move |party| round.visit(party, pause_ms).await);
            }
        }
        Ok(())
    }
}

impl Lines {
    /// May new rows for this party be handed over without waiting in line?
    fn may_begin(&self, party: &str) -> bool {
        let known = self.parties.get(party);
        known.is_none_or(|known| !known.busy && known.silence.is_none())
            && self.visits.len() < VISITS_MAX
    }

    /// May somebody be tried for whom rows wait? A pause that seems too long is of another clock.
    fn is_due(&self, party: &str, now_ms: Millis) -> bool {
        let Some(Party { busy, silence }) = self.parties.get(party) else { return true };
        let pausing = silence.as_ref().is_some_and(|silence| {
            (now_ms + 1..=now_ms + LINE_PAUSE_MS_MAX).contains(&silence.again_ms)
        });
        !busy && !pausing
    }

    fn next_pause_ms(&self, party: &str) -> Millis {
        let silence = self.parties.get(party).and_then(|known| known.silence.as_ref());
        silence.map_or(OUTBOX_PAUSE_MS_MIN, |known| (known.pause_ms * 2).min(LINE_PAUSE_MS_MAX))
    }

    fn begin<F>(&mut self, party: String, visit: impl FnOnce(String) -> F + Send + 'static)
    where
        F: Future<Output = Result<Visited, AnyError>> + Send + 'static,
    {
        self.parties.entry(party.clone()).or_default().busy = true;
        let visit = AssertUnwindSafe(visit(party.clone())).catch_unwind();
        let visit = async move { Visit { outcome: visit.await, party } };
        self.visits.spawn(in_share(Share::Jobs, visit));
    }

    /// Notes how a visit went. Answers whether it is worth another one at once.
    fn over<D: Delivery>(&mut self, round: &Round<D>, visit: Visit) -> bool {
        let Visit { party, outcome } = visit;
        let before = self.parties.remove(&party).and_then(|known| known.silence);
        // A bug is told of by whoever runs the job.
        match outcome.unwrap_or_else(|panic| resume_unwind(panic)) {
            Ok(Visited { silent_since_ms: None, full, .. }) => {
                if before.is_some() {
                    tracing::info!(kind = round.kind.as_str(), party, "answers again");
                }
                return full;
            }
            Ok(Visited { silent_since_ms: Some(since_ms), cause, .. }) => {
                let silence = round.silence(&party, before, since_ms, &cause);
                self.parties.insert(party, Party { busy: false, silence: Some(silence) });
            }
            Err(error) => {
                tracing::warn!(kind = round.kind.as_str(), party, %error,
                    "what was delivered could not be noted, and is delivered again");
            }
        }
        false
    }
}

impl<D: Delivery> Round<D> {
    fn batch_max(&self) -> usize {
        self.shared.settings.jobs.outbox_batch_max
    }

    /// What is due and waits for this party, and whether there is more of it. What cannot be read is put off.
    async fn due(&self, waits_for: &str, limit: usize) -> Result<(Vec<Parcel>, bool), AnyError> {
        let ledger = &self.shared.ledger;
        let rows = ledger.outbox_due(self.kind, waits_for, self.shared.now_ms(), limit).await?;
        assert!(rows.len() <= limit, "the ledger gave more outbox rows than asked for");
        let full = rows.len() == limit;
        let mut parcels = Vec::with_capacity(rows.len());
        for OutboxRow { id, message, tries, created_ms } in rows {
            match message {
                Ok(message) => parcels.push(Parcel { id, tries, created_ms, message }),
                Err(cause) => self.put_off(id, tries, None, &cause).await?,
            }
        }
        Ok((parcels, full))
    }

    /// Tries one row of a line. If its party answers, a batch of the others follows.
    async fn visit(&self, party: String, pause_ms: Millis) -> Result<Visited, AnyError> {
        let (first, _) = self.due(&party, 1).await?;
        if first.is_empty() {
            return Ok(Visited::default());
        }
        let visited = self.deliver(party.clone(), first, pause_ms).await?;
        if visited.silent_since_ms.is_some() {
            return Ok(visited);
        }
        let (rest, full) = self.due(&party, self.batch_max()).await?;
        let visited = self.deliver(party, rest, 0).await?;
        // A round need not come by for a line that goes on.
        if full {
            self.wake.notify_one();
        }
        Ok(Visited { full, ..visited })
    }

    /// Delivers to a party. What it does not take waits in its line, if it took nothing at all.
    async fn deliver(
        &self,
        party: String,
        parcels: Vec<Parcel>,
        pause_ms: Millis,
    ) -> Result<Visited, AnyError> {
        let messages: Vec<OutboxMessage> =
            parcels.iter().map(|parcel| parcel.message.clone()).collect();
        let outcomes = self.delivery.deliver(&messages).await;
        assert_eq!(outcomes.len(), parcels.len(), "one outcome for each message");
        let (mut done, mut visited) = (Vec::new(), Visited::default());
        let mut waiting: BTreeMap<String, (Vec<i64>, String)> = BTreeMap::new();
        let answers = outcomes.iter().any(Result::is_ok);
        for (parcel, outcome) in parcels.iter().zip(outcomes) {
            match outcome {
                Ok(()) => done.push(parcel.id),
                Err(Undelivered::Silent { party: silent, cause })
                    if !answers || silent != party =>
                {
                    if silent == party {
                        let since_ms = visited.silent_since_ms.get_or_insert(parcel.created_ms);
                        *since_ms = parcel.created_ms.min(*since_ms);
                        visited.cause.clone_from(&cause);
                    }
                    // What has turned out to be for several is split before it waits.
                    let several = self.delivery.split(&parcel.message).is_some();
                    let waits_for = if several { OUTBOX_NOBODY.to_owned() } else { silent };
                    let (ids, why) = waiting.entry(waits_for).or_default();
                    ids.push(parcel.id);
                    *why = cause;
                }
                Err(Undelivered::UnderWay(cause)) => self.look_later(parcel, cause).await?,
                Err(error) => {
                    let message = Some(&parcel.message);
                    self.put_off(parcel.id, parcel.tries, message, &error.to_string()).await?;
                }
            }
        }
        if !done.is_empty() {
            self.shared.ledger.outbox_done(&done).await?;
        }
        let next_try_ms = if pause_ms > 0 { self.shared.now_ms() + pause_ms } else { 0 };
        for (waits_for, (ids, cause)) in waiting {
            let wait = OutboxWait { waits_for, next_try_ms, tried: true, cause };
            self.shared.ledger.outbox_wait(&ids, &wait).await?;
        }
        Ok(visited)
    }

    /// Puts rows into the line of somebody who is busy or silent, without trying them.
    async fn line_up(&self, party: &str, parcels: &[Parcel]) -> Result<(), AnyError> {
        let ids: Vec<i64> = parcels.iter().map(|parcel| parcel.id).collect();
        let (waits_for, cause) = (party.to_owned(), format!("others wait for {party} already"));
        let wait = OutboxWait { waits_for, next_try_ms: 0, tried: false, cause };
        Ok(self.shared.ledger.outbox_wait(&ids, &wait).await?)
    }

    /// A row that failed for a reason of its own is tried again after a pause.
    async fn put_off(
        &self,
        id: i64,
        tries: u32,
        message: Option<&OutboxMessage>,
        cause: &str,
    ) -> Result<(), AnyError> {
        tracing::warn!(
            outbox = id,
            tries,
            cause,
            "an outbox row could not be delivered and is tried again after a pause"
        );
        if tries + 1 >= OUTBOX_TRIES_ALARMING {
            self.wake_for(id, message, cause);
        }
        self.pause(id, tries, cause).await
    }

    /// A row that somebody works on is looked at again after a pause, and nobody is woken for it before it
    /// is old.
    async fn look_later(&self, parcel: &Parcel, cause: &str) -> Result<(), AnyError> {
        let Parcel { id, tries, created_ms, message } = parcel;
        if self.shared.now_ms() - created_ms >= UNDER_WAY_MS_ALARMING {
            self.wake_for(*id, Some(message), cause);
        }
        self.pause(*id, *tries, cause).await
    }

    /// Units and money on their way wait for ever if need be, but not without a word.
    fn wake_for(&self, id: i64, message: Option<&OutboxMessage>, cause: &str) {
        let order_no = match message {
            Some(OutboxMessage::Refund { order_no, .. }) => Some(*order_no),
            _ => None,
        };
        let told = format!("outbox row {id} is still not delivered; it is tried again and again");
        let alert = Alert::new(AlertKind::Undelivered, told, self.shared.now_ms());
        self.shared.alerts.raise_once(id as u64, Alert { order_no, ..alert.because(cause) });
    }

    async fn pause(&self, id: i64, tries: u32, cause: &str) -> Result<(), AnyError> {
        let pause = (OUTBOX_PAUSE_MS_MIN << tries.min(16)).min(OUTBOX_PAUSE_MS_MAX);
        let next_ms = self.shared.now_ms() + pause;
        Ok(self.shared.ledger.outbox_later(id, next_ms, cause).await?)
    }

    /// Somebody does not answer, perhaps once more: when to try again, and whether to wake anybody.
    fn silence(
        &self,
        party: &str,
        before: Option<Silence>,
        since_ms: Millis,
        cause: &str,
    ) -> Silence {
        let (kind, now_ms) = (self.kind.as_str(), self.shared.now_ms());
        if before.is_none() {
            tracing::warn!(
                kind,
                party,
                cause,
                "does not answer; what is for it waits, and others do not wait for it"
            );
        }
        let (last_ms, mut alerted) = before.map_or((0, false), |was| (was.pause_ms, was.alerted));
        let pause_ms = (last_ms * 2).clamp(OUTBOX_PAUSE_MS_MIN, LINE_PAUSE_MS_MAX);
        if !alerted && now_ms - since_ms >= LINE_AGE_MS_ALARMING {
            alerted = true;
            let told = format!(
                "outbox rows ({kind}) wait for {party}, which does not answer; it is tried again and again"
            );
            let alert = Alert::new(AlertKind::Undelivered, told, now_ms);
            self.shared.alerts.raise(alert.because(cause));
        }
        Silence { pause_ms, again_ms: now_ms + pause_ms, alerted }
    }
}
