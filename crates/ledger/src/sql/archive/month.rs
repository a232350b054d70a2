//! A month of the archive: where an order is kept is said by its number alone, which carries its time.

use std::fmt;

use sale::{Millis, OrderNo, iso_time, parse_iso_time};

/// By the calendar of UTC: 202611 is November 2026.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Month(i64);

impl Month {
    pub(crate) fn of(no: OrderNo) -> Month {
        let text = iso_time(no.made_ms());
        let part = |range| text.get(range).and_then(|text: &str| text.parse::<i64>().ok());
        Month(part(0..4).unwrap_or(0) * 100 + part(5..7).unwrap_or(0))
    }

    pub(crate) fn code(self) -> i64 {
        self.0
    }

    pub(crate) fn from_code(code: i64) -> Option<Month> {
        ((1..=12).contains(&(code % 100)) && (2024..=2100).contains(&(code / 100)))
            .then_some(Month(code))
    }

    fn next(self) -> Month {
        Month(if self.0 % 100 == 12 { self.0 + 89 } else { self.0 + 1 })
    }

    pub(crate) fn begins_ms(self) -> Millis {
        parse_iso_time(&format!("{self}-01T00:00:00Z")).unwrap_or(0)
    }

    pub(crate) fn ends_ms(self) -> Millis {
        self.next().begins_ms()
    }

    /// Below every number of the months after it.
    pub(crate) fn end(self) -> OrderNo {
        OrderNo::floor(self.ends_ms())
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0 / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_where_the_one_before_ends() {
        let month = |text| Month::of(OrderNo::floor(parse_iso_time(text).unwrap()));
        let december = month("2026-12-31T23:59:59.999Z");
        assert_eq!((december.code(), december.to_string().as_str()), (202_612, "2026-12"));
        let january = month("2027-01-01T00:00:00Z");
        assert_eq!(january.code(), 202_701);
        assert_eq!(december.ends_ms(), january.begins_ms());
        assert_eq!(Month::of(december.end()), january);
        assert_eq!(Month::from_code(202_613), None);
        assert_eq!(Month::from_code(202_612), Some(december));
    }
}
