//! What WeChat says of a payment or a refund, in answers and in notices alike.

use sale::{Currency, Money, OrderNo, parse_iso_time};
use serde::Deserialize;

use super::seal::Sealed;
use crate::{Notice, NoticeError, NoticeOutcome, Paid};

/// A notice as it is posted.
#[derive(Deserialize)]
pub(super) struct Posted {
    pub(super) event_type: String,
    pub(super) resource: Sealed,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Transaction {
    pub(super) appid: String,
    pub(super) mchid: String,
    pub(super) out_trade_no: String,
    #[serde(default)]
    transaction_id: String,
    pub(super) trade_state: String,
    #[serde(default)]
    success_time: String,
    amount: Option<Amount>,
}

#[derive(Clone, Debug, Deserialize)]
struct Amount {
    total: i64,
    #[serde(default = "cny")]
    currency: Currency,
}

fn cny() -> Currency {
    Currency::CNY
}

impl Transaction {
    /// The money, if it is said to have come.
    pub(super) fn paid(&self) -> Result<Paid, String> {
        let amount = self.amount.as_ref().ok_or("it names no amount")?;
        if self.transaction_id.is_empty() || amount.total < 0 {
            return Err("it names no transaction, or an amount below nothing".into());
        }
        let paid_ms = parse_iso_time(&self.success_time).map_err(|_| "it names no time")?;
        Ok(Paid {
            provider_txn: self.transaction_id.clone(),
            amount: Money::new(amount.total, amount.currency),
            paid_ms,
        })
    }

    pub(super) fn notice(&self, merchant_id: &str, app_id: &str) -> Result<Notice, NoticeError> {
        if self.mchid != merchant_id || self.appid != app_id {
            return Err(NoticeError::OtherMerchant);
        }
        let order_no = order_no(&self.out_trade_no)?;
        if self.trade_state != "SUCCESS" {
            return Ok(Notice {
                provider_txn: self.transaction_id.clone(),
                order_no,
                amount: Money::new(0, Currency::CNY),
                paid_ms: 0,
                outcome: NoticeOutcome::Failed,
            });
        }
        let Paid { provider_txn, amount, paid_ms } = self.paid().map_err(NoticeError::Malformed)?;
        Ok(Notice { provider_txn, order_no, amount, paid_ms, outcome: NoticeOutcome::Paid })
    }
}

/// A refund as a notice tells of it. It names no app, and no currency: both are the charge's.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RefundNotice {
    mchid: String,
    out_trade_no: String,
    transaction_id: String,
    refund_status: String,
    #[serde(default)]
    success_time: String,
    amount: RefundAmount,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct RefundAmount {
    pub(super) refund: i64,
}

impl RefundNotice {
    pub(super) fn notice(self, merchant_id: &str) -> Result<Notice, NoticeError> {
        if self.mchid != merchant_id {
            return Err(NoticeError::OtherMerchant);
        }
        let outcome = match self.refund_status.as_str() {
            "SUCCESS" => NoticeOutcome::Refunded,
            "CLOSED" | "ABNORMAL" => NoticeOutcome::RefundFailed,
            other => return Err(NoticeError::Malformed(format!("refund_status is {other:?}"))),
        };
        Ok(Notice {
            order_no: order_no(&self.out_trade_no)?,
            provider_txn: self.transaction_id,
            amount: Money::new(self.amount.refund, Currency::CNY),
            paid_ms: parse_iso_time(&self.success_time).unwrap_or(0),
            outcome,
        })
    }
}

/// A refund as it is answered.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Refund {
    pub(super) out_refund_no: String,
    pub(super) transaction_id: String,
    pub(super) status: String,
    pub(super) amount: RefundAmount,
}

fn order_no(text: &str) -> Result<OrderNo, NoticeError> {
    text.parse().map_err(|_| NoticeError::Malformed("out_trade_no is no order of ours".into()))
}
