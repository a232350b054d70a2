//! Orders that nobody pays are closed at their deadline: by the message that the broker delivers then, and
//! without it.

use checker::Answer;
use client::NewSale;

use crate::{
    broker::by,
    fixtures::{Deployment, Profile, Sale, blocking, until},
    way::{by_broker, nothing_waits, number_at, own_broker},
};

/// Time enough for one of them to pay on a busy machine.
const PAY_WITHIN_MS: i64 = 20_000;

fn unpaid(units: i64) -> NewSale {
    NewSale::of(units).pay_within_ms(PAY_WITHIN_MS)
}

/// Three buyers, of whom one pays.
async fn three_buy_and_one_pays(sale: &mut Sale) -> Vec<String> {
    let buyers = sale.tokens(["ann", "bob", "cat"].map(str::to_owned)).await;
    let report = sale.crowd(3).rush(buyers).await;
    sale.history = report.history;
    let bought = sale.history.claims.iter().filter_map(|told| match told.answer {
        Answer::Admitted { order_no } => Some((told.user.clone(), order_no.to_string())),
        _ => None,
    });
    let bought: Vec<(String, String)> = bought.collect();
    assert_eq!(bought.len(), 3);
    let mut payer = sale.buyer(&bought[0].0).await;
    payer.order_becomes(&bought[0].1, "unpaid").await;
    let cashier = payer.open_payment(&bought[0].1).await;
    payer.at_the_cashier(&cashier, "pay").await;
    payer.order_becomes(&bought[0].1, "paid").await;
    bought.into_iter().map(|(_, no)| no).collect()
}

async fn all_but_the_first_are_closed(sale: &mut Sale, orders: &[String]) {
    let mut admin = sale.admin();
    for (n, no) in orders.iter().enumerate() {
        let wanted = if n == 0 { "paid" } else { "closed" };
        let path = format!("/api/v1/admin/orders/{no}");
        let ask = async || admin.get(&path).await.unwrap().json();
        until(&format!("{no} is {wanted}"), ask, |told| told["order"]["status"] == wanted).await;
    }
    sale.settle().await;
    assert_eq!(sale.buy_the_rest("late", 5).await, 2, "their units are sold again");
    sale.must_hold().await;
}

async fn the_message_closes_orders_while_nobody_looks_at_the_index(profile: Profile) {
    // Ten minutes: the sweep looked once at the start, and then not in this story.
    let deployment =
        by_broker(Deployment::new(profile)).env("SECKILL_JOBS_TIMEOUT_POLL_MS", 600_000);
    let mut sale = deployment.open_sale(unpaid(3)).await;
    let orders = three_buy_and_one_pays(&mut sale).await;
    all_but_the_first_are_closed(&mut sale, &orders).await;
    let places = if profile == Profile::Solo { 0..1 } else { 0..4 };
    let mut heard = 0.0;
    for place in places {
        heard +=
            number_at(&mut sale.process(place).admin(), "seckill_unpaid_reminders_total").await;
    }
    assert!(heard >= 6.0, "sent and heard: {heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_solo_the_message_closes_orders_while_nobody_looks_at_the_index() {
    the_message_closes_orders_while_nobody_looks_at_the_index(Profile::Solo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_the_message_closes_orders_while_nobody_looks_at_the_index() {
    the_message_closes_orders_while_nobody_looks_at_the_index(Profile::Cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_closes_orders_whose_message_is_lost() {
    let rocketmq = own_broker().await;
    let mut sale = by(&rocketmq, Deployment::new(Profile::Solo)).open_sale(unpaid(3)).await;
    let orders = three_buy_and_one_pays(&mut sale).await;
    // With the broker goes every message that it has for later.
    let dying = rocketmq.clone();
    blocking(move || dying.kill()).await;
    let mut admin = sale.admin();
    for no in &orders[1..] {
        let path = format!("/api/v1/admin/orders/{no}");
        let ask = async || admin.get(&path).await.unwrap().json();
        until(&format!("{no} is closed"), ask, |told| told["order"]["status"] == "closed").await;
    }
    assert!(!rocketmq.is_running());
    let back = rocketmq.clone();
    blocking(move || back.restart()).await;
    all_but_the_first_are_closed(&mut sale, &orders).await;
    // A broker that is killed forgets how far its queues were read in its last seconds, and is told again.
    nothing_waits(&mut sale.admin()).await;
}
