//! What the data directory keeps of a node: a process that was killed cannot give it back, the next one can.

use std::{fs, io, path::Path};

use sale::Millis;
use serde::{Deserialize, Serialize};

/// In the data directory.
pub(super) const FILE: &str = "node.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptNode {
    pub(super) node: u16,
    /// In whose name the ledger knows it.
    pub(super) holder: String,
    /// On another machine this is a copy, and the holder may live.
    pub(super) host: String,
    /// Numbers up to this time, by this machine's clock, may have been made with it.
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
