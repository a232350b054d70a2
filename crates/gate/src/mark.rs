//! Marks and claims, byte by byte: the same in the solo journal and in Redis.
//!
//! Integers are little-endian; a user id is its length in two bytes and its UTF-8. The bytes are
//! ours alone, but they come from a disk or over a wire, so reading checks every length and never
//! trusts a count.

use sale::{Claim, Epoch, ItemId, KeyHash, Millis, OrderNo, UserId};

use crate::{ClaimRequest, Decision};

#[derive(Debug, thiserror::Error)]
#[error("these bytes are no {0}")]
pub(crate) struct Garbled(pub(crate) &'static str);

/// That a buyer holds a claim. Small, because there may be millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) order_no: OrderNo,
    pub(crate) quantity: u32,
    pub(crate) epoch: u32,
    /// Zero stands for no key; a key that hashes to zero is merely not recognised.
    key: u64,
}

impl Mark {
    pub(crate) fn new(
        order_no: OrderNo,
        quantity: u32,
        epoch: Epoch,
        key: Option<KeyHash>,
    ) -> Mark {
        Mark { order_no, quantity, epoch: epoch as u32, key: key.map_or(0, |key| key.0) }
    }

    pub(crate) fn of(claim: &Claim) -> Mark {
        Mark::new(claim.order_no, claim.quantity, claim.epoch, claim.key)
    }

    pub(crate) fn key(&self) -> Option<KeyHash> {
        Some(self.key).filter(|key| *key != 0).map(KeyHash)
    }

    pub(crate) fn claim(&self, item: ItemId, user: UserId, claimed_ms: Millis) -> Claim {
        Claim {
            order_no: self.order_no,
            item,
            user,
            quantity: self.quantity,
            epoch: Epoch::from(self.epoch),
            claimed_ms,
            key: self.key(),
        }
    }
}

/// The answer to a request whose key this mark carries: the claim it was given, unless the key now
/// asks for something else. Same key, same answer; a key for two things would be a lie about one.
pub(crate) fn repeated(mark: Mark, request: &ClaimRequest, ahead: u64) -> Decision {
    if mark.quantity != request.quantity {
        return Decision::KeyReused { order_no: mark.order_no };
    }
    let claim = mark.claim(request.item, request.user.clone(), mark.order_no.made_ms());
    Decision::Admitted { claim, repeated: true, ahead }
}

/// The winners of one batch: what the workers read.
pub(crate) fn encode_claims(epoch: Epoch, claimed_ms: Millis, claims: &[Claim]) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 + claims.len() * 40);
    put_u64(&mut out, epoch);
    put_u64(&mut out, claimed_ms as u64);
    put_u64(&mut out, claims.len() as u64);
    for claim in claims {
        put_mark(&mut out, &claim.user, &Mark::of(claim));
    }
    out
}

pub(crate) fn decode_claims(
    item: ItemId,
    from: &mut Bytes<'_>,
) -> Result<(Epoch, Millis, Vec<Claim>), Garbled> {
    let epoch = from.u64()?;
    let claimed_ms = from.u64()? as Millis;
    let mut claims = Vec::new();
    for _ in 0..from.u64()? {
        let (user, mark) = from.mark()?;
        claims.push(mark.claim(item, user, claimed_ms));
    }
    Ok((epoch, claimed_ms, claims))
}

pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

pub(crate) fn put_user(out: &mut Vec<u8>, user: &UserId) {
    out.extend((user.as_str().len() as u16).to_le_bytes());
    out.extend(user.as_str().as_bytes());
}

pub(crate) fn put_bare_mark(out: &mut Vec<u8>, mark: &Mark) {
    put_u64(out, mark.order_no.as_u64());
    out.extend(mark.quantity.to_le_bytes());
    out.extend(mark.epoch.to_le_bytes());
    put_u64(out, mark.key);
}

pub(crate) fn put_mark(out: &mut Vec<u8>, user: &UserId, mark: &Mark) {
    put_mark_of(out, user.as_str().as_bytes(), mark);
}

pub(crate) fn put_mark_of(out: &mut Vec<u8>, user: &[u8], mark: &Mark) {
    put_bare_mark(out, mark);
    out.extend((user.len() as u16).to_le_bytes());
    out.extend(user);
}

/// The same for every instance and version: it decides in which shard a buyer's mark is, and in which
/// piece of the journal.
pub(crate) fn buyer_hash(user: &[u8]) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = user.iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    // The last characters of a text have not reached all bits of FNV, and buyers are often numbered:
    // without more mixing (MurmurHash3's), a hundred in a row would all meet in one shard.
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// What is left to read.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Garbled("whole record"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Garbled> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, Garbled> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(crate) fn order_no(&mut self) -> Result<OrderNo, Garbled> {
        OrderNo::from_u64(self.u64()?).map_err(|_| Garbled("order number"))
    }

    pub(crate) fn user(&mut self) -> Result<UserId, Garbled> {
        let length = usize::from(u16::from_le_bytes(self.take()?));
        let (head, rest) = self.0.split_at_checked(length).ok_or(Garbled("whole record"))?;
        self.0 = rest;
        let text = std::str::from_utf8(head).map_err(|_| Garbled("user id"))?;
        UserId::stored(text).map_err(|_| Garbled("user id"))
    }

    pub(crate) fn bare_mark(&mut self) -> Result<Mark, Garbled> {
        Ok(Mark {
            order_no: self.order_no()?,
            quantity: self.u32()?,
            epoch: self.u32()?,
            key: self.u64()?,
        })
    }

    pub(crate) fn mark(&mut self) -> Result<(UserId, Mark), Garbled> {
        let mark = self.bare_mark()?;
        Ok((self.user()?, mark))
    }

    pub(crate) fn end(&self) -> Result<(), Garbled> {
        if self.0.is_empty() { Ok(()) } else { Err(Garbled("whole record")) }
    }
}
