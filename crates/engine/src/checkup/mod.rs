//! Is what we run on fit for a sale?
//!
//! `seckill doctor` prints all of it. Opening the parts of a cluster checks the engines as well,
//! says in the log what is not good, and refuses one that would lose promises without a word.

pub mod broker;
pub mod disk;
pub mod mysql;
pub mod redis;

use std::path::Path;

use sale::{Clock, Millis, SystemClock};

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Ok(String),
    /// Allowed, but rarely meant.
    Warn(String),
    /// Asked for by name, and nothing for a real sale: said in red.
    Danger(String),
    /// Must be mended before a sale.
    Fail(String),
    /// The same, and nothing starts on it: claims that were promised would vanish unnoticed.
    Refuse(String),
}

/// What can be told of this machine in no time, each by its name.
pub fn machine(data: &Path) -> [(&'static str, CheckResult); 2] {
    [("clock", clock(SystemClock.now_ms())), ("disk", disk::room(data))]
}

fn clock(now_ms: Millis) -> CheckResult {
    if now_ms < CLOCK_MS_MIN {
        return CheckResult::Fail("the clock is before 2024: sales would not open, set it".into());
    }
    CheckResult::Ok("the clock has a date that makes sense".into())
}

/// Write into the log what is not good. The first reason not to start, if there is one.
pub fn log(findings: Vec<CheckResult>) -> Result<(), String> {
    for finding in findings {
        match finding {
            CheckResult::Ok(_) => {}
            CheckResult::Warn(text) | CheckResult::Danger(text) | CheckResult::Fail(text) => {
                tracing::warn!("{text}")
            }
            CheckResult::Refuse(text) => return Err(text),
        }
    }
    Ok(())
}

/// 2024-01-01: order numbers count from there, so a clock before it is wrong for sure.
const CLOCK_MS_MIN: Millis = 1_704_067_200_000;
/// Clocks further apart than this deserve a look.
const CLOCK_OFFSET_MS_MAX: i64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_last_century_is_wrong() {
        assert!(matches!(clock(CLOCK_MS_MIN - 1), CheckResult::Fail(_)));
        assert!(matches!(machine(Path::new("/"))[0], ("clock", CheckResult::Ok(_))));
    }

    #[test]
    fn only_what_loses_promises_keeps_us_from_starting() {
        let bad = vec![CheckResult::Warn("w".into()), CheckResult::Fail("f".into())];
        assert_eq!(log(bad.clone()), Ok(()));
        let worse = [bad, vec![CheckResult::Refuse("r".into())]].concat();
        assert_eq!(log(worse), Err("r".into()));
    }
}
