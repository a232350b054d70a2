//! The trade bill: a table in UTF-8, its columns named in the first line, a backtick before each value, and
//! a summary at its end.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use sale::{Currency, Money};

use crate::{BillLine, beijing, certificate::hex};

/// Names of columns as WeChat writes them.
const TIME: &str = "交易时间";
const TRANSACTION: &str = "微信订单号";
const ORDER: &str = "商户订单号";
const STATE: &str = "交易状态";
const CURRENCY: &str = "货币种类";
const TOTAL: &str = "订单金额";
const REFUND: &str = "申请退款金额";
const REFUND_STATE: &str = "退款状态";

/// SHA-1 is what WeChat gives with a bill; its own signature is over that digest.
pub(super) fn has_digest(bill: &[u8], sha1_hex: &str) -> bool {
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, bill).as_ref()).eq_ignore_ascii_case(sha1_hex)
}

pub(super) fn lines(bill: &[u8]) -> Result<Vec<BillLine>, String> {
    let text = std::str::from_utf8(bill).map_err(|_| "the bill is not UTF-8")?;
    let mut rows = text.trim_start_matches('\u{feff}').lines();
    let head: Vec<&str> = rows.next().unwrap_or_default().trim_end().split(',').collect();
    let column = |name: &str| {
        let at = head.iter().position(|column| column.trim() == name);
        at.ok_or_else(|| format!("the bill has no column {name}"))
    };
    let (time, transaction, order) = (column(TIME)?, column(TRANSACTION)?, column(ORDER)?);
    let (state, currency, total) = (column(STATE)?, column(CURRENCY)?, column(TOTAL)?);
    let (refund, refund_state) = (column(REFUND)?, column(REFUND_STATE)?);
    let mut lines = Vec::new();
    // The summary has a line of names of its own, without backticks.
    for row in rows.map_while(|row| row.trim_end().strip_prefix('`')) {
        let values: Vec<&str> = row.split(",`").collect();
        let bad = || format!("a line of the bill cannot be read: {:.80}", row);
        let value = |at: usize| values.get(at).map(|value| value.trim()).ok_or_else(bad);
        let is_refund = match value(state)? {
            "SUCCESS" => false,
            "REFUND" | "REVOKED" => true,
            _ => return Err(bad()),
        };
        // Money that could not be given back did not move.
        if is_refund && ["FAIL", "CLOSED"].contains(&value(refund_state)?) {
            continue;
        }
        let currency: Currency = value(currency)?.parse().map_err(|_| bad())?;
        let amount = value(if is_refund { refund } else { total })?;
        lines.push(BillLine {
            provider_txn: value(transaction)?.to_owned(),
            order_no: value(order)?.to_owned(),
            amount: Money::from_text(amount, currency).map_err(|_| bad())?,
            at_ms: beijing::parse_plain(value(time)?).ok_or_else(bad)?,
            refund: is_refund,
        });
    }
    Ok(lines)
}
