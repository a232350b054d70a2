//! Gives units back to the gate, and lets it follow a stock that was changed.
//!
//! Units that come back are for the partition that has the buyer's mark, and adjustments for their item: what
//! lies on a server that hangs waits, and what lies on others does not wait for it.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use gate::{AdjustOutcome, Changed, GateError, GateFailure, GiveBack};
use ledger::{OutboxKind, OutboxMessage};
use sale::ItemId;

use super::{
    Job, JobResult, Progress,
    delivery::{Courier, Delivery, Undelivered},
};
use crate::{coordination::Hint, shared::Shared};

/// The party of units of an item that nobody here has heard of: it is looked up at the server that has the
/// directory, and after that its partition is known.
const DIRECTORY: &str = "the gate's directory";

pub(crate) struct Release {
    releases: Courier<Units>,
    adjusts: Courier<Adjusts>,
}

impl Release {
    pub(super) fn new(shared: &Arc<Shared>) -> Release {
        let (s, wake) = (|| shared.clone(), || shared.wake.release.clone());
        let (units, adjusts) = (Units { shared: s() }, Adjusts { shared: s() });
        Release {
            releases: Courier::new(s(), OutboxKind::Release, units, wake()),
            adjusts: Courier::new(s(), OutboxKind::Adjust, adjusts, wake()),
        }
    }

    pub(super) async fn stop(&self) {
        self.releases.stop().await;
        self.adjusts.stop().await;
    }
}

#[async_trait]
impl Job for Release {
    async fn run(&self) -> JobResult {
        let (releases, adjusts) = tokio::join!(self.releases.run(), self.adjusts.run());
        let more = [releases?, adjusts?].contains(&Progress::MoreToDo);
        Ok(Progress::after(more))
    }
}

/// Everybody may look again: units of these items came back.
async fn tell(shared: &Shared, changed: Vec<Changed>) {
    for change in changed {
        shared.lanes.stock_changed(change);
        shared.coordination.tell(&Hint::Units { item: change.item }).await;
    }
}

/// Who is to be waited for after this error, if anybody; else it is the message's own.
fn undelivered(error: GateError, home: &str, item: ItemId) -> Undelivered {
    let party = match error.reason {
        GateFailure::Unreachable | GateFailure::Unwritable => home.to_owned(),
        GateFailure::BeingLoaded => item_party(item),
        GateFailure::Unreadable => return Undelivered::Refused(error.into()),
    };
    Undelivered::Silent { party, cause: error.to_string() }
}

fn item_party(item: ItemId) -> String {
    format!("item {item}")
}

struct Units {
    shared: Arc<Shared>,
}

impl Units {
    fn home(&self, release: &ledger::Release) -> String {
        let home = self.shared.gate.home_of(release.item, &release.user);
        home.map_or_else(|| DIRECTORY.to_owned(), |partition| format!("partition {partition}"))
    }

    async fn give_back(&self, releases: &[&ledger::Release]) -> gate::Result<()> {
        let units: Vec<GiveBack> = releases.iter().map(|release| give_back(release)).collect();
        let changed = self.shared.gate.release(&units).await?;
        tell(&self.shared, changed).await;
        Ok(())
    }

    /// Each item by itself: one that is being loaded keeps the others from nothing.
    async fn by_item(&self, messages: &[OutboxMessage]) -> BTreeMap<ItemId, Result<(), GateError>> {
        let mut by_item: BTreeMap<ItemId, Vec<&ledger::Release>> = BTreeMap::new();
        for release in messages.iter().flat_map(releases_of) {
            by_item.entry(release.item).or_default().push(release);
        }
        let mut outcomes = BTreeMap::new();
        let mut silent: Option<GateError> = None;
        for (item, releases) in by_item {
            let outcome = match &silent {
                Some(error) => Err(error.clone()),
                None => self.give_back(&releases).await,
            };
            if let Err(error) = &outcome
                && error.reason == GateFailure::Unreachable
            {
                silent = Some(error.clone());
            }
            outcomes.insert(item, outcome);
        }
        outcomes
    }
}

#[async_trait]
impl Delivery for Units {
    fn party(&self, message: &OutboxMessage) -> String {
        let first = releases_of(message).first();
        first.map_or_else(|| DIRECTORY.to_owned(), |release| self.home(release))
    }

    /// One for each partition and item.
    fn split(&self, message: &OutboxMessage) -> Option<Vec<OutboxMessage>> {
        let mut by_home: BTreeMap<(String, ItemId), Vec<ledger::Release>> = BTreeMap::new();
        for release in releases_of(message) {
            let home = (self.home(release), release.item);
            by_home.entry(home).or_default().push(release.clone());
        }
        let several = by_home.len() > 1;
        let parts = by_home.into_values();
        several.then(|| parts.map(|releases| OutboxMessage::Release { releases }).collect())
    }

    async fn deliver(&self, messages: &[OutboxMessage]) -> Vec<Result<(), Undelivered>> {
        let all: Vec<&ledger::Release> = messages.iter().flat_map(releases_of).collect();
        let Err(error) = self.give_back(&all).await else {
            return messages.iter().map(|_| Ok(())).collect();
        };
        let outcomes = match error.reason {
            GateFailure::Unreachable | GateFailure::Unwritable => BTreeMap::new(),
            GateFailure::BeingLoaded | GateFailure::Unreadable => self.by_item(messages).await,
        };
        let outcome = |message: &OutboxMessage| {
            let Some(first) = releases_of(message).first() else { return Ok(()) };
            let done = outcomes.get(&first.item).cloned().unwrap_or_else(|| Err(error.clone()));
            done.map_err(|error| undelivered(error, &self.home(first), first.item))
        };
        messages.iter().map(outcome).collect()
    }
}

fn releases_of(message: &OutboxMessage) -> &[ledger::Release] {
    match message {
        OutboxMessage::Release { releases } => releases,
        _ => &[],
    }
}

fn give_back(release: &ledger::Release) -> GiveBack {
    GiveBack {
        item: release.item,
        user: release.user.clone(),
        order_no: release.order_no,
        quantity: release.quantity,
    }
}

struct Adjusts {
    shared: Arc<Shared>,
}

#[async_trait]
impl Delivery for Adjusts {
    fn party(&self, message: &OutboxMessage) -> String {
        match message {
            OutboxMessage::Adjust { item, .. } => item_party(*item),
            _ => DIRECTORY.to_owned(),
        }
    }

    async fn deliver(&self, messages: &[OutboxMessage]) -> Vec<Result<(), Undelivered>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        for message in messages {
            let OutboxMessage::Adjust { item, adjust_no, delta } = message else {
                outcomes.push(Err(Undelivered::Refused("it is no adjustment".into())));
                continue;
            };
            let done = self.shared.gate.adjust(*item, *adjust_no, *delta, true).await;
            if let Ok(AdjustOutcome::Done(change)) = &done {
                tell(&self.shared, vec![*change]).await;
            }
            let done = done.map(drop);
            outcomes.push(done.map_err(|error| undelivered(error, &item_party(*item), *item)));
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, time::Duration};

    use sale::CloseReason;

    use super::*;
    use crate::{
        Settings,
        jobs::delivery::LINE_AGE_MS_ALARMING,
        test_engine::{NOW_MS, TestEngine, Webhook},
    };

    #[tokio::test]
    async fn nothing_reaches_the_gate_in_the_middle_of_a_load() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let no = shop.buy(item, "ann").await;
        // What a load read of the ledger is a moment old; the order is closed in that moment.
        let epoch = activity.items[0].epoch + 9;
        assert!(engine.shared.gate.begin_load(item, epoch, 1).await.unwrap());
        let closed =
            engine.shared.ledger.close(&[no.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        assert_eq!(closed, [no]);
        engine.jobs.release.run().await.unwrap();
        assert_eq!(engine.shared.gate.left(item), Some(9), "the release waits for the load");
        engine.shared.gate.abandon_load(item, epoch).await;
        let left = async || engine.shared.gate.left(item) == Some(10);
        shop.rounds_until(&*engine.jobs.release, left).await;
    }

    /// A shop with a sale whose server hangs and one whose server does not.
    async fn one_of_two_hangs(change: impl FnOnce(&mut Settings)) -> (TestEngine, [ItemId; 2]) {
        let (shop, hanging) = TestEngine::with_a_sale(change).await;
        let window = (NOW_MS - 1, NOW_MS + 3_600_000);
        let healthy = shop.another_sale("iPad", window, 60_000).await;
        shop.engine.operations.warm_activity("ann", healthy.id, false).await.unwrap();
        let items = [hanging.items[0].id, healthy.items[0].id];
        shop.gate.hanging.lock().insert(items[0]);
        (shop, items)
    }

    async fn buy_and_cancel(shop: &TestEngine, item: ItemId, user: &str) {
        let no = shop.buy(item, user).await;
        let closing = [no.into()];
        let ledger = &shop.engine.shared.ledger;
        ledger.close(&closing, CloseReason::Cancelled, NOW_MS).await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_hangs_delays_only_the_units_that_lie_on_it() {
        let (shop, [hanging, healthy]) = one_of_two_hangs(|_| {}).await;
        // Longer than a round waits, and than this story takes.
        *shop.gate.answers_within.lock() = Duration::from_secs(60);
        let (release, gate) = (&shop.engine.jobs.release, &shop.engine.shared.gate);
        for n in 0..3 {
            buy_and_cancel(&shop, hanging, &format!("a{n}")).await;
            buy_and_cancel(&shop, healthy, &format!("b{n}")).await;
            tokio::time::timeout(Duration::from_secs(5), release.run()).await.unwrap().unwrap();
            assert_eq!((gate.left(hanging), gate.left(healthy)), (Some(9 - n), Some(10)));
        }
        let waits = shop.engine.shared.ledger.outstanding().await.unwrap().outbox;
        assert_eq!(waits.iter().find(|rows| rows.kind == "release").unwrap().rows, 3);
        let line = format!("partition {hanging}");
        let ledger = &shop.engine.shared.ledger;
        assert_eq!(ledger.outbox_parties(OutboxKind::Release, "", 9).await.unwrap(), [line]);
    }

    #[tokio::test]
    async fn rows_for_a_server_that_does_not_answer_fill_no_batch_twice_and_wake_somebody_once() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let (shop, [silent, healthy]) = one_of_two_hangs(|settings| {
            settings.jobs.outbox_batch_max = 3;
            settings.alerts.webhook_url = url;
        })
        .await;
        let (release, gate) = (&shop.engine.jobs.release, &shop.engine.shared.gate);
        for n in 0..9 {
            buy_and_cancel(&shop, silent, &format!("a{n}")).await;
        }
        buy_and_cancel(&shop, healthy, "bob").await;
        for _ in 0..4 {
            release.run().await.unwrap();
        }
        assert_eq!(gate.left(healthy), Some(10), "behind nine rows, in batches of three");
        let tried = shop.gate.releases.load(Ordering::SeqCst);
        assert!(tried <= 3, "the others were put into the line untried, not {tried} times");
        for _ in 0..20 {
            release.run().await.unwrap();
        }
        assert!(shop.gate.releases.load(Ordering::SeqCst) <= tried + 1, "its pause lasts");
        for _ in 0..3 {
            shop.clock.advance(LINE_AGE_MS_ALARMING);
            release.run().await.unwrap();
        }
        shop.gate.hanging.lock().clear();
        shop.clock.advance(5_000);
        shop.rounds_until(&**release, async || gate.left(silent) == Some(10)).await;
        shop.engine.shared.alerts.stop().await;
        let heard = webhook.heard();
        assert!(heard.len() == 1 && heard[0].contains("undelivered"), "{heard:?}");
    }
}
