//! Stories of sales whose claims go by RocketMQ: a real broker, real `seckill` processes, in both profiles.
//! `cargo xtask test --brokers` fetches what they need and runs them.
//!
//! Most are those of `tests/brokers`, told once more; what only RocketMQ does is in [`ladder`] and
//! [`unpaid`]. `BROKER_ROUNDS=20` tells the story of random kills longer.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod broker;
#[path = "../brokers/kills.rs"]
mod kills;
mod ladder;
#[path = "../brokers/lost_gate.rs"]
mod lost_gate;
#[path = "../brokers/orders.rs"]
mod orders;
#[path = "../brokers/outages.rs"]
mod outages;
#[path = "../brokers/switching.rs"]
mod switching;
mod unpaid;
#[path = "../brokers/way.rs"]
mod way;

/// What the other stories share.
#[path = "../stories/fixtures/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the stories without a broker use more of it")]
mod fixtures;
