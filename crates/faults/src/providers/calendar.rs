//! The providers' calendar: both write their times as they are in China, eight hours ahead of UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const AHEAD_MS: i64 = 8 * 60 * 60 * 1_000;
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

pub(super) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// `2026-11-18T22:30:00+08:00`, as WeChat Pay writes it.
pub(super) fn with_zone(ms: i64) -> String {
    format!("{}+08:00", plain(ms).replace(' ', "T"))
}

/// `2026-11-18 22:30:00`, as Alipay writes it.
pub(super) fn plain(ms: i64) -> String {
    let ms = ms + AHEAD_MS;
    let second = ms.rem_euclid(DAY_MS) / 1_000;
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{} {hour:02}:{minute:02}:{:02}", date(ms - AHEAD_MS), second % 60)
}

/// `2026-11-18`.
pub(super) fn date(ms: i64) -> String {
    let (year, month, day) = civil((ms + AHEAD_MS).div_euclid(DAY_MS));
    format!("{year:04}-{month:02}-{day:02}")
}

/// The instant of a time with a zone, if it is one.
pub(super) fn from_zoned(text: &str) -> Option<i64> {
    let (time, zone) = match text.strip_suffix('Z') {
        Some(time) => (time, "+00:00"),
        None => text.split_at_checked(text.len().checked_sub(6)?)?,
    };
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let ahead_min = number(hours, 2)? * 60 + number(minutes, 2)?;
    let (date, clock) = time.split_once('T')?;
    Some(instant(date, clock)? - sign * ahead_min * 60_000)
}

/// The instant of a time in China, if it is one.
pub(super) fn from_plain(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once(' ')?;
    Some(instant(date, clock)? - AHEAD_MS)
}

/// As if the time were UTC.
fn instant(date: &str, clock: &str) -> Option<i64> {
    let [year, month, day] = three(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = three(clock, ':', [2, 2, 2])?;
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(seconds * 1_000)
}

fn three(text: &str, between: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let parts: Vec<&str> = text.split(between).collect();
    let [a, b, c] = parts[..] else { return None };
    Some([number(a, digits[0])?, number(b, digits[1])?, number(c, digits[2])?])
}

fn number(text: &str, digits: usize) -> Option<i64> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Days since 1970 of a date. Years begin in March here, so that the leap day is the last of one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before_month = (153 * month + 2) / 5;
    365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + before_month
        + day
        - 719_469
}

/// The date of a day since 1970.
fn civil(day: i64) -> (i64, i64, i64) {
    let guess = day.div_euclid(366) + 1970;
    let year = (guess..).find(|year| days(year + 1, 1, 1) > day).unwrap_or(guess);
    let month = (1..12).find(|month| days(year, month + 1, 1) > day).unwrap_or(12);
    (year, month, day - days(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_as_in_china() {
        assert_eq!(plain(0), "1970-01-01 08:00:00");
        assert_eq!(with_zone(1_709_164_800_000), "2024-02-29T08:00:00+08:00");
        assert_eq!(from_zoned("2024-02-29T00:00:00Z"), Some(1_709_164_800_000));
        assert_eq!(from_zoned("2024-02-29T00:00:00"), None, "a zone is needed");
        for ms in (0..4_000_000_000_000).step_by(86_399_000 * 7) {
            assert_eq!(from_plain(&plain(ms)), Some(ms));
            assert_eq!(from_zoned(&with_zone(ms)), Some(ms));
        }
        for bad in ["", "2024-13-01 00:00:00", "2024-1-1 0:0:0", "yesterday", "2024-01-01T00:00:00"]
        {
            assert_eq!(from_plain(bad), None, "{bad}");
        }
    }
}
