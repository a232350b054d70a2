//! Thousands of orders paid at WeChat Pay, at Alipay and at the shop's own cashier, while all of them do
//! everything wrong that they can, time-outs race payments, and the server is killed again and again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use checker::{AnsweredClaim, Observed, ObservedOrder};
use client::NewSale;
use faults::providers::{Faults, Paying};
use sale::{OrderNo, OrderStatus};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::fixtures::{Companies, Deployment, Patient, Payee, Profile, Sale, admitted, now_ms};

/// Buyers who are at it at the same time.
const AT_ONCE: usize = 48;
/// How long an order may be paid.
const PAY_WITHIN_MS: i64 = 6_000;
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// What is lost for good is found by asking, which begins a minute after the money came.
const FOUND_WITHIN: Duration = Duration::from_secs(180);

struct Trial {
    per_payee: usize,
    kills: usize,
    faults: Faults,
    /// Does anybody pay at two companies? If the notice of one is lost, it is asked a minute later.
    two_companies: bool,
}

/// What a buyer does with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Within the time.
    Pays(Paying),
    /// Around the deadline, so that payment and time-out meet.
    Races,
    /// At two companies.
    PaysTwoCompanies,
    Cancels,
    GoesAway,
}

fn plan(dice: &mut fastrand::Rng) -> Plan {
    match dice.u32(..100) {
        0..40 => Plan::Pays(Paying::Now),
        40..48 => Plan::Pays(Paying::Twice),
        48..60 => Plan::Pays(Paying::AtClose),
        60..70 => Plan::Pays(Paying::Late(dice.i64(1..1_000))),
        70..82 => Plan::Races,
        82..87 => Plan::PaysTwoCompanies,
        87..92 => Plan::Cancels,
        _ => Plan::GoesAway,
    }
}

/// One buyer from the claim to whatever comes of it.
async fn buys(
    companies: Arc<Companies>,
    mut buyer: Patient,
    payee: Payee,
    (seed, two_companies): (u64, bool),
) -> AnsweredClaim {
    let mut dice = fastrand::Rng::with_seed(seed);
    let claim = buyer.claim().await;
    let Some(no) = admitted(&claim) else { panic!("{claim:?}") };
    let order = buyer.settled(&no).await;
    let (amount, deadline) = (order["amount"].as_i64().unwrap(), order["pay_deadline"].as_i64());
    let deadline = deadline.unwrap();
    let other = Payee::ALL[dice.usize(..Payee::ALL.len())];
    let plan = plan(&mut dice);
    // At Alipay some scan a code, and some come by a page.
    let method = (payee == Payee::Alipay && dice.bool()).then_some("page");
    let Some(opened) = buyer.open(&no, payee.name(), method).await else { return claim };
    companies.visits(payee, &no, &opened, amount);
    // Whoever comes too late is told so; that is well.
    match plan {
        Plan::Pays(paying) => {
            tokio::time::sleep(Duration::from_millis(dice.u64(..500))).await;
            let _ = companies.pay(payee, &no, paying);
        }
        Plan::Races => {
            let wait = (deadline + dice.i64(-300..300) - now_ms()).max(0) as u64;
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let _ = companies.pay(payee, &no, Paying::Now);
        }
        Plan::PaysTwoCompanies => {
            let _ = companies.pay(payee, &no, Paying::Now);
            if !two_companies || other == payee {
                return claim;
            }
            if let Some(opened) = buyer.open(&no, other.name(), None).await {
                companies.visits(other, &no, &opened, amount);
                let _ = companies.pay(other, &no, Paying::Now);
            }
        }
        Plan::Cancels => buyer.cancel(&no).await,
        Plan::GoesAway => {}
    }
    claim
}

async fn everybody_buys(
    sale: &Sale,
    companies: &Arc<Companies>,
    trial: &Trial,
    seed: u64,
) -> Vec<tokio::task::JoinHandle<AnsweredClaim>> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let (login, item) = (sale.deployment.login(), sale.item);
    let address = companies.relay.address();
    let mut buyers = Vec::new();
    for n in 0..trial.per_payee * Payee::ALL.len() {
        let payee = Payee::ALL[n % Payee::ALL.len()];
        let buyer = Patient::new(login.clone(), address, format!("u{n}"), item);
        let (companies, room) = (companies.clone(), room.clone());
        let choices = (seed + n as u64, trial.two_companies);
        buyers.push(tokio::spawn(async move {
            let _permit = room.acquire().await.unwrap();
            buys(companies, buyer, payee, choices).await
        }));
    }
    buyers
}

/// `kill -9` of everything, or in a cluster sometimes of one, and back again.
async fn kill(sale: &mut Sale, companies: &Companies) {
    let places = sale.deployment.launches.len();
    if places > 1 && fastrand::bool() {
        let place = fastrand::usize(..places);
        sale.kill_one(place);
        if place < 2 {
            companies.find(sale);
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..500))).await;
        sale.start_again(place).await;
    } else {
        sale.kill();
        sale.start().await;
    }
    companies.find(sale);
}

/// Wait until nothing changes any more by itself: no order is on its way, and all money that was taken is
/// that of a paid order, or went back. Lost notices are found by asking, as the reconcile job does.
async fn at_rest(sale: &Sale, companies: &Companies) -> Observed {
    let until = Instant::now() + FOUND_WITHIN;
    loop {
        let mut observed = sale.observe().await;
        observed.bill = Some(companies.bill());
        let left = left_to_do(&observed);
        if left.is_empty() && companies.under_way() == 0 {
            return observed;
        }
        assert!(Instant::now() < until, "never at rest: {:#?}", &left[..left.len().min(10)]);
        // Each round asks about everything that is open: often enough is not as often as possible.
        tokio::time::sleep(ASK_AGAIN).await;
        let healed: Value = client::reconcile(&mut sale.admin(), "heal=true").await.unwrap();
        assert!(healed["payments"].is_array(), "{healed}");
    }
}

fn left_to_do(observed: &Observed) -> Vec<String> {
    let bill = &observed.bill.as_ref().unwrap().charges;
    let mut kept: std::collections::HashMap<OrderNo, usize> = Default::default();
    for charge in bill.iter().filter(|charge| !charge.refunded) {
        *kept.entry(charge.order_no).or_default() += 1;
    }
    let wrong = |order: &ObservedOrder| {
        let charges = kept.get(&order.order_no).copied().unwrap_or(0);
        match order.status {
            OrderStatus::Paid => charges != 1,
            OrderStatus::Closed | OrderStatus::Refunded | OrderStatus::Void => charges != 0,
            _ => true,
        }
    };
    let orders = observed.orders.iter().filter(|order| wrong(order));
    orders
        .map(|order| {
            let charges: Vec<_> =
                bill.iter().filter(|charge| charge.order_no == order.order_no).collect();
            format!("{} is {}: {charges:?}", order.order_no, order.status)
        })
        .collect()
}

async fn every_order_ends_right(profile: Profile, trial: Trial) {
    let seed = std::env::var("MONEY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("to have it again: MONEY_SEED={seed}");
    let companies = Arc::new(Companies::start(seed).await);
    companies.set_faults(&trial.faults);
    let orders = trial.per_payee * Payee::ALL.len();
    let new_sale = NewSale::of(orders as i64).pay_within_ms(PAY_WITHIN_MS);
    let deployment = companies.known_to(Deployment::new(profile));
    let mut sale = deployment.open_sale(new_sale).await;
    companies.find(&sale);
    let began = Instant::now();
    let buyers = everybody_buys(&sale, &companies, &trial, seed).await;
    for _ in 0..trial.kills {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(800..2_500))).await;
        kill(&mut sale, &companies).await;
    }
    for buyer in buyers {
        sale.history.claims.push(buyer.await.unwrap());
    }
    println!("{orders} orders made after {:.1?}, {} kills", began.elapsed(), trial.kills);
    let mut observed = at_rest(&sale, &companies).await;
    println!("at rest after {:.1?}", began.elapsed());
    tell(&observed, &companies);
    assert_eq!(checker::check(&sale.history, &observed), []);
    companies.no_complaints();
    the_books_are_those_of_the_bill(&sale, &companies).await;

    // Nothing is stranded: what came back can be bought.
    let left = observed.items[0].stock as usize;
    assert_eq!(sale.buy_the_rest("late", left + 20).await, left);
    observed = sale.observe().await;
    observed.bill = Some(companies.bill());
    observed.items[0].demand_exceeds_stock = true;
    assert_eq!(checker::check(&sale.history, &observed), []);
    assert_eq!(observed.items[0].stock, 0);
}

fn tell(observed: &Observed, companies: &Companies) {
    let count = |status| observed.orders.iter().filter(|o| o.status == status).count();
    use OrderStatus::{Closed, Paid, Refunded};
    println!("{} paid, {} closed, {} refunded", count(Paid), count(Closed), count(Refunded));
    for payee in Payee::ALL {
        let bill = companies.bill_of(payee);
        let taken: i64 = bill.iter().map(|line| line.amount).sum();
        let back: i64 = bill.iter().map(|line| line.refunded).sum();
        let mut counts: Vec<_> = companies.counts_of(payee).into_iter().collect();
        counts.sort();
        println!(
            "{}: {} charges, {taken} taken, {back} given back; {counts:?}",
            payee.name(),
            bill.len()
        );
    }
}

/// What was credited less what was given back, by the ledger, is what the companies keep.
async fn the_books_are_those_of_the_bill(sale: &Sale, companies: &Companies) {
    let (credited, refunded) = sale.deployment.money_in_ledger();
    let bill = companies.bill().charges;
    let taken: i64 = bill.iter().map(|charge| charge.amount).sum();
    let back: i64 = bill.iter().filter(|charge| charge.refunded).map(|charge| charge.amount).sum();
    println!("the ledger: {credited} credited, {refunded} given back");
    assert_eq!((credited, refunded), (taken, back));
}

/// Waiting for what a lost notice of late money needs takes a minute: not here.
fn quick() -> Faults {
    Faults { late_notices_lost: 0, ..Faults::every() }
}

async fn sixty_orders_at_each_end_right_whatever_goes_wrong(profile: Profile) {
    let trial = Trial { per_payee: 60, kills: 2, faults: quick(), two_companies: false };
    every_order_ends_right(profile, trial).await;
}

crate::in_every_profile! {
    sixty_orders_at_each_end_right_whatever_goes_wrong,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: cargo xtask torture"]
async fn two_thousand_orders_at_each_end_right_in_solo() {
    let trial = Trial { per_payee: 2_000, kills: 8, faults: Faults::every(), two_companies: true };
    every_order_ends_right(Profile::Solo, trial).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: cargo xtask torture"]
async fn two_thousand_orders_at_each_end_right_in_a_cluster() {
    let trial = Trial { per_payee: 2_000, kills: 8, faults: Faults::every(), two_companies: true };
    every_order_ends_right(Profile::Cluster, trial).await;
}
