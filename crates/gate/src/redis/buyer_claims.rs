//! What a buyer holds: for those who ask after their claims.
//!
//! An order number does not tell the item, and a buyer's marks are where the items are. So one script looks
//! through all items, and at the directory of items as well: one that is nowhere may be of an item that
//! somebody else has loaded a moment ago. At one server that is one call, however many items there are. In
//! a cluster a script sees one slot: it is one call per partition in which the buyer may be, and one for
//! the directory if the claim is nowhere.
//!
//! Whoever waits asks again and again. Of which item a claim is that was admitted, or found, at this
//! process is remembered, and then only that item is asked, in one command for all who ask at that moment
//! in its partition. (A partition that hangs keeps nobody waiting but its own.)

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
use crate::{GateError, GateFailure, Gathered, GatheredLimits, Recent, Result, mark::Garbled};

/// Items in one call of `held.lua`, which passes as many values to one command; Lua can pass about eight
/// thousand.
const ITEMS_ASKED_MAX: usize = 2_000;
/// Claims of which the item is remembered.
const ITEMS_REMEMBERED_MAX: usize = 200_000;

/// Buyers of a partition who are asked for together.
const TOGETHER: GatheredLimits =
    GatheredLimits { batch_max: 1_000, at_once_max: 2, waiting_max: 100_000 };

/// The mark of a buyer, if there is one.
type MarkBytes = Option<Vec<u8>>;

/// Items and how many shards each has.
type Items = HashMap<ItemId, u32>;

pub(super) struct BuyerClaims {
    store: Arc<Store>,
    directory: Arc<Directory>,
    items: Mutex<Recent<OrderNo, ItemId>>,
    /// For those of whom the item is remembered, by partition.
    marks: Vec<Arc<Gathered<(ItemId, UserId), MarkBytes>>>,
}

/// What was found of a buyer.
#[derive(Default)]
struct Held {
    claims: Vec<Claim>,
    /// Why some items could not tell.
    unsure: Option<GateError>,
    /// Has any part of the gate answered?
    answered: bool,
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
        self.answered |= other.answered;
        self.as_known = self.as_known.or(other.as_known);
    }
}

impl BuyerClaims {
    pub(super) fn new(store: Arc<Store>, directory: Arc<Directory>) -> BuyerClaims {
        let items = Mutex::new(Recent::new(ITEMS_REMEMBERED_MAX));
        let marks = (0..store.partitions).map(|partition| {
            let store = store.clone();
            Gathered::new(TOGETHER, move |questions| {
                let store = store.clone();
                Box::pin(async move { marks_in(&store, partition, questions).await })
            })
        });
        BuyerClaims { marks: marks.collect(), store, directory, items }
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
        if let Some(claim) = self.where_it_was(user, order_no).await {
            return Ok(Some(claim));
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

    /// If it is still there. If not, or if nobody answers, it may be anywhere.
    async fn where_it_was(&self, user: &UserId, order_no: OrderNo) -> Option<Claim> {
        let item = *self.items.lock().get(&order_no)?;
        let partition = self.directory.home(item, user)?;
        let mark = self.marks[partition].ask((item, user.clone())).await??;
        let claim = decision::claim_of(item, user, &mark).ok()?;
        (claim.order_no == order_no).then_some(claim)
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
        let Held { mut claims, unsure, answered, .. } =
            self.held_of(user, &self.directory.copy(), false).await;
        match unsure {
            // One item that is being loaded, or a part of the gate that is away, does not hide the others.
            Some(error) if error.reason != GateFailure::BeingLoaded && !answered => {
                return Err(error);
            }
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
            let answered = answer.is_ok();
            held.add(Held { answered, ..answer.unwrap_or_else(failed) });
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

/// The marks of these buyers in a partition, item by item.
async fn marks_in(
    store: &Store,
    partition: usize,
    questions: Vec<(ItemId, UserId)>,
) -> Vec<MarkBytes> {
    let mut of_items: BTreeMap<ItemId, Vec<usize>> = BTreeMap::new();
    for (n, (item, _)) in questions.iter().enumerate() {
        of_items.entry(*item).or_default().push(n);
    }
    let questions = &questions;
    let asked = of_items.into_iter().map(|(item, members)| async move {
        let mut command = redis::cmd("HMGET");
        command.arg(store.keys.users(partition, item));
        for n in &members {
            command.arg(questions[*n].1.as_str());
        }
        (members, store.ask::<Vec<MarkBytes>>(&command).await.unwrap_or_default())
    });
    let mut marks = vec![None; questions.len()];
    for (members, found) in join_all(asked).await {
        members.into_iter().zip(found).for_each(|(n, mark)| marks[n] = mark);
    }
    marks
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
