//! What must always hold, as a pure function.
//!
//! Input: what the buyers were told ([`History`]), and what is observed of gate, log, ledger and the
//! provider's bill once the deployment has come to rest ([`Observed`]). Output of [`check`]: violations,
//! each named after the invariant it breaks (the numbers are those of docs/SAFETY.md). An empty list is
//! the only good answer. Rehearsals, stories and fault tests all end with it.

mod check;
mod history;
mod observed;

pub use check::{CHECKED, CONSERVATION, DRAINS, MONEY, STRANDED, Violation, check};
pub use history::{Answer, AnsweredClaim, History};
pub use observed::{Bill, Charge, Observed, ObservedItem, ObservedOrder, StockLogRow};
