//! What a buyer holds: for those who ask after their claims.
//!
//! An order number does not tell the item, and a buyer's marks are where the items are. So one script looks
//! through all items, and at the directory of items as well: one that is nowhere may be of an item that
//! somebody else has loaded a moment ago. At one server that is one call, however many items there are. In
//! a cluster a script sees one slot: it is one call per partition in which the buyer may be, and one for
//! the directory if the claim is nowhere.
//!
//! Whoever waits asks again and again. Of which item a claim is that was admitted, or found, at this
//! process is remembered, and then only that item is asked.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::Value;
use redis_link::Call;
use sale::{Claim, ItemId, OrderNo, UserId};

use super::{
    decision,
    directory::{Directory, shard_of},
    scripts,
    store::Store,
};
use crate::{GateError, GateFailure, Recent, Result, mark::Garbled};

/// Items in one call of `held.lua`, which passes as many values to one command; Lua can pass about eight
/// thousand.
const ITEMS_ASKED_MAX: usize = 2_000;
/// Claims of which the item is remembered.
const ITEMS_REMEMBERED_MAX: usize = 200_000;

/// Items and how many shards each has.
type Items = HashMap<ItemId, u32>;

pub(super) struct BuyerClaims {
    store: Arc<Store>,
    directory: Arc<Directory>,
    items: Mutex<Recent<OrderNo, ItemId>>,
}

/// What was found of a buyer.
#[derive(Default)]
struct Held {
    claims: Vec<Claim>,
    /// Why some items could not tell.
    unsure: Option<GateError>,
    /// Is the directory as it was thought to be? `None`: it was not asked.
    as_known: Option<bool>,
}

impl Held {
    fn claim(&self, order_no: OrderNo) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.order_no == order_no)
    }

    fn add(&mut self, other: Held) {
        self.claims.extend(other.claims);
        self.unsure = self.unsure.take().or(other.unsure);
        self.as_known = self.as_known.or(other.as_known);
    }
}

impl BuyerClaims {
    pub(super) fn new(store: Arc<Store>, directory: Arc<Directory>) -> BuyerClaims {
        let items = Mutex::new(Recent::new(ITEMS_REMEMBERED_MAX));
        BuyerClaims { store, directory, items }
    }

    /// These were admitted here.
    pub(super) fn note(&self, item: ItemId, admitted: Vec<OrderNo>) {
        if !admitted.is_empty() {
            let mut items = self.items.lock();
            admitted.into_iter().for_each(|order_no| items.insert(order_no, item));
        }
    }

    /// A claim by its number.
    pub(super) async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        if let Some(likely) = self.likely_item(order_no)
            && let Some(claim) = self.held_of(user, &likely, false).await.claim(order_no)
        {
            return Ok(Some(claim.clone()));
        }
        let items = self.directory.copy();
        let mut held = self.held_of(user, &items, true).await;
        if held.claim(order_no).is_none() && !self.are_all(&items, held.as_known).await? {
            held = self.held_of(user, &self.directory.copy(), false).await;
        }
        match held.claim(order_no) {
            Some(claim) => {
                self.note(claim.item, vec![order_no]);
                Ok(Some(claim.clone()))
            }
            None => held.unsure.map_or(Ok(None), Err),
        }
    }

    fn likely_item(&self, order_no: OrderNo) -> Option<Items> {
        let item = *self.items.lock().get(&order_no)?;
        Some(Items::from([(item, self.directory.shards(item)?)]))
    }

    /// If they are not, the directory has been read anew.
    async fn are_all(&self, items: &Items, as_known: Option<bool>) -> Result<bool> {
        if as_known == Some(true) {
            return Ok(true);
        }
        self.directory.read_now().await?;
        Ok(self.directory.copy() == *items)
    }

    pub(super) async fn queued_of(&self, user: &UserId) -> Result<Vec<Claim>> {
        let Held { mut claims, unsure, .. } =
            self.held_of(user, &self.directory.copy(), false).await;
        match unsure {
            // One item that is being loaded does not hide the others.
            Some(error) if error.reason != GateFailure::BeingLoaded => return Err(error),
            _ => {}
        }
        claims.sort_by_key(|claim| Reverse(claim.order_no));
        Ok(claims)
    }

    /// What these items have of the buyer, in as few calls as there can be. Are they `all` that are
    /// known, the directory is asked whether there are others.
    async fn held_of(&self, user: &UserId, items: &Items, all: bool) -> Held {
        let one_server = self.store.is_one_server();
        let mut groups: BTreeMap<usize, Vec<(usize, ItemId, u32)>> = BTreeMap::new();
        for (item, shards) in items {
            let home = self.directory.partition(*item, shard_of(user, *shards));
            let group = if one_server { 0 } else { home };
            groups.entry(group).or_default().push((home, *item, *shards));
        }
        let with_directory = all && one_server && items.len() <= ITEMS_ASKED_MAX;
        let parts: Vec<&[_]> = match groups.is_empty() {
            true if with_directory => vec![&[]],
            _ => groups.values().flat_map(|group| group.chunks(ITEMS_ASKED_MAX)).collect(),
        };
        let calls = parts.into_iter().map(|part| self.ask(user, part, with_directory));
        let mut held = Held::default();
        for answer in join_all(calls).await {
            let failed = |error| Held { unsure: Some(error), ..Held::default() };
            held.add(answer.unwrap_or_else(failed));
        }
        held
    }

    /// One call of the script.
    async fn ask(
        &self,
        user: &UserId,
        items: &[(usize, ItemId, u32)],
        with_directory: bool,
    ) -> Result<Held> {
        let keys = &self.store.keys;
        let of_items = items.iter().flat_map(|(partition, item, _)| {
            [keys.meta(*partition, *item), keys.users(*partition, *item)]
        });
        let names = of_items.chain(with_directory.then(|| keys.items()));
        let mut call = Call::new(&scripts::HELD, names).arg(user.as_str());
        for (_, item, shards) in items {
            call.push_number(item.0);
            call.push_number(shards);
        }
        read_answer(user, items, self.store.run(&call).await?)
    }
}

fn read_answer(
    user: &UserId,
    items: &[(usize, ItemId, u32)],
    mut answer: Vec<Value>,
) -> Result<Held> {
    let garbled = || Garbled("answer of held.lua");
    let Some(Value::Int(as_known)) = answer.pop() else { return Err(garbled().into()) };
    if answer.len() != items.len() {
        return Err(garbled().into());
    }
    let as_known = (as_known >= 0).then_some(as_known == 1);
    let mut held = Held { as_known, ..Held::default() };
    for ((_, item, _), mark) in items.iter().zip(answer) {
        let Value::BulkString(mark) = mark else { return Err(garbled().into()) };
        match &mark[..] {
            b"" => {}
            b"?" => held.unsure = Some(cannot_tell(*item)),
            mark => held.claims.push(decision::claim_of(*item, user, mark)?),
        }
    }
    Ok(held)
}

fn cannot_tell(item: ItemId) -> GateError {
    let why = format!("item {item} is being loaded or not whole");
    GateError::new(GateFailure::BeingLoaded, why)
}
