//! Clients that nobody wrote: made from `docs/openapi.json` by the usual makers, they buy and pay.
//!
//! `cargo xtask test` installs the makers under `target/clients`. What uses the clients is in
//! `tests/clients`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use client::Api;
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, Sale, now_ms};
use client::NewSale;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
const SKU: &str = "CLIENT-1";

/// Where `cargo xtask` has put the makers.
fn makers(path: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("clients").join(path);
    assert!(program.exists(), "{} is missing: `cargo xtask test` installs it", program.display());
    program
}

/// What it said, if it went well.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

/// A program and what it must know of the sale; it says the number of the order that it paid.
async fn buys_and_pays(sale: &Sale, user: &str, program: &mut Command) {
    let mut api = Api::new(sale.server().address, None);
    let jwt = sale.deployment.login().token(&mut api, user).await.unwrap();
    let operator: Value = sale
        .admin()
        .write("/api/v1/admin/tokens", &json!({"name": user, "role": "operator"}))
        .await
        .unwrap();
    let said = run(program
        .env("SERVER", format!("http://{}", sale.server().address))
        .env("BUYER", jwt)
        .env("OPERATOR", operator["token"].as_str().unwrap())
        .env("ITEM", sale.item.to_string())
        .env("SKU", SKU));
    let no = said.trim().lines().last().unwrap().to_owned();
    assert_eq!(sale.buyer(user).await.order(&no).await["status"], "paid");
}

fn typescript(folder: &Path) -> Command {
    let modules = makers("typescript/node_modules");
    for file in ["buy.ts", "tsconfig.json", "package.json"] {
        let source = Path::new(CLIENTS).join("typescript").join(file);
        std::fs::copy(source, folder.join(file)).unwrap();
    }
    let mut generate = Command::new("node");
    generate.arg(modules.join("openapi-typescript/bin/cli.js")).args([DOCUMENT, "-o"]);
    run(generate.arg(folder.join("schema.d.ts")).current_dir(folder));
    // Whatever the document does not say does not compile.
    let mut compile = Command::new("node");
    run(compile.arg(modules.join("typescript/bin/tsc")).args(["-p", "."]).current_dir(folder));
    let mut program = Command::new("node");
    program.arg(folder.join("buy.js"));
    program
}

fn python(folder: &Path) -> Command {
    let bin = makers("python/bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut generate = Command::new(bin.join("openapi-python-client"));
    generate.args(["generate", "--fail-on-warning", "--meta", "none", "--path", DOCUMENT]);
    run(generate.arg("--output-path").arg(folder.join("seckill_client")).env("PATH", path));
    let mut program = Command::new(bin.join("python"));
    program.arg(Path::new(CLIENTS).join("python/buy.py")).env("PYTHONPATH", folder);
    program
}

async fn clients_made_from_the_document_buy_and_pay(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let mut admin = sale.admin();
    let opens_at = now_ms() - 1_000;
    let plan = json!({"name": "clients", "opens_at": opens_at, "closes_at": opens_at + 3_600_000, "items": [
        {"sku": SKU, "name": "Phone", "price": 699_900, "stock": 5, "attributes": {"colour": "blue"}}]});
    let made: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
    for verb in ["publish", "warm"] {
        let path = format!("/api/v1/admin/activities/{}/{verb}", made["id"]);
        let _: Value = admin.write(&path, &json!({})).await.unwrap();
    }
    sale.activity = made["id"].as_i64().unwrap();
    sale.item = made["items"][0]["id"].as_i64().unwrap();
    let folder = tempfile::tempdir().unwrap();
    buys_and_pays(&sale, "typescript", &mut typescript(folder.path())).await;
    buys_and_pays(&sale, "python", &mut python(folder.path())).await;
    sale.must_hold().await;
}

crate::in_every_profile! {
    clients_made_from_the_document_buy_and_pay,
}
