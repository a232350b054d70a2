//! Orders by way of a message broker, beside the same by the gate's own log: from the admission of the first
//! claim until the last one is an order, and acknowledged everywhere.
//!
//! Both go from a solo gate to a SQLite ledger, with the workers of `seckill serve` between them, in this
//! process. Kafka is one node and RocketMQ one broker, and each waits for its disk before it confirms.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use faults::services::{
    Kafka, KafkaOptions as NodeOptions, RocketMq, RocketMqOptions, unique_name,
};
use gate::{
    Admission, Keep, Upkeep,
    solo::{SoloGate, SoloOptions},
};
use ledger::sqlite;
use orders::{
    AlertOptions, Alerts, ClaimLogKind, KafkaOptions, Options, RelayOptions, RocketmqOptions,
    Workers,
    broker::{self, Broker, BrokerLog, Relay},
};
use sale::{ClaimLog, SigningKeys};

use crate::{
    Failure, Plan,
    claims::{Crowd, all_admitted, batches, clock, open_item},
    figures::{Best, Figures, Goal},
    ledgers::sale,
};

const CLAIMS: usize = 40_000;
/// As the lanes of a server make them in a rush.
const BATCH: usize = 256;
const LOOK: Duration = Duration::from_millis(2);
/// No round takes so long.
const PATIENCE: Duration = Duration::from_secs(120);
const OPTIONS: SoloOptions =
    SoloOptions { log_claims_max: u64::MAX, keep: Keep { ms: 86_400_000, bytes_max: 128 << 20 } };

pub(crate) async fn measure(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let kafka = Kafka::start(NodeOptions::default())?;
    let rocketmq = RocketMq::start(RocketMqOptions::default())?;
    let [mut native, mut by_kafka, mut by_rocketmq] = [Best::default(); 3];
    for round in 0..plan.rounds(8, 4) {
        let own = native.note(orders_per_s(data, None).await?);
        let options = KafkaOptions {
            servers: vec![kafka.address().to_string()],
            topic: unique_name("bench"),
            group: unique_name("bench"),
            ..KafkaOptions::default()
        };
        let other = RocketmqOptions {
            name_servers: vec![rocketmq.name_server().to_string()],
            topic: unique_name("bench"),
            group: unique_name("bench"),
            unpaid_topic: unique_name("bench"),
            ..RocketmqOptions::default()
        };
        let broker = broker::open(ClaimLogKind::Kafka, &options, &other)?;
        let way = by_kafka.note(orders_per_s(data, broker).await?);
        let broker = broker::open(ClaimLogKind::Rocketmq, &options, &other)?;
        let second = by_rocketmq.note(orders_per_s(data, broker).await?);
        println!(
            "  round {round}: {own:.0} orders/s by the gate's own log, {way:.0} by Kafka, \
             {second:.0} by RocketMQ"
        );
    }
    let mut add = |key: &str, what: &str, value: f64| figures.add(key, what, value, Goal::None);
    add(
        "orders_native_per_s",
        "claim to order in SQLite, by the gate's own log, orders/s",
        native.0,
    );
    add("orders_by_kafka_per_s", "the same by way of Kafka", by_kafka.0);
    add(
        "orders_by_kafka_vs_native",
        "by way of Kafka ÷ by the gate's own log",
        by_kafka.0 / native.0,
    );
    add("orders_by_rocketmq_per_s", "the same by way of RocketMQ", by_rocketmq.0);
    add(
        "orders_by_rocketmq_vs_native",
        "by way of RocketMQ ÷ by the gate's own log",
        by_rocketmq.0 / native.0,
    );
    Ok(())
}

async fn orders_per_s(data: &Path, broker: Option<Arc<dyn Broker>>) -> Result<f64, Failure> {
    // Its own each time: who closes the files of the last round may not be done with it.
    let folder = tempfile::Builder::new().prefix("by-broker-").tempdir_in(data)?;
    let ledger = Arc::new(sqlite::open(&folder.path().join("ledger.db"), clock())?);
    let gate = SoloGate::open(folder.path(), OPTIONS, clock())?;
    let mut crowd = Crowd::new();
    // One more than is measured: it brings the workers together.
    let (item, _) = sale(&*ledger, &mut crowd, CLAIMS + 1).await?;
    gate.load(open_item(item.id, CLAIMS + 1, 1, Vec::new())).await?;
    let alerts = Alerts::start(AlertOptions::default());
    let log: Arc<dyn ClaimLog> = Arc::new(gate.clone());
    let (log, relay) = match &broker {
        None => (log, None),
        Some(broker) => {
            let keys = SigningKeys::from_secret(b"a secret of the bench").ok_or("too short")?;
            let log = BrokerLog::new(Arc::new(gate.clone()), broker.clone(), keys.clone());
            let relay = Relay::start(
                RelayOptions::default(),
                Arc::new(gate.clone()),
                broker.clone(),
                log.clone(),
                keys,
                clock(),
                alerts.clone(),
            );
            (log as Arc<dyn ClaimLog>, Some(relay))
        }
    };
    let workers = Workers::start(Options::default(), log, ledger.clone(), clock(), alerts);
    all_admitted(&gate.admit(crowd.requests(item.id, 1)?).await)?;
    drained(&gate).await?;
    let claims = batches(crowd.requests(item.id, CLAIMS)?, BATCH);
    let began = Instant::now();
    for batch in claims {
        all_admitted(&gate.admit(batch).await)?;
    }
    drained(&gate).await?;
    let took = began.elapsed();
    if let Some(relay) = relay {
        relay.stop().await;
    }
    workers.stop().await;
    if let Some(broker) = broker {
        broker.stop().await;
    }
    drop((gate, ledger));
    Ok(CLAIMS as f64 / took.as_secs_f64())
}

async fn drained(gate: &SoloGate) -> Result<(), Failure> {
    let began = Instant::now();
    while gate.backlog() > 0 {
        if began.elapsed() > PATIENCE {
            return Err(format!("{} claims are still on the log", gate.backlog()).into());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
