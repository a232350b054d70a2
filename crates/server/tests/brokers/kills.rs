//! `kill -9` of relay, worker and broker at random under load.

use std::time::Duration;

use checker::Answer;
use client::NewSale;

use crate::{
    broker::by,
    fixtures::{Deployment, Profile, WORKERS, blocking},
    way::{nothing_waits, own_broker},
};

const ROUNDS: usize = 5;
const BUYERS_PER_ROUND: usize = 500;

/// What dies in a round. Relay and worker are one process.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Worker(usize),
    BothWorkers,
    Broker,
    BrokerAndWorker,
    Web,
}

fn anybody() -> Victim {
    match fastrand::u32(..6) {
        0 => Victim::Worker(WORKERS[0]),
        1 => Victim::Worker(WORKERS[1]),
        2 => Victim::BothWorkers,
        3 => Victim::Broker,
        4 => Victim::BrokerAndWorker,
        _ => Victim::Web,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_kills_under_load_lose_nothing_and_make_nothing_twice() {
    let rounds = std::env::var("BROKER_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: usize = rounds.unwrap_or(ROUNDS);
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let broker = own_broker().await;
    let units = (rounds * BUYERS_PER_ROUND) as i64 + 50;
    let deployment = by(&broker, Deployment::new(Profile::Cluster));
    let mut sale = deployment.open_sale(NewSale::of(units)).await;
    for round in 0..rounds {
        let users = (0..BUYERS_PER_ROUND).map(|n| format!("u{round}-{n}"));
        let buyers = sale.tokens(users).await;
        let mut crowd = sale.crowd(16);
        crowd.keys = true;
        let rush = tokio::spawn(async move { crowd.rush(buyers).await });
        let pause = Duration::from_millis(fastrand::u64(5..400));
        tokio::time::sleep(pause).await;
        let victim = anybody();
        let dies = |victim| matches!(victim, Victim::Broker | Victim::BrokerAndWorker);
        if dies(victim) {
            let dying = broker.clone();
            blocking(move || dying.kill()).await;
        }
        let places = match victim {
            Victim::Worker(place) => vec![place],
            Victim::BothWorkers => WORKERS.to_vec(),
            Victim::BrokerAndWorker => vec![WORKERS[fastrand::usize(..2)]],
            Victim::Web => vec![1],
            Victim::Broker => vec![],
        };
        places.iter().for_each(|place| sale.kill_one(*place));
        let report = rush.await.unwrap();
        sale.history.claims.extend(report.history.claims);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..1_000))).await;
        if dies(victim) {
            let back = broker.clone();
            blocking(move || back.restart()).await;
        }
        for place in places {
            sale.start_again(place).await;
        }
        let admitted =
            sale.history.claims.iter().filter(|t| matches!(t.answer, Answer::Admitted { .. }));
        println!("round {round}: {victim:?} after {pause:?}, {} admitted so far", admitted.count());
    }
    // The rest is bought to the last unit, also by those who never got an answer.
    let left = sale.observe().await.items[0].stock as usize;
    assert_eq!(sale.buy_the_rest("late", left + 20).await, left);
    let mut observed = sale.observe().await;
    observed.items[0].demand_exceeds_stock = true;
    let violations = checker::check(&sale.history, &observed);
    assert!(violations.is_empty(), "{violations:#?}");
    assert_eq!(observed.items[0].stock, 0);
    sale.must_hold().await;
    nothing_waits(&mut sale.process(WORKERS[0]).admin()).await;
}
