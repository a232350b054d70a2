//! Stories of sales whose claims go by a message broker: real Kafka, real `seckill` processes, in both
//! profiles. `cargo xtask test --brokers` fetches what they need and runs them.
//!
//! `BROKER_ROUNDS=20` tells the story of random kills longer.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// Which one.
#[path = "kafka.rs"]
mod broker;
mod kills;
mod lost_gate;
mod orders;
mod outages;
mod switching;
mod way;

/// What the other stories share.
#[path = "../stories/fixtures/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the stories without a broker use more of it")]
mod fixtures;
