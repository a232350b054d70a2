//! A disk that fails once in the middle of a sale, and a power cut later: nothing that anybody was told
//! is forgotten, and nobody has to restart anything in between.

use std::time::{Duration, Instant};

use checker::{Answer, AnsweredClaim};
use client::NewSale;
use faults::disk::{Failing, Fault, ForgetfulDisk, sweeps_everything};
use serde_json::json;

use crate::fixtures::{Buyer, Deployment, PATIENCE, Profile, Sale, becomes};

/// Which of the writes and syncs of each file fails; a sample.
const SAMPLE: [(&str, u64); 4] = [("journal", 2), ("journal", 5), ("ledger", 7), ("sandbox", 4)];
/// With all of them this many.
const OPERATIONS_SWEPT_MAX: u64 = 40;

async fn on_a_broken_disk(_: Profile) {
    on_a_disk_that_is(Failing::Io).await;
}

async fn on_a_full_disk(_: Profile) {
    on_a_disk_that_is(Failing::NoSpace).await;
}

async fn on_a_disk_that_is(failing: Failing) {
    let mut cases = SAMPLE.to_vec();
    if sweeps_everything() {
        let all = |file| (1..=OPERATIONS_SWEPT_MAX).map(move |at| (file, at));
        cases = ["journal", "ledger", "sandbox"].into_iter().flat_map(all).collect();
    }
    for (file, at) in cases {
        println!("{file}, operation {at}, {failing:?}");
        a_sale_goes_on(file, Fault::once(at, failing)).await;
    }
}

async fn a_sale_goes_on(file: &str, fault: Fault) {
    let mut deployment = Deployment::new(Profile::Solo);
    let disk = ForgetfulDisk::under(deployment.data()).unwrap();
    for (name, value) in disk.env() {
        deployment = deployment.env(name, value.to_string_lossy());
    }
    let mut sale = deployment.open_sale(NewSale::of(500)).await;
    disk.fail(file, fault).unwrap();
    let asked = Instant::now();
    let mut rounds_after = 0;
    for round in 0.. {
        one_round(&mut sale, round).await;
        rounds_after += u32::from(disk.hits().unwrap() > 0);
        if rounds_after == 3 {
            break;
        }
        assert!(asked.elapsed() < PATIENCE, "nothing failed");
    }
    sale.kill();
    disk.power_cut().unwrap();
    sale.start().await;
    sale.must_hold().await;
    assert_eq!(sale.buy_the_rest("after", 3).await, 3);
    sale.must_hold().await;
}

/// A few buyers at once, then one who buys and pays, however often they have to ask.
async fn one_round(sale: &mut Sale, round: usize) {
    let crowd = sale.tokens((0..5).map(|n| format!("u{round}-{n}"))).await;
    let report = sale.crowd(5).rush(crowd).await;
    sale.history.claims.extend(report.history.claims);
    let mut buyer = sale.buyer(&format!("payer{round}")).await;
    let order_no = bought_at_last(sale, &mut buyer).await;
    becomes("it is paid", async || is_paid(&mut buyer, &order_no).await).await;
}

async fn bought_at_last(sale: &mut Sale, buyer: &mut Buyer) -> String {
    let asked = Instant::now();
    loop {
        let answer = buyer.claim().await;
        let (user, item) = (buyer.user.clone(), buyer.item);
        sale.history.claims.push(AnsweredClaim { user, item, key: None, answer: answer.clone() });
        match answer {
            Answer::Admitted { order_no } | Answer::AlreadyBought { order_no } => {
                return order_no.to_string();
            }
            Answer::Refused(why) if why == "busy" => assert!(asked.elapsed() < PATIENCE),
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One try to pay. Whatever fails is tried again.
async fn is_paid(buyer: &mut Buyer, order_no: &str) -> bool {
    let order = buyer.api.get(&format!("/api/v1/orders/{order_no}")).await.unwrap().json();
    if order["status"] == "unpaid" {
        let path = format!("/api/v1/orders/{order_no}/payments");
        let opened = buyer.api.post(&path, &json!({"provider": "sandbox"})).await.unwrap().json();
        if let Some(url) = opened["payment_url"].as_str() {
            buyer.at_the_cashier(&format!("/api/v1{url}"), "pay").await;
        }
    }
    order["status"] == "paid"
}

crate::only_in_solo! {
    on_a_broken_disk,
    on_a_full_disk,
}
