//! `seckill webhooks`: endpoints of the shop's backend, and what was delivered to them.

use clap::{Args, Subcommand, ValueEnum};
use sale::OrderNo;
use serde_json::{Value, json};

use super::{AdminApi, Failure};

const DELIVERIES_MAX: usize = 500;

#[derive(Subcommand)]
pub(super) enum Webhooks {
    /// Show the endpoints, and what waits for them
    List {
        /// As JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Add an endpoint and print its secret, once
    Add {
        /// An http or https address; a public one, unless webhooks.allowed_hosts names its host
        url: String,
        /// What it is for
        #[arg(long, default_value = "")]
        description: String,
        /// Kinds of events by comma, such as order.paid,order.refunded; all of them unless told
        #[arg(long, value_delimiter = ',')]
        events: Vec<String>,
    },
    /// Remove an endpoint, with all that waits for it
    Remove(Endpoint),
    /// Switch an endpoint on; it gets what waited for it
    Enable(Endpoint),
    /// Switch an endpoint off; what is for it is kept
    Disable(Endpoint),
    /// Make a new secret and print it, once; the one before signs as well for webhooks.rotation_ms
    Rotate(Endpoint),
    /// Send an event webhook.test now; exit code 1 if it is not taken
    Test(Endpoint),
    /// Show what was sent, and what is still to be sent
    Deliveries {
        #[command(flatten)]
        endpoint: Endpoint,
        /// Only those in this state
        #[arg(long)]
        state: Option<State>,
        /// Only those about this order
        #[arg(long)]
        order: Option<OrderNo>,
        /// As JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Send again what was not taken: all of it, or one delivery
    Replay {
        #[command(flatten)]
        endpoint: Endpoint,
        /// Only this delivery, with those about the same order that failed
        #[arg(long)]
        delivery: Option<i64>,
        /// Only events that happened since then, such as 2026-12-01T12:00:00+08:00
        #[arg(long, conflicts_with = "delivery")]
        since: Option<String>,
    },
}

#[derive(Args)]
pub(super) struct Endpoint {
    /// The endpoint's id
    id: i64,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum State {
    Pending,
    Delivered,
    Failed,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Delivered => "delivered",
            State::Failed => "failed",
        }
    }
}

pub(super) async fn run(api: &AdminApi, command: Webhooks) -> Result<(), Failure> {
    match command {
        Webhooks::List { json } => list(api, json).await?,
        Webhooks::Add { url, description, events } => {
            let new = json!({"url": url, "description": description, "events": events});
            let made = api.post("/admin/webhooks", &new).await?;
            eprintln!("endpoint {}; its secret is shown this once:", made["id"]);
            println!("{}", made["secret"].as_str().unwrap_or_default());
        }
        Webhooks::Remove(Endpoint { id }) => {
            api.delete(&format!("/admin/webhooks/{id}")).await?;
            println!("endpoint {id} is removed");
        }
        Webhooks::Enable(Endpoint { id }) => switch(api, id, true).await?,
        Webhooks::Disable(Endpoint { id }) => switch(api, id, false).await?,
        Webhooks::Rotate(Endpoint { id }) => {
            let made = api.post(&format!("/admin/webhooks/{id}/rotate"), &json!({})).await?;
            println!("{}", made["secret"].as_str().unwrap_or_default());
        }
        Webhooks::Test(Endpoint { id }) => {
            let ping = api.post(&format!("/admin/webhooks/{id}/test"), &json!({})).await?;
            if ping["taken"] != true {
                println!("not taken: {}", ping["cause"].as_str().unwrap_or_default());
                return Err(Failure::No);
            }
            println!("taken, with {}", ping["status"]);
        }
        Webhooks::Deliveries { endpoint, state, order, json } => {
            deliveries(api, endpoint.id, (state, order), json).await?;
        }
        Webhooks::Replay { endpoint: Endpoint { id }, delivery, since } => {
            let path = match delivery {
                Some(delivery) => format!("/admin/webhooks/{id}/deliveries/{delivery}/replay"),
                None => format!("/admin/webhooks/{id}/replay"),
            };
            let asked = if delivery.is_some() { json!({}) } else { json!({"since": since}) };
            let done = api.post(&path, &asked).await?;
            println!("{} are sent again", done["replayed"]);
        }
    }
    Ok(())
}

async fn switch(api: &AdminApi, id: i64, on: bool) -> Result<(), Failure> {
    api.patch(&format!("/admin/webhooks/{id}"), &json!({"enabled": on})).await?;
    println!("endpoint {id} is switched {}", if on { "on" } else { "off" });
    Ok(())
}

async fn list(api: &AdminApi, as_json: bool) -> Result<(), Failure> {
    let page = api.get("/admin/webhooks").await?;
    let webhooks = page["webhooks"].as_array().cloned().unwrap_or_default();
    if as_json {
        println!("{}", Value::Array(webhooks));
        return Ok(());
    }
    if webhooks.is_empty() {
        println!("no endpoints");
    }
    for one in webhooks {
        let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        let state = match (one["enabled"] == true, one["failing_since"].is_null()) {
            (false, _) => "off",
            (true, false) => "failing",
            (true, true) => "on",
        };
        println!(
            "{:4}  {:8}  {:8}  {} pending  {} failed  {}  {}",
            one["id"],
            state,
            text("source"),
            one["pending"],
            one["failed"],
            text("url"),
            text("reason"),
        );
    }
    Ok(())
}

async fn deliveries(
    api: &AdminApi,
    id: i64,
    (state, order): (Option<State>, Option<OrderNo>),
    as_json: bool,
) -> Result<(), Failure> {
    let mut path = format!("/admin/webhooks/{id}/deliveries?limit={DELIVERIES_MAX}");
    if let Some(state) = state {
        path.push_str(&format!("&state={}", state.as_str()));
    }
    if let Some(no) = order {
        path.push_str(&format!("&order_no={no}"));
    }
    let page = api.get(&path).await?;
    let deliveries = page["deliveries"].as_array().cloned().unwrap_or_default();
    if as_json {
        println!("{}", Value::Array(deliveries));
        return Ok(());
    }
    if deliveries.is_empty() {
        println!("no deliveries");
    }
    for one in deliveries {
        let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        println!(
            "{:6}  {:9}  {}  {} tries  {}",
            one["id"],
            text("state"),
            text("event_id"),
            one["tries"],
            text("cause"),
        );
    }
    Ok(())
}
