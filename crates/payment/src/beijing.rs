//! Times as both providers write them: in Beijing, eight hours ahead of UTC all year round.

use sale::{Millis, iso_time, parse_iso_time};

pub(crate) const DAY_MS: Millis = 24 * 60 * 60 * 1_000;
pub(crate) const HOUR_MS: Millis = 60 * 60 * 1_000;
const AHEAD_MS: Millis = 8 * HOUR_MS;

/// `2026-12-01T20:00:00`, there.
fn local(ms: Millis) -> String {
    let whole_seconds = ms.div_euclid(1_000) * 1_000;
    let mut text = iso_time(whole_seconds + AHEAD_MS);
    text.truncate("2026-12-01T20:00:00".len());
    text
}

/// `2026-12-01T20:00:00+08:00`.
pub(crate) fn with_offset(ms: Millis) -> String {
    local(ms) + "+08:00"
}

/// `2026-12-01 20:00:00`.
pub(crate) fn plain(ms: Millis) -> String {
    local(ms).replace('T', " ")
}

/// `2026-12-01`.
pub(crate) fn date(ms: Millis) -> String {
    let mut text = local(ms);
    text.truncate("2026-12-01".len());
    text
}

/// Reads what [`plain`] writes. Fractions of a second may follow.
pub(crate) fn parse_plain(text: &str) -> Option<Millis> {
    parse_iso_time(&format!("{}+08:00", text.trim())).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_instant_is_written_as_clocks_in_beijing_show_it() {
        let ms = 1_796_126_400_999;
        assert_eq!(with_offset(ms), "2026-12-01T20:00:00+08:00");
        assert_eq!((plain(ms).as_str(), date(ms).as_str()), ("2026-12-01 20:00:00", "2026-12-01"));
        // The day begins there when it is 16:00 in UTC.
        assert_eq!(date(1_796_140_799_999), "2026-12-01");
        assert_eq!(date(1_796_140_800_000), "2026-12-02");
        assert_eq!(parse_plain("2026-12-01 20:00:00.999"), Some(ms));
        assert_eq!(parse_plain("2026-12-01"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(second in 1_000_000_000_i64..4_000_000_000) {
            let ms = second * 1_000;
            prop_assert_eq!(parse_plain(&plain(ms)), Some(ms));
            prop_assert_eq!(parse_iso_time(&with_offset(ms)), Ok(ms));
        }
    }
}
