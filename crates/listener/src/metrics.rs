//! The numbers that the listener keeps.

pub const CONNECTIONS: &str = "seckill_connections";
pub const CONNECTIONS_REFUSED: &str = "seckill_connections_refused_total";
pub const CONNECTIONS_CUT: &str = "seckill_connections_cut_total";
/// The values of the label `reason` of the connections that were cut.
pub const CUT_REASONS: [&str; 6] =
    ["write", "head", "idle", CUT_HANDSHAKE, CUT_RESET, CUT_FOR_ROOM];
/// TLS took too long to agree on, or too many were at it.
pub(crate) const CUT_HANDSHAKE: &str = "handshake";
/// Requests were begun and given up, over and over.
pub(crate) const CUT_RESET: &str = "reset";
pub const TLS_HANDSHAKES: &str = "seckill_tls_handshakes_total";
pub const TLS_HANDSHAKES_FAILED: &str = "seckill_tls_handshakes_failed_total";
/// It gave way to another when there was no room.
pub(crate) const CUT_FOR_ROOM: &str = "room";
/// The values of the label `reason` of the connections that were refused: the house is full, or one address
/// has as many as it may have.
pub const REFUSED_REASONS: [&str; 2] = ["full", "address"];
