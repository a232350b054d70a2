//! Admission: a batch is split by partition and item, each part is one call of `admit.lua`, and a shard
//! that is dry takes units from others before anybody hears that all are sold.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use redis::Value;
use redis_link::{Call, Reached};
use sale::ItemId;

use super::{
    Ticks,
    buyer_claims::BuyerClaims,
    decision,
    directory::{Directory, shard_of},
    holders::Holders,
    log_room::LogRoom,
    moves::Mover,
    scripts,
    store::Store,
    watch::{Seen, Watch},
};
use crate::{
    Busy, ClaimRequest, Decision, NumberedRequest,
    mark::{Mark, put_mark},
    rush::Rush,
};

/// How often an admission whose answer did not come is asked for again.
const ADMIT_TRIES_MAX: u32 = 3;
/// How often a dry shard looks for units elsewhere when others were faster to take what it found.
pub(super) const STEALS_MAX: u32 = 32;
/// How often whoever is refused for want of room is decided again, where more room was found.
const LOOKS_MAX: u32 = 3;
/// Requests in one call of `admit.lua`, which passes twice as many values to one command; Lua can pass
/// about eight thousand.
const ADMIT_REQUESTS_MAX: usize = 2_000;

pub(super) struct Admitter {
    pub(super) store: Arc<Store>,
    pub(super) directory: Arc<Directory>,
    pub(super) watch: Arc<Watch>,
    pub(super) holders: Arc<Holders>,
    pub(super) mover: Arc<Mover>,
    pub(super) ticks: Arc<Ticks>,
    pub(super) buyer_claims: Arc<BuyerClaims>,
    pub(super) rush: Rush,
    pub(super) room: LogRoom,
}

impl Admitter {
    pub(super) async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        let mut groups: BTreeMap<(usize, ItemId), Vec<usize>> = BTreeMap::new();
        let mut decisions = vec![Decision::Busy(Busy::NotLoaded); batch.len()];
        let mut n = 0;
        // Neighbours mostly want the same item: look it up once per run of them.
        for run in batch.chunk_by(|(_, a), (_, b)| a.item == b.item) {
            let item = run[0].1.item;
            if self.directory.find(item).await.is_err() {
                decisions[n..n + run.len()].fill(Decision::Busy(Busy::Unwritable));
            }
            let shards = self.directory.shards(item);
            for (_, request) in run {
                if let Some(shards) = shards {
                    let shard = shard_of(&request.user, shards);
                    let partition = self.directory.partition(item, shard);
                    groups.entry((partition, item)).or_default().push(n);
                }
                n += 1;
            }
        }
        let parts = groups.iter().flat_map(|((partition, item), members)| {
            members.chunks(ADMIT_REQUESTS_MAX).map(|part| (*partition, *item, part))
        });
        let calls = parts.map(|(partition, item, members)| {
            let requests: Vec<&NumberedRequest> = members.iter().map(|n| &batch[*n]).collect();
            async move { (members, self.admit_group(partition, item, requests).await) }
        });
        for (members, decided) in join_all(calls).await {
            for (n, decision) in members.iter().zip(decided) {
                decisions[*n] = decision;
            }
        }
        let won =
            |decision: &&Decision| matches!(decision, Decision::Admitted { repeated: false, .. });
        self.rush.note(decisions.iter().filter(won).count());
        decisions
    }

    /// Requests for one item in one partition, with stealing if the shard is dry.
    async fn admit_group(
        &self,
        partition: usize,
        item: ItemId,
        requests: Vec<&NumberedRequest>,
    ) -> Vec<Decision> {
        let tick = self.ticks.next();
        let mut decisions = self.decide_with_room(partition, item, &requests).await;
        // Each round either finds units elsewhere or finds that there are none.
        for round in 0..=STEALS_MAX {
            let dry: Vec<usize> = (0..decisions.len())
                .filter(|n| matches!(decisions[*n], Decision::SoldOut { .. }))
                .collect();
            if dry.is_empty() {
                break;
            }
            if round == STEALS_MAX {
                // There were units every time, only not for these: that is not sold out.
                dry.iter().for_each(|n| decisions[*n] = Decision::Busy(Busy::Unwritable));
                break;
            }
            let wanted = || dry.iter().map(|n| i64::from(requests[*n].1.quantity));
            let (all, least) = (wanted().sum(), wanted().min().unwrap_or(1));
            match self.mover.steal(partition, item, all, least).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => {
                    // Nobody knows whether there are units left elsewhere.
                    dry.iter().for_each(|n| decisions[*n] = Decision::Busy(Busy::Unwritable));
                    break;
                }
            }
            let again: Vec<&NumberedRequest> = dry.iter().map(|n| requests[*n]).collect();
            let decided = self.decide_with_room(partition, item, &again).await;
            for (n, decision) in dry.into_iter().zip(decided) {
                decisions[n] = decision;
            }
        }
        self.note(item, tick, &requests, &mut decisions);
        decisions
    }

    /// Give "sold out" its place among the changes of the stock, and remember who is known here to hold
    /// a mark, and of what.
    fn note(
        &self,
        item: ItemId,
        tick: u64,
        requests: &[&NumberedRequest],
        decisions: &mut [Decision],
    ) {
        let (mut holders, mut admitted) = (Vec::new(), Vec::new());
        for ((_, request), decision) in requests.iter().zip(decisions) {
            if is_promise(decision) {
                holders.push(self.holders.hash(&request.user));
            }
            match decision {
                Decision::SoldOut { version, .. } => *version = tick,
                Decision::Admitted { claim, .. } => admitted.push(claim.order_no),
                _ => {}
            }
        }
        self.holders.note(item, holders);
        self.buyer_claims.note(item, admitted);
    }

    /// Whoever is refused because the partition is full is decided again if there is room in others.
    async fn decide_with_room(
        &self,
        partition: usize,
        item: ItemId,
        requests: &[&NumberedRequest],
    ) -> Vec<Decision> {
        let mut log_max = self.room.of(partition);
        let mut decisions = self.decide(partition, item, requests, log_max).await;
        for _ in 0..LOOKS_MAX {
            let full = Decision::Busy(Busy::LogFull);
            let refused: Vec<usize> =
                (0..decisions.len()).filter(|n| decisions[*n] == full).collect();
            if refused.is_empty() || !self.room.has_grown(partition, log_max).await {
                break;
            }
            log_max = self.room.of(partition);
            let again: Vec<&NumberedRequest> = refused.iter().map(|n| requests[*n]).collect();
            let decided = self.decide(partition, item, &again, log_max).await;
            for (n, decision) in refused.into_iter().zip(decided) {
                decisions[n] = decision;
            }
        }
        decisions
    }

    async fn decide(
        &self,
        partition: usize,
        item: ItemId,
        requests: &[&NumberedRequest],
        log_max: u64,
    ) -> Vec<Decision> {
        let busy = |why| vec![Decision::Busy(why); requests.len()];
        if self.watch.is_suspect(item) {
            return busy(Busy::Frozen);
        }
        for _ in 0..ADMIT_TRIES_MAX {
            let seen = self.watch.seen(partition, item);
            let call = self.admit_call(partition, item, requests, (seen, log_max));
            let Ok((reply, reached)) = self.store.run_at::<Vec<Value>>(&call).await else {
                continue;
            };
            match decision::read(reply, requests) {
                Ok(Some(decided)) => {
                    let answered = (decided.epoch, decided.seq);
                    if !self.watch.note(partition, item, seen, answered, decided.changed) {
                        tracing::error!(
                            %item,
                            partition,
                            "acknowledged writes were lost, the item is frozen"
                        );
                        return busy(Busy::Frozen);
                    }
                    return self.durable(partition, &reached, decided.decisions).await;
                }
                Ok(None) => return busy(Busy::NotLoaded),
                Err(error) => {
                    tracing::error!(%item, partition, %error, "the gate's answer cannot be read");
                    return busy(Busy::Unwritable);
                }
            }
        }
        busy(Busy::Unwritable)
    }

    /// `seen`: the epoch in which everybody may win, if the item is still in it. `log_max`: what the
    /// partition may hold.
    fn admit_call(
        &self,
        partition: usize,
        item: ItemId,
        requests: &[&NumberedRequest],
        (seen, log_max): (Seen, u64),
    ) -> Call<'static> {
        let keys = &self.store.keys;
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.users(partition, item),
            keys.spent(partition, item),
            keys.orders(partition),
            keys.backlog(partition),
            keys.changed(partition),
        ];
        let mut users: Vec<u64> =
            requests.iter().map(|(_, request)| self.holders.hash(&request.user)).collect();
        users.sort_unstable();
        let all_differ = users.windows(2).all(|two| two[0] != two[1]);
        let epoch = seen.filter(|_| all_differ).map_or(0, |(epoch, _)| epoch);
        let mut winners = Vec::with_capacity(requests.len() * 48);
        for (order_no, ClaimRequest { user, quantity, key, .. }) in requests {
            put_mark(&mut winners, user, &Mark::new(*order_no, *quantity, epoch, *key));
        }
        let quantities = || requests.iter().map(|(_, request)| u64::from(request.quantity));
        let keyed = requests.iter().any(|(_, request)| request.key.is_some());
        Call::new(&scripts::ADMIT, names)
            .number(item.0)
            .number(log_max)
            .number(requests.len())
            .number(epoch)
            .number(quantities().sum::<u64>())
            .number(quantities().max().unwrap_or(0))
            .number(u8::from(keyed))
            .arg(winners)
    }

    /// With `wait_replicas`, a promise that too few replicas have is no promise yet.
    async fn durable(
        &self,
        partition: usize,
        reached: &Reached,
        decisions: Vec<Decision>,
    ) -> Vec<Decision> {
        if !decisions.iter().any(is_promise) || self.store.is_replicated(partition, reached).await {
            return decisions;
        }
        let unsure = |told| if is_promise(&told) { Decision::Busy(Busy::Unwritable) } else { told };
        decisions.into_iter().map(unsure).collect()
    }
}

/// Does it tell of a claim that is at the gate? One that is repeated, or that stands in the way of
/// another, may be of a call whose replicas did not answer.
fn is_promise(decision: &Decision) -> bool {
    use Decision::{Admitted, AlreadyBought, KeyReused};
    matches!(decision, Admitted { .. } | AlreadyBought { .. } | KeyReused { .. })
}
