//! Claims that failed: waiting for their next try, dead, or resolved.

use async_trait::async_trait;
use sale::{Claim, Millis, OrderNo, UserId};
use serde::Serialize;

use crate::{Moved, Result};

/// Failed claims as operators see them.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Newest first. `state: None` means retrying and dead.
    async fn dead_letters(
        &self,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>>;

    async fn dead_letter(&self, no: OrderNo) -> Result<Option<DeadLetter>>;

    /// Those of these numbers that there are, in whatever state and order.
    async fn dead_letters_by_no(&self, numbers: &[OrderNo]) -> Result<Vec<DeadLetter>>;

    /// Those of one buyer, newest first. `state: None` means retrying and dead.
    async fn dead_letters_of(
        &self,
        user: &UserId,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>>;

    /// `Dead` (or `Retrying`) → `Retrying`, due now, tries counted anew.
    async fn replay(&self, no: OrderNo, now_ms: Millis) -> Result<Moved<DeadLetterState>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterState {
    /// Waiting for its next try.
    Retrying,
    /// All tries failed; waiting for a person.
    Dead,
    /// Became an order (or was refused by the ledger) after all.
    Settled,
    /// Given up by an operator.
    Voided,
}

impl DeadLetterState {
    pub const ALL: [DeadLetterState; 4] = [
        DeadLetterState::Retrying,
        DeadLetterState::Dead,
        DeadLetterState::Settled,
        DeadLetterState::Voided,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            DeadLetterState::Retrying => "retrying",
            DeadLetterState::Dead => "dead",
            DeadLetterState::Settled => "settled",
            DeadLetterState::Voided => "voided",
        }
    }

    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        DeadLetterState::ALL.into_iter().find(|state| state.code() == code)
    }

    /// Does the claim still hold its units?
    pub fn is_open(self) -> bool {
        matches!(self, DeadLetterState::Retrying | DeadLetterState::Dead)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    pub claim: Claim,
    pub state: DeadLetterState,
    pub tries: u32,
    pub next_try_ms: Option<Millis>,
    pub cause: String,
    pub created_ms: Millis,
    pub updated_ms: Millis,
}
