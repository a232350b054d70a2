//! A whole solo server over real HTTP beside the echo: one crowd is told that it is sold out, another
//! buys everything.

use std::{
    future::Future,
    io::Write,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use checker::Answer;
use client::{
    Api, ApiError, Crowd, CrowdReport, Launch, NewSale, SaleTokens, ServerProcess, settled,
    signed_sale_tokens,
};
use rehearsal::{Arrival, OpenLoop, OpenLoopReport};

use crate::{
    Failure, Plan,
    cpu::cpu_us,
    echo::Echo,
    figures::{Figures, Goal},
    server_binary,
};

pub(crate) const SECRET: &str = "only for the benchmark, on loopback";

/// The other number of sockets that a goal is set for.
pub(crate) const FEW_CONNECTIONS: usize = 64;

/// In one round. Many short rounds tell more than a few long ones where the machine is shared.
pub(crate) const BUYERS: usize = 15_000;

/// Every claim is an order by then.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// What one crowd was served at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    pub(crate) per_s: f64,
    p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// What the server's process worked for one request.
    pub(crate) cpu_us: f64,
}

/// The three crowds of a round, one after the other, so that the machine's moods meet all of them.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    echo: Rate,
    /// Refused with 409 sold_out.
    sold_out: Rate,
    /// Admitted and on disk.
    claims: Rate,
    /// From the first claim to the last order in the ledger, while claims are still coming.
    orders_per_s: f64,
    /// What the server's process worked for one claim until it was an order.
    order_cpu_us: f64,
}

struct Bench<'a> {
    server: &'a ServerProcess,
    echo: &'a Echo,
    connections: usize,
    /// An item of which nothing is left.
    sold_out: i64,
}

pub(crate) async fn measure(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let data = data.join("http");
    let server = start(&server_binary()?, &data, &[]).await?;
    let echo = Echo::start()?;
    let sold_out = sold_out_item(&server).await?;
    let mut claims_per_s = 0.0;
    for connections in [plan.connections, FEW_CONNECTIONS] {
        let bench = Bench { server: &server, echo: &echo, connections, sold_out };
        println!("  {connections} connections");
        let best = bench.rounds(plan.rounds(40, 14)).await?;
        let suffix = if connections == plan.connections { "" } else { "_few" };
        report(&best, connections, suffix, figures);
        claims_per_s = best.claims.per_s.max(claims_per_s);
    }
    half_load(plan, &server, claims_per_s / 2.0, figures).await?;
    lone(&server, &data, figures).await?;
    server.stop().await?;
    Ok(())
}

/// A solo server that trusts tokens of ours, with these settings beside.
pub(crate) async fn start(
    binary: &Path,
    data: &Path,
    settings: &[(&str, &str)],
) -> Result<ServerProcess, Failure> {
    std::fs::create_dir_all(data)?;
    let mut launch = Launch::new(binary, data)
        .env("SECKILL_SECRET", SECRET)
        .env("SECKILL_LOG_LEVEL", "warn")
        .log(data.join("server.log"));
    for (name, value) in settings {
        launch = launch.env(name, value);
    }
    Ok(launch.start().await?)
}

/// How long a buyer waits who comes at a planned instant, with half of what the server can take.
async fn half_load(
    plan: &Plan,
    server: &ServerProcess,
    per_s: f64,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let seconds = if plan.quick { 2.0 } else { 4.0 };
    let buyers = (per_s * seconds) as usize;
    let mut best: Option<OpenLoopReport> = None;
    for n in 0..plan.rounds(10, 6) {
        let mut admin = server.admin();
        let item = open_sale(&mut admin, buyers).await?;
        let arrival = |(n, (user, token))| {
            let at = Duration::from_secs_f64(n as f64 / per_s);
            Arrival { at, user, token }
        };
        let arrivals = tokens(item, "planned", buyers).into_iter().enumerate().map(arrival);
        let street = OpenLoop {
            addresses: vec![server.address],
            item,
            quantity: 1,
            connections: plan.connections,
            keys: false,
        };
        let report = street.run(arrivals.collect()).await?;
        settled(&mut admin, SETTLED_WITHIN).await?;
        let p99 = |report: &OpenLoopReport| report.latencies.latency.value_at_quantile(0.99);
        println!(
            "  round {n}: p99 {} µs at {per_s:.0} claims/s, the generator was late by {} µs at p99",
            p99(&report),
            report.latencies.lag.value_at_quantile(0.99)
        );
        if best.as_ref().is_none_or(|best| p99(&report) < p99(best)) {
            best = Some(report);
        }
    }
    let best = best.ok_or("no round")?;
    let ms = |q: f64| best.latencies.latency.value_at_quantile(q) as f64 / 1e3;
    let what = "claims at half load, p99 ms from the planned instant";
    figures.add("p99_ms_half_load", what, ms(0.99), Goal::AtMost(5.0));
    figures.add("p50_ms_half_load", "the same, p50 ms", ms(0.5), Goal::None);
    Ok(())
}

/// A claim that comes alone is not kept waiting for others: beside what the disk takes to keep a
/// page, there should be little.
async fn lone(server: &ServerProcess, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    const CLAIMS: usize = 400;
    let mut admin = server.admin();
    let item = open_sale(&mut admin, CLAIMS).await?;
    let report = crowd(server.address, item, 1).rush(tokens(item, "lone", CLAIMS)).await;
    settled(&mut admin, SETTLED_WITHIN).await?;
    let claim_ms = report.latency.value_at_quantile(0.5) as f64 / 1e3;
    let mut file = std::fs::File::create(data.join("page"))?;
    let mut times = Vec::new();
    for _ in 0..CLAIMS {
        let began = Instant::now();
        file.write_all(&[7; 4_096])?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let page_ms = times[CLAIMS / 2];
    let what = "a lone claim, p50 ms above a page written and fsynced";
    figures.add("lone_claim_over_fsync_ms", what, claim_ms - page_ms, Goal::AtMost(1.0));
    figures.add("lone_claim_ms", "a lone claim, p50 ms", claim_ms, Goal::None);
    Ok(())
}

impl Bench<'_> {
    /// Each figure from its own best round.
    async fn rounds(&self, count: usize) -> Result<Round, Failure> {
        let mut best = Round::default();
        for n in 0..count {
            let round = self.round().await?;
            println!(
                "  round {n}: echo {:.0}/s, sold out {:.0}/s, claims {:.0}/s, orders {:.0}/s",
                round.echo.per_s, round.sold_out.per_s, round.claims.per_s, round.orders_per_s
            );
            best = best.or_better(round);
        }
        Ok(best)
    }

    async fn round(&self) -> Result<Round, Failure> {
        let strangers = tokens(self.sold_out, "stranger", BUYERS);
        let echo = crowd(self.echo.address, self.sold_out, self.connections);
        let (echo, _) = served(self.echo.pid(), echo.rush(strangers.clone())).await?;
        let side = crowd(self.server.address, self.sold_out, self.connections);
        let (sold_out, refused) = served(self.server.pid(), side.rush(strangers)).await?;
        if refused.history.count(|answer| *answer == Answer::SoldOut) != BUYERS {
            return Err("somebody was not told that it is sold out".into());
        }

        let mut admin = self.server.admin();
        let item = open_sale(&mut admin, BUYERS).await?;
        let buyers = tokens(item, "buyer", BUYERS);
        let (started, before_us) = (Instant::now(), cpu_us(self.server.pid())?);
        let side = crowd(self.server.address, item, self.connections);
        let (claims, bought) = served(self.server.pid(), side.rush(buyers)).await?;
        if bought.history.admitted() != BUYERS {
            let admitted = bought.history.admitted();
            return Err(format!("only {admitted} of {BUYERS} claims were admitted").into());
        }
        settled(&mut admin, SETTLED_WITHIN).await?;
        let orders_per_s = BUYERS as f64 / started.elapsed().as_secs_f64();
        let worked_us = cpu_us(self.server.pid())? - before_us;
        let order_cpu_us = worked_us / BUYERS as f64;
        Ok(Round { echo, sold_out, claims, orders_per_s, order_cpu_us })
    }
}

/// Buyers who want one unit each, one after the other on each of these connections.
pub(crate) fn crowd(address: SocketAddr, item: i64, connections: usize) -> Crowd {
    Crowd { addresses: vec![address], item, quantity: 1, connections, at_once: false, keys: false }
}

/// Wait for a crowd, and note how long it took and what the server's process worked meanwhile.
pub(crate) async fn served(
    server: u32,
    rush: impl Future<Output = CrowdReport>,
) -> Result<(Rate, CrowdReport), Failure> {
    let before = cpu_us(server)?;
    let report = rush.await;
    let worked_us = cpu_us(server)? - before;
    let quantile = |q: f64| report.latency.value_at_quantile(q) as f64 / 1_000.0;
    let rate = Rate {
        per_s: report.per_second(),
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        cpu_us: worked_us / report.history.claims.len() as f64,
    };
    Ok((rate, report))
}

impl Rate {
    pub(crate) fn or_better(self, other: Rate) -> Rate {
        if other.per_s > self.per_s { other } else { self }
    }
}

impl Round {
    fn or_better(self, other: Round) -> Round {
        Round {
            echo: self.echo.or_better(other.echo),
            sold_out: self.sold_out.or_better(other.sold_out),
            claims: self.claims.or_better(other.claims),
            orders_per_s: self.orders_per_s.max(other.orders_per_s),
            order_cpu_us: if self.order_cpu_us == 0.0 {
                other.order_cpu_us
            } else {
                self.order_cpu_us.min(other.order_cpu_us)
            },
        }
    }
}

fn report(best: &Round, connections: usize, suffix: &str, figures: &mut Figures) {
    let few = !suffix.is_empty();
    let mut add = |key: &str, what: &str, value: f64, goal: Goal| {
        figures.add(
            &format!("{key}{suffix}"),
            &format!("{what}, {connections} sockets"),
            value,
            goal,
        );
    };
    let echo = best.echo.per_s;
    let goal = Goal::AtLeast(1.10);
    add("soldout_vs_echo", "sold-out answers ÷ echo", best.sold_out.per_s / echo, goal);
    let goal = Goal::AtLeast(if few { 0.80 } else { 0.90 });
    add("claim_solo_vs_echo", "fsynced claims ÷ echo", best.claims.per_s / echo, goal);
    for (key, what, rate) in [
        ("echo", "echo", best.echo),
        ("sold_out", "sold-out answers", best.sold_out),
        ("claims", "fsynced claims", best.claims),
    ] {
        add(&format!("{key}_per_s"), &format!("{what} per second"), rate.per_s, Goal::None);
        add(&format!("{key}_p50_ms"), &format!("{what}, p50 ms"), rate.p50_ms, Goal::None);
        add(&format!("{key}_p99_ms"), &format!("{what}, p99 ms"), rate.p99_ms, Goal::None);
    }
    add("orders_per_s", "orders into SQLite meanwhile", best.orders_per_s, Goal::None);
    add("cpu_us_per_rejection", "server's µs per sold out", best.sold_out.cpu_us, Goal::None);
    add("cpu_us_per_claim", "server's µs per claim", best.claims.cpu_us, Goal::None);
    add("cpu_us_per_order", "… until it is an order", best.order_cpu_us, Goal::None);
    add("cpu_us_per_echo", "µs per echo", best.echo.cpu_us, Goal::None);
}

/// Sell the only unit there is.
pub(crate) async fn sold_out_item(server: &ServerProcess) -> Result<i64, Failure> {
    let item = open_sale(&mut server.admin(), 1).await?;
    let report = crowd(server.address, item, 1).rush(tokens(item, "first", 2)).await;
    if report.history.admitted() != 1 {
        return Err("the only unit was not sold".into());
    }
    Ok(item)
}

pub(crate) async fn open_sale(admin: &mut Api, stock: usize) -> Result<i64, ApiError> {
    Ok(NewSale::of(stock as i64).create(admin).await?.items[0])
}

/// Signed here rather than fetched: fetching is not what is measured.
pub(crate) fn tokens(item: i64, name: &str, count: usize) -> SaleTokens {
    signed_sale_tokens(SECRET, item, name, count)
}
