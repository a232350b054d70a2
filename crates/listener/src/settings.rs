//! What an operator can set of the listener: the section `[http]` of the settings, as it is written there.

use std::{net::SocketAddr, path::PathBuf};

use limits::Network;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    /// Addresses in these are not one buyer's.
    pub exempt_networks: Vec<Network>,
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
    /// For whom requests may be; empty is anybody.
    pub allowed_hosts: Vec<String>,
    /// Where operators and machines ask, if not where everybody does.
    #[serde(with = "maybe_address")]
    pub admin_listen: Option<SocketAddr>,
    /// With these two the listener speaks TLS.
    pub tls_cert_file: PathBuf,
    pub tls_key_file: PathBuf,
    /// Where plain HTTP is sent on to TLS.
    #[serde(with = "maybe_address")]
    pub redirect_listen: Option<SocketAddr>,
    pub tls_handshake_timeout_ms: u64,
    pub tls_handshakes_max: usize,
    /// Requests at once on one connection of HTTP/2.
    pub http2_streams_max: u32,
}

impl HttpSettings {
    /// Is there a certificate?
    pub fn has_tls(&self) -> bool {
        !self.tls_cert_file.as_os_str().is_empty()
    }

    /// No route takes a longer body: it is refused by its head.
    pub(crate) fn any_body_bytes_max(&self) -> usize {
        self.body_bytes_max.max(self.admin_body_bytes_max).max(self.import_body_bytes_max)
    }
}

/// An address, or an empty text for none.
mod maybe_address {
    use std::net::SocketAddr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&address.map(|at| at.to_string()).unwrap_or_default())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(D::Error::custom)
    }
}
