//! What is remembered of alerts over a restart: those that are open, and those that wait for the webhook.
//!
//! In a file of the data directory and not in the ledger, which may be what is down. It is written by
//! the watcher when something of it has changed, at most once a second; a process that is killed in
//! between tells something twice. A file that cannot be read is a fresh start, for the same reason.

use std::{fs, io, path::Path};

use orders::Alert;
use serde::{Deserialize, Serialize};

use super::OpenAlert;

/// In the data directory.
pub(crate) const FILE: &str = "alerts.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RememberedAlerts {
    #[serde(default)]
    pub(crate) open: Vec<OpenAlert>,
    #[serde(default)]
    pub(crate) waiting: Vec<Alert>,
}

impl RememberedAlerts {
    pub(crate) fn read(data: &Path) -> RememberedAlerts {
        match fs::read(data.join(FILE)) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error,
                    "the file of alerts cannot be read: what was told before the start may be told again");
                RememberedAlerts::default()
            }),
            Err(_) => RememberedAlerts::default(),
        }
    }

    /// Blocks its thread.
    pub(crate) fn write(&self, data: &Path) -> io::Result<()> {
        let new = data.join(format!("{FILE}.new"));
        crate::secrets::write_private(&new, &serde_json::to_vec(self)?)?;
        fs::rename(new, data.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use orders::AlertKind;

    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_what_cannot_be_read_is_a_fresh_start() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(RememberedAlerts::read(data.path()), RememberedAlerts::default());
        let open = OpenAlert { kind: AlertKind::GateDown, about: String::new(), since_ms: 7 };
        let waiting = Alert::new(AlertKind::DeadLetter, "a claim failed", 8).because("why");
        let alerts = RememberedAlerts { open: vec![open], waiting: vec![waiting] };
        alerts.write(data.path()).unwrap();
        alerts.write(data.path()).unwrap();
        assert_eq!(RememberedAlerts::read(data.path()), alerts);
        for odd in ["", "[]", r#"{"open":[{"kind":"of another version"}]}"#] {
            fs::write(data.path().join(FILE), odd).unwrap();
            assert_eq!(RememberedAlerts::read(data.path()), RememberedAlerts::default(), "{odd}");
        }
    }
}
