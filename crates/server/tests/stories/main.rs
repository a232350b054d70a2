//! Stories of whole sales, against real `seckill` processes over real HTTP.
//!
//! Every story starts a server of its own on a free port with a data directory of its own, and
//! almost all of them end with the checker: nothing oversold, nothing stranded, nothing lost.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod browser;
mod failures;
mod house;
mod kills;
mod money;
mod operators;
mod rush;
mod startup;
