//! Where log lines go and how they look: to standard error, for people or for machines.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{Log, LogFormat};

#[derive(Debug, thiserror::Error)]
#[error("logging cannot be set up: {0}")]
pub struct LoggingError(String);

/// Once per process.
pub fn init(log: &Log) -> Result<(), LoggingError> {
    let failed = |cause: String| LoggingError(cause);
    let registry = tracing_subscriber::registry().with(filter(&log.level).map_err(failed)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let result = match log.format {
        LogFormat::Text => {
            registry.with(lines.with_ansi(std::io::stderr().is_terminal())).try_init()
        }
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    result.map_err(|cause| LoggingError(cause.to_string()))
}

/// A level, or a filter such as `info,gate=debug`.
pub(crate) fn filter(level: &str) -> Result<EnvFilter, String> {
    // A bare word that is no level would be taken for the name of a module, and log nothing.
    let level = level.replace(' ', "");
    let is_level = |word: &str| {
        !word.is_empty() && word.parse::<tracing::level_filters::LevelFilter>().is_ok()
    };
    if let Some(word) = level.split(',').find(|word| !word.contains('=') && !is_level(word)) {
        return Err(format!("{word:?} is none of error, warn, info, debug, trace, off"));
    }
    EnvFilter::try_new(level).map_err(|cause| cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_told_from_typing_errors() {
        for good in ["info", "WARN", "off", "info,gate=debug", "info, server::net=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["inof", "", "info,", "gate=loud", "gate"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
