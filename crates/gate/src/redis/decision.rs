//! Reading what `admit.lua` says.

use redis::Value;
use sale::{Claim, Epoch, ItemId, Millis, UserId};

use crate::{
    Busy, Decision, NumberedRequest,
    mark::{Bytes, Garbled, Mark, repeated},
};

/// The answer to one batch of one item in one partition.
pub(super) struct Decided {
    pub(super) epoch: Epoch,
    pub(super) seq: u64,
    /// Somebody was admitted by this very call, so `seq` is one more than it was.
    pub(super) changed: bool,
    pub(super) decisions: Vec<Decision>,
}

/// `None`: the item is not there.
pub(super) fn read(
    reply: Vec<Value>,
    batch: &[&NumberedRequest],
) -> Result<Option<Decided>, Garbled> {
    if reply.is_empty() {
        return Ok(None);
    }
    let number = |at: usize| match reply.get(at) {
        Some(Value::Int(number)) => Ok(*number),
        _ => Err(Garbled("answer of admit.lua")),
    };
    let (epoch, seq, now_ms) = (number(0)? as Epoch, number(1)? as u64, number(2)?);
    let mut ahead = number(3)?.max(0) as u64;
    if reply.len() == 4 {
        let decisions = (ahead..).zip(batch).map(|(ahead, (order_no, request))| {
            let claim = request.claim(*order_no, epoch, now_ms);
            Decision::Admitted { claim, repeated: false, ahead }
        });
        return Ok(Some(Decided { epoch, seq, changed: true, decisions: decisions.collect() }));
    }
    if reply.len() != 4 + batch.len() {
        return Err(Garbled("answer of admit.lua"));
    }
    let mut decisions = Vec::with_capacity(batch.len());
    let mut changed = false;
    for (request, value) in batch.iter().zip(&reply[4..]) {
        let Value::BulkString(bytes) = value else { return Err(Garbled("decision")) };
        changed |= bytes.first() == Some(&b'A');
        let decision = one(request, bytes, version(epoch, seq), now_ms, ahead)?;
        if matches!(decision, Decision::Admitted { repeated: false, .. }) {
            ahead += 1;
        }
        decisions.push(decision);
    }
    Ok(Some(Decided { epoch, seq, changed, decisions }))
}

/// Orders changes of an item over all its epochs.
pub(super) fn version(epoch: Epoch, seq: u64) -> u64 {
    (epoch << 40) + seq
}

fn one(
    (order_no, request): &NumberedRequest,
    bytes: &[u8],
    version: u64,
    now_ms: Millis,
    ahead: u64,
) -> Result<Decision, Garbled> {
    let (letter, rest) = bytes.split_first().ok_or(Garbled("decision"))?;
    let text = || std::str::from_utf8(rest).map_err(|_| Garbled("decision"));
    let number = || text()?.parse::<i64>().map_err(|_| Garbled("decision"));
    let mark = || Bytes(rest).bare_mark();
    let claim = |mark: Mark, at: Millis| mark.claim(request.item, request.user.clone(), at);
    Ok(match letter {
        b'A' => Decision::Admitted { claim: claim(mark()?, now_ms), repeated: false, ahead },
        b'R' => repeated(mark()?, request, ahead),
        b'B' => {
            let mark = mark()?;
            if mark.order_no == *order_no {
                // This very request was admitted by a call whose answer we never got.
                Decision::Admitted { claim: claim(mark, now_ms), repeated: false, ahead }
            } else {
                Decision::AlreadyBought { order_no: mark.order_no }
            }
        }
        b'S' => Decision::SoldOut { left: number()?.max(0), version },
        b'N' => Decision::NotStarted { opens_ms: number()? },
        b'O' => Decision::OverLimit { limit: number()? as u32 },
        b'E' => Decision::Ended,
        b'P' => Decision::Busy(Busy::Paused),
        b'F' => Decision::Busy(Busy::Frozen),
        b'L' => Decision::Busy(Busy::LogFull),
        _ => return Err(Garbled("decision")),
    })
}

/// The mark of a buyer, as a claim.
pub(super) fn claim_of(item: ItemId, user: &UserId, mark: &[u8]) -> Result<Claim, Garbled> {
    let mark = Bytes(mark).bare_mark()?;
    Ok(mark.claim(item, user.clone(), mark.order_no.made_ms()))
}
