//! `seckill dead-letters`: claims that failed all their tries and wait for a person.

use clap::{Args, Subcommand};
use sale::OrderNo;
use serde_json::{Value, json};

use super::{AdminApi, Failure};

const LETTERS_MAX: usize = 500;

#[derive(Subcommand)]
pub(super) enum DeadLetters {
    /// Show them, and those still being retried
    List {
        /// As JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Try one again now, as if it were new
    Replay(Letter),
    /// Give one up: the buyer is told, the units are sold again
    Void(Letter),
}

#[derive(Args)]
pub(super) struct Letter {
    /// The order number, SK and 19 digits
    order_no: OrderNo,
}

pub(super) async fn run(api: &AdminApi, command: DeadLetters) -> Result<(), Failure> {
    match command {
        DeadLetters::List { json } => list(api, json).await,
        DeadLetters::Replay(Letter { order_no }) => {
            api.post(&format!("/admin/dead-letters/{order_no}/replay"), &json!({})).await?;
            println!("{order_no} is being tried again");
            Ok(())
        }
        DeadLetters::Void(Letter { order_no }) => {
            api.post(&format!("/admin/dead-letters/{order_no}/void"), &json!({})).await?;
            println!("{order_no} is void, its units are for sale again");
            Ok(())
        }
    }
}

async fn list(api: &AdminApi, as_json: bool) -> Result<(), Failure> {
    let page = api.get(&format!("/admin/dead-letters?limit={LETTERS_MAX}")).await?;
    let letters = page["dead_letters"].as_array().cloned().unwrap_or_default();
    if as_json {
        println!("{}", Value::Array(letters));
        return Ok(());
    }
    if letters.is_empty() {
        println!("no dead letters");
    }
    for letter in letters {
        let text = |name: &str| letter[name].as_str().unwrap_or_default().to_owned();
        println!(
            "{}  {:8}  item {}  {} units  {} tries  {}",
            text("order_no"),
            text("state"),
            letter["item_id"],
            letter["quantity"],
            letter["tries"],
            text("cause")
        );
    }
    Ok(())
}
