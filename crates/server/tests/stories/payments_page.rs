//! What PAYMENTS gives a shop's engineer to run is run, word for word.

use std::{fs, path::Path, process::Command};

use client::NewSale;
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, blocking};

const SECRET: &str = "whsec_c2Vja2lsbCBzZWNyZXQgb2YgdGhlIHBhZ2UgUEFZTUVOVFM=";

/// The first block of this language.
fn block(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PAYMENTS.md");
    let page = fs::read_to_string(page).unwrap();
    let begin = format!("```{language}\n");
    let (_, after) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin:?}"));
    let lines = after.lines().take_while(|line| line.trim() != "```");
    lines.map(|line| line.strip_prefix("   ").unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

async fn run(program: &'static str, server: String, no: String, text: String) -> String {
    blocking(move || {
        let run = Command::new(program)
            .args(["-c", &text])
            .env("SERVER", server)
            .env("SECRET", SECRET)
            .env("ORDER_NO", no)
            .env("AMOUNT", "699900")
            .output()?;
        let (said, complaints) =
            (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{text}\n{said}\n{complaints}");
        Ok(said.into_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_of_the_page_tell_of_money() {
    let deployment = Deployment::new(Profile::Solo).env("SECKILL_PAYMENT_EXTERNAL_SECRETS", SECRET);
    let sale = deployment.open_sale(NewSale::of(3)).await;
    let mut buyer = sale.buyer("u1002").await;
    let no = buyer.buy().await;
    let order = buyer.order_becomes(&no, "unpaid").await;
    assert_eq!(order["pay_with"][0]["provider"], "external", "{order}");
    let pay = format!("/api/v1/orders/{no}/payments");
    let opened: Value = buyer.api.write(&pay, &json!({"provider": "external"})).await.unwrap();
    assert_eq!(opened["payment_url"], Value::Null, "the shop sends its buyers there by itself");

    let server = format!("http://{}", sale.server().address);
    for outcome in ["done", "repeated"] {
        let said = run("python3", server.clone(), no.clone(), block("python")).await;
        assert!(said.contains(outcome), "{said}");
    }
    let paid = buyer.order_becomes(&no, "paid").await;
    assert_eq!(paid["payment"]["provider_txn"], "till-1001");
    let said = run("bash", server, no.clone(), block("sh")).await;
    assert!(said.contains("done"), "{said}");
    let refunded = buyer.order_becomes(&no, "refunded").await;
    assert_eq!(refunded["refunds"][0]["state"], "done");
}
