//! The engines do what the tests of the other crates rely on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod services;
