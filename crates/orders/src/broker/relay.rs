//! The relay: from the log of the gate to the broker ([`super`] tells the whole life of a message).

use std::{sync::Arc, time::Duration};

use sale::{EntryId, LogEntry, RelaySource, SharedClock, SigningKeys};
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
};
use tracing::{error, warn};

use super::{Broker, BrokerLog, Message, Published, RelayOptions, message, meters, net::Net};
use crate::{
    Alert, AlertKind, Alerts,
    outage::{Backoff, Outage, StopSignal, Stopped},
};

/// Pauses before a broker that does not answer is asked again.
const PAUSE_MS_MIN: u64 = 50;
const PAUSE_MS_MAX: u64 = 5_000;
/// How often it is asked how its queues are, and how often while it does not say: a topic that was just made
/// has no leader for a moment, and that is not to read as a broker that is down.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// A broker that has not said so by then hangs.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Starts the relay of a process.
pub struct Relay;

impl Relay {
    /// Must be called inside a tokio runtime.
    pub fn start(
        options: RelayOptions,
        source: Arc<dyn RelaySource>,
        broker: Arc<dyn Broker>,
        log: Arc<BrokerLog>,
        keys: SigningKeys,
        clock: SharedClock,
        alerts: Alerts,
    ) -> RelayHandle {
        let (stop, stop_signal) = watch::channel(false);
        let (ended_tell, ended) = watch::channel(false);
        let stop_signal = StopSignal(stop_signal);
        let publishing = Arc::new(Outage::new("broker"));
        let looking = Arc::new(Outage::new("broker queues"));
        let publisher = Publisher {
            source,
            broker,
            log,
            keys,
            publishing: publishing.clone(),
            stop: stop_signal,
        };
        let mut loops = JoinSet::new();
        loops.spawn(publisher.clone().run(options.clone()));
        let net = Net { publisher: publisher.clone(), options, clock: clock.clone() };
        loops.spawn(net.run());
        loops.spawn(watch_queues(publisher, looking.clone()));
        tokio::spawn(async move {
            while let Some(one) = loops.join_next().await {
                tell_if_died(one, &alerts, &clock);
            }
            ended_tell.send_replace(true);
        });
        RelayHandle { stop: Arc::new(stop), ended, publishing, looking }
    }
}

/// A loop ends only when told to; otherwise it panicked.
fn tell_if_died(ended: Result<(), JoinError>, alerts: &Alerts, clock: &SharedClock) {
    if let Err(panic) = ended {
        let message = "a loop of the relay died of a bug; restart this process";
        alerts.raise(Alert::new(AlertKind::WorkerDied, message, clock.now_ms()).because(panic));
    }
}

/// Sees and stops a relay. Clones are the same one.
#[derive(Clone)]
pub struct RelayHandle {
    stop: Arc<watch::Sender<bool>>,
    ended: watch::Receiver<bool>,
    publishing: Arc<Outage>,
    looking: Arc<Outage>,
}

impl RelayHandle {
    /// What is under way and not confirmed is published again, by this process after its next start or by
    /// another one.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Why the broker does not take messages, or does not say how it is.
    pub fn trouble(&self) -> Option<String> {
        self.publishing.cause().or_else(|| self.looking.cause())
    }
}

#[derive(Clone)]
pub(super) struct Publisher {
    pub(super) source: Arc<dyn RelaySource>,
    pub(super) broker: Arc<dyn Broker>,
    log: Arc<BrokerLog>,
    keys: SigningKeys,
    publishing: Arc<Outage>,
    pub(super) stop: StopSignal,
}

impl Publisher {
    async fn run(mut self, options: RelayOptions) {
        let mut under_way: JoinSet<Result<(), Stopped>> = JoinSet::new();
        while let Ok(entries) = self.take(options.batch_claims_max).await {
            let publisher = self.clone();
            under_way.spawn(async move { publisher.carry(entries, false).await });
            while under_way.len() >= options.publishes_max {
                let one = under_way.join_next().await;
                note_end(one);
            }
            while let Some(one) = under_way.try_join_next() {
                note_end(Some(one));
            }
        }
        // Told to stop they end by themselves.
        while let Some(one) = under_way.join_next().await {
            note_end(Some(one));
        }
    }

    async fn take(&mut self, claims_max: usize) -> Result<Vec<LogEntry>, Stopped> {
        let mut backoff = Backoff::new(PAUSE_MS_MIN, PAUSE_MS_MAX);
        loop {
            let taken = tokio::select! {
                biased;
                () = self.stop.stopped() => return Err(Stopped),
                taken = self.source.take_unrelayed(claims_max) => taken,
            };
            match taken {
                Ok(entries) => return Ok(entries),
                Err(error) => {
                    warn!(%error, "the relay cannot read the claim log, will try again");
                    if !self.stop.sleep(backoff.next()).await {
                        return Err(Stopped);
                    }
                }
            }
        }
    }

    /// Publishes these until the broker has them all, or refuses them. Those that are published `again`, for
    /// nobody has settled them, go to any queue: perhaps it is the queue that is to blame.
    pub(super) async fn carry(
        mut self,
        entries: Vec<LogEntry>,
        again: bool,
    ) -> Result<(), Stopped> {
        let (mut entries, mut messages) = self.sealed(entries).await;
        if again {
            messages.iter_mut().for_each(|message| message.key = fastrand::u64(..).to_string());
        }
        let mut backoff = Backoff::new(PAUSE_MS_MIN, PAUSE_MS_MAX);
        while !entries.is_empty() {
            let results = tokio::select! {
                biased;
                () = self.stop.stopped() => return Err(Stopped),
                results = self.broker.publish(&messages) => results,
            };
            assert_eq!(results.len(), entries.len(), "one answer for each message");
            meters::published(&results);
            let (mut left, mut unsent, mut done, mut cause) = (vec![], vec![], vec![], None);
            let all = entries.into_iter().zip(messages).zip(results);
            for ((entry, message), result) in all {
                match result {
                    Published::Done => done.push(entry.id),
                    Published::Refused(why) => {
                        error!(item = %entry.item, claims = entry.claims.len(), why,
                            "the broker refuses a message: its claims go straight to the workers");
                        done.push(entry.id);
                        self.log.put_directly(entry).await;
                    }
                    Published::Unknown(why) => {
                        cause = Some(why);
                        left.push(entry);
                        unsent.push(message);
                    }
                }
            }
            self.relayed(&done).await;
            (entries, messages) = (left, unsent);
            match cause {
                None => self.publishing.end(),
                Some(cause) => {
                    self.publishing.begin(&cause);
                    if !self.stop.sleep(backoff.next()).await {
                        return Err(Stopped);
                    }
                }
            }
        }
        Ok(())
    }

    async fn sealed(&self, entries: Vec<LogEntry>) -> (Vec<LogEntry>, Vec<Message>) {
        let (mut sealed, mut messages, mut empty) = (vec![], vec![], vec![]);
        for entry in entries {
            match message::seal(&entry, &self.keys) {
                Some(message) => {
                    messages.push(message);
                    sealed.push(entry);
                }
                None => empty.push(entry.id),
            }
        }
        self.relayed(&empty).await;
        (sealed, messages)
    }

    async fn relayed(&self, done: &[EntryId]) {
        if !done.is_empty() {
            self.source.relayed(done).await;
        }
    }
}

/// A batch that panicked was not relayed, and is taken by somebody after a restart or `takeover_ms`.
fn note_end(one: Option<Result<Result<(), Stopped>, JoinError>>) {
    if let Some(Err(panic)) = one {
        error!(%panic, "the relay of a batch died of a bug");
    }
}

/// Counts what waits at the broker, and notices one that says nothing.
async fn watch_queues(publisher: Publisher, looking: Arc<Outage>) {
    let mut stop = publisher.stop.clone();
    loop {
        let looked = tokio::select! {
            biased;
            () = stop.stopped() => return,
            looked = tokio::time::timeout(LOOK_MAX, publisher.broker.queues()) => looked,
        };
        match looked {
            Ok(Ok(queues)) => {
                looking.end();
                meters::lag(&queues);
            }
            Ok(Err(error)) => looking.begin(&error),
            Err(_) => looking.begin(&"it does not say how its queues are"),
        }
        meters::up(!looking.is_on() && !publisher.publishing.is_on());
        if !stop.sleep(if looking.is_on() { LOOK_AGAIN } else { LOOK_EVERY }).await {
            return;
        }
    }
}
