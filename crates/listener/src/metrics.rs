//! The numbers that the listener keeps.

pub const CONNECTIONS: &str = "seckill_connections";
pub const CONNECTIONS_REFUSED: &str = "seckill_connections_refused_total";
pub const CONNECTIONS_CUT: &str = "seckill_connections_cut_total";
/// The values of the label `reason` of the connections that were cut.
pub const CUT_REASONS: [&str; 3] = ["write", "head", "idle"];
