//! Orders as comma-separated values (RFC 4180), for spreadsheets.
//!
//! A spreadsheet runs what looks like a formula. User ids and item names are other people's words,
//! so a cell that begins like one is given an apostrophe, which spreadsheets take for "text". An order
//! that was paid twice names both payments, the one that counted first; so does what goes back.

use std::{collections::HashMap, fmt::Write};

use ledger::{PaymentKind, PaymentRow, RefundReason};
use sale::{Order, OrderNo};

use super::super::order_money::OrderMoney;

pub(super) const HEAD: &str = "order_no,user_id,activity_id,item_id,item_name,quantity,price,amount,\
currency,status,reason,created_at,pay_deadline,paid_at,closed_at,provider,provider_txn,sku,method,\
refund_state,refund_reason,refund_amount,refunded_at\r\n";

/// One line per order. `money` is what is on record of their payments, oldest first.
pub(super) fn lines(orders: &[Order], money: &HashMap<OrderNo, Vec<PaymentRow>>) -> String {
    let mut text = String::with_capacity(orders.len() * 256);
    for order in orders {
        line(&mut text, order);
        let rows = money.get(&order.order_no).map_or(&[][..], Vec::as_slice);
        let paid: Vec<&PaymentRow> =
            rows.iter().filter(|row| row.kind == PaymentKind::Pay).collect();
        let OrderMoney { payment, refunds } = OrderMoney::of(order.status, rows);
        let cells = [
            joined(&paid, |row| row.provider.clone()),
            joined(&paid, |row| row.provider_txn.clone()),
            order.sku.clone().unwrap_or_default(),
            payment.and_then(|payment| payment.method).unwrap_or_default(),
            joined(&refunds, |refund| refund.state.into()),
            joined(&refunds, |refund| refund.reason.map_or("", RefundReason::as_str).into()),
            joined(&refunds, |refund| refund.amount.to_string()),
            joined(&refunds, |refund| refund.done_at.map(|at| at.to_string()).unwrap_or_default()),
        ];
        for value in &cells {
            text.push(',');
            cell(&mut text, value);
        }
        text.push_str("\r\n");
    }
    text
}

/// What each of several says, in one cell.
fn joined<T>(several: &[T], each: impl Fn(&T) -> String) -> String {
    several.iter().map(each).collect::<Vec<_>>().join(";")
}

fn line(text: &mut String, order: &Order) {
    let optional = |ms: Option<i64>| ms.map(|ms| ms.to_string()).unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = write!(text, "{},", order.order_no);
    cell(text, order.user.as_str());
    let _ = write!(text, ",{},{},", order.activity, order.item);
    cell(text, &order.item_name);
    let _ = write!(
        text,
        ",{},{},{},{},{},{},{},{},{},{}",
        order.quantity,
        order.price.minor,
        order.amount.minor,
        order.amount.currency,
        order.status,
        order.reason.map_or("", sale::Reason::as_str),
        order.created_ms,
        order.pay_deadline_ms,
        optional(order.paid_ms),
        optional(order.closed_ms),
    );
}

/// A value as one cell of a line.
pub(crate) fn cell(text: &mut String, value: &str) {
    let formula = value.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
        || value.starts_with(['\t', '\r', '\n']);
    let quoted = formula || value.contains([',', '"', '\r', '\n', ' ', ';']);
    if !quoted {
        text.push_str(value);
        return;
    }
    text.push('"');
    if formula {
        text.push('\'');
    }
    text.push_str(&value.replace('"', "\"\""));
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        for (value, written) in [
            ("u1002", "u1002"),
            ("iPhone 15", "\"iPhone 15\""),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=1+1", "\"'=1+1\""),
            ("+86139", "\"'+86139\""),
            ("-5", "\"'-5\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            (" =1", "\"' =1\""),
            ("＝1", "\"'＝1\""),
            ("\t=1", "\"'\t=1\""),
            ("手机", "手机"),
            ("", ""),
        ] {
            let mut text = String::new();
            cell(&mut text, value);
            assert_eq!(text, written, "{value:?}");
        }
    }
}
