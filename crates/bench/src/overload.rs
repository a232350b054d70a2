//! Ten times more claims than the gate is set to take, for half a minute: what reaches the gate, what the
//! others are told and how soon, what it costs in memory, and how soon all is as before.
//!
//! Ten times what the gate *could* take cannot be made on the cores it runs on, so `lane.rate_per_s` sets
//! what it takes, as an operator would, and an open loop brings ten times that. Without a rate the same crowd
//! comes over ten times more sockets and claims as fast as it is answered: then nobody is refused, and what
//! is asked is whether the server does as much for many at once as for few.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use client::{Connection, ServerProcess, settled};
use rehearsal::{Arrival, OpenLoop, OpenLoopReport};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    Failure, Plan,
    cpu::cpu_us,
    echo::Echo,
    figures::{Figures, Goal},
    http::{BUYERS, Rate, SETTLED_WITHIN, crowd, open_sale, served, start, tokens},
    server_binary,
};

/// What the gate is set to take.
const RATE_PER_S: usize = 1_000;
const OVERLOAD: usize = 10;
/// How long a claim may wait for the gate here: a fifth of the connections of the crowd wait at most, and the
/// others can go on asking.
const WAIT_MS_MAX: usize = 200;
const CONNECTIONS: usize = 1_024;
const UNLOADED_S: usize = 5;
/// Without a rate, in one round. Each of the many sockets claims two dozen times: with fewer, what is
/// measured is opening and closing them.
const SATURATING: usize = 4 * BUYERS;
/// The first seconds fill what is bounded: queues, buffers, caches.
const WARM_UP: Duration = Duration::from_secs(5);
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// Normal is when so many lone claims in a row are admitted about as soon as before.
const NORMAL_IN_A_ROW: usize = 10;
const NORMAL_FACTOR: u32 = 5;
const NORMAL_WITHIN: Duration = Duration::from_secs(30);
const LONE_PAUSE: Duration = Duration::from_millis(10);
const LONE_CLAIMS: usize = 100;

pub(crate) async fn measure(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    paced(plan, &data.join("overload"), figures).await?;
    saturated(plan, &data.join("saturated"), figures).await
}

/// The gate is set to a rate, and ten times as many come.
async fn paced(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let settings = [
        ("SECKILL_LANE_RATE_PER_S", &*RATE_PER_S.to_string()),
        ("SECKILL_LANE_WAIT_MS_MAX", &*WAIT_MS_MAX.to_string()),
    ];
    let server = start(&server_binary()?, data, &settings).await?;
    let lasts_s = if plan.quick { 10 } else { 30 };
    // Nobody is told *too hot* because fewer units are left than claims wait.
    let stock = 4 * RATE_PER_S * (UNLOADED_S + lasts_s);
    let mut shop = Shop { item: open_sale(&mut server.admin(), stock).await?, server, lone: 0 };
    let usual = shop.lone_claim_p50().await?;
    let unloaded = shop.comes("calm", RATE_PER_S, UNLOADED_S).await?;
    let peak_per_s = admitted_per_s(&unloaded, UNLOADED_S);

    let memory = Memory::watch(shop.server.pid());
    let crowd = shop.comes("crowd", OVERLOAD * RATE_PER_S, lasts_s).await?;
    let normal_after = shop.normal_after(usual).await?;
    let memory = memory.seen().await?;

    let accepted_per_s = admitted_per_s(&crowd, lasts_s);
    let refused = &crowd.refused.latency;
    let ms = |q: f64| refused.value_at_quantile(q) as f64 / 1e3;
    println!(
        "  {} came in {lasts_s} s, {} were admitted, {} refused; the generator was late by {} µs at p99, and \
         {} found no connection free",
        crowd.history.claims.len(),
        crowd.history.admitted(),
        refused.len(),
        crowd.latencies.lag.value_at_quantile(0.99),
        crowd.latencies.kept_waiting
    );
    println!("  memory every 5 s, MB: {}", memory.told());
    let mut add = |key: &str, what: &str, value: f64, goal: Goal| {
        figures.add(
            key,
            &format!("{what}, {OVERLOAD} x {RATE_PER_S}/s for {lasts_s} s"),
            value,
            goal,
        );
    };
    add("overload_offered_per_s", "claims that came per second", offered_per_s(&crowd), Goal::None);
    add("overload_peak_per_s", "admitted per second before it", peak_per_s, Goal::None);
    let ratio = accepted_per_s / peak_per_s;
    add("overload_accepted", "admitted per second ÷ before it", ratio, Goal::AtLeast(0.9));
    add(
        "overload_refused_p99_ms",
        "refusals, p99 ms from the planned instant",
        ms(0.99),
        Goal::AtMost(50.0),
    );
    add("overload_refused_p50_ms", "refusals, p50 ms", ms(0.5), Goal::None);
    let normal_ms = normal_after.as_secs_f64() * 1e3;
    add("overload_normal_ms", "ms until all is as before", normal_ms, Goal::AtMost(2_000.0));
    add("overload_grown_mb", "MB of memory grown after 5 s", memory.grown_mb(), Goal::AtMost(16.0));
    settled(&mut shop.server.admin(), SETTLED_WITHIN).await?;
    shop.server.stop().await?;
    Ok(())
}

/// No rate is set: ten times more sockets, each of which claims as fast as it is answered; and the same
/// crowds at the echo, for what more sockets cost the kernel, tokio and the generator they cost it, too.
async fn saturated(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let server = start(&server_binary()?, data, &[]).await?;
    let echo = Echo::start()?;
    let (few, many) = (plan.connections, OVERLOAD * plan.connections);
    let mut best = [[Rate::default(); 2]; 2];
    for n in 0..plan.rounds(12, 4) {
        for (best, connections) in best.iter_mut().zip([few, many]) {
            let mut admin = server.admin();
            let item = open_sale(&mut admin, SATURATING).await?;
            let buyers = tokens(item, "many", SATURATING);
            let side = crowd(echo.address, item, connections);
            let (echoed, _) = served(echo.pid(), side.rush(buyers.clone())).await?;
            let side = crowd(server.address, item, connections);
            let before_us = cpu_us(std::process::id())?;
            let (claimed, report) = served(server.pid(), side.rush(buyers)).await?;
            let own_us = cpu_us(std::process::id())? - before_us;
            if report.history.admitted() != SATURATING {
                return Err(
                    "somebody was not admitted, though there was a unit for everybody".into()
                );
            }
            settled(&mut admin, SETTLED_WITHIN).await?;
            println!(
                "  round {n}, {connections} sockets: echo {:.0}/s, {:.1} µs of it each; claims {:.0}/s, \
                 {:.1} µs of the server and {:.1} of the generator each",
                echoed.per_s,
                echoed.cpu_us,
                claimed.per_s,
                claimed.cpu_us,
                own_us / SATURATING as f64
            );
            *best = [best[0].or_better(echoed), best[1].or_better(claimed)];
        }
    }
    let [few_best, many_best] = best;
    let ratio = |which: usize| many_best[which].per_s / few_best[which].per_s;
    let cost = |which: usize| many_best[which].cpu_us / few_best[which].cpu_us;
    let what = format!("claims per second of {many} sockets ÷ of {few}, no rate set");
    figures.add("overload_sockets", &what, ratio(1), Goal::AtLeast(0.9));
    figures.add("overload_sockets_echo", "the same of the echo", ratio(0), Goal::None);
    let what = "the server's work for a claim of theirs ÷ for one of the few";
    figures.add("overload_sockets_cost", what, cost(1), Goal::None);
    figures.add("overload_sockets_echo_cost", "the same of the echo", cost(0), Goal::None);
    figures.add("overload_sockets_p99_ms", "their p99 ms", many_best[1].p99_ms, Goal::None);
    server.stop().await?;
    Ok(())
}

struct Shop {
    server: ServerProcess,
    item: i64,
    /// Buyers who came alone so far.
    lone: usize,
}

impl Shop {
    /// So many come per second, evenly.
    async fn comes(
        &self,
        name: &str,
        per_s: usize,
        lasts_s: usize,
    ) -> Result<OpenLoopReport, Failure> {
        let buyers = tokens(self.item, name, per_s * lasts_s).into_iter().enumerate();
        let arrival = |(n, (user, token))| {
            let at = Duration::from_secs_f64(n as f64 / per_s as f64);
            Arrival { at, user, token }
        };
        let street = OpenLoop {
            addresses: vec![self.server.address],
            item: self.item,
            quantity: 1,
            connections: CONNECTIONS,
            keys: false,
        };
        Ok(street.run(buyers.map(arrival).collect()).await?)
    }

    /// How long a buyer waits who comes alone.
    async fn lone_claim_p50(&mut self) -> Result<Duration, Failure> {
        let mut connection = Connection::open(self.server.address).await?;
        let mut times = Vec::new();
        for _ in 0..LONE_CLAIMS {
            times.extend(self.lone_claim(&mut connection).await?);
            tokio::time::sleep(LONE_PAUSE).await;
        }
        times.sort();
        times.get(times.len() / 2).copied().ok_or_else(|| "no lone claim was admitted".into())
    }

    /// How long one lone claim took, if it was admitted.
    async fn lone_claim(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Option<Duration>, Failure> {
        self.lone += 1;
        let (_, token) = tokens(self.item, &format!("lone{}-", self.lone), 1).remove(0);
        let path = format!("/api/v1/items/{}/claims", self.item);
        let headers = [("content-type", "application/json"), ("x-sale-token", token.as_str())];
        let began = Instant::now();
        let answer = connection.send("POST", &path, &headers, b"{\"quantity\":1}").await?;
        Ok((answer.status == 202).then(|| began.elapsed()))
    }

    /// From now until lone claims are served as they were before.
    async fn normal_after(&mut self, usual: Duration) -> Result<Duration, Failure> {
        let (began, mut in_a_row, mut since) = (Instant::now(), 0, Duration::ZERO);
        let mut connection = Connection::open(self.server.address).await?;
        while began.elapsed() < NORMAL_WITHIN {
            let asked_after = began.elapsed();
            let took = self.lone_claim(&mut connection).await?;
            if took.is_some_and(|took| took <= usual * NORMAL_FACTOR) {
                if in_a_row == 0 {
                    since = asked_after;
                }
                in_a_row += 1;
                if in_a_row == NORMAL_IN_A_ROW {
                    return Ok(since);
                }
            } else {
                in_a_row = 0;
            }
            tokio::time::sleep(LONE_PAUSE).await;
        }
        Err(format!("after {NORMAL_WITHIN:?} it is not as before").into())
    }
}

fn admitted_per_s(report: &OpenLoopReport, planned_s: usize) -> f64 {
    report.history.admitted() as f64 / report.took.as_secs_f64().max(planned_s as f64)
}

fn offered_per_s(report: &OpenLoopReport) -> f64 {
    report.history.claims.len() as f64 / report.took.as_secs_f64()
}

/// What a process keeps in memory, looked at now and then.
pub(crate) struct Memory {
    stop: oneshot::Sender<()>,
    watching: JoinHandle<Vec<(Duration, f64)>>,
}

impl Memory {
    pub(crate) fn watch(pid: u32) -> Memory {
        let (stop, mut stopped) = oneshot::channel();
        let watching = tokio::spawn(async move {
            let (began, mut samples) = (Instant::now(), Vec::new());
            while stopped.try_recv().is_err() {
                samples.extend(resident_mb(pid).map(|mb| (began.elapsed(), mb)));
                tokio::time::sleep(SAMPLE_EVERY).await;
            }
            samples
        });
        Memory { stop, watching }
    }

    pub(crate) async fn seen(self) -> Result<Seen, Failure> {
        // A watcher that has ended has nothing to be told.
        let _ = self.stop.send(());
        Ok(Seen(self.watching.await?))
    }
}

pub(crate) struct Seen(Vec<(Duration, f64)>);

impl Seen {
    /// How much more it was at the most than when all that is bounded was filled.
    fn grown_mb(&self) -> f64 {
        let warm = self.0.iter().find(|(at, _)| *at >= WARM_UP).or(self.0.last());
        let base = warm.map_or(0.0, |(_, mb)| *mb);
        self.0.iter().filter(|(at, _)| *at >= WARM_UP).map(|(_, mb)| mb - base).fold(0.0, f64::max)
    }

    /// How much more it was at the most than at the first look.
    pub(crate) fn risen_mb(&self) -> f64 {
        let base = self.0.first().map_or(0.0, |(_, mb)| *mb);
        self.0.iter().map(|(_, mb)| mb - base).fold(0.0, f64::max)
    }

    fn told(&self) -> String {
        let every = (WARM_UP.as_millis() / SAMPLE_EVERY.as_millis()) as usize;
        let some: Vec<String> =
            self.0.iter().step_by(every).map(|(_, mb)| format!("{mb:.0}")).collect();
        some.join(" ")
    }
}

/// Absent if the process has ended.
fn resident_mb(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1_024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_flat_if_it_does_not_grow_after_the_warm_up() {
        let at = |s: u64, mb: f64| (Duration::from_secs(s), mb);
        let seen = Seen(vec![at(0, 10.0), at(3, 90.0), at(5, 50.0), at(10, 58.0), at(20, 52.0)]);
        assert_eq!(seen.grown_mb(), 8.0);
        assert_eq!(Seen(Vec::new()).grown_mb(), 0.0);
    }
}
