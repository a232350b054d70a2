//! Lengths of time as people type them: `500ms`, `10s`, `30m`, `1h30m`, `2d`.

/// Units, the longer ones first. `ms` must come before `m`.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// In milliseconds.
pub(super) fn duration_ms(text: &str) -> Result<u64, String> {
    let mut rest = text.trim();
    let mut total_ms: u64 = 0;
    if rest.is_empty() {
        return Err("must be a length of time, such as 90s, 30m, 1h30m or 2d".into());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let number: u64 = number
            .parse()
            .map_err(|_| "must begin with a number, such as 90s or 1h30m".to_owned())?;
        let unit = UNITS.iter().find(|(unit, _)| after.starts_with(unit));
        let (unit, unit_ms) =
            unit.ok_or("needs a unit after each number: ms, s, m, h or d".to_owned())?;
        let part_ms = number.checked_mul(*unit_ms);
        let sum_ms = part_ms.and_then(|part_ms| total_ms.checked_add(part_ms));
        total_ms =
            sum_ms.filter(|ms| i64::try_from(*ms).is_ok()).ok_or("is too long".to_owned())?;
        rest = &after[unit.len()..];
    }
    Ok(total_ms)
}

/// Roughly, for a table: `45 s`, `7 min`, `3 h 20 min`, `14 d 7 h`.
pub(super) fn roughly(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |big: u64, name: &str, small: u64, small_name: &str| match small {
        0 => format!("{big} {name}"),
        _ => format!("{big} {name} {small} {small_name}"),
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..600 => two(minutes, "min", seconds % 60, "s"),
        600..3_600 => format!("{minutes} min"),
        3_600..86_400 => two(hours, "h", minutes % 60, "min"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_with_their_unit() {
        for (text, ms) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("2m", 120_000),
            ("0s", 0),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("1m500ms", 60_500),
        ] {
            assert_eq!(duration_ms(text), Ok(ms), "{text}");
        }
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "5w",
            "1h 30",
            "10 s",
            "1h30",
            "99999999999999999999s",
            "9999999999999999999m",
        ] {
            assert!(duration_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_table_has_room_for_two_units() {
        for (ms, text) in [
            (999, "0 s"),
            (45_000, "45 s"),
            (90_000, "1 min 30 s"),
            (720_000, "12 min"),
            (3_600_000, "1 h"),
            (12_000_000, "3 h 20 min"),
            (1_234_800_000, "14 d 7 h"),
        ] {
            assert_eq!(roughly(ms), text);
        }
    }
}
