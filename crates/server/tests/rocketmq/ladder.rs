//! RocketMQ's own ladder and its dead-letter queue: for messages of which the ledger can neither make
//! orders nor note that it cannot.

use checker::Answer;
use client::NewSale;
use faults::services::{RocketMq, RocketMqOptions};

use crate::{
    broker::by,
    fixtures::{Deployment, Profile, blocking, until},
    way::{command, dead_letter_becomes, number_at},
};

const POISON: &str = "CREATE TRIGGER poison BEFORE INSERT ON tb_seckill_order
    WHEN NEW.user_id = 'poison' AND NEW.status = 0
    BEGIN SELECT RAISE(ABORT, 'this order cannot be written'); END";
const UNNOTED: &str = "CREATE TRIGGER unnoted BEFORE INSERT ON tb_dead_letter
    BEGIN SELECT RAISE(ABORT, 'this failure cannot be noted'); END";

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_even_be_noted_climbs_the_brokers_ladder_and_ends_as_a_dead_letter_of_ours() {
    // Sixteen steps of a second, where there are hours; the first two levels are not of the ladder.
    let levels = Some(vec!["1s"; 18].join(" "));
    let options = RocketMqOptions { delay_levels: levels, ..RocketMqOptions::default() };
    let rocketmq = blocking(|| RocketMq::start(options)).await;
    let deployment = by(&rocketmq, Deployment::new(Profile::Solo))
        // The net would bring it as well.
        .env("SECKILL_RELAY_REPUBLISH_AFTER_MS", 600_000)
        .env("SECKILL_ORDERS_PAUSE_MS_MAX", 1_000)
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50);
    let mut sale = deployment.open_sale(NewSale::of(10)).await;
    sale.deployment.change_ledger(&format!("{POISON}; {UNNOTED}"), "");
    let buyers = sale.tokens(["ann", "poison", "bob"].map(str::to_owned)).await;
    let report = sale.crowd(3).rush(buyers).await;
    assert_eq!(report.history.admitted(), 3);
    sale.history = report.history;
    let poison = sale.history.claims.iter().find(|claim| claim.user == "poison").unwrap();
    let Answer::Admitted { order_no } = poison.answer else { panic!("{poison:?}") };
    let no = order_no.to_string();

    // Its neighbours are orders long before; it is tried again and again, by the broker's clock.
    let mut admin = sale.admin();
    let stuck = async || number_at(&mut admin, "seckill_orders_stuck_total").await;
    until("it was tried on every step", stuck, |stuck| *stuck >= 17.0).await;
    let log = async || sale.deployment.log();
    until("the broker gives up on it", log, |log| log.contains("the broker has given up")).await;

    // The ledger can note it again: it is a dead letter at once, for it had its tries.
    sale.deployment.change_ledger("DROP TRIGGER unnoted", "");
    let mut admin = sale.admin();
    let letter = dead_letter_becomes(&mut admin, &no, "dead").await;
    assert_eq!(letter["tries"], 17, "{letter}");
    sale.must_hold().await;

    sale.deployment.change_ledger("DROP TRIGGER poison", "");
    command(&mut admin, &format!("/api/v1/admin/dead-letters/{no}/replay")).await;
    sale.buyer("poison").await.order_becomes(&no, "unpaid").await;
    sale.must_hold().await;
}
