//! Connections to Redis that follow the primary.
//!
//! **Where** the servers are is one [`RedisServers`] for the whole process: one address, three sentinels
//! and the name of what they watch, or members of a Redis Cluster ([`address`]). **How** they are spoken
//! to is a [`RedisLink`]: a few connections per server, with a time limit for answers. Blocking reads
//! have a link of their own, so that they hold up nobody.
//!
//! **A connection is replaced** ([`line`]) when it broke, when nothing at all came back over it while a
//! command waited too long, and when the server says that it is no primary (any more): behind one address,
//! a name or a virtual address, somebody else may answer now; sentinels are asked again ([`sentinel`]);
//! in a cluster the map of slots is read anew ([`cluster`]). Tries to connect have pauses between them,
//! and whoever asks during a pause hears the last failure at once.
//!
//! **Each server for itself.** A member of a cluster that is dead or hung holds up only what is there.
//! (The cluster connection of redis-rs stops all its commands while it looks for a node that is gone;
//! that is why the slots are followed here.)
//!
//! **What is sent twice.** What the server refused because it is not the one to ask was not done and is
//! sent again to the right one. A command whose connection broke may have been done: it is sent again
//! only on links that were opened for commands that may be asked twice.

mod address;
mod call;
mod cluster;
mod line;
mod link;
mod sentinel;
mod servers;
mod slot;
mod tls;

pub use address::RedisAddress;
pub use call::{Call, Script};
pub use line::is_away;
pub use link::{LinkOptions, Reached, RedisLink};
pub use servers::{RedisServers, Server};
pub use tls::TlsFiles;
