//! Clients of all manners, on real sockets.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bodies;
mod drain;
mod fast_path;
mod heads;
mod http2;
mod limits;
mod room;
mod server;
mod tls;
