//! `seckill order`: one order, and what an operator does with its money.

use clap::{Args, Subcommand};
use sale::{Currency, Money, OrderNo};
use serde_json::{Value, json};

use super::{AdminApi, Failure};

#[derive(Subcommand)]
pub(super) enum OrderCommand {
    /// Show it, its payments and why money goes back
    Show(One),
    /// Give an unpaid order up; its units are on sale again
    Cancel(One),
    /// Give the money of a paid order back; its units are on sale again
    Refund {
        #[command(flatten)]
        one: One,
        /// Why, for the buyer and for whoever looks later
        #[arg(long)]
        reason: Option<String>,
    },
    /// Write down that it was paid in a way that no provider tells of
    MarkPaid {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        said: Said,
    },
    /// Write down that its money went back in a way that no provider tells of
    ///
    /// Only after the provider's own pages say that it did not give it back: nobody asks it any more then.
    MarkRefunded {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        said: Said,
        /// Which payment, if it has several: its provider_txn
        #[arg(long)]
        payment: Option<String>,
    },
}

#[derive(Args)]
pub(super) struct One {
    /// The order number, SK and 19 digits
    order_no: OrderNo,
}

#[derive(Args)]
pub(super) struct Said {
    /// By which it is found elsewhere, such as the number of a bank transfer; the same again counts once
    #[arg(long)]
    reference: String,
    /// Why; stands in the audit
    #[arg(long)]
    reason: String,
}

pub(super) async fn run(api: &AdminApi, command: OrderCommand) -> Result<(), Failure> {
    let (One { order_no }, verb, body) = match command {
        OrderCommand::Show(One { order_no }) => {
            let shown = api.get(&format!("/admin/orders/{order_no}")).await?;
            print!("{}", order_text(&shown));
            return Ok(());
        }
        OrderCommand::Cancel(one) => (one, "cancel", json!({})),
        OrderCommand::Refund { one, reason } => {
            let body = reason.map_or(json!({}), |reason| json!({"note": reason}));
            (one, "refund", body)
        }
        OrderCommand::MarkPaid { one, said: Said { reference, reason } } => {
            (one, "mark-paid", json!({"reference": reference, "reason": reason}))
        }
        OrderCommand::MarkRefunded { one, said: Said { reference, reason }, payment } => {
            let mut body = json!({"reference": reference, "reason": reason});
            if let Some(payment) = payment {
                body["provider_txn"] = payment.into();
            }
            (one, "mark-refunded", body)
        }
    };
    let shown = api.post(&format!("/admin/orders/{order_no}/{verb}"), &body).await?;
    print!("{}", order_text(&shown));
    Ok(())
}

fn order_text(shown: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let order = &shown["order"];
    let mut lines = vec![format!(
        "{}  {:9}  {}  {}",
        text(&order["order_no"]),
        text(&order["status"]),
        amount(order),
        text(&order["item_name"])
    )];
    let payments = shown["payments"].as_array().into_iter().flatten();
    lines.extend(payments.map(|payment| {
        format!(
            "  {:6}  {:9}  {}  {}",
            text(&payment["kind"]),
            text(&payment["provider"]),
            text(&payment["provider_txn"]),
            amount(payment)
        )
    }));
    lines.join("\n") + "\n"
}

/// In the currency's own units, as people write it.
fn amount(of: &Value) -> String {
    let code = of["currency"].as_str().unwrap_or_default();
    match (of["amount"].as_i64(), code.parse::<Currency>()) {
        (Some(minor), Ok(currency)) => Money::new(minor, currency).to_string(),
        _ => format!("{} {code}", of["amount"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_in_the_currencys_own_units() {
        let of = |minor: i64, currency: &str| {
            json!({"order": {"order_no": "SK1", "status": "paid", "amount": minor, "currency": currency,
                    "item_name": "Tea"},
                "payments": [{"kind": "pay", "provider": "external", "provider_txn": "T-1",
                    "amount": minor, "currency": currency}]})
        };
        for (minor, currency, shown) in
            [(699_900, "CNY", "6999.00 CNY"), (980, "JPY", "980 JPY"), (1_234, "KWD", "1.234 KWD")]
        {
            let told = order_text(&of(minor, currency));
            assert_eq!(told.matches(shown).count(), 2, "{told}");
        }
    }
}
