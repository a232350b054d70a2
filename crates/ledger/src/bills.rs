//! Bills of providers, day by day, beside what is on record here.

use async_trait::async_trait;
use sale::Millis;

use crate::{PaymentKind, PaymentRow, Result};

/// What comparing bills needs.
#[async_trait]
pub trait Bills: Send + Sync {
    /// The days from this one on whose bill was compared.
    async fn bill_days(&self, provider: &str, from_ms: Millis) -> Result<Vec<BillDay>>;

    /// Notes that a bill was compared, in the place of what was noted before; days before `forget_ms` are
    /// forgotten.
    async fn bill_compared(&self, provider: &str, day: &BillDay, forget_ms: Millis) -> Result<()>;

    /// Money received and given back of these transactions.
    async fn payments_by_txn(&self, provider: &str, txns: &[String]) -> Result<Vec<PaymentRow>>;

    /// What of this kind was put on record from one time to another, oldest first, behind the row with that
    /// time and id.
    async fn payments_noted(
        &self,
        provider: &str,
        kind: PaymentKind,
        noted: Noted,
        limit: usize,
    ) -> Result<Vec<(i64, PaymentRow)>>;
}

/// A page of what was noted in some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    pub from_ms: Millis,
    pub to_ms: Millis,
    /// The id of the last row of the page before, which was noted at `from_ms`.
    pub after_id: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BillDay {
    /// When it began, by the provider's calendar.
    pub day_ms: Millis,
    pub lines: u64,
    /// What was left that differs.
    pub differences: u64,
    pub compared_ms: Millis,
}
