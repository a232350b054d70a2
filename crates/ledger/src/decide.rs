//! What becomes of each claim of a batch, decided without a database.
//!
//! Both engines read the same few facts, ask [`decide`], and write down the answer. So a claim is
//! judged by the same rules whichever of them keeps the ledger.

use std::collections::{HashMap, HashSet};

use sale::{Claim, ItemId, OrderNo, Settled, VoidReason};

use crate::offer::Offer;

/// Whose a number is. Two instances that once held the same node may have given it twice, so a number
/// alone does not say that two rows are about the same claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) item: ItemId,
    pub(crate) user: String,
}

impl Owner {
    pub(crate) fn of(claim: &Claim) -> Owner {
        Owner { item: claim.item, user: claim.user.as_str().into() }
    }

    pub(crate) fn is_of(&self, claim: &Claim) -> bool {
        self.item == claim.item && self.user == claim.user.as_str()
    }
}

/// Why a claim is refused whose number is somebody else's.
pub(crate) fn taken(no: OrderNo) -> String {
    format!("{no} is the number of another order")
}

/// What the ledger knows of a batch before it decides.
#[derive(Default)]
pub(crate) struct Known {
    /// Claims that are orders already, with whose they are.
    pub(crate) orders: HashMap<OrderNo, Owner>,
    /// Buyers who own an order of the item, with its number.
    pub(crate) buyers: HashMap<String, OrderNo>,
}

#[derive(Default)]
pub(crate) struct Decisions<'c> {
    pub(crate) good: Vec<&'c Claim>,
    pub(crate) void: Vec<(&'c Claim, VoidReason)>,
    repeated: Vec<OrderNo>,
}

impl<'c> Decisions<'c> {
    /// The claims whose buyers have something to hear, the good ones first.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &'c Claim> {
        self.good.iter().copied().chain(self.void.iter().map(|(claim, _)| *claim))
    }

    /// How many claims were decided.
    pub(crate) fn count(&self) -> usize {
        self.good.len() + self.void.len() + self.repeated.len()
    }

    pub(crate) fn into_settled(self) -> Settled {
        Settled {
            created: self.good.iter().map(|claim| claim.order_no).collect(),
            repeated: self.repeated,
            void: self.void.iter().map(|(claim, reason)| (claim.order_no, *reason)).collect(),
        }
    }
}

/// What becomes of each claim, in the order of the batch. `offer` is `None` for an unknown item.
/// An error says which claim can never be written as it stands, and why.
pub(crate) fn decide<'c>(
    item: ItemId,
    claims: &'c [Claim],
    known: &Known,
    offer: Option<&Offer>,
) -> Result<Decisions<'c>, String> {
    let mut decisions = Decisions::default();
    let mut seen: HashMap<OrderNo, &Claim> = HashMap::with_capacity(claims.len());
    let mut buyers: HashSet<&str> = HashSet::with_capacity(claims.len());
    let mut left = offer.map_or(0, |offer| offer.stock);
    for claim in claims {
        check_claim(item, claim, known, &seen)?;
        if known.orders.contains_key(&claim.order_no) || seen.contains_key(&claim.order_no) {
            decisions.repeated.push(claim.order_no);
            continue;
        }
        seen.insert(claim.order_no, claim);
        let user = claim.user.as_str();
        let owns = known.buyers.get(user).is_some_and(|owned| *owned != claim.order_no);
        let Some(offer) = offer else {
            decisions.void.push((claim, VoidReason::UnknownItem));
            continue;
        };
        if owns || buyers.contains(user) {
            decisions.void.push((claim, VoidReason::AlreadyBought));
        } else if claim.quantity > offer.limit_per_user {
            decisions.void.push((claim, VoidReason::OverLimit));
        } else if i64::from(claim.quantity) > left {
            // A later claim that wants less may still be served.
            decisions.void.push((claim, VoidReason::StockShort));
        } else {
            left -= i64::from(claim.quantity);
            buyers.insert(user);
            decisions.good.push(claim);
        }
    }
    Ok(decisions)
}

/// A number that is already another buyer's order must not be taken for a redelivery: that claim
/// would be lost without a word.
fn check_claim(
    item: ItemId,
    claim: &Claim,
    known: &Known,
    seen: &HashMap<OrderNo, &Claim>,
) -> Result<(), String> {
    let no = claim.order_no;
    if claim.item != item {
        return Err(format!("{no} is of item {}, not {item}", claim.item));
    }
    let foreign = match (known.orders.get(&no), seen.get(&no)) {
        (Some(owner), _) => !owner.is_of(claim),
        (None, Some(earlier)) => earlier.user != claim.user,
        (None, None) => false,
    };
    if foreign { Err(taken(no)) } else { Ok(()) }
}
