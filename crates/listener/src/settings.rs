//! What an operator can set of the listener: the section `[http]` of the settings, as it is written there.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    pub connections_max: usize,
    pub backlog_max: u32,
    pub header_timeout_ms: u64,
    pub header_bytes_max: usize,
    pub body_timeout_ms: u64,
    /// A longer body is not for the fast path, and is not read for a handler that ignores it.
    pub body_bytes_max: usize,
    /// Some routes take longer bodies, up to this.
    pub admin_body_bytes_max: usize,
    /// And one that takes whole files, up to this.
    pub import_body_bytes_max: usize,
    pub idle_timeout_ms: u64,
    pub write_timeout_ms: u64,
    /// A request of the fast path is given up after this time. The router's are so by their service.
    pub request_timeout_ms: u64,
    pub drain_ms_max: u64,
    pub proxy_hops: usize,
    /// Pages of these origins may ask; the listener itself does not care.
    pub allowed_origins: Vec<String>,
    /// Pages of these origins may show us in a frame.
    pub allowed_frames: Vec<String>,
}

impl HttpSettings {
    /// No route takes a longer body: it is refused by its head.
    pub(crate) fn any_body_bytes_max(&self) -> usize {
        self.body_bytes_max.max(self.admin_body_bytes_max).max(self.import_body_bytes_max)
    }
}
