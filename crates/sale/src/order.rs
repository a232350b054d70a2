//! An order and the moves it may make.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ActivityId, Epoch, ItemId, Millis, Money, OrderNo, UserId};

/// The number is what the ledger stores; the seeds use 0, 1 and 2 with the same meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderStatus {
    /// Admitted by the gate, not in the ledger yet. Never stored.
    Queued,
    Unpaid,
    Paid,
    Closed,
    Refunding,
    Refunded,
    Void,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order cannot go from {from} to {to}")]
pub struct IllegalMove {
    pub from: OrderStatus,
    pub to: OrderStatus,
}

impl OrderStatus {
    pub const ALL: [OrderStatus; 7] = [
        OrderStatus::Queued,
        OrderStatus::Unpaid,
        OrderStatus::Paid,
        OrderStatus::Closed,
        OrderStatus::Refunding,
        OrderStatus::Refunded,
        OrderStatus::Void,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            OrderStatus::Queued => "queued",
            OrderStatus::Unpaid => "unpaid",
            OrderStatus::Paid => "paid",
            OrderStatus::Closed => "closed",
            OrderStatus::Refunding => "refunding",
            OrderStatus::Refunded => "refunded",
            OrderStatus::Void => "void",
        }
    }

    /// The number in the ledger's `status` column.
    pub fn code(self) -> i64 {
        match self {
            OrderStatus::Queued => -1,
            OrderStatus::Unpaid => 0,
            OrderStatus::Paid => 1,
            OrderStatus::Closed => 2,
            OrderStatus::Refunding => 3,
            OrderStatus::Refunded => 4,
            OrderStatus::Void => 5,
        }
    }

    pub fn from_code(code: i64) -> Option<Self> {
        OrderStatus::ALL.into_iter().find(|status| status.code() == code)
    }

    /// Does an order in this status own its units?
    pub fn is_live(self) -> bool {
        matches!(self, OrderStatus::Queued | OrderStatus::Unpaid | OrderStatus::Paid)
    }

    /// The whole state machine. Every move in the ledger is a compare-and-set on one of these.
    pub fn may_become(self, to: OrderStatus) -> Result<(), IllegalMove> {
        use OrderStatus::*;
        match (self, to) {
            (Queued, Unpaid | Void)
            | (Unpaid, Paid | Closed)
            | (Paid, Refunding)
            // Money that arrives for an order that was closed meanwhile.
            | (Closed, Refunding)
            | (Refunding, Refunded) => Ok(()),
            _ => Err(IllegalMove { from: self, to }),
        }
    }
}

impl fmt::Display for OrderStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for OrderStatus {
    type Err = ();
    fn from_str(s: &str) -> Result<Self, ()> {
        OrderStatus::ALL.into_iter().find(|status| status.as_str() == s).ok_or(())
    }
}

/// Why an order was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    Timeout,
    Cancelled,
}

/// Why a claim did not become an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoidReason {
    /// The ledger had no unit left for it.
    StockShort,
    /// The buyer already owns an order of this item.
    AlreadyBought,
    /// More units than one buyer may have. The gate says so first; this is for a gate that did not.
    OverLimit,
    /// The item does not exist in the ledger.
    UnknownItem,
    /// An operator gave up on it.
    Operator,
    /// The gate had lost it, and when it was presented again no unit was left or the sale was over.
    Lost,
}

/// Why an order ended without being paid, as the buyer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Timeout,
    Cancelled,
    StockShort,
    AlreadyBought,
    OverLimit,
    UnknownItem,
    Operator,
    Lost,
}

impl Reason {
    pub const ALL: [Reason; 8] = [
        Reason::Timeout,
        Reason::Cancelled,
        Reason::StockShort,
        Reason::AlreadyBought,
        Reason::OverLimit,
        Reason::UnknownItem,
        Reason::Operator,
        Reason::Lost,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Timeout => "timeout",
            Reason::Cancelled => "cancelled",
            Reason::StockShort => "stock_short",
            Reason::AlreadyBought => "already_bought",
            Reason::OverLimit => "over_limit",
            Reason::UnknownItem => "unknown_item",
            Reason::Operator => "operator",
            Reason::Lost => "lost",
        }
    }
}

impl FromStr for Reason {
    type Err = ();
    fn from_str(s: &str) -> Result<Self, ()> {
        Reason::ALL.into_iter().find(|reason| reason.as_str() == s).ok_or(())
    }
}

impl From<CloseReason> for Reason {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::Timeout => Reason::Timeout,
            CloseReason::Cancelled => Reason::Cancelled,
        }
    }
}

impl From<VoidReason> for Reason {
    fn from(reason: VoidReason) -> Self {
        match reason {
            VoidReason::StockShort => Reason::StockShort,
            VoidReason::AlreadyBought => Reason::AlreadyBought,
            VoidReason::OverLimit => Reason::OverLimit,
            VoidReason::UnknownItem => Reason::UnknownItem,
            VoidReason::Operator => Reason::Operator,
            VoidReason::Lost => Reason::Lost,
        }
    }
}

/// The ledger's row made from a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub order_no: OrderNo,
    pub user: UserId,
    pub activity: ActivityId,
    pub item: ItemId,
    pub item_name: String,
    pub price: Money,
    pub quantity: u32,
    pub amount: Money,
    pub status: OrderStatus,
    pub reason: Option<Reason>,
    pub epoch: Epoch,
    pub created_ms: Millis,
    pub pay_deadline_ms: Millis,
    pub paid_ms: Option<Millis>,
    pub closed_ms: Option<Millis>,
    /// The shop's id of what was sold, as the item has it. It cannot change once there are orders.
    #[serde(default)]
    pub sku: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::{OrderStatus::*, *};

    #[test]
    fn only_the_drawn_moves_are_legal() {
        let drawn = [
            (Queued, Unpaid),
            (Queued, Void),
            (Unpaid, Paid),
            (Unpaid, Closed),
            (Paid, Refunding),
            (Closed, Refunding),
            (Refunding, Refunded),
        ];
        for from in OrderStatus::ALL {
            for to in OrderStatus::ALL {
                assert_eq!(
                    from.may_become(to).is_ok(),
                    drawn.contains(&(from, to)),
                    "{from} to {to}"
                );
            }
        }
    }

    #[test]
    fn codes_and_names_go_both_ways() {
        for status in OrderStatus::ALL {
            assert_eq!(OrderStatus::from_code(status.code()), Some(status));
            assert_eq!(status.as_str().parse(), Ok(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
        assert_eq!(OrderStatus::from_code(6), None);
    }
}
