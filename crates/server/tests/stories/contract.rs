//! What the document says is what is answered: schemathesis makes requests of all kinds from
//! `/openapi.json`, good ones and bad ones, and compares every answer with it.
//!
//! `cargo xtask test` installs schemathesis under `target/`. The seed is always the same, so that a
//! failure is one of the change at hand; `cargo xtask contract 200` tries more, with a seed of its own.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use client::Api;
use client::NewSale;
use serde_json::{Value, json};

use crate::{
    failures::{POISON_MYSQL, POISON_SQLITE, dead_letter_becomes},
    fixtures::{Buyer, Deployment, Profile, Sale, now_ms},
};

/// Requests of random content per operation and phase, beside those that the document suggests.
const EXAMPLES: &str = "15";
const SEED: &str = "1111";
/// No single request may take longer; there are a few thousand.
const RUN_S_MAX: &str = "1800";

const BUYER: &str = "contract";
/// Buyers of one claim each.
const CLAIMS: usize = 200;
/// Tokens to revoke.
const TOKENS: usize = 40;
/// Where webhooks go: a port of this machine at which nobody listens.
const NOBODY_LISTENS: &str = "http://127.0.0.1:9/hook";

/// Where `cargo xtask` has put it.
fn schemathesis() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("schemathesis/bin/st");
    assert!(
        program.is_file(),
        "{} is missing: `cargo xtask contract` installs it",
        program.display()
    );
    program
}

/// An item of its own for everything the buyer does, for one buyer has one live order per item.
const ITEMS: [&str; 8] =
    ["claims", "show", "cancel", "pay", "refund", "paid", "refunded", "by_hand"];

/// The sale that everything happens in. The limit per buyer is as large as it can be, so that every
/// quantity that the document allows is one that can be bought.
fn plan(items: &[&str]) -> Value {
    let item = |name: &&str| {
        let stock = 10_000_000;
        json!({"name": name, "price": 100, "stock": stock, "limit_per_user": 1_000})
    };
    let items: Vec<Value> = items.iter().map(item).collect();
    let opens_at = now_ms() - 1_000;
    json!({"name": "contract", "opens_at": opens_at, "closes_at": opens_at + 7_200_000, "items": items})
}

async fn create(admin: &mut Api, plan: &Value, verbs: &[&str]) -> Value {
    let made: Value = admin.write("/api/v1/admin/activities", plan).await.unwrap();
    for verb in verbs {
        let path = format!("/api/v1/admin/activities/{}/{verb}", made["id"]);
        let _: Value = admin.write(&path, &json!({})).await.unwrap();
    }
    made
}

/// Buy one of this item and wait for the order; its number and receipt.
async fn order_of(sale: &mut Sale, item: i64) -> (Buyer, String, Value) {
    sale.item = item;
    let mut buyer = sale.buyer(BUYER).await;
    let told = buyer.claim_with(None, r#"{"quantity":1}"#).await.json();
    let no = told["order_no"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
    buyer.order_becomes(&no, "unpaid").await;
    (buyer, no, told["receipt"].clone())
}

/// A claim that cannot be written.
async fn dead_letter(sale: &Sale, user: &str) -> String {
    let no = sale.buyer(user).await.buy().await;
    dead_letter_becomes(sale, &no, "dead").await;
    no
}

/// Make one of everything, each in the state in which something can be asked of it.
async fn everything(sale: &mut Sale) -> Value {
    let mut admin = sale.admin();
    let main = create(&mut admin, &plan(&ITEMS), &["publish", "warm"]).await;
    let item = |n: usize| main["items"][n]["id"].as_i64().unwrap();
    let activities = json!({
        "show": main["id"],
        "edit": create(&mut admin, &plan(&["edit"]), &[]).await["id"],
        "publish": create(&mut admin, &plan(&["publish"]), &[]).await["id"],
        "pause": create(&mut admin, &plan(&["pause"]), &["publish"]).await["id"],
        "resume": create(&mut admin, &plan(&["resume"]), &["publish", "pause"]).await["id"],
        "end": create(&mut admin, &plan(&["end"]), &[]).await["id"],
    });

    let mut drawn = plan(&["drawn"]);
    drawn["shuffle_ms"] = 1_000.into();
    let drawn = create(&mut admin, &drawn, &["publish"]).await;

    let (_, show, receipt) = order_of(sale, item(1)).await;
    let (_, cancel, _) = order_of(sale, item(2)).await;
    let (mut buyer, pay, _) = order_of(sale, item(3)).await;
    let cashier = buyer.open_payment(&pay).await;
    let (txn, token) = cashier.rsplit('/').next().unwrap().split_once("?token=").unwrap();
    let (mut buyer, refund, _) = order_of(sale, item(4)).await;
    let paid = buyer.open_payment(&refund).await;
    assert_eq!(buyer.at_the_cashier(&paid, "pay").await.status, 200);
    buyer.order_becomes(&refund, "paid").await;

    let (_, paid, _) = order_of(sale, item(5)).await;
    let (_, refunded, _) = order_of(sale, item(6)).await;
    let told = json!({"order_no": refunded, "transaction_id": "T-refunded", "amount": 100,
        "currency": "CNY", "paid_at": now_ms()});
    let path = format!("/api/v1/orders/{refunded}/paid");
    let _: Value = admin.write(&path, &told).await.unwrap();
    let (_, by_hand, _) = order_of(sale, item(7)).await;

    sale.item = item(0);
    sale.deployment.change_ledger(POISON_SQLITE, POISON_MYSQL);
    let dead_letters = json!({
        "show": dead_letter(sale, "poison1").await,
        "replay": dead_letter(sale, "poison2").await,
        "void": dead_letter(sale, "poison3").await,
    });
    let mut webhooks = json!({"url": NOBODY_LISTENS});
    for verb in ["show", "remove"] {
        let new = json!({"url": NOBODY_LISTENS});
        let made: Value = admin.write("/api/v1/admin/webhooks", &new).await.unwrap();
        webhooks[verb] = made["id"].clone();
    }
    let mut tokens = Vec::new();
    for n in 0..TOKENS {
        let new = json!({"name": format!("contract-{n}"), "role": "viewer"});
        let made: Value = admin.write("/api/v1/admin/tokens", &new).await.unwrap();
        tokens.push(made["name"].clone());
    }
    let sale_tokens = sale.tokens((0..CLAIMS).map(|n| format!("claimer{n}"))).await;
    json!({
        "item": item(0),
        "drawn_item": drawn["items"][0]["id"],
        "activities": activities,
        "orders": {"show": show, "cancel": cancel, "pay": pay, "refund": refund, "paid": paid,
            "refunded": refunded, "by_hand": by_hand},
        "cashier": {"txn": txn, "token": token},
        "receipt": receipt,
        "dead_letters": dead_letters,
        "tokens": tokens,
        "webhooks": webhooks,
        "sale_tokens": sale_tokens.into_iter().map(|(_, token)| token).collect::<Vec<_>>(),
    })
}

/// Run schemathesis against the server; everything it needs to know is in the folder.
fn run(sale: &Sale, things: &Value, jwt: &str) -> Output {
    let folder = sale.deployment.dir.path();
    std::fs::write(folder.join("things.json"), things.to_string()).unwrap();
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis");
    let chosen = |name: &str, otherwise: &str| std::env::var(name).unwrap_or(otherwise.into());
    Command::new("timeout")
        .arg(RUN_S_MAX)
        .arg(schemathesis())
        .arg("--config-file")
        .arg(ours.join("schemathesis.toml"))
        .args(["run", "--no-color"])
        .args(["--max-examples", &chosen("CONTRACT_EXAMPLES", EXAMPLES)])
        .args(["--seed", &chosen("CONTRACT_SEED", SEED)])
        .arg(format!("http://{}/openapi.json", sale.server().address))
        .env("PYTHONPATH", &ours)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CONTRACT_THINGS", folder.join("things.json"))
        .env("CONTRACT_BUYER", jwt)
        .env("CONTRACT_OPERATOR", &sale.server().token)
        .env("CONTRACT_SALE_TOKEN", things["sale_tokens"][0].as_str().unwrap())
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

async fn every_answer_is_one_that_the_document_describes(profile: Profile) {
    let deployment = Deployment::new(profile)
        .env("SECKILL_ORDERS_RETRY_LADDER_MS", "100")
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50)
        .env("SECKILL_WEBHOOKS_ALLOWED_HOSTS", "127.0.0.1")
        .env("SECKILL_PAYMENT_EXTERNAL_SECRETS", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        // A busy machine is slow, and `unknown` is an answer to that; here it would be one to nothing.
        .env("SECKILL_HTTP_REQUEST_TIMEOUT_MS", 90_000);
    let mut sale = deployment.open_sale(NewSale::of(1)).await;
    let things = everything(&mut sale).await;
    let mut nobody = Api::new(sale.server().address, None);
    let jwt = sale.deployment.login().token(&mut nobody, BUYER).await.unwrap();
    let run = tokio::task::block_in_place(|| run(&sale, &things, &jwt));
    let words = [&run.stdout[..], &run.stderr[..]].concat();
    let words = String::from_utf8_lossy(&words);
    println!("{words}");
    assert!(run.status.success(), "{words}");

    // Whatever was asked, the books are in order, and nothing panicked over it.
    sale.settle().await;
    let report = client::reconcile(&mut sale.admin(), "").await.unwrap();
    assert_eq!(report["left"], 0, "{report:#}");
    assert!(!sale.deployment.log().contains("panicked"));
}

crate::in_every_profile! {
    every_answer_is_one_that_the_document_describes,
}
