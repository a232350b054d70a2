//! An order's money, as its buyer and the operators see it: where it may be paid, what was opened or
//! paid, and what goes back.

use engine::Engine;
use ledger::{PaymentKind, PaymentRow, RefundReason};
use sale::{Currency, OrderStatus};
use serde::Serialize;
use utoipa::ToSchema;

use super::schemas;

/// Where an order may be paid.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct PayWith {
    #[schema(schema_with = schemas::provider)]
    provider: &'static str,
    /// How the buyer can come to it, the usual way first.
    #[schema(schema_with = schemas::pay_methods)]
    methods: Vec<&'static str>,
}

impl PayWith {
    /// The providers that take this currency.
    pub(super) fn all(engine: &Engine, currency: Currency) -> Vec<PayWith> {
        let takes = engine.payments().offered().filter(|provider| provider.takes(currency));
        takes
            .map(|provider| PayWith {
                provider: provider.name(),
                methods: provider.methods().iter().map(|method| method.as_str()).collect(),
            })
            .collect()
    }
}

/// The payment of an order: the one that counted, or the one that was opened last.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OrderPayment)]
pub(super) struct PaymentJson {
    provider: String,
    /// How the buyer came to the provider; null if that is not known.
    #[schema(schema_with = schemas::pay_method_or_null)]
    pub(super) method: Option<String>,
    /// `open`: the provider was asked, and has not told of money. `paid`: it has.
    #[schema(schema_with = schemas::payment_state)]
    state: &'static str,
    /// The provider's number of the charge, once it is paid.
    provider_txn: Option<String>,
    /// When it was opened, or when we heard of the money if it was opened elsewhere.
    opened_at: i64,
}

/// Money that goes back.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Refund)]
pub(super) struct RefundJson {
    provider: String,
    /// The charge that is given back, whole.
    provider_txn: String,
    pub(super) amount: i64,
    #[schema(value_type = String, example = "CNY")]
    currency: Currency,
    /// Why. Null if it was asked for by a release that did not say.
    #[schema(schema_with = schemas::refund_reason)]
    pub(super) reason: Option<RefundReason>,
    /// What the shop says about it.
    note: Option<String>,
    /// `pending` until the provider has done it.
    #[schema(schema_with = schemas::refund_state)]
    pub(super) state: &'static str,
    asked_at: Option<i64>,
    pub(super) done_at: Option<i64>,
}

/// What the rows of one order come to.
#[derive(Default)]
pub(super) struct OrderMoney {
    pub(super) payment: Option<PaymentJson>,
    pub(super) refunds: Vec<RefundJson>,
}

impl OrderMoney {
    /// `rows` are all of one order, oldest first.
    pub(super) fn of(status: OrderStatus, rows: &[PaymentRow]) -> OrderMoney {
        let paid = rows.iter().find(|row| row.kind == PaymentKind::Pay);
        let opened = |provider: Option<&str>| {
            let of = |row: &&PaymentRow| provider.is_none_or(|name| row.provider == name);
            rows.iter().filter(|row| row.kind == PaymentKind::Open).rfind(of)
        };
        let payment = match paid {
            Some(row) => Some(PaymentJson::of(row, opened(Some(&row.provider)))),
            // Of an order that is over, an open payment tells nobody anything.
            None if status == OrderStatus::Unpaid => {
                opened(None).map(|row| PaymentJson::of(row, Some(row)))
            }
            None => None,
        };
        OrderMoney { payment, refunds: refunds(status, rows) }
    }
}

impl PaymentJson {
    fn of(row: &PaymentRow, opened: Option<&PaymentRow>) -> PaymentJson {
        let paid = row.kind == PaymentKind::Pay;
        PaymentJson {
            provider: row.provider.clone(),
            method: opened.and_then(|opened| opened.method.clone()),
            state: if paid { "paid" } else { "open" },
            provider_txn: paid.then(|| row.provider_txn.clone()),
            opened_at: opened.unwrap_or(row).created_ms,
        }
    }
}

fn refunds(status: OrderStatus, rows: &[PaymentRow]) -> Vec<RefundJson> {
    let all = matches!(status, OrderStatus::Refunding | OrderStatus::Refunded);
    let done = |paid: &PaymentRow| {
        let of = |row: &&PaymentRow| {
            row.kind == PaymentKind::Refund
                && (&row.provider, &row.provider_txn) == (&paid.provider, &paid.provider_txn)
        };
        rows.iter().find(of).map(|row| row.created_ms)
    };
    let money = rows.iter().filter(|row| row.kind == PaymentKind::Pay);
    money
        .filter_map(|row| {
            let done_at = done(row);
            (all || done_at.is_some() || row.refund.is_some()).then(|| RefundJson {
                provider: row.provider.clone(),
                provider_txn: row.provider_txn.clone(),
                amount: row.amount.minor,
                currency: row.amount.currency,
                reason: row.refund.as_ref().map(|asked| asked.reason),
                note: row.refund.as_ref().and_then(|asked| asked.note.clone()),
                state: if done_at.is_some() { "done" } else { "pending" },
                asked_at: row.refund.as_ref().map(|asked| asked.asked_ms),
                done_at,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use ledger::RefundAsked;
    use sale::{Money, OrderNo};

    use super::*;

    fn row(kind: PaymentKind, provider: &str, txn: &str, at: i64) -> PaymentRow {
        PaymentRow {
            provider: provider.into(),
            provider_txn: txn.into(),
            order_no: "SK0381966054408192001".parse::<OrderNo>().unwrap(),
            kind,
            amount: Money::new(699_900, Currency::CNY),
            created_ms: at,
            method: (kind == PaymentKind::Open).then(|| "qr".into()),
            refund: None,
        }
    }

    #[test]
    fn the_payment_that_counted_is_shown_or_else_the_one_opened_last() {
        let mut rows = vec![row(PaymentKind::Open, "alipay", "SK", 1)];
        rows.push(row(PaymentKind::Open, "wechat", "SK", 2));
        let open = OrderMoney::of(OrderStatus::Unpaid, &rows).payment.unwrap();
        assert_eq!((open.provider.as_str(), open.state, open.opened_at), ("wechat", "open", 2));
        assert!(OrderMoney::of(OrderStatus::Closed, &rows).payment.is_none());
        rows.push(row(PaymentKind::Pay, "alipay", "A1", 3));
        let paid = OrderMoney::of(OrderStatus::Paid, &rows).payment.unwrap();
        let txn = paid.provider_txn.as_deref();
        assert_eq!((paid.provider.as_str(), paid.state, txn), ("alipay", "paid", Some("A1")));
        assert_eq!((paid.method.as_deref(), paid.opened_at), (Some("qr"), 1));
    }

    #[test]
    fn what_goes_back_says_why_and_whether_it_is_there() {
        let asked = RefundAsked { reason: RefundReason::Double, note: None, asked_ms: 5 };
        let second = PaymentRow { refund: Some(asked), ..row(PaymentKind::Pay, "wechat", "W2", 5) };
        let mut rows = vec![row(PaymentKind::Pay, "wechat", "W1", 3), second];
        let refunds = OrderMoney::of(OrderStatus::Paid, &rows).refunds;
        assert_eq!(refunds.len(), 1, "the first payment stays");
        assert_eq!((refunds[0].state, refunds[0].reason), ("pending", Some(RefundReason::Double)));
        rows.push(row(PaymentKind::Refund, "wechat", "W2", 9));
        let refunds = OrderMoney::of(OrderStatus::Paid, &rows).refunds;
        assert_eq!((refunds[0].state, refunds[0].done_at), ("done", Some(9)));
        let all = OrderMoney::of(OrderStatus::Refunding, &rows).refunds;
        assert_eq!((all.len(), all[0].reason), (2, None), "an earlier release did not say why");
    }
}
