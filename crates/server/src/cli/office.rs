//! Where a command does its work: at the running server, or in the data directory itself.

use ledger::{DeadLetter, Role};
use rehearsal::Api;
use sale::{ActivityId, OrderNo};
use serde_json::{Value, json};

use super::Failure;
use crate::{
    actor::CLI,
    auth::{generate_admin_token, token_hash},
    config::Config,
    data_dir::{DataDir, DataDirError},
    engine::{ItemVerdict, Report},
    serve::{self, CannotStart, Opened, Running},
};

const LETTERS_MAX: usize = 500;

pub(super) enum Office {
    /// A server owns the directory; it is asked through its admin API.
    Server(Box<tokio::sync::Mutex<Api>>),
    /// Nobody does; the engine runs here, without jobs and without HTTP.
    Here(Box<Opened>),
}

type Result<T = ()> = std::result::Result<T, Failure>;

impl Office {
    pub(super) async fn open(config: Config) -> Result<Office> {
        match DataDir::open(&config.data) {
            Ok(data) => Ok(Office::Here(Box::new(serve::open_in(config, data).await?))),
            Err(in_use @ DataDirError::InUse(..)) => match Running::read(&config.data) {
                Some(running) => {
                    let api = Api::new(running.address, Some(&running.token));
                    Ok(Office::Server(Box::new(tokio::sync::Mutex::new(api))))
                }
                None => Err(CannotStart::because(in_use).into()),
            },
            Err(other) => Err(CannotStart::because(other).into()),
        }
    }

    pub(super) async fn close(self) {
        if let Office::Here(opened) = self {
            opened.engine.stop().await;
        }
    }

    pub(super) async fn warm(&self, activity: ActivityId, anew: bool) -> Result {
        let rows: Vec<(i64, i64, bool)> = match self {
            Office::Server(api) => {
                let path = format!("/api/v1/admin/activities/{activity}/warm?anew={anew}");
                let warmed: Value = api.lock().await.write(&path, &json!({})).await?;
                let items = warmed["items"].as_array().cloned().unwrap_or_default();
                let number = |item: &Value, name: &str| item[name].as_i64().unwrap_or_default();
                let row = |item: &Value| {
                    (number(item, "item_id"), number(item, "left"), item["already"] == true)
                };
                items.iter().map(row).collect()
            }
            Office::Here(opened) => {
                let warmed = opened.engine.warm_activity(CLI, activity, anew).await?;
                warmed.iter().map(|w| (w.item.0, w.left, w.already)).collect()
            }
        };
        for (item, left, already) in rows {
            let how = if already { "already at the gate" } else { "brought to the gate" };
            println!("item {item}: {how}, {left} units left");
        }
        Ok(())
    }

    /// Answers how many differences are left.
    pub(super) async fn reconcile(&self, heal: bool, json: bool) -> Result<usize> {
        let report: Report = match self {
            Office::Server(api) => {
                let path = format!("/api/v1/admin/reconcile?heal={heal}");
                api.lock().await.write(&path, &json!({})).await?
            }
            Office::Here(opened) => opened.engine.reconcile(heal).await?,
        };
        if json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            print_report(&report);
        }
        Ok(report.left)
    }

    pub(super) async fn dead_letters(&self, as_json: bool) -> Result {
        let letters: Vec<Value> = match self {
            Office::Server(api) => {
                let path = format!("/api/v1/admin/dead-letters?limit={LETTERS_MAX}");
                let page: Value = api.lock().await.read(&path).await?;
                page["dead_letters"].as_array().cloned().unwrap_or_default()
            }
            Office::Here(opened) => {
                let letters = opened.engine.ledger.dead_letters(None, None, LETTERS_MAX).await?;
                letters.iter().map(letter_json).collect()
            }
        };
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

    pub(super) async fn replay(&self, no: OrderNo) -> Result {
        match self {
            Office::Server(api) => {
                let path = format!("/api/v1/admin/dead-letters/{no}/replay");
                let _: Value = api.lock().await.write(&path, &json!({})).await?;
            }
            Office::Here(opened) => opened.engine.replay_dead_letter(CLI, no).await?,
        }
        println!("{no} is being tried again");
        Ok(())
    }

    pub(super) async fn void(&self, no: OrderNo) -> Result {
        match self {
            Office::Server(api) => {
                let path = format!("/api/v1/admin/dead-letters/{no}/void");
                let _: Value = api.lock().await.write(&path, &json!({})).await?;
            }
            Office::Here(opened) => opened.engine.void_dead_letter(CLI, no).await?,
        }
        println!("{no} is void, its units are for sale again");
        Ok(())
    }

    pub(super) async fn create_token(&self, name: &str, role: Role) -> Result {
        let token = match self {
            Office::Server(api) => {
                let body = json!({"name": name, "role": role});
                let made: Value = api.lock().await.write("/api/v1/admin/tokens", &body).await?;
                made["token"].as_str().unwrap_or_default().to_owned()
            }
            Office::Here(opened) => {
                let token = generate_admin_token()?;
                opened.engine.make_token(CLI, name, role, &token_hash(&token)).await?;
                token
            }
        };
        println!("{token}");
        Ok(())
    }

    pub(super) async fn tokens(&self) -> Result {
        let tokens: Vec<(String, String)> = match self {
            Office::Server(api) => {
                let page: Value = api.lock().await.read("/api/v1/admin/tokens").await?;
                let tokens = page["tokens"].as_array().cloned().unwrap_or_default();
                let text =
                    |token: &Value, name: &str| token[name].as_str().unwrap_or_default().to_owned();
                tokens.iter().map(|token| (text(token, "name"), text(token, "role"))).collect()
            }
            Office::Here(opened) => {
                let tokens = opened.engine.ledger.admin_tokens().await?;
                tokens.into_iter().map(|t| (t.name, t.role.as_str().to_owned())).collect()
            }
        };
        for (name, role) in tokens {
            println!("{role:8}  {name}");
        }
        Ok(())
    }

    pub(super) async fn revoke_token(&self, name: &str) -> Result {
        match self {
            Office::Server(api) => {
                let path = format!("/api/v1/admin/tokens/{}", in_path(name));
                let answer = api.lock().await.send("DELETE", &path, &[], b"").await?;
                if answer.status >= 300 {
                    let code = answer.code().unwrap_or_default();
                    return Err(Failure::Cannot(format!("{name:?} is not revoked: {code}")));
                }
            }
            Office::Here(opened) => opened.engine.revoke_token(CLI, name).await?,
        }
        println!("{name} is revoked");
        Ok(())
    }
}

/// A name as a part of a path: whatever is not plain is written as its bytes.
fn in_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

fn letter_json(letter: &DeadLetter) -> Value {
    json!({
        "order_no": letter.claim.order_no,
        "state": letter.state,
        "item_id": letter.claim.item,
        "quantity": letter.claim.quantity,
        "tries": letter.tries,
        "cause": letter.cause,
    })
}

fn print_report(report: &Report) {
    println!(
        "{:>8}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  item",
        "", "gate", "in flight", "returning", "adjusting", "stock", "sold"
    );
    for item in &report.items {
        let verdict = match item.verdict {
            ItemVerdict::Agree => "agree",
            ItemVerdict::Differ => "DIFFER",
            ItemVerdict::Moving => "moving",
            ItemVerdict::NotAtGate => "no gate",
        };
        let gate = item.gate_left.map_or("–".into(), |left| left.to_string());
        println!(
            "{verdict:>8}  {gate:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {} {}",
            item.in_flight,
            item.returning,
            item.adjusting,
            item.ledger_stock,
            item.live_units,
            item.item_id,
            item.name
        );
    }
    let findings = report.items.iter().flat_map(|item| &item.findings).chain(&report.payments);
    for finding in findings {
        let healed =
            finding.healed.as_deref().map_or("LEFT".into(), |how| format!("healed: {how}"));
        println!("  {}: {} ({healed})", finding.kind, finding.detail);
    }
    if report.moving > 0 {
        println!("{} items changed all the time and were not compared", report.moving);
    }
    println!(
        "{} differences, {} healed, {} left; {} claims on the log, {} dead letters",
        report.differences, report.healed, report.left, report.backlog, report.dead_letters
    );
}
