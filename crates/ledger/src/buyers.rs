//! Buyers whom a sale treats differently from others: members, those who are kept out, and those who
//! gave up so many orders that they have to wait.
//!
//! A list may hold millions of ids. It is asked by its key, when a sale token is asked for, and never read as
//! a whole; the few numbers that say which lists there are, are kept beside it.

use async_trait::async_trait;
use sale::{ActivityId, Millis, UserId};
use serde::{Deserialize, Serialize};

use crate::{AuditEntry, Result};

/// Ids that are added or removed in one transaction.
pub const LISTED_AT_ONCE_MAX: usize = 20_000;

/// What a list is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListKind {
    /// They may buy before others, or nobody else may.
    Members,
    /// They may not buy.
    Blocked,
}

impl ListKind {
    pub const ALL: [ListKind; 2] = [ListKind::Members, ListKind::Blocked];

    pub fn as_str(self) -> &'static str {
        match self {
            ListKind::Members => "members",
            ListKind::Blocked => "blocked",
        }
    }

    /// The number in the ledger's `kind` column.
    pub(crate) fn code(self) -> i64 {
        match self {
            ListKind::Members => 1,
            ListKind::Blocked => 2,
        }
    }

    pub(crate) fn from_code(code: i64) -> Option<Self> {
        ListKind::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// One list: of an activity, or of the shop as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuyerList {
    pub kind: ListKind,
    pub activity: Option<ActivityId>,
}

impl BuyerList {
    /// The number in the ledger's `activity_id` column; no activity has 0.
    pub(crate) fn place(self) -> i64 {
        self.activity.map_or(0, |id| id.0)
    }
}

/// What the lists say of a buyer who wants to buy in an activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    pub member: bool,
    pub blocked: bool,
}

/// Somebody who has to wait, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoolDown {
    pub user: UserId,
    pub until_ms: Millis,
}

#[async_trait]
pub trait BuyerLists: Send + Sync {
    /// Puts them on the list, [`LISTED_AT_ONCE_MAX`] at most; how many were not on it yet.
    async fn list_buyers(
        &self,
        list: BuyerList,
        users: &[UserId],
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<u64>;

    /// Takes them off the list, [`LISTED_AT_ONCE_MAX`] at most; how many were on it.
    async fn unlist_buyers(
        &self,
        list: BuyerList,
        users: &[UserId],
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<u64>;

    /// Who is on a list, in the order of their ids, behind `after` if given.
    async fn listed_buyers(
        &self,
        list: BuyerList,
        after: Option<&UserId>,
        limit: usize,
    ) -> Result<Vec<UserId>>;

    /// The lists that hold anybody, and how many.
    async fn buyer_lists(&self) -> Result<Vec<(BuyerList, u64)>>;

    /// What the lists of the activity and of the shop say of each of these, in their order.
    async fn listed(&self, asked: &[(ActivityId, UserId)]) -> Result<Vec<Listed>>;

    /// How many orders of each were closed without a payment since then, where there are any.
    async fn unpaid_closes(&self, users: &[UserId], since_ms: Millis)
    -> Result<Vec<(UserId, u64)>>;

    /// They have to wait until then.
    async fn cool_down(&self, users: &[UserId], until_ms: Millis, now_ms: Millis) -> Result<()>;

    /// Those who have to wait, the longest wait first.
    async fn cooling_down(&self, now_ms: Millis, limit: usize) -> Result<Vec<CoolDown>>;

    /// This one need not wait any more. False if they did not.
    async fn end_cool_down(
        &self,
        user: &UserId,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool>;
}
