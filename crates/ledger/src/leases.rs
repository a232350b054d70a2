//! Leases: who alone does something for a while, among all instances on one ledger.
//!
//! They are here because no job works without the ledger: what can be reached by those who could work can
//! also say which of them does.

use async_trait::async_trait;
use sale::Millis;

use crate::Result;

/// No lease is given for longer. One that seems to last longer was written before the ledger's clock was
/// set back, and is nobody's.
pub const LEASE_MS_MAX: Millis = 60_000;

#[async_trait]
pub trait Leases: Send + Sync {
    /// Of which of these may `holder` be the only one to do it, for so long from now by the ledger's clock?
    /// Asking takes a lease or renews it; for no time at all gives it up. Answers, in their order, the
    /// number of the holder, which grows with every new one, or nothing while somebody else holds it.
    /// Whoever holds nothing, and can have nothing, costs one statement that locks nothing. Whoever freezes
    /// while they ask holds nobody up.
    async fn take_leases(
        &self,
        names: &[&str],
        holder: &str,
        for_ms: Millis,
    ) -> Result<Vec<Option<u64>>>;
}
