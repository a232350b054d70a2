//! What an order copies from its item, and what a change of stock must respect.

use sale::{Claim, Currency, Invalid, Millis, Money, OrderStatus, Reason, STOCK_MAX, VoidReason};

/// ISO 4217 for "no currency": the price of an item nobody knows.
const NO_CURRENCY: &str = "XXX";

/// An item as a new order needs to know it.
pub(crate) struct Shelf {
    pub(crate) activity_id: i64,
    pub(crate) name: String,
    pub(crate) price: Money,
    pub(crate) stock: i64,
    pub(crate) version: i64,
    pub(crate) pay_within_ms: Millis,
    pub(crate) limit_per_user: u32,
}

impl Shelf {
    /// The shelf of an item the ledger does not know.
    pub(crate) fn empty() -> Result<Shelf, String> {
        let currency: Currency = NO_CURRENCY.parse().map_err(|_| "XXX is a currency")?;
        Ok(Shelf {
            activity_id: 0,
            name: String::new(),
            price: Money::new(0, currency),
            stock: 0,
            version: 0,
            pay_within_ms: 0,
            limit_per_user: 0,
        })
    }
}

/// How a claim enters the table of orders.
pub(crate) enum Entry {
    Unpaid,
    Void(VoidReason),
}

/// What an order is beside its claim and its shelf.
pub(crate) struct Terms {
    pub(crate) status: OrderStatus,
    pub(crate) reason: Option<&'static str>,
    pub(crate) amount: i64,
    pub(crate) deadline_ms: Millis,
    pub(crate) closed_ms: Option<Millis>,
}

impl Terms {
    /// An error says why the claim can never become a live order.
    pub(crate) fn of(
        shelf: &Shelf,
        claim: &Claim,
        entry: &Entry,
        now_ms: Millis,
    ) -> Result<Terms, String> {
        let amount = shelf.price.times(claim.quantity).map(|amount| amount.minor);
        Ok(match entry {
            Entry::Unpaid => Terms {
                status: OrderStatus::Unpaid,
                reason: None,
                amount: amount.ok_or_else(|| format!("{} costs too much", claim.order_no))?,
                deadline_ms: now_ms.saturating_add(shelf.pay_within_ms),
                closed_ms: None,
            },
            Entry::Void(reason) => Terms {
                status: OrderStatus::Void,
                reason: Some(Reason::from(*reason).as_str()),
                amount: amount.unwrap_or(0),
                deadline_ms: now_ms,
                closed_ms: Some(now_ms),
            },
        })
    }
}

/// An item's stock as a change of it needs to know it.
pub(crate) struct Level {
    pub(crate) name: String,
    pub(crate) stock: i64,
    pub(crate) total: i64,
    pub(crate) version: i64,
}

impl Level {
    /// The stock after an operator's change, or why it cannot be made.
    pub(crate) fn adjusted(&self, delta: i64) -> Result<i64, Invalid> {
        let refused = |problem: String| Err(Invalid::new("delta", problem));
        if delta == 0 {
            return refused("must not be zero".into());
        }
        let stock = self.stock.saturating_add(delta);
        if stock < 0 {
            return refused(format!("only {} units are not sold", self.stock));
        }
        if self.total.saturating_add(delta) > STOCK_MAX {
            return refused(format!("the total may be {STOCK_MAX} at most"));
        }
        Ok(stock)
    }
}
