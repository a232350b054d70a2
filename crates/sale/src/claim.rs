//! A claim: a request the gate admitted. It owns units until it becomes an order or is void.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Epoch, ItemId, Millis, OrderNo, Receipt, SigningKeys, UserId};

/// The first eight bytes of a hash over buyer and `Idempotency-Key`. Eight bytes are enough: it is
/// only compared with the key of the one claim that same buyer holds on that same item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyHash(pub u64);

impl KeyHash {
    pub fn of(user: &UserId, key: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update((user.as_str().len() as u64).to_be_bytes());
        hash.update(user.as_str());
        hash.update(key);
        let digest = hash.finalize();
        KeyHash(u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes")))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub order_no: OrderNo,
    pub item: ItemId,
    pub user: UserId,
    pub quantity: u32,
    /// The epoch of the item in which it was admitted.
    pub epoch: Epoch,
    /// The gate's clock when it was admitted.
    pub claimed_ms: Millis,
    /// Present if the buyer sent an `Idempotency-Key`.
    pub key: Option<KeyHash>,
}

impl Claim {
    pub fn receipt(&self, keys: &SigningKeys) -> String {
        Receipt {
            order_no: self.order_no,
            user: self.user.clone(),
            item: self.item,
            quantity: self.quantity,
            epoch: self.epoch,
            key: self.key,
        }
        .sign(keys)
    }
}
