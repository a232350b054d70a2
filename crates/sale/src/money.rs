//! Money is an integer of minor units and a currency. No floating point comes near it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The currencies of ISO 4217 as of 2026-01-01 by the decimals of their amounts. What is in the list and has
/// no smallest unit (gold, drawing rights, the codes for tests and for none) is no money to sell for.
/// A code that ISO adds is added here, and in `web/money.js` if it has not two decimals.
const ISO_4217: [(u32, &str); 4] = [
    (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"),
    (
        2,
        "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF \
         CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD \
         GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL \
         MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR \
         PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP \
         TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG",
    ),
    (3, "BHD IQD JOD KWD LYD OMR TND"),
    (4, "CLF UYW"),
];

/// Three capital letters. What is sold is sold for one of [`Currency::iso_4217`]; what is on record may be of
/// a code that has been withdrawn since.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a currency is three capital letters, like CNY")]
pub struct InvalidCurrency;

impl Currency {
    pub const CNY: Currency = Currency(*b"CNY");
    /// ISO 4217 for "no currency": the price of an item nobody knows.
    pub const NONE: Currency = Currency(*b"XXX");

    /// Everything that can be sold for.
    pub fn iso_4217() -> impl Iterator<Item = &'static str> {
        ISO_4217.into_iter().flat_map(|(_, codes)| codes.split(' '))
    }

    /// May something be sold for it?
    pub fn is_iso_4217(self) -> bool {
        self.listed_decimals().is_some()
    }

    /// How many decimals its amounts are written with. Those of a code that is not in the list are two.
    pub fn decimals(self) -> u32 {
        self.listed_decimals().unwrap_or(2)
    }

    fn listed_decimals(self) -> Option<u32> {
        let listed = |codes: &str| codes.split(' ').any(|code| code == self.as_str());
        ISO_4217.into_iter().find(|entry| listed(entry.1)).map(|entry| entry.0)
    }

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

/// Why a text is no amount of money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAmount {
    #[error("must be an amount without a sign or separators, such as 6999.00")]
    NotAnAmount,
    #[error("has more decimals than {1} has: {0} at most")]
    TooFine(u32, Currency),
    #[error("is too large")]
    TooLarge,
}

impl Money {
    pub fn new(minor: i64, currency: Currency) -> Self {
        Money { minor, currency }
    }

    /// An amount as people write it, in the currency's own units: `6999.00`, `6999`.
    pub fn from_text(text: &str, currency: Currency) -> Result<Money, InvalidAmount> {
        let decimals = currency.decimals();
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let ends_in_a_dot = text.ends_with('.');
        if whole.is_empty() || ends_in_a_dot || !digits(whole) || !digits(fraction) {
            return Err(InvalidAmount::NotAnAmount);
        }
        if fraction.len() > decimals as usize {
            return Err(InvalidAmount::TooFine(decimals, currency));
        }
        let zeros = "0".repeat(decimals as usize - fraction.len());
        let minor = format!("{whole}{fraction}{zeros}").parse();
        minor.map_or(Err(InvalidAmount::TooLarge), |minor| Ok(Money { minor, currency }))
    }

    /// The price of `quantity` of these, or nothing if no `i64` can hold it.
    pub fn times(self, quantity: u32) -> Option<Money> {
        let minor = self.minor.checked_mul(i64::from(quantity))?;
        Some(Money { minor, ..self })
    }
}

/// `6999.00 CNY`.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, minor) = (if self.minor < 0 { "-" } else { "" }, self.minor.unsigned_abs());
        let decimals = self.currency.decimals();
        let unit = 10_u64.pow(decimals);
        write!(f, "{sign}{}", minor / unit)?;
        if decimals > 0 {
            write!(f, ".{:0width$}", minor % unit, width = decimals as usize)?;
        }
        write!(f, " {}", self.currency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written_with_the_currencys_decimals() {
        let read = |text: &str, code: &str| Money::from_text(text, code.parse().unwrap());
        for (text, code, minor, shown) in [
            ("6999.00", "CNY", 699_900, "6999.00 CNY"),
            ("6999", "CNY", 699_900, "6999.00 CNY"),
            ("0.5", "CNY", 50, "0.50 CNY"),
            ("500", "JPY", 500, "500 JPY"),
            ("1.234", "KWD", 1_234, "1.234 KWD"),
            ("12", "UYI", 12, "12 UYI"),
            ("0.0001", "CLF", 1, "0.0001 CLF"),
            ("0", "CNY", 0, "0.00 CNY"),
        ] {
            let money = read(text, code).unwrap();
            assert_eq!((money.minor, money.to_string().as_str()), (minor, shown), "{text}");
        }
        assert_eq!(Money::new(-5, Currency::CNY).to_string(), "-0.05 CNY");
        assert_eq!(Money::new(i64::MIN, Currency::CNY).to_string(), "-92233720368547758.08 CNY");
        for bad in ["", ".5", "5.", "-1", "+1", "1,000", "1 000", "¥5", "1e3", "１"] {
            assert_eq!(read(bad, "CNY"), Err(InvalidAmount::NotAnAmount), "{bad}");
        }
        assert_eq!(read("1.005", "CNY"), Err(InvalidAmount::TooFine(2, Currency::CNY)));
        assert!(matches!(read("1.5", "JPY"), Err(InvalidAmount::TooFine(0, _))));
        assert_eq!(read("92233720368547758.08", "CNY"), Err(InvalidAmount::TooLarge));
    }

    #[test]
    fn currencies_are_three_capitals() {
        assert_eq!("CNY".parse(), Ok(Currency::CNY));
        // What a withdrawn code was noted with can still be read.
        assert_eq!("XXX".parse(), Ok(Currency::NONE));
        for bad in ["", "cny", "CN", "CNYY", "C1Y", "¥"] {
            assert_eq!(bad.parse::<Currency>(), Err(InvalidCurrency), "{bad:?}");
        }
    }

    #[test]
    fn what_is_sold_is_sold_for_a_currency_of_the_list() {
        let of = |code: &str| code.parse::<Currency>().unwrap();
        let all: Vec<&str> = Currency::iso_4217().collect();
        assert_eq!(all.len(), 165);
        for (n, code) in all.iter().enumerate() {
            assert!(of(code).is_iso_4217() && !all[..n].contains(code), "{code:?}");
        }
        for (code, decimals) in [("CNY", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4), ("XCG", 2)] {
            assert!(of(code).is_iso_4217(), "{code}");
            assert_eq!(of(code).decimals(), decimals, "{code}");
        }
        // None at all, one for tests, gold, one that its country has given up, and a typing error.
        for code in ["XXX", "XTS", "XAU", "DEM", "CYN", "XXQ", "RMB"] {
            assert!(!of(code).is_iso_4217(), "{code}");
            assert_eq!(Money::new(1_234, of(code)).to_string(), format!("12.34 {code}"));
        }
    }

    #[test]
    fn multiplication_never_wraps() {
        let price = Money::new(699_900, Currency::CNY);
        assert_eq!(price.times(2), Some(Money::new(1_399_800, Currency::CNY)));
        assert_eq!(Money::new(i64::MAX, Currency::CNY).times(2), None);
    }
}
