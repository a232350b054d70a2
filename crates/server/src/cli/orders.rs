//! `seckill order`: one order, and what an operator does with its money.

use clap::{Args, Subcommand};
use sale::OrderNo;
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
            print(&shown);
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
    print(&api.post(&format!("/admin/orders/{order_no}/{verb}"), &body).await?);
    Ok(())
}

fn print(shown: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let order = &shown["order"];
    println!(
        "{}  {:9}  {} {}  {}",
        text(&order["order_no"]),
        text(&order["status"]),
        order["amount"],
        text(&order["currency"]),
        text(&order["item_name"])
    );
    for payment in shown["payments"].as_array().into_iter().flatten() {
        println!(
            "  {:6}  {:9}  {}  {} {}",
            text(&payment["kind"]),
            text(&payment["provider"]),
            text(&payment["provider_txn"]),
            payment["amount"],
            text(&payment["currency"])
        );
    }
}
