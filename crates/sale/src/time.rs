//! Times as people and programs give them: Unix milliseconds, or ISO 8601 with its offset from UTC.
//!
//! Inside, every instant is [`Millis`]. This is the one place where text becomes such a number and a
//! number becomes text, and where a number is refused that cannot be what was meant: seconds given for
//! milliseconds are a day in January 1970, microseconds are a year beyond fifty thousand.

use std::fmt;

use crate::Millis;

/// 2001-01-01T00:00:00Z. A smaller number of milliseconds was meant as seconds.
pub const TIME_MS_MIN: Millis = 978_307_200_000;
/// 2200-01-01T00:00:00Z. A number as large as this was meant as micro- or nanoseconds.
pub const TIME_MS_MAX: Millis = 7_258_118_400_000;

/// Longer than any time that means something.
const TEXT_BYTES_MAX: usize = 64;
const DAY_MS: Millis = 24 * 60 * 60 * 1_000;

/// Why something is no time that can be used. Continues a sentence that begins with the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidTime {
    NotATime,
    NoOffset,
    NoSuchTime,
    TooEarly,
    TooLate,
}

impl InvalidTime {
    pub const ALL: [InvalidTime; 5] = [
        InvalidTime::NotATime,
        InvalidTime::NoOffset,
        InvalidTime::NoSuchTime,
        InvalidTime::TooEarly,
        InvalidTime::TooLate,
    ];

    pub fn en(self) -> &'static str {
        match self {
            InvalidTime::NotATime => {
                "must be a Unix time in milliseconds, or ISO 8601 with an offset such as \
                 2030-11-11T20:00:00+08:00"
            }
            InvalidTime::NoOffset => {
                "must say its offset from UTC: write 2030-11-11T20:00:00+08:00 or …Z"
            }
            InvalidTime::NoSuchTime => "is a day or a time of day that does not exist",
            InvalidTime::TooEarly => {
                "is before the year 2001; a Unix time is given in milliseconds, not in seconds"
            }
            InvalidTime::TooLate => {
                "is after the year 2199; a Unix time is given in milliseconds, not in micro- or \
                 nanoseconds"
            }
        }
    }

    pub fn zh(self) -> &'static str {
        match self {
            InvalidTime::NotATime => {
                "必须是毫秒级 Unix 时间戳，或带时区的 ISO 8601 时间，例如 2030-11-11T20:00:00+08:00"
            }
            InvalidTime::NoOffset => "缺少时区，请写成 2030-11-11T20:00:00+08:00 或以 Z 结尾",
            InvalidTime::NoSuchTime => "日期或时刻不存在",
            InvalidTime::TooEarly => "早于 2001 年；Unix 时间戳须以毫秒而不是秒为单位",
            InvalidTime::TooLate => "晚于 2199 年；Unix 时间戳须以毫秒而不是微秒或纳秒为单位",
        }
    }
}

impl fmt::Display for InvalidTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.en())
    }
}

impl std::error::Error for InvalidTime {}

/// A number that can be a time in milliseconds.
pub fn check_time(ms: Millis) -> Result<Millis, InvalidTime> {
    match ms {
        ..TIME_MS_MIN => Err(InvalidTime::TooEarly),
        TIME_MS_MIN..TIME_MS_MAX => Ok(ms),
        TIME_MS_MAX.. => Err(InvalidTime::TooLate),
    }
}

/// Milliseconds in digits, or what [`parse_iso_time`] takes: for a command line or a query.
pub fn parse_time(text: &str) -> Result<Millis, InvalidTime> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        // What has more digits than fit was meant as something even smaller than microseconds.
        return text.parse().map_or(Err(InvalidTime::TooLate), check_time);
    }
    parse_iso_time(text)
}

/// `2026-12-01T20:00:00+08:00`, or `…Z`. Seconds and a fraction of them may be left out or given, a
/// space may stand for the `T`, the offset may be `+0800` or `+08`. Without an offset nobody can know
/// which instant is meant, so it is refused.
pub fn parse_iso_time(text: &str) -> Result<Millis, InvalidTime> {
    let text = text.trim();
    if text.len() > TEXT_BYTES_MAX {
        return Err(InvalidTime::NotATime);
    }
    let mut rest = Rest(text.as_bytes());
    let (year, month, day) = rest.date().ok_or(InvalidTime::NotATime)?;
    if rest.0.is_empty() {
        return Err(InvalidTime::NoOffset);
    }
    let time_ms = rest.time_of_day()?;
    let offset_ms = rest.offset()?;
    if !rest.0.is_empty() {
        return Err(InvalidTime::NotATime);
    }
    if !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return Err(InvalidTime::NoSuchTime);
    }
    check_time(days_since_1970(year, month, day) * DAY_MS + time_ms - offset_ms)
}

/// The instant in ISO 8601, in UTC: `2026-12-01T12:00:00Z`, with milliseconds if it has any.
pub fn iso_time(ms: Millis) -> String {
    let (year, month, day) = civil(ms.div_euclid(DAY_MS));
    let of_day = ms.rem_euclid(DAY_MS);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, fraction) = (of_day / 1_000 % 60, of_day % 1_000);
    let fraction = if fraction == 0 { String::new() } else { format!(".{fraction:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// What is still to be read.
struct Rest<'t>(&'t [u8]);

impl Rest<'_> {
    /// The next byte, if it is one of these.
    fn one_of(&mut self, wanted: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        wanted.contains(first).then(|| {
            self.0 = rest;
            *first
        })
    }

    /// A number of exactly so many digits.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        let value = number.iter().try_fold(0, |value, byte| {
            byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
        })?;
        self.0 = rest;
        Some(value)
    }

    fn date(&mut self) -> Option<(i64, i64, i64)> {
        let year = self.number(4)?;
        self.one_of(b"-")?;
        let month = self.number(2)?;
        self.one_of(b"-")?;
        Some((year, month, self.number(2)?))
    }

    /// In milliseconds since midnight.
    fn time_of_day(&mut self) -> Result<Millis, InvalidTime> {
        let (hour, minute) = self.hour_and_minute().ok_or(InvalidTime::NotATime)?;
        let (mut second, mut fraction_ms) = (0, 0);
        if self.one_of(b":").is_some() {
            second = self.number(2).ok_or(InvalidTime::NotATime)?;
            if self.one_of(b".,").is_some() {
                fraction_ms = self.fraction_ms().ok_or(InvalidTime::NotATime)?;
            }
        }
        if hour > 23 || minute > 59 || second > 59 {
            return Err(InvalidTime::NoSuchTime);
        }
        Ok(((hour * 60 + minute) * 60 + second) * 1_000 + fraction_ms)
    }

    fn hour_and_minute(&mut self) -> Option<(i64, i64)> {
        self.one_of(b"Tt ")?;
        let hour = self.number(2)?;
        self.one_of(b":")?;
        Some((hour, self.number(2)?))
    }

    /// At least one digit; what is finer than a millisecond is cut off.
    fn fraction_ms(&mut self) -> Option<Millis> {
        let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (fraction, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        let worth = [100, 10, 1];
        let ms = fraction.iter().zip(worth).map(|(digit, worth)| i64::from(digit - b'0') * worth);
        (digits > 0).then(|| ms.sum())
    }

    fn offset(&mut self) -> Result<Millis, InvalidTime> {
        if self.0.is_empty() {
            return Err(InvalidTime::NoOffset);
        }
        if self.one_of(b"Zz").is_some() {
            return Ok(0);
        }
        let sign = self.one_of(b"+-").ok_or(InvalidTime::NotATime)?;
        let hours = self.number(2).ok_or(InvalidTime::NotATime)?;
        let colon = self.one_of(b":").is_some();
        let minutes = match self.number(2) {
            Some(minutes) => minutes,
            None if colon => return Err(InvalidTime::NotATime),
            None => 0,
        };
        if hours > 23 || minutes > 59 {
            return Err(InvalidTime::NoSuchTime);
        }
        let offset_ms = (hours * 60 + minutes) * 60_000;
        Ok(if sign == b'-' { -offset_ms } else { offset_ms })
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of a year that begins in March before the first of this month: leap days then come last, so
/// that one line does for all months.
fn days_before(month_from_march: i64) -> i64 {
    (153 * month_from_march + 2) / 5
}

const DAYS_IN_400_YEARS: i64 = 146_097;
/// From 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (age, of_age) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = days_before((month + 9) % 12) + day - 1;
    let of_age = of_age * 365 + of_age / 4 - of_age / 100 + of_year;
    age * DAYS_IN_400_YEARS + of_age - DAYS_TO_1970
}

/// Year, month and day of a day counted from 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_TO_1970;
    let (age, of_age) = (days.div_euclid(DAYS_IN_400_YEARS), days.rem_euclid(DAYS_IN_400_YEARS));
    let year = (of_age - of_age / 1_460 + of_age / 36_524 - of_age / 146_096) / 365;
    let of_year = of_age - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - days_before(month_from_march) + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (age * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_instant_can_be_written_in_many_ways() {
        for text in [
            "2026-12-01T20:00:00+08:00",
            "2026-12-01 20:00:00+08:00",
            "2026-12-01T12:00:00Z",
            "2026-12-01t12:00:00z",
            "2026-12-01T12:00Z",
            "2026-12-01T12:00:00.000Z",
            "2026-12-01T12:00:00,0009+00:00",
            "2026-12-01T20:00:00+0800",
            "2026-12-01T20:00:00+08",
            "2026-12-02T01:30:00+13:30",
            "2026-12-01T00:00:00-12:00",
            " 2026-12-01T12:00:00Z\n",
            "1796126400000",
        ] {
            assert_eq!(parse_time(text), Ok(1_796_126_400_000), "{text}");
        }
        assert_eq!(parse_time("2026-12-01T12:00:00.1234567Z"), Ok(1_796_126_400_123));
        assert_eq!(parse_time("2024-02-29T00:00:00Z"), Ok(1_709_164_800_000));
        assert_eq!(iso_time(1_796_126_400_000), "2026-12-01T12:00:00Z");
        assert_eq!(iso_time(1_796_126_400_007), "2026-12-01T12:00:00.007Z");
    }

    #[test]
    fn what_is_no_time_is_refused_with_its_reason() {
        for (text, why) in [
            ("", InvalidTime::NotATime),
            ("tomorrow", InvalidTime::NotATime),
            ("2026-12-1T12:00:00Z", InvalidTime::NotATime),
            ("2026-12-01T12Z", InvalidTime::NotATime),
            ("2026-12-01T12:00:00.Z", InvalidTime::NotATime),
            ("2026-12-01T12:00:00Z+1", InvalidTime::NotATime),
            ("2026-12-01T12:00:00+8:00", InvalidTime::NotATime),
            ("2026-12-01T12:00:00+08:", InvalidTime::NotATime),
            ("2026-12-01T12:00:00 CET", InvalidTime::NotATime),
            ("二〇二六年十二月一日", InvalidTime::NotATime),
            ("1.8e12", InvalidTime::NotATime),
            (&"2".repeat(70), InvalidTime::TooLate),
            (&"2026-12-01T12:00:00.".repeat(9), InvalidTime::NotATime),
            ("2026-12-01", InvalidTime::NoOffset),
            ("2026-12-01T20:00:00", InvalidTime::NoOffset),
            ("2026-12-01 20:00", InvalidTime::NoOffset),
            ("2026-12-01T20:00:00.5", InvalidTime::NoOffset),
            ("2026-02-29T12:00:00Z", InvalidTime::NoSuchTime),
            ("2026-13-01T12:00:00Z", InvalidTime::NoSuchTime),
            ("2026-00-01T12:00:00Z", InvalidTime::NoSuchTime),
            ("2026-04-31T12:00:00Z", InvalidTime::NoSuchTime),
            ("2026-12-00T12:00:00Z", InvalidTime::NoSuchTime),
            ("2026-12-01T24:00:00Z", InvalidTime::NoSuchTime),
            ("2026-12-01T23:59:60Z", InvalidTime::NoSuchTime),
            ("2026-12-01T12:00:00+24:00", InvalidTime::NoSuchTime),
            ("1796126400", InvalidTime::TooEarly),
            ("0", InvalidTime::TooEarly),
            ("-5", InvalidTime::TooEarly),
            ("1999-12-31T23:59:59Z", InvalidTime::TooEarly),
            ("1796126400000000", InvalidTime::TooLate),
            ("9999-12-31T23:59:59Z", InvalidTime::TooLate),
        ] {
            assert_eq!(parse_time(text), Err(why), "{text}");
        }
        assert_eq!(check_time(TIME_MS_MIN), Ok(TIME_MS_MIN));
        assert_eq!(iso_time(TIME_MS_MIN), "2001-01-01T00:00:00Z");
        assert_eq!(iso_time(TIME_MS_MAX), "2200-01-01T00:00:00Z");
    }

    #[test]
    fn the_calendar_is_walked_day_by_day() {
        let mut today = (1970, 1, 1);
        for days in 0..200 * 366 {
            let (year, month, day) = today;
            assert_eq!(civil(days), today);
            assert_eq!(days_since_1970(year, month, day), days);
            today = match (month, day == days_in(year, month)) {
                (12, true) => (year + 1, 1, 1),
                (_, true) => (year, month + 1, 1),
                (_, false) => (year, month, day + 1),
            };
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(ms in TIME_MS_MIN..TIME_MS_MAX) {
            prop_assert_eq!(parse_time(&iso_time(ms)), Ok(ms));
            prop_assert_eq!(parse_time(&ms.to_string()), Ok(ms));
        }

        #[test]
        fn an_offset_says_the_same_instant_elsewhere(
            ms in TIME_MS_MIN + DAY_MS..TIME_MS_MAX - DAY_MS,
            minutes in -14 * 60i64..=14 * 60,
        ) {
            let there = iso_time(ms + minutes * 60_000);
            let sign = if minutes < 0 { '-' } else { '+' };
            let (hour, minute) = (minutes.abs() / 60, minutes.abs() % 60);
            let text = format!("{}{sign}{hour:02}:{minute:02}", there.trim_end_matches('Z'));
            prop_assert_eq!(parse_time(&text), Ok(ms), "{}", text);
        }

        #[test]
        fn garbage_is_refused_not_believed(text: String) {
            let _ = parse_time(&text);
        }
    }
}
