//! Money that an operator writes down by hand, because no provider can tell of it: a transfer that came to
//! the bank, or money that was handed back.
//!
//! It goes by the same compare-and-set as a provider's, with its audit entry in the same transaction. What
//! was marked as paid has no provider: should it have to go back, an operator does that, too, and says so.

use ledger::Marked;
use sale::{Invalid, Millis, OrderNo};
use serde_json::json;

use super::{OperateError, Operations, Result};
use crate::actor::{Actor, audit_entry};

/// The provider, in the ledger, of money that was marked as paid by hand.
pub const MANUAL: &str = "manual";
/// Why money goes back or was taken by hand is said in at most so many characters.
pub const REASON_CHARS_MAX: usize = 200;
/// The number by which it is found elsewhere, on a bank's statement or in the provider's pages.
pub const REFERENCE_CHARS_MAX: usize = 128;

/// What an operator says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByHand {
    pub reference: String,
    pub reason: String,
}

impl ByHand {
    fn check(&self) -> Result<()> {
        check_reason(&self.reason)?;
        if !sale::is_plain_id(&self.reference, REFERENCE_CHARS_MAX) {
            let rule = format!("must be 1 to {REFERENCE_CHARS_MAX} visible characters");
            return Err(Invalid::new("reference", rule).into());
        }
        Ok(())
    }
}

/// One line that is not empty.
fn check_reason(reason: &str) -> Result<()> {
    let chars = reason.chars().count();
    if (1..=REASON_CHARS_MAX).contains(&chars) && !reason.chars().any(char::is_control) {
        return Ok(());
    }
    let rule = format!("must be 1 to {REASON_CHARS_MAX} characters on one line");
    Err(Invalid::new("reason", rule).into())
}

impl Operations {
    /// The whole amount of an unpaid order came in, at this time unless it is not known.
    pub async fn mark_paid(
        &self,
        who: impl Into<Actor>,
        no: OrderNo,
        said: &ByHand,
        paid_ms: Option<Millis>,
    ) -> Result<()> {
        said.check()?;
        let detail = json!({"reference": said.reference, "reason": said.reason});
        let entry = audit_entry(who, "order.mark_paid", format!("order:{no}"), detail);
        let now_ms = self.shared.now_ms();
        let (ledger, at_ms) = (&self.shared.ledger, paid_ms.unwrap_or(now_ms));
        done(ledger.mark_paid(MANUAL, &said.reference, no, at_ms, &entry, now_ms).await?)?;
        self.shared.wake.outbox_written();
        Ok(())
    }

    /// Money of an order went back some other way: this payment, or the only one.
    pub async fn mark_refunded(
        &self,
        who: impl Into<Actor>,
        no: OrderNo,
        said: &ByHand,
        provider_txn: Option<&str>,
    ) -> Result<()> {
        said.check()?;
        let detail = json!({
            "reference": said.reference, "reason": said.reason, "provider_txn": provider_txn,
        });
        let entry = audit_entry(who, "order.mark_refunded", format!("order:{no}"), detail);
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        done(ledger.mark_refunded(no, provider_txn, &said.reason, &entry, now_ms).await?)?;
        self.shared.wake.outbox_written();
        Ok(())
    }
}

fn done(marked: Marked) -> Result<()> {
    match marked {
        Marked::Done | Marked::Repeated => Ok(()),
        Marked::Was(status) => Err(OperateError::Conflict(status.as_str())),
        Marked::UsedFor(other) => Err(OperateError::ReferenceUsed(other)),
    }
}

#[cfg(test)]
mod tests {
    use ledger::{OUTBOX_NOBODY, OutboxKind};
    use sale::OrderStatus;

    use super::*;
    use crate::{jobs::Job, test_engine::TestEngine};

    fn said(reference: &str) -> ByHand {
        ByHand { reference: reference.into(), reason: "a transfer to our bank".into() }
    }

    #[tokio::test]
    async fn money_marked_by_hand_counts_once_and_goes_back_by_hand() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let (ann, bob) = (shop.buy(item, "ann").await, shop.buy(item, "bob").await);
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        let ops = &engine.operations;
        for _ in 0..2 {
            ops.mark_paid("root", ann, &said("B1"), None).await.unwrap();
            assert_eq!(status(ann).await, OrderStatus::Paid);
        }
        let used = ops.mark_paid("root", bob, &said("B1"), None).await;
        assert!(matches!(used, Err(OperateError::ReferenceUsed(_))), "{used:?}");
        let again = ops.mark_paid("root", ann, &said("B2"), None).await;
        assert!(matches!(again, Err(OperateError::Conflict("paid"))), "{again:?}");
        let unpaid = ops.mark_refunded("root", bob, &said("B3"), None).await;
        assert!(matches!(unpaid, Err(OperateError::Conflict("unpaid"))), "{unpaid:?}");
        for bad in ["", "two words"] {
            let refused = ops.mark_paid("root", bob, &said(bad), None).await;
            assert!(matches!(refused, Err(OperateError::Invalid(_))), "{refused:?}");
        }
        // Nobody but an operator can give it back, and nobody is asked for ever.
        ops.refund("root", ann, Some("broken")).await.unwrap();
        engine.jobs.refund.run().await.unwrap();
        assert_eq!(status(ann).await, OrderStatus::Refunding);
        for _ in 0..2 {
            ops.mark_refunded("root", ann, &said("B4"), None).await.unwrap();
            assert_eq!(status(ann).await, OrderStatus::Refunded);
        }
        let due = engine.shared.ledger.outbox_due(OutboxKind::Refund, OUTBOX_NOBODY, i64::MAX, 9);
        assert_eq!(due.await.unwrap(), []);
        let audit = engine.shared.ledger.audit_log(None, 20).await.unwrap();
        let of = |action: &str| audit.iter().filter(|row| row.action == action).count();
        assert_eq!((of("order.mark_paid"), of("order.mark_refunded")), (2, 2));
    }

    #[tokio::test]
    async fn money_that_a_provider_does_not_give_back_is_handed_back_and_marked() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let no = shop.buy(item, "ann").await;
        let first = shop.bank.money(no);
        engine.payments.credit(&first).await.unwrap();
        let second = ledger::PaymentNotice { provider_txn: "T2".into(), ..first.clone() };
        engine.payments.credit(&second).await.unwrap();
        let ops = &engine.operations;
        let which = ops.mark_refunded("root", no, &said("H1"), None).await;
        assert!(matches!(which, Err(OperateError::Invalid(why)) if why.field == "provider_txn"));
        ops.mark_refunded("root", no, &said("H1"), Some("T2")).await.unwrap();
        let order = engine.shared.ledger.order(no).await.unwrap().unwrap();
        assert_eq!(order.status, OrderStatus::Paid, "the first one still pays it");
        let stock = async || engine.shared.ledger.item(item).await.unwrap().unwrap().stock;
        assert_eq!(stock().await, 9);
        ops.mark_refunded("root", no, &said("H2"), None).await.unwrap();
        let order = engine.shared.ledger.order(no).await.unwrap().unwrap();
        assert_eq!((order.status, stock().await), (OrderStatus::Refunded, 10));
        engine.jobs.refund.run().await.unwrap();
        assert_eq!(shop.bank.calls(), 0, "the bank gives nothing back twice");
        assert_eq!(engine.reconcile.run(true).await.unwrap().payments.len(), 0);
    }
}
