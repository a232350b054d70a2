//! What the buyers were told: every claim with its answer, as the crowd or a test wrote it down.

use sale::OrderNo;

/// One answer to one claim, as a buyer saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 202.
    Admitted {
        order_no: OrderNo,
    },
    /// 409 already_bought.
    AlreadyBought {
        order_no: OrderNo,
    },
    SoldOut,
    /// Any other refusal, by its code.
    Refused(String),
    /// The connection broke: the claim may stand or not.
    Unknown,
}

/// A claim that was sent, and what its buyer was told.
#[derive(Clone, Debug)]
pub struct AnsweredClaim {
    pub user: String,
    pub item: i64,
    pub key: Option<String>,
    pub answer: Answer,
}

/// Everything the buyers were told. What one buyer was told for one key stands in the order in which
/// it was heard; otherwise in any order.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub claims: Vec<AnsweredClaim>,
}

impl History {
    /// How many claims were answered so.
    pub fn count(&self, wanted: impl Fn(&Answer) -> bool) -> usize {
        self.claims.iter().filter(|claim| wanted(&claim.answer)).count()
    }

    pub fn admitted(&self) -> usize {
        self.count(|answer| matches!(answer, Answer::Admitted { .. }))
    }
}
