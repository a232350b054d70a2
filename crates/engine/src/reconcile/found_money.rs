//! Money that was found by asking or on a bill: its provider has it, and no notice of it came.

use ledger::{Credit, PaymentNotice};
use sale::OrderNo;
use serde_json::json;

use super::Finding;
use crate::{NoticeFailure, Payments, StoreError, shared::Shared};

/// Credits it as its notice would have done. Nothing is found if the notice came after all.
pub(super) async fn credit(
    payments: &Payments,
    money: &PaymentNotice,
    mut finding: Finding,
) -> Result<Option<Finding>, StoreError> {
    let how = match payments.credit(money).await {
        Ok(Credit::Repeated) => return Ok(None),
        Ok(Credit::Refunding(_)) => "the order was over, the money goes back",
        Ok(_) => "credited",
        Err(NoticeFailure::Ledger(error)) => return Err(error.into()),
        // Somebody was woken already.
        Err(failure) => {
            finding.detail.push_str(&format!(", but {failure}"));
            return Ok(Some(finding));
        }
    };
    healed(&payments.shared, money.order_no, finding, how).await.map(Some)
}

/// Put right, and written down that it was.
pub(super) async fn healed(
    shared: &Shared,
    no: OrderNo,
    mut finding: Finding,
    how: &str,
) -> Result<Finding, StoreError> {
    finding.healed = Some(how.into());
    let detail = json!({"how": how, "findings": [&finding]});
    shared.audit("system", "reconcile.heal", format!("order:{no}"), detail).await?;
    Ok(finding)
}
