//! Reading what `admit.lua` says.

use redis::Value;
use sale::{Claim, Epoch, ItemId, Millis, UserId};

use crate::{
    Attempt, Busy, Verdict,
    mark::{Bytes, Garbled, Mark, repeated},
};

/// The answer to one batch of one item in one partition.
pub(super) struct Decided {
    pub(super) epoch: Epoch,
    pub(super) seq: u64,
    /// Somebody was admitted by this very call, so `seq` is one more than it was.
    pub(super) changed: bool,
    pub(super) verdicts: Vec<Verdict>,
}

/// `None`: the item is not there.
pub(super) fn read(reply: Vec<Value>, batch: &[&Attempt]) -> Result<Option<Decided>, Garbled> {
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
        let verdicts = (ahead..).zip(batch).map(|(ahead, attempt)| {
            let claim = Claim {
                order_no: attempt.order_no,
                item: attempt.item,
                user: attempt.user.clone(),
                quantity: attempt.quantity,
                epoch,
                claimed_ms: now_ms,
                key: attempt.key,
            };
            Verdict::Admitted { claim, repeated: false, ahead }
        });
        return Ok(Some(Decided { epoch, seq, changed: true, verdicts: verdicts.collect() }));
    }
    if reply.len() != 4 + batch.len() {
        return Err(Garbled("answer of admit.lua"));
    }
    let mut verdicts = Vec::with_capacity(batch.len());
    let mut changed = false;
    for (attempt, value) in batch.iter().zip(&reply[4..]) {
        let Value::BulkString(bytes) = value else { return Err(Garbled("verdict")) };
        changed |= bytes.first() == Some(&b'A');
        let verdict = one(attempt, bytes, version(epoch, seq), now_ms, ahead)?;
        if matches!(verdict, Verdict::Admitted { repeated: false, .. }) {
            ahead += 1;
        }
        verdicts.push(verdict);
    }
    Ok(Some(Decided { epoch, seq, changed, verdicts }))
}

/// Orders changes of an item over all its lives.
pub(super) fn version(epoch: Epoch, seq: u64) -> u64 {
    (epoch << 40) + seq
}

fn one(
    attempt: &Attempt,
    bytes: &[u8],
    version: u64,
    now_ms: Millis,
    ahead: u64,
) -> Result<Verdict, Garbled> {
    let (letter, rest) = bytes.split_first().ok_or(Garbled("verdict"))?;
    let text = || std::str::from_utf8(rest).map_err(|_| Garbled("verdict"));
    let number = || text()?.parse::<i64>().map_err(|_| Garbled("verdict"));
    let mark = || Bytes(rest).bare_mark();
    let claim = |mark: Mark, at: Millis| mark.claim(attempt.item, attempt.user.clone(), at);
    Ok(match letter {
        b'A' => Verdict::Admitted { claim: claim(mark()?, now_ms), repeated: false, ahead },
        b'R' => repeated(mark()?, attempt, ahead),
        b'B' => {
            let mark = mark()?;
            if mark.order_no == attempt.order_no {
                // This very attempt was admitted by a call whose answer we never got.
                Verdict::Admitted { claim: claim(mark, now_ms), repeated: false, ahead }
            } else {
                Verdict::AlreadyBought { order_no: mark.order_no }
            }
        }
        b'S' => Verdict::SoldOut { left: number()?.max(0), version },
        b'N' => Verdict::NotStarted { opens_ms: number()? },
        b'O' => Verdict::OverLimit { limit: number()? as u32 },
        b'E' => Verdict::Ended,
        b'P' => Verdict::Busy(Busy::Paused),
        b'F' => Verdict::Busy(Busy::Frozen),
        b'L' => Verdict::Busy(Busy::LogFull),
        _ => return Err(Garbled("verdict")),
    })
}

/// The mark of a buyer, as a claim.
pub(super) fn claim_of(item: ItemId, user: &UserId, mark: &[u8]) -> Result<Claim, Garbled> {
    let mark = Bytes(mark).bare_mark()?;
    Ok(mark.claim(item, user.clone(), mark.order_no.made_ms()))
}
