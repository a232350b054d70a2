//! Order numbers: "SK" and nineteen digits, in order of time, unique over all instances.
//!
//! Sixty-three bits: 41 of milliseconds since 2024, 10 of node, 12 of sequence. They carry nothing
//! about the buyer or the item (a number that spells out user 1 and item 21 is the same number as
//! user 12 and item 1). Nineteen digits, zero-padded, so that text order is time order.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Millis, SharedClock};

/// 2024-01-01T00:00:00Z. With 41 bits of milliseconds the numbers last until 2093.
const FIRST_MS: Millis = 1_704_067_200_000;
const MILLIS_BITS: u32 = 41;
const NODE_BITS: u32 = 10;
const SEQUENCE_BITS: u32 = 12;
const PREFIX: &str = "SK";
const DIGITS: usize = 19;

/// How many instances may hand out numbers at the same time.
pub const NODES_MAX: u16 = 1 << NODE_BITS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order number is SK and 19 digits")]
pub struct InvalidOrderNo;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderNo(u64);

impl OrderNo {
    /// From the bare number, as the journal and the gate keep it.
    pub fn from_u64(n: u64) -> Result<Self, InvalidOrderNo> {
        // The top bit stays clear, so a number also fits a signed column.
        if n > i64::MAX as u64 { Err(InvalidOrderNo) } else { Ok(OrderNo(n)) }
    }

    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// At or below every number that is made at this time or later.
    pub fn floor(ms: Millis) -> Self {
        let millis = (ms - FIRST_MS).clamp(0, (1 << MILLIS_BITS) - 1) as u64;
        OrderNo(millis << (NODE_BITS + SEQUENCE_BITS))
    }

    /// When it was made, by the clock of the node that made it (or a little ahead of it).
    pub fn made_ms(self) -> Millis {
        (self.0 >> (NODE_BITS + SEQUENCE_BITS)) as Millis + FIRST_MS
    }
}

/// A number as it is written, without an allocation: a batch of orders writes thousands of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderNoText([u8; PREFIX.len() + DIGITS]);

impl OrderNoText {
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("letters and digits")
    }
}

impl From<OrderNo> for OrderNoText {
    fn from(no: OrderNo) -> Self {
        let (mut text, mut rest) = ([b'0'; PREFIX.len() + DIGITS], no.0);
        text[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        for digit in text[PREFIX.len()..].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        OrderNoText(text)
    }
}

impl fmt::Display for OrderNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OrderNoText::from(*self).as_str())
    }
}

impl fmt::Debug for OrderNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for OrderNo {
    type Err = InvalidOrderNo;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let digits = s.strip_prefix(PREFIX).ok_or(InvalidOrderNo)?;
        if digits.len() != DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(InvalidOrderNo);
        }
        OrderNo::from_u64(digits.parse().map_err(|_| InvalidOrderNo)?)
    }
}

impl Serialize for OrderNo {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(OrderNoText::from(*self).as_str())
    }
}

impl<'de> Deserialize<'de> for OrderNo {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Hands out order numbers for one node.
///
/// A number is always larger than the last one, also when the clock steps back or more than 4,096
/// are wanted in a millisecond: the generator then runs ahead of the clock.
#[derive(Debug)]
pub struct OrderNumbers {
    clock: SharedClock,
    node: AtomicU64,
    /// Milliseconds and sequence of the last number, without the node between them.
    last: AtomicU64,
}

impl OrderNumbers {
    pub fn new(node: u16, clock: SharedClock) -> Self {
        assert!(node < NODES_MAX, "node {node} is not below {NODES_MAX}");
        OrderNumbers { clock, node: AtomicU64::new(u64::from(node)), last: AtomicU64::new(0) }
    }

    /// Go on as another node: the lease of this one went to somebody else. Numbers keep growing.
    pub fn set_node(&self, node: u16) {
        assert!(node < NODES_MAX, "node {node} is not below {NODES_MAX}");
        self.node.store(u64::from(node), Ordering::Relaxed);
    }

    /// Never hand out a number at or below one that was seen, whatever the clock says after a
    /// restart.
    pub fn start_after(&self, seen: OrderNo) {
        let millis = seen.0 >> (NODE_BITS + SEQUENCE_BITS);
        let sequence = seen.0 & ((1 << SEQUENCE_BITS) - 1);
        self.last.fetch_max(millis << SEQUENCE_BITS | sequence, Ordering::SeqCst);
    }

    /// Of what time the last number is, which may be ahead of the clock.
    pub fn latest_ms(&self) -> Millis {
        (self.last.load(Ordering::SeqCst) >> SEQUENCE_BITS) as Millis + FIRST_MS
    }

    pub fn next(&self) -> OrderNo {
        let now = (self.clock.now_ms() - FIRST_MS).max(0) as u64;
        let step = |last: u64| Some((now << SEQUENCE_BITS).max(last + 1));
        let last = self
            .last
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, step)
            .expect("the step always answers");
        let this = (now << SEQUENCE_BITS).max(last + 1);
        let sequence = this & ((1 << SEQUENCE_BITS) - 1);
        let millis = this >> SEQUENCE_BITS;
        let node = self.node.load(Ordering::Relaxed);
        let number = (millis << NODE_BITS | node) << SEQUENCE_BITS | sequence;
        OrderNo::from_u64(number).expect("41 bits of milliseconds last until 2093")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_time_are_told_by_their_floor() {
        let now_ms = 1_800_000_000_000;
        let no = OrderNumbers::new(3, ManualClock::at(now_ms)).next();
        assert!(OrderNo::floor(now_ms) <= no && no < OrderNo::floor(now_ms + 1));
        assert_eq!(OrderNo::floor(now_ms).made_ms(), now_ms);
        assert_eq!(OrderNo::floor(0).as_u64(), 0, "before the first number");
        assert!(OrderNo::from_u64(OrderNo::floor(Millis::MAX).as_u64()).is_ok());
    }
    use crate::{Clock, ManualClock};

    #[test]
    fn numbers_grow_even_when_the_clock_does_not() {
        let clock = ManualClock::at(FIRST_MS + 1_000);
        let numbers = OrderNumbers::new(7, clock.clone());
        let mut last = numbers.next();
        for round in 0..10_000 {
            if round == 5_000 {
                clock.set(FIRST_MS);
            }
            let next = numbers.next();
            assert!(next > last, "{next} after {last}");
            assert!(next.to_string() > last.to_string());
            last = next;
        }
    }

    #[test]
    fn nodes_never_collide() {
        let clock = ManualClock::at(FIRST_MS + 1_000);
        let (a, b) = (OrderNumbers::new(0, clock.clone()), OrderNumbers::new(1023, clock));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..9_000 {
            assert!(seen.insert(a.next()) && seen.insert(b.next()));
        }
    }

    #[test]
    fn another_node_goes_on_where_this_one_was() {
        let numbers = OrderNumbers::new(9, ManualClock::at(FIRST_MS + 1_000));
        let before = numbers.next();
        numbers.set_node(3);
        let after = numbers.next();
        assert_eq!((after.as_u64() >> SEQUENCE_BITS) & ((1 << NODE_BITS) - 1), 3);
        assert_eq!(after.made_ms(), before.made_ms());
        assert_ne!(after, before);
    }

    #[test]
    fn a_restart_with_a_clock_behind_does_not_repeat() {
        let before = OrderNumbers::new(3, ManualClock::at(FIRST_MS + 9_999));
        let last = (0..5_000).map(|_| before.next()).last().unwrap();
        let after = OrderNumbers::new(3, ManualClock::at(FIRST_MS));
        after.start_after(last);
        assert!(after.next() > last);
    }

    #[test]
    fn text_and_back() {
        let no = OrderNumbers::new(1, std::sync::Arc::new(crate::SystemClock)).next();
        let text = no.to_string();
        assert_eq!((text.len(), text.parse()), (21, Ok(no)));
        assert!((crate::SystemClock.now_ms() - no.made_ms()).abs() < 60_000);
        for bad in [
            "",
            "SK",
            "SK1",
            "sk0000000000000000001",
            "SK000000000000000000x",
            "SK99999999999999999999",
            "SK9999999999999999999",
        ] {
            assert!(bad.parse::<OrderNo>().is_err(), "{bad}");
        }
    }
}
