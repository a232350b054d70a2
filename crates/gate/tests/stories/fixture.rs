//! What every story needs: buyers who ask, and short words for what they hear.

use gate::{ClaimRequest, Decision, GiveBack, NumberedRequest};
use sale::{Claim, ItemId, KeyHash, OrderNo, UserId};

pub(crate) const ITEM: ItemId = ItemId(42);

/// One unit of the item, without a key.
pub(crate) fn one_unit(user: &str) -> ClaimRequest {
    units(user, 1)
}

pub(crate) fn units(user: &str, quantity: u32) -> ClaimRequest {
    ClaimRequest { item: ITEM, user: user.parse().unwrap(), quantity, key: None }
}

/// The same request with an `Idempotency-Key`.
pub(crate) fn keyed((order_no, request): NumberedRequest, key: u64) -> NumberedRequest {
    (order_no, ClaimRequest { key: Some(KeyHash(key)), ..request })
}

pub(crate) fn admitted(decision: &Decision) -> Claim {
    match decision {
        Decision::Admitted { claim, .. } => claim.clone(),
        other => panic!("not admitted: {other:?}"),
    }
}

pub(crate) fn give_back(claim: &Claim) -> GiveBack {
    GiveBack {
        item: claim.item,
        user: claim.user.clone(),
        order_no: claim.order_no,
        quantity: claim.quantity,
    }
}

/// A claim that the gate does not have (any more).
pub(crate) fn lost(order_no: OrderNo, user: &str) -> Claim {
    let user: UserId = user.parse().unwrap();
    Claim { order_no, item: ITEM, user, quantity: 1, epoch: 1, claimed_ms: 5, key: None }
}
