//! What the journal holds, byte by byte.
//!
//! A record is one change of one item, written with the bytes of [`crate::mark`].

use sale::{Claim, Epoch, ItemId, Millis, OrderNo};

use super::{item::GateItem, spent::List};
use crate::{
    GiveBack, Shut,
    mark::{Bytes, Garbled, decode_claims, encode_claims, put_u64, put_user},
};

/// What the journal stores in `kind` for claims.
pub(super) const CLAIMS_KIND: i64 = 1;

/// A change of one item. The number is what the journal stores in `kind`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// 1: the winners of a batch. The only kind that workers see.
    Claims { epoch: Epoch, claimed_ms: Millis, claims: Vec<Claim> },
    /// 2: units given back.
    Release { units: Vec<GiveBack> },
    /// 3: an operator changed the stock.
    Adjust { adjust_no: OrderNo, delta: i64 },
    /// 4: an adjustment that the ledger never confirmed is undone.
    ForgetAdjust { adjust_no: OrderNo },
    /// 5: admitting stops or resumes.
    Shut { shut: Option<Shut> },
}

impl Record {
    /// How many claims it is about.
    pub(super) fn claims(&self) -> usize {
        match self {
            Record::Claims { claims, .. } => claims.len(),
            _ => 0,
        }
    }

    pub(super) fn kind(&self) -> i64 {
        match self {
            Record::Claims { .. } => CLAIMS_KIND,
            Record::Release { .. } => 2,
            Record::Adjust { .. } => 3,
            Record::ForgetAdjust { .. } => 4,
            Record::Shut { .. } => 5,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Record::Claims { epoch, claimed_ms, claims } => {
                return encode_claims(*epoch, *claimed_ms, claims);
            }
            Record::Release { units } => {
                put_u64(&mut out, units.len() as u64);
                for unit in units {
                    put_u64(&mut out, unit.order_no.as_u64());
                    put_u64(&mut out, u64::from(unit.quantity));
                    put_user(&mut out, &unit.user);
                }
            }
            Record::Adjust { adjust_no, delta } => {
                put_u64(&mut out, adjust_no.as_u64());
                put_u64(&mut out, *delta as u64);
            }
            Record::ForgetAdjust { adjust_no } => put_u64(&mut out, adjust_no.as_u64()),
            Record::Shut { shut } => put_u64(&mut out, shut_code(*shut)),
        }
        out
    }

    pub(super) fn decode(kind: i64, item: ItemId, bytes: &[u8]) -> Result<Record, Garbled> {
        let mut from = Bytes(bytes);
        let record = match kind {
            CLAIMS_KIND => {
                let (epoch, claimed_ms, claims) = decode_claims(item, &mut from)?;
                Record::Claims { epoch, claimed_ms, claims }
            }
            2 => {
                let mut units = Vec::new();
                for _ in 0..from.u64()? {
                    let order_no = from.order_no()?;
                    let quantity = from.u64()? as u32;
                    units.push(GiveBack { item, user: from.user()?, order_no, quantity });
                }
                Record::Release { units }
            }
            3 => Record::Adjust { adjust_no: from.order_no()?, delta: from.u64()? as i64 },
            4 => Record::ForgetAdjust { adjust_no: from.order_no()? },
            5 => Record::Shut { shut: shut_from(from.u64()?)? },
            _ => return Err(Garbled("kind of record")),
        };
        from.end()?;
        Ok(record)
    }
}

/// An item without its buyers, for the `item` table.
pub(super) fn encode_head(head: &GateItem, generation: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(72 + head.adjusts.len() * 16);
    for number in [
        head.epoch,
        shut_code(head.shut),
        head.opens_ms as u64,
        head.closes_ms as u64,
        u64::from(head.limit),
        head.left as u64,
        head.version,
        generation as u64,
        head.adjusts.len() as u64,
    ] {
        put_u64(&mut out, number);
    }
    for (adjust_no, delta) in &head.adjusts {
        put_u64(&mut out, adjust_no.as_u64());
        put_u64(&mut out, *delta as u64);
    }
    out
}

pub(super) fn decode_head(item: ItemId, bytes: &[u8]) -> Result<GateItem, Garbled> {
    let mut from = Bytes(bytes);
    let mut state = numbers_of_head(item, &mut from)?;
    state.in_file.generation = from.u64()? as i64;
    adjusts_of_head(&mut state, &mut from)?;
    from.end()?;
    Ok(state)
}

fn numbers_of_head(item: ItemId, from: &mut Bytes<'_>) -> Result<GateItem, Garbled> {
    let mut state = GateItem::empty(item, from.u64()?);
    state.shut = shut_from(from.u64()?)?;
    state.opens_ms = from.u64()? as Millis;
    state.closes_ms = from.u64()? as Millis;
    state.limit = from.u64()? as u32;
    state.left = from.u64()? as i64;
    state.version = from.u64()?;
    Ok(state)
}

fn adjusts_of_head(state: &mut GateItem, from: &mut Bytes<'_>) -> Result<(), Garbled> {
    for _ in 0..from.u64()? {
        state.adjusts.insert(from.order_no()?, from.u64()? as i64);
    }
    Ok(())
}

/// An item in one piece, as releases wrote it that knew no others.
pub(super) fn decode_item(item: ItemId, bytes: &[u8]) -> Result<GateItem, Garbled> {
    let mut from = Bytes(bytes);
    let mut state = numbers_of_head(item, &mut from)?;
    adjusts_of_head(&mut state, &mut from)?;
    for _ in 0..from.u64()? {
        let (user, mark) = from.mark()?;
        state.marks.put(user.as_str(), mark, 0);
    }
    state.spent.restore(List::Keys, &mut from)?;
    // A row from before this list was kept ends here.
    if from.end().is_err() {
        state.spent.restore(List::Spenders, &mut from)?;
    }
    from.end()?;
    state.spent.is_all_unwritten();
    Ok(state)
}

fn shut_code(shut: Option<Shut>) -> u64 {
    match shut {
        None => 0,
        Some(Shut::Paused) => 1,
        Some(Shut::Frozen) => 2,
        Some(Shut::Ended) => 3,
    }
}

fn shut_from(code: u64) -> Result<Option<Shut>, Garbled> {
    match code {
        0 => Ok(None),
        1 => Ok(Some(Shut::Paused)),
        2 => Ok(Some(Shut::Frozen)),
        3 => Ok(Some(Shut::Ended)),
        _ => Err(Garbled("state of an item")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sale::KeyHash;

    use super::*;

    fn claim(n: u64) -> Claim {
        Claim {
            order_no: OrderNo::from_u64(n + 1).unwrap(),
            item: ItemId(42),
            user: format!("用户{n}").parse().unwrap(),
            quantity: n as u32 + 1,
            epoch: 3,
            claimed_ms: 1_000,
            key: n.is_multiple_of(2).then_some(KeyHash(n + 9)),
        }
    }

    fn examples() -> Vec<Record> {
        let claims: Vec<Claim> = (0..5).map(claim).collect();
        let units = claims
            .iter()
            .map(|c| GiveBack {
                item: c.item,
                user: c.user.clone(),
                order_no: c.order_no,
                quantity: c.quantity,
            })
            .collect();
        let adjust_no = OrderNo::from_u64(77).unwrap();
        vec![
            Record::Claims { epoch: 3, claimed_ms: 1_000, claims },
            Record::Release { units },
            Record::Adjust { adjust_no, delta: -5 },
            Record::ForgetAdjust { adjust_no },
            Record::Shut { shut: Some(Shut::Paused) },
            Record::Shut { shut: None },
        ]
    }

    #[test]
    fn every_record_reads_back() {
        for record in examples() {
            let bytes = record.encode();
            assert_eq!(Record::decode(record.kind(), ItemId(42), &bytes).unwrap(), record);
            for cut in 0..bytes.len() {
                assert!(Record::decode(record.kind(), ItemId(42), &bytes[..cut]).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_not_believed(kind in 0i64..8, bytes: Vec<u8>) {
            let _ = Record::decode(kind, ItemId(1), &bytes);
            let _ = decode_item(ItemId(1), &bytes);
            let _ = decode_head(ItemId(1), &bytes);
        }
    }
}
