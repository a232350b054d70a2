//! What an order copies from its item, and what a change of stock must respect.

use sale::{Claim, Currency, Invalid, Millis, Money, OrderStatus, Reason, STOCK_MAX, VoidReason};

/// An item as a new order needs to know it.
pub(crate) struct Offer {
    pub(crate) activity_id: i64,
    pub(crate) name: String,
    pub(crate) price: Money,
    pub(crate) stock: i64,
    pub(crate) version: i64,
    pub(crate) pay_within_ms: Millis,
    pub(crate) limit_per_user: u32,
    /// The shop's backend may want to be told of what becomes of it.
    pub(crate) has_webhooks: bool,
    /// The volume that its orders are written in.
    pub(crate) volume: i64,
    /// Some of its orders are in the archive.
    pub(crate) is_archived: bool,
}

impl Offer {
    /// Of an item that the ledger does not know.
    pub(crate) fn unknown() -> Offer {
        Offer {
            activity_id: 0,
            name: String::new(),
            price: Money::new(0, Currency::NONE),
            stock: 0,
            version: 0,
            pay_within_ms: 0,
            limit_per_user: 0,
            has_webhooks: true,
            volume: 0,
            is_archived: false,
        }
    }
}

/// How a claim enters the table of orders.
pub(crate) enum EnterAs {
    Unpaid,
    Void(VoidReason),
}

/// What an order is beside its claim and its offer.
pub(crate) struct OrderTerms {
    pub(crate) status: OrderStatus,
    pub(crate) reason: Option<&'static str>,
    pub(crate) amount: i64,
    pub(crate) deadline_ms: Millis,
    pub(crate) closed_ms: Option<Millis>,
}

impl OrderTerms {
    /// An error says why the claim can never become a live order.
    pub(crate) fn of(
        offer: &Offer,
        claim: &Claim,
        enter_as: &EnterAs,
        now_ms: Millis,
    ) -> Result<OrderTerms, String> {
        let amount = offer.price.times(claim.quantity).map(|amount| amount.minor);
        Ok(match enter_as {
            EnterAs::Unpaid => OrderTerms {
                status: OrderStatus::Unpaid,
                reason: None,
                amount: amount.ok_or_else(|| format!("{} costs too much", claim.order_no))?,
                deadline_ms: now_ms.saturating_add(offer.pay_within_ms),
                closed_ms: None,
            },
            EnterAs::Void(reason) => OrderTerms {
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
pub(crate) struct StockLevel {
    pub(crate) name: String,
    pub(crate) stock: i64,
    pub(crate) total: i64,
    pub(crate) version: i64,
}

impl StockLevel {
    /// May an operator change the stock by this much?
    pub(crate) fn check(&self, delta: i64) -> Result<(), Invalid> {
        let refused = |problem: String| Err(Invalid::new("delta", problem));
        if delta == 0 {
            return refused("must not be zero".into());
        }
        if self.stock.saturating_add(delta) < 0 {
            return refused(format!("takes more than there is: {} units are not sold", self.stock));
        }
        if self.total.saturating_add(delta) > STOCK_MAX {
            return refused(format!("adds too much: an item has at most {STOCK_MAX} units"));
        }
        Ok(())
    }
}
