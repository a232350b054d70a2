//! The Redis gate beside the seeds' script, on one Redis that is on disk before it answers.
//!
//! The same number of buyers wait at any moment on every side: each on a connection of their own, in
//! pipelines of 32, or in batches of a lane each.

use std::time::{Duration, Instant};

use faults::services::{Redis, RedisOptions as Engine};
use gate::{
    Admission, Keep, NumberedRequest, Upkeep,
    redis::{RedisGate, RedisOptions},
};
use redis_link::{RedisAddress, RedisServers};
use sale::ItemId;
use tokio::task::JoinSet;

use crate::{
    Failure, Plan,
    claims::{Crowd, all_admitted, batches, open_item},
    figures::{Best, Figures, Goal},
    peers::script::Script,
};

/// Who waits for an answer at the same moment, on every side.
const BUYERS_AT_ONCE: usize = 1_024;
const PIPELINE: usize = 32;
/// Buyers of one round: about a second's worth.
const SINGLES: usize = 40_960;
const PIPELINED: usize = 102_400;
const BATCHED: usize = 256_000;

pub(crate) async fn measure(plan: &Plan, figures: &mut Figures) -> Result<(), Failure> {
    // A rewrite of the file in the middle of one side's round would be luck.
    let extra = ["--auto-aof-rewrite-percentage", "0"].map(String::from).to_vec();
    let redis = Redis::start(Engine { extra, ..Engine::default() })?;
    let gate = RedisGate::open(RedisOptions {
        servers: RedisServers::new(&RedisAddress::new(redis.url()))?,
        prefix: "bench".into(),
        partitions: 16,
        answer_ms_max: 5_000,
        log_claims_max: i64::MAX as u64,
        consumer: "bench".into(),
        takeover_ms: 60_000,
        wait_replicas: 0,
        wait_ms_max: 0,
        keep: Keep { ms: 86_400_000, bytes_max: 32 << 20 },
    })
    .await?;
    let script = Script::load(&redis)?;
    let mut crowd = Crowd::new();
    let [mut single, mut pipelined, mut small, mut large] = [Best::default(); 4];
    for round in 0..plan.rounds(10, 4) {
        let item = ItemId(1_000 + 10 * round as i64);
        let one = single.note(script.rush(&redis, item, &mut crowd, SINGLES, 1).await?);
        redis.call(&["FLUSHALL"])?;
        let a = small.note(ours(&gate, item, &mut crowd, 64).await?);
        redis.call(&["FLUSHALL"])?;
        let many = script.rush(&redis, ItemId(item.0 + 1), &mut crowd, PIPELINED, PIPELINE).await?;
        pipelined.note(many);
        redis.call(&["FLUSHALL"])?;
        let b = large.note(ours(&gate, ItemId(item.0 + 2), &mut crowd, 256).await?);
        redis.call(&["FLUSHALL"])?;
        println!(
            "  round {round}: script {one:.0}/s, pipelined {many:.0}/s, \
             gate {a:.0}/s in batches of 64, {b:.0}/s of 256"
        );
    }
    let ours = if large.0 > small.0 { large.0 } else { small.0 };
    let mut add = |key: &str, what: &str, value: f64, goal| figures.add(key, what, value, goal);
    add(
        "script_per_s",
        "the seeds' script, a connection per buyer, buyers/s",
        single.0,
        Goal::None,
    );
    add("script_pipelined_per_s", "the same, pipelined 32 deep", pipelined.0, Goal::None);
    add("gate_redis_per_s_64", "Redis gate, admissions/s, batches of 64", small.0, Goal::None);
    add("gate_redis_per_s_256", "the same, batches of 256", large.0, Goal::None);
    let what = "Redis gate ÷ the script, no pipelining";
    add("gate_redis_vs_script", what, ours / single.0, Goal::AtLeast(8.0));
    let what = "Redis gate ÷ the script, pipelined 32 deep";
    add("gate_redis_vs_script_pipelined", what, ours / pipelined.0, Goal::AtLeast(3.3));
    Ok(())
}

/// Buyers per second in batches of this size. As many lanes as fill up with the buyers that wait,
/// each with the buyers of one shard and one batch at the gate, as in the engine.
async fn ours(
    gate: &RedisGate,
    item: ItemId,
    crowd: &mut Crowd,
    batch: usize,
) -> Result<f64, Failure> {
    let lanes = BUYERS_AT_ONCE / batch;
    let loading = open_item(item, 2 * BATCHED, lanes as u32, Vec::new());
    gate.begin_load(item, loading.epoch, loading.shards).await?;
    gate.load(loading).await?;
    let mut waiting: Vec<Vec<NumberedRequest>> = vec![Vec::new(); gate.partitions()];
    for request in crowd.requests(item, BATCHED)? {
        waiting[gate.partition_of(item, &request.1.user)].push(request);
    }
    let mut running = JoinSet::new();
    let began = Instant::now();
    for lane in waiting.into_iter().filter(|lane| !lane.is_empty()) {
        let gate = gate.clone();
        running.spawn(async move {
            for batch in batches(lane, batch) {
                all_admitted(&gate.admit(batch).await)?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    let took: Duration = began.elapsed();
    gate.unload(item).await?;
    Ok(BATCHED as f64 / took.as_secs_f64())
}

impl Script {
    /// Buyers per second, this many in each pipeline.
    async fn rush(
        &self,
        redis: &Redis,
        item: ItemId,
        crowd: &mut Crowd,
        buyers: usize,
        pipeline: usize,
    ) -> Result<f64, Failure> {
        redis.call(&["SET", &format!("seckill:stock:{item}"), &buyers.to_string()])?;
        let connections = BUYERS_AT_ONCE / pipeline;
        let mut clients = Vec::new();
        for requests in batches(crowd.requests(item, buyers)?, buyers / connections) {
            clients.push(self.client(redis.address(), &requests, pipeline).await?);
        }
        let mut running = JoinSet::new();
        let began = Instant::now();
        for client in clients {
            running.spawn(client.run());
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        Ok(buyers as f64 / began.elapsed().as_secs_f64())
    }
}
