//! `seckill key`: what signs sale tokens, receipts and tickets.

use clap::Subcommand;
use sale::iso_time;
use serde_json::json;

use super::{AdminApi, Failure, durations::duration_ms};

#[derive(Subcommand)]
pub(super) enum Key {
    /// Numbers, what each does, and since when
    List,
    /// Make a new key; what older ones signed stays good
    ///
    /// It signs after five minutes, when every instance has learned of it.
    Rotate {
        /// After how long it signs, such as 1h; 0s at once, if the old one is known to others
        #[arg(long)]
        after: Option<String>,
    },
    /// Take a key away for good: what it signed is void, receipts, too
    Retire {
        /// Its number
        id: u8,
    },
}

pub(super) async fn run(api: &AdminApi, command: Key) -> Result<(), Failure> {
    match command {
        Key::List => {
            let page = api.get("/admin/keys").await?;
            for key in page["keys"].as_array().into_iter().flatten() {
                let since = |name: &str, word: &str| {
                    let at =
                        key[name].as_i64().map(|at_ms| format!("  {word} {}", iso_time(at_ms)));
                    at.unwrap_or_default()
                };
                let state = key["state"].as_str().unwrap_or_default();
                let times = since("signs_from", "signs from") + &since("retired_at", "retired");
                println!("{:3}  {state:9}{times}", key["id"]);
            }
        }
        Key::Rotate { after } => {
            let mut new = json!({});
            if let Some(after) = after {
                let after_ms =
                    duration_ms(&after).map_err(|rule| format!("--after {after}: {rule}"))?;
                new["after_ms"] = after_ms.into();
            }
            let made = api.post("/admin/keys", &new).await?;
            let from = made["signs_from"].as_i64().map(iso_time).unwrap_or_default();
            println!("key {} signs from {from}", made["id"]);
        }
        Key::Retire { id } => {
            api.delete(&format!("/admin/keys/{id}")).await?;
            println!("key {id} is retired");
        }
    }
    Ok(())
}
