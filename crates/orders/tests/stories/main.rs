//! Stories of the workers, with a log, a ledger and a clock that the test owns. The real log and
//! the real ledger are joined in the server's tests; here only the logic between them is on trial.

#![allow(clippy::unwrap_used)]

mod alerts;
mod brokers;
mod fakes;
mod memory_broker;
mod retries;
mod robots;
mod workers;
