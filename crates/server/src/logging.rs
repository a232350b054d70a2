//! Where log lines go and how they look: to standard error, for people or for machines.

use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use tracing_subscriber::{fmt, layer::SubscriberExt, util::SubscriberInitExt};

use config::{Log, LogFormat};

#[derive(Debug, thiserror::Error)]
#[error("logging cannot be set up: {0}")]
pub struct LoggingError(String);

/// Once per process.
pub fn init(log: &Log) -> Result<(), LoggingError> {
    let filter = log.filter().map_err(LoggingError)?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(|| Lines);
    let result = match log.format {
        LogFormat::Text => registry.with(lines.with_ansi(io::stderr().is_terminal())).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    result.map_err(|cause| LoggingError(cause.to_string()))
}

/// Lines that wait until the greeting is out; `None` when nothing waits.
static KEPT_BACK: Mutex<Option<Vec<u8>>> = Mutex::new(None);
/// More than that is not kept back: something is wrong, and somebody should read it.
const KEPT_BACK_BYTES_MAX: usize = 64 * 1024;
/// A start that takes longer than this tells what it is waiting for.
const KEPT_BACK_MAX: Duration = Duration::from_secs(5);

/// Log lines wait while this lives, so that a person reads the greeting first and the log after it; but
/// not for long, and not if the start fails.
pub struct KeptBack(());

/// Inside the runtime.
pub fn keep_back() -> KeptBack {
    *KEPT_BACK.lock() = Some(Vec::new());
    tokio::spawn(async {
        tokio::time::sleep(KEPT_BACK_MAX).await;
        release();
    });
    KeptBack(())
}

/// The greeting is out.
pub fn release() {
    let mut kept = KEPT_BACK.lock();
    if let Some(lines) = kept.take() {
        // A log that cannot be written is nobody's reason to fail.
        let _ = io::stderr().write_all(&lines);
    }
}

impl Drop for KeptBack {
    fn drop(&mut self) {
        release();
    }
}

/// Standard error, or what is kept back for it.
struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        {
            let mut kept = KEPT_BACK.lock();
            match kept.as_mut() {
                Some(lines) if lines.len() + bytes.len() <= KEPT_BACK_BYTES_MAX => {
                    lines.extend_from_slice(bytes);
                    return Ok(bytes.len());
                }
                _ => {}
            }
        }
        release();
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Keeps a line that strangers can cause from filling the log: it is written at most once per
/// `every`, with how many it stands for.
pub(crate) struct Seldom {
    every: Duration,
    /// When a line was last written, and how many were not since.
    written: Mutex<(Option<Instant>, u64)>,
}

impl Seldom {
    pub(crate) const fn once_per(every: Duration) -> Seldom {
        Seldom { every, written: Mutex::new((None, 0)) }
    }

    /// How many events a line written now stands for, this one included; `None` if it is too early.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut written = self.written.lock();
        let (last, kept_back) = &mut *written;
        *kept_back += 1;
        if last.is_some_and(|last| now.duration_since(last) < self.every) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(kept_back))
    }
}

/// The same for lines each of which says something of its own: so many in a second are written, the
/// rest is counted.
pub(crate) struct FewPerSecond {
    lines_max: u32,
    state: Mutex<Second>,
}

struct Second {
    began: Option<Instant>,
    lines: u32,
    kept_back: u64,
}

impl FewPerSecond {
    pub(crate) const fn at_most(lines_max: u32) -> FewPerSecond {
        let state = Mutex::new(Second { began: None, lines: 0, kept_back: 0 });
        FewPerSecond { lines_max, state }
    }

    /// May a line be written now? If so, how many were kept back before it.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.is_over(now) {
            state.began = Some(now);
            state.lines = 0;
        }
        if state.lines >= self.lines_max {
            state.kept_back += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.kept_back))
    }

    /// How many were kept back in a second that is over, to be told now.
    pub(crate) fn kept_back(&self, now: Instant) -> u64 {
        let mut state = self.state.lock();
        if state.is_over(now) { std::mem::take(&mut state.kept_back) } else { 0 }
    }
}

impl Second {
    fn is_over(&self, now: Instant) -> bool {
        self.began.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_is_one_line_per_second() {
        let seldom = Seldom::once_per(Duration::from_secs(1));
        let start = Instant::now();
        let at = |ms| seldom.count(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(1));
        for n in 1..1_000 {
            assert_eq!(at(n), None);
        }
        assert_eq!(at(1_000), Some(1_000), "those that were kept back, and this one");
        assert_eq!(at(5_000), Some(1));
    }

    #[test]
    fn a_few_lines_a_second_are_written_and_the_rest_is_told_as_a_number() {
        let few = FewPerSecond::at_most(2);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!([0, 1, 2, 999].map(|ms| few.admit(at(ms))), [Some(0), Some(0), None, None]);
        assert_eq!(few.kept_back(at(999)), 0, "the second is not over");
        assert_eq!(few.admit(at(1_000)), Some(2));
        assert_eq!([1_001, 1_002].map(|ms| few.admit(at(ms))), [Some(0), None]);
        assert_eq!(few.kept_back(at(2_000)), 1);
        assert_eq!(few.kept_back(at(3_000)), 0, "told once");
    }
}
