//! A rate as an operator writes it: `10/s burst 30`, thirty at once and then ten per second; or `off`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

const OFF: &str = "off";
const BURST: &str = "burst";
const COUNT_MAX: u32 = 10_000_000;

/// At most `burst` at once, and `count` per `unit` in the long run; or no limit at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Rate {
    Off,
    At { count: u32, unit: Unit, burst: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Second,
    Minute,
}

impl Unit {
    fn seconds(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Unit::Second => "s",
            Unit::Minute => "m",
        }
    }
}

impl Rate {
    /// How long one request takes to be forgotten, and how many at once there may be.
    pub(crate) fn parts(self) -> Option<(u64, u32)> {
        match self {
            Rate::Off => None,
            Rate::At { count, unit, burst } => {
                Some((unit.seconds() * 1_000_000_000 / u64::from(count), burst))
            }
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        if text == OFF {
            return Ok(Rate::Off);
        }
        let wrong =
            || format!("{text:?} is no rate: write \"10/s burst 30\", \"5/m burst 10\" or \"off\"");
        let words: Vec<&str> = text.split(' ').collect();
        let [rate, BURST, burst] = words[..] else { return Err(wrong()) };
        let (count, unit) = rate.split_once('/').ok_or_else(wrong)?;
        let number = |digits: &str| digits.parse().ok().filter(|n| (1..=COUNT_MAX).contains(n));
        let unit = [Unit::Second, Unit::Minute].into_iter().find(|known| known.as_str() == unit);
        match (number(count), unit, number(burst)) {
            (Some(count), Some(unit), Some(burst)) => Ok(Rate::At { count, unit, burst }),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Rate, String> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> String {
        rate.to_string()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Off => f.write_str(OFF),
            Rate::At { count, unit, burst } => {
                write!(f, "{count}/{} {BURST} {burst}", unit.as_str())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_as_it_is_written() {
        for text in ["off", "10/s burst 30", "5/m burst 1", "10000000/s burst 10000000"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        let rate: Rate = "6/m burst 3".parse().unwrap();
        assert_eq!(rate.parts(), Some((10_000_000_000, 3)));
        for wrong in [
            "",
            "on",
            "10",
            "10/s",
            "10/s burst",
            "10/s burst 0",
            "0/s burst 1",
            "-1/s burst 1",
            "10/h burst 1",
            "10/s  burst 1",
            "10/s burst 1 ",
            "1.5/s burst 1",
            "99999999999/s burst 1",
        ] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
