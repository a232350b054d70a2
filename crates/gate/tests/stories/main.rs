//! Stories of the gates: what buyers, workers and operators see of them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod big_items;
mod both;
mod disk;
mod fixture;
mod look_back;
mod redis;
mod redis_claims;
mod redis_fences;
mod redis_survey;
mod relay;
mod solo;
