//! The engines and the payment companies' stand-ins do what the tests of the other crates rely on, and the
//! files in `deploy/` are understood by the programs they are for.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod deploy;
mod providers;
mod services;
