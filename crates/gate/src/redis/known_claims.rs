//! Claims that were admitted before and come to the gate again: their units are given back, their
//! receipt is presented, or an order was made of one that a failover took from the gate.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use redis_link::{Call, Reached};
use sale::{Claim, Epoch, ItemId};

use super::{
    Ticks, admit::STEALS_MAX, decision, directory::Directory, holders::Holders, load::bare_mark,
    moves::Mover, scripts, store::Store, watch::Watch,
};
use crate::{Changed, GateFailure, GiveBack, Readmitted, Result, mark::Garbled};

/// Spent keys remembered of one item.
const SPENT_KEYS_MAX: u64 = 1_000_000;

/// How many spent keys one shard of an item remembers.
pub(super) fn spent_keys_max(directory: &Directory, item: ItemId) -> u64 {
    SPENT_KEYS_MAX.div_ceil(u64::from(directory.shards(item).unwrap_or(1).max(1)))
}

pub(super) struct KnownClaims {
    pub(super) store: Arc<Store>,
    pub(super) directory: Arc<Directory>,
    pub(super) watch: Arc<Watch>,
    pub(super) holders: Arc<Holders>,
    pub(super) mover: Arc<Mover>,
    pub(super) ticks: Arc<Ticks>,
}

impl KnownClaims {
    /// An item that is being loaded, or a server that does not answer, holds up no others: what could
    /// not be given back is asked for again, and for the rest twice is once.
    pub(super) async fn release(&self, units: &[GiveBack]) -> Result<Vec<Changed>> {
        let mut homes: BTreeMap<usize, BTreeMap<ItemId, Vec<&GiveBack>>> = BTreeMap::new();
        let mut done = Ok(());
        for unit in units {
            // Whoever did not answer one need not be asked for the others.
            let found = if done.is_ok() { self.directory.find(unit.item).await } else { Ok(()) };
            if let Some(partition) = self.directory.home(unit.item, &unit.user) {
                homes.entry(partition).or_default().entry(unit.item).or_default().push(unit);
            }
            done = done.and(found);
        }
        let homes = homes.into_iter();
        let homes = homes.map(|(partition, items)| self.release_home(partition, items));
        let mut changed = Vec::new();
        for (here, all) in join_all(homes).await {
            changed.extend(here);
            done = done.and(all);
        }
        done.map(|()| changed)
    }

    /// A server that does not answer is asked once, and not for every item that lies on it.
    async fn release_home(
        &self,
        partition: usize,
        items: BTreeMap<ItemId, Vec<&GiveBack>>,
    ) -> (Vec<Changed>, Result<()>) {
        let (mut changed, mut done) = (Vec::new(), Ok(()));
        for (item, units) in items {
            match self.release_group(partition, item, &units).await {
                Ok(change) => changed.extend(change),
                Err(error) if error.reason == GateFailure::Unreachable => {
                    return (changed, Err(error));
                }
                Err(error) => done = done.and(Err(error)),
            }
        }
        (changed, done)
    }

    async fn release_group(
        &self,
        partition: usize,
        item: ItemId,
        units: &[&GiveBack],
    ) -> Result<Option<Changed>> {
        let keys = &self.store.keys;
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.users(partition, item),
            keys.spent(partition, item),
            keys.changed(partition),
        ];
        let spent_max = spent_keys_max(&self.directory, item);
        let mut call = Call::new(&scripts::RELEASE, names).number(spent_max);
        for unit in units {
            call.push(unit.user.as_str());
            call.push(unit.order_no.as_u64().to_le_bytes());
        }
        let units = self.change(partition, item, &call).await?;
        Ok((units > 0).then(|| Changed { item, version: self.ticks.next(), units }))
    }

    /// Run a script that answers epoch, `seq` and how many units it moved. Zero, too, if the item is
    /// not there.
    async fn change(&self, partition: usize, item: ItemId, call: &Call<'_>) -> Result<i64> {
        let seen = self.watch.seen(partition, item);
        let reply: Vec<i64> = self.store.run(call).await?;
        let [epoch, seq, units] = reply[..] else { return Ok(0) };
        self.watch.note(partition, item, seen, (epoch as Epoch, seq as u64), units > 0);
        Ok(units)
    }

    /// As with a new claim, a dry shard is no reason to turn a promise down.
    pub(super) async fn readmit(&self, claim: &Claim) -> Result<Readmitted> {
        let item = claim.item;
        self.directory.find(item).await?;
        let Some(partition) = self.directory.home(item, &claim.user) else {
            return Ok(Readmitted::NotLoaded);
        };
        for _ in 0..STEALS_MAX {
            let (answer, reached) = self.readmit_once(partition, claim).await?;
            if matches!(answer, Readmitted::Admitted | Readmitted::Known) {
                self.holders.note(item, [self.holders.hash(&claim.user)]);
                let sure = self.store.is_replicated(partition, &reached).await;
                return Ok(if sure { answer } else { Readmitted::Frozen });
            }
            if answer != Readmitted::SoldOut {
                return Ok(answer);
            }
            let wanted = i64::from(claim.quantity);
            if self.mover.steal(partition, item, wanted, wanted).await? == 0 {
                return Ok(Readmitted::SoldOut);
            }
        }
        // There were units every time, only others were faster: that is not sold out.
        Ok(Readmitted::Frozen)
    }

    async fn readmit_once(&self, partition: usize, claim: &Claim) -> Result<(Readmitted, Reached)> {
        let (item, keys) = (claim.item, &self.store.keys);
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.users(partition, item),
            keys.orders(partition),
            keys.backlog(partition),
            keys.changed(partition),
        ];
        let call = Call::new(&scripts::READMIT, names)
            .number(item.0)
            .arg(claim.user.as_str())
            .number(claim.quantity)
            .arg(claim.order_no.as_u64().to_le_bytes())
            .number(claim.claimed_ms)
            .number(claim.epoch)
            .arg(claim.key.map_or(0, |key| key.0).to_le_bytes());
        let (reply, reached): (Vec<Vec<u8>>, _) = self.store.run_at(&call).await?;
        let letter = reply.first().and_then(|bytes| bytes.first());
        let answer = match letter {
            Some(b'A') => Readmitted::Admitted,
            Some(b'K') => Readmitted::Known,
            Some(b'B') => {
                let mark = reply.get(1).ok_or(Garbled("answer of readmit.lua"))?;
                let order_no = decision::claim_of(item, &claim.user, mark)?.order_no;
                Readmitted::AlreadyBought { order_no }
            }
            Some(b'S') => Readmitted::SoldOut,
            Some(b'N') => Readmitted::NotLoaded,
            _ => Readmitted::Frozen,
        };
        Ok((answer, reached))
    }

    pub(super) async fn adopt(&self, claims: &[Claim]) -> Result<Vec<Claim>> {
        let mut groups: BTreeMap<(usize, ItemId), Vec<&Claim>> = BTreeMap::new();
        for claim in claims {
            self.directory.find(claim.item).await?;
            if let Some(partition) = self.directory.home(claim.item, &claim.user) {
                groups.entry((partition, claim.item)).or_default().push(claim);
            }
        }
        let groups = groups.into_iter();
        let calls = groups.map(|((partition, item), claims)| async move {
            self.adopt_group(partition, item, &claims).await
        });
        let older: Result<Vec<Vec<Claim>>> = join_all(calls).await.into_iter().collect();
        Ok(older?.concat())
    }

    /// Nearly always the item is still in the epoch in which the claims were made, or their buyers are
    /// marked; one question tells the first.
    async fn adopt_group(
        &self,
        partition: usize,
        item: ItemId,
        claims: &[&Claim],
    ) -> Result<Vec<Claim>> {
        let keys = &self.store.keys;
        let question = redis::cmd("HGET").arg(keys.meta(partition, item)).arg("epoch").to_owned();
        let epoch: Option<Epoch> = self.store.ask(&question).await?;
        let older = claims.iter().filter(|claim| epoch.is_some_and(|epoch| claim.epoch < epoch));
        let older: Vec<Claim> = older.map(|claim| Claim::clone(claim)).collect();
        if older.is_empty() {
            return Ok(older);
        }
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.users(partition, item),
            keys.changed(partition),
        ];
        let mut call = Call::new(&scripts::ADOPT, names);
        for claim in &older {
            call.push(claim.user.as_str());
            call.push_number(claim.epoch);
            call.push(bare_mark(claim));
        }
        let units = self.change(partition, item, &call).await?;
        if units > 0 {
            tracing::warn!(%item, partition, units, "orders that the gate had lost were adopted");
        }
        Ok(older)
    }
}
