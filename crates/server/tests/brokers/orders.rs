//! What buyers and operators have of it: orders as ever, claims that can be read back, poison that delays
//! nobody, workers that share the work.

use std::collections::HashSet;

use checker::Answer;
use client::{Api, NewSale};

use crate::{
    broker::{
        DOCTOR_ADVISES, DOCTOR_JUDGES, DOCTOR_SEES, GROUP, SERVERS, SESSION_MS, TOPIC, address,
        shared,
    },
    fixtures::{Deployment, Profile, Sale, WORKERS, becomes, until},
    way::{by_broker, command, dead_letter_becomes, looked_back, nothing_waits, number_at, signal},
};

async fn open(profile: Profile, units: i64) -> Sale {
    by_broker(Deployment::new(profile)).open_sale(NewSale::of(units)).await
}

async fn a_sale_goes_from_the_click_to_the_cashier(profile: Profile) {
    let mut sale = open(profile, 1_000).await;
    let buyers = sale.tokens((0..3_000).map(|n| format!("u{n}"))).await;
    let report = sale.crowd(64).rush(buyers).await;
    assert_eq!(report.history.admitted(), 1_000);
    sale.history = report.history;
    assert_eq!(sale.observe().await.orders.len(), 1_000);

    // Paid, given up, and sold again.
    let bought = sale.history.claims.iter().filter_map(|told| match told.answer {
        Answer::Admitted { order_no } => Some((told.user.clone(), order_no.to_string())),
        _ => None,
    });
    let bought: Vec<(String, String)> = bought.collect();
    let mut payer = sale.buyer(&bought[0].0).await;
    let cashier = payer.open_payment(&bought[0].1).await;
    payer.at_the_cashier(&cashier, "pay").await;
    payer.order_becomes(&bought[0].1, "paid").await;
    sale.buyer(&bought[1].0).await.cancel(&bought[1].1).await;
    sale.settle().await;
    assert_eq!(sale.buy_the_rest("late", 5).await, 1);
    sale.must_hold().await;

    // All of it went by the broker, and is there to be read.
    let claims = looked_back(&mut sale.admin()).await;
    let numbers: HashSet<&str> = claims.iter().map(|c| c["order_no"].as_str().unwrap()).collect();
    assert_eq!(numbers.len(), 1_001);
    assert!(claims.iter().all(|claim| claim["state"] != "missing"), "{claims:?}");
    let worker = if profile == Profile::Solo { 0 } else { WORKERS[0] };
    let mut api = sale.process(worker).admin();
    nothing_waits(&mut api).await;
    // A topic that was just made has no leader at first.
    let up = async || number_at(&mut api, "seckill_broker_up").await;
    until("the broker says how its queues are", up, |up| *up == 1.0).await;
    assert_eq!(number_at(&mut api, "seckill_relay_unreadable_total").await, 0.0);
}

async fn a_poison_claim_delays_nobody_and_waits_for_a_person(profile: Profile) {
    const POISON_SQLITE: &str = "CREATE TRIGGER poison BEFORE INSERT ON tb_seckill_order
        WHEN NEW.user_id LIKE 'poison%' AND NEW.status = 0
        BEGIN SELECT RAISE(ABORT, 'this order cannot be written'); END";
    const POISON_MYSQL: &str =
        "CREATE TRIGGER poison BEFORE INSERT ON tb_seckill_order FOR EACH ROW
        SET NEW.quantity = IF(NEW.user_id LIKE 'poison%' AND NEW.status = 0, NULL, NEW.quantity)";
    let deployment = by_broker(Deployment::new(profile))
        .env("SECKILL_ORDERS_RETRY_LADDER_MS", "100,100,100")
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50);
    let mut sale = deployment.open_sale(NewSale::of(300)).await;
    sale.deployment.change_ledger(POISON_SQLITE, POISON_MYSQL);
    let mut users: Vec<String> = (0..298).map(|n| format!("u{n}")).collect();
    users.insert(100, "poison1".into());
    users.insert(200, "poison2".into());
    let buyers = sale.tokens(users).await;
    let report = sale.crowd(64).rush(buyers).await;
    assert_eq!(report.history.admitted(), 300);
    sale.history = report.history;
    assert_eq!(sale.observe().await.orders.len(), 298, "the others are orders");
    let number = |user: &str| {
        let claim = sale.history.claims.iter().find(|claim| claim.user == user).unwrap();
        let Answer::Admitted { order_no } = claim.answer else { panic!("{claim:?}") };
        order_no.to_string()
    };
    let (first, second) = (number("poison1"), number("poison2"));
    let mut admin = sale.admin();
    for no in [&first, &second] {
        let letter = dead_letter_becomes(&mut admin, no, "dead").await;
        assert_eq!(letter["tries"], 4, "{letter}");
    }
    sale.must_hold().await;
    sale.deployment.change_ledger("DROP TRIGGER poison", "DROP TRIGGER poison");
    command(&mut admin, &format!("/api/v1/admin/dead-letters/{first}/replay")).await;
    sale.buyer("poison1").await.order_becomes(&first, "unpaid").await;
    command(&mut admin, &format!("/api/v1/admin/dead-letters/{second}/void")).await;
    sale.buyer("poison2").await.order_becomes(&second, "void").await;
    sale.settle().await;
    assert_eq!(sale.buy_the_rest("late", 3).await, 1, "the voided unit is sold again");
    sale.must_hold().await;
}

/// A crowd of so many takes as many units.
async fn rush(sale: &mut Sale, name: &str, buyers: usize) {
    let buyers = sale.tokens((0..buyers).map(|n| format!("{name}{n}"))).await;
    let report = sale.crowd(64).rush(buyers).await;
    sale.history.claims.extend(report.history.claims);
}

async fn created_at(sale: &Sale, worker: usize) -> f64 {
    number_at(&mut sale.process(worker).admin(), "seckill_orders_created_total").await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_share_a_sale_and_one_does_the_work_of_both() {
    let mut sale = open(Profile::Cluster, 100_000).await;
    // Whoever joined later has its share of the partitions after a moment.
    let mut round = 0;
    becomes("both make orders", async || {
        round += 1;
        rush(&mut sale, &format!("a{round}-"), 400).await;
        sale.settle().await;
        created_at(&sale, WORKERS[0]).await > 0.0 && created_at(&sale, WORKERS[1]).await > 0.0
    })
    .await;

    // One is frozen for longer than its session lasts: the other one has all partitions.
    let frozen = sale.process(WORKERS[0]).pid();
    signal(frozen, "STOP");
    rush(&mut sale, "b", 2_000).await;
    sale.settle().await;
    signal(frozen, "CONT");
    // What it had in hand when it froze is known. It joins again and gets a share.
    let before = created_at(&sale, WORKERS[0]).await;
    let mut round = 0;
    becomes("it is back", async || {
        round += 1;
        rush(&mut sale, &format!("c{round}-"), 400).await;
        sale.settle().await;
        created_at(&sale, WORKERS[0]).await > before
    })
    .await;

    // One dies, and nothing waits for longer than its session.
    sale.kill_one(WORKERS[0]);
    rush(&mut sale, "d", 2_000).await;
    sale.settle().await;
    sale.start_again(WORKERS[0]).await;
    sale.must_hold().await;
    println!("with sessions of {SESSION_MS} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_others_write_to_the_topic_make_no_orders() {
    // Another shop, with another secret, that was given the same topic and group by mistake.
    let ours =
        by_broker(Deployment::new(Profile::Solo)).env("SECKILL_RELAY_REPUBLISH_AFTER_MS", 2_000);
    let named = |name: &str| {
        let env = &ours.launches[0].env;
        env.iter().find(|(set, _)| set == name).map(|(_, value)| value.clone()).unwrap()
    };
    let theirs = by_broker(Deployment::new(Profile::Solo))
        .env("SECKILL_RELAY_REPUBLISH_AFTER_MS", 2_000)
        .env("SECKILL_SECRET", "the secret of quite another shop")
        .env(TOPIC, named(TOPIC))
        .env(GROUP, named(GROUP));
    let mut theirs = theirs.open_sale(NewSale::of(500)).await;
    let mut ours = ours.open_sale(NewSale::of(500)).await;
    for round in 0..4 {
        rush(&mut ours, &format!("ours{round}-"), 100).await;
        rush(&mut theirs, &format!("theirs{round}-"), 100).await;
    }
    // Each passes the other's by; its own come again, as often as it takes.
    for sale in [&ours, &theirs] {
        assert_eq!(sale.observe().await.orders.len(), 400);
        sale.must_hold().await;
    }
    let mut unreadable = 0.0;
    for sale in [&ours, &theirs] {
        unreadable += number_at(&mut sale.admin(), "seckill_relay_unreadable_total").await;
    }
    assert!(unreadable > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_looks_at_the_topic() {
    let deployment = by_broker(Deployment::new(Profile::Solo));
    let run = |deployment: &Deployment| {
        let launch = &deployment.launches[0];
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_seckill"))
            .args(["doctor", "--data"])
            .arg(&launch.data)
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(shared().is_running());
    let said = run(&deployment);
    assert!(said.contains(DOCTOR_SEES), "{said}");
    assert!(said.contains(DOCTOR_JUDGES), "{said}");
    let away = deployment.env(SERVERS, "127.0.0.1:1");
    let said = run(&away);
    assert!(said.contains("FAIL") && said.contains(DOCTOR_ADVISES), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_does_not_wait_for_the_broker() {
    let away = by_broker(Deployment::new(Profile::Solo)).env(SERVERS, "127.0.0.1:1");
    let mut sale = away.open_sale(NewSale::of(100)).await;
    let buyers = sale.tokens((0..100).map(|n| format!("u{n}"))).await;
    let report = sale.crowd(16).rush(buyers).await;
    assert_eq!(report.history.admitted(), 100, "buyers are answered by the gate");
    sale.history = report.history;
    let mut api: Api = sale.admin();
    let up = async || number_at(&mut api, "seckill_broker_up").await;
    until("it is said", up, |up| *up == 0.0).await;
    let address = address(shared());
    sale.kill();
    sale.deployment = sale.deployment.env(SERVERS, address);
    sale.start().await;
    assert_eq!(sale.observe().await.orders.len(), 100);
    sale.must_hold().await;
}

mod in_solo {
    use super::Profile::Solo;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sale_goes_from_the_click_to_the_cashier() {
        super::a_sale_goes_from_the_click_to_the_cashier(Solo).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_poison_claim_delays_nobody_and_waits_for_a_person() {
        super::a_poison_claim_delays_nobody_and_waits_for_a_person(Solo).await;
    }
}

mod in_cluster {
    use super::Profile::Cluster;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sale_goes_from_the_click_to_the_cashier() {
        super::a_sale_goes_from_the_click_to_the_cashier(Cluster).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_poison_claim_delays_nobody_and_waits_for_a_person() {
        super::a_poison_claim_delays_nobody_and_waits_for_a_person(Cluster).await;
    }
}
