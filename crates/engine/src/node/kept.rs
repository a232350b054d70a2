//! What the data directory keeps of a node, for a process that is started again without the ledger.

use std::{fs, io, path::Path};

use sale::Millis;
use serde::{Deserialize, Serialize};

/// In the data directory.
pub(super) const FILE: &str = "node.json";

/// All times are by this machine's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptNode {
    pub(super) node: u16,
    /// In whose name the ledger knows it.
    pub(super) holder: String,
    /// A copy of the directory on another machine is worth nothing.
    pub(super) host: String,
    pub(super) given_ms: Millis,
    /// Numbers may be made with it until then.
    pub(super) until_ms: Millis,
    /// Numbers up to this time may have been made with it.
    pub(super) used_to_ms: Millis,
}

impl KeptNode {
    pub(super) fn read(data: &Path) -> Option<KeptNode> {
        let bytes = fs::read(data.join(FILE)).ok()?;
        let kept = serde_json::from_slice::<KeptNode>(&bytes);
        if let Err(error) = &kept {
            tracing::warn!(%error, "{FILE} cannot be read: another node is taken");
        }
        kept.ok().filter(|kept| kept.node < sale::NODES_MAX)
    }

    /// Blocks its thread.
    pub(super) fn write(&self, data: &Path) -> io::Result<()> {
        crate::secrets::write_private(&data.join(FILE), &serde_json::to_vec(self)?)
    }

    pub(super) fn forget(data: &Path) {
        // What is not there need not be forgotten.
        let _ = fs::remove_file(data.join(FILE));
    }
}
