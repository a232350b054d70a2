//! Money is an integer of minor units and a currency. No floating point comes near it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An ISO 4217 code: three capital letters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a currency is three capital letters, like CNY")]
pub struct InvalidCurrency;

impl Currency {
    pub const CNY: Currency = Currency(*b"CNY");

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("only capital letters get in")
    }
}

impl FromStr for Currency {
    type Err = InvalidCurrency;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match <[u8; 3]>::try_from(s.as_bytes()) {
            Ok(code) if code.iter().all(u8::is_ascii_uppercase) => Ok(Currency(code)),
            _ => Err(InvalidCurrency),
        }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An amount in minor units (分, cents).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Money {
    pub minor: i64,
    pub currency: Currency,
}

impl Money {
    pub fn new(minor: i64, currency: Currency) -> Self {
        Money { minor, currency }
    }

    /// The price of `quantity` of these, or nothing if no `i64` can hold it.
    pub fn times(self, quantity: u32) -> Option<Money> {
        let minor = self.minor.checked_mul(i64::from(quantity))?;
        Some(Money { minor, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn currencies_are_three_capitals() {
        assert_eq!("CNY".parse(), Ok(Currency::CNY));
        for bad in ["", "cny", "CN", "CNYY", "C1Y", "¥"] {
            assert_eq!(bad.parse::<Currency>(), Err(InvalidCurrency), "{bad:?}");
        }
    }

    #[test]
    fn multiplication_never_wraps() {
        let price = Money::new(699_900, Currency::CNY);
        assert_eq!(price.times(2), Some(Money::new(1_399_800, Currency::CNY)));
        assert_eq!(Money::new(i64::MAX, Currency::CNY).times(2), None);
    }
}
