//! `cargo xtask bench`: what a release build does on this machine, beside what people do today.
//!
//! A section measures one thing and names its figures by the keys of the JSON file. Where two ways
//! are compared, both run in the same process against the same private servers, one short round of
//! each after the other, and the best round of each counts: a shared machine only ever adds noise.
//! All data lies on the real disk in the build folder (a RAM disk would make every fsync free), and
//! clients share the cores with the servers.

mod against;
mod big;
#[cfg(feature = "brokers")]
mod brokers;
mod claims;
mod cluster;
mod cpu;
mod curves;
mod echo;
mod figures;
mod history;
mod http;
mod ledgers;
mod overload;
mod peers;
mod redis;
mod sizes;
mod solo;
mod upkeep;

use std::{path::PathBuf, process::ExitCode};

use figures::Figures;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

const HELP: &str = "\
cargo xtask bench [--quick] [--only NAME]… [--connections N] [--json FILE] [--svg FILE]
cargo xtask bench [--quick] [--connections N] [--limits] --against SECKILL

  --quick           fewer and shorter rounds, under 6 minutes in all
  --only NAME       only the sections whose names contain NAME; may be given again
  --connections N   how many sockets the crowd over HTTP shares (default 256)
  --json FILE       write the figures to FILE as well
  --svg FILE        draw those that have a goal, and beside FILE the curves of upkeep
  --curves FOLDER   draw what the sections of history find, as curves
  --against SECKILL compare with another build of the server, crowd by crowd, and nothing else
  --limits          with --against: addresses are counted in this build, which on loopback they are not

sections: http overload big claim_cluster_vs_echo rush_ms gate_solo_per_s growth bytes_per_buyer
          start_ms_million gate_redis_vs_script ledger_sqlite_per_s ledger_mysql_vs_per_order
          history_sqlite history_mysql upkeep_idle_cpu upkeep_reconcile
          orders_by_kafka_per_s (with cargo xtask bench --brokers)
";

/// The child of this program whose memory is measured; see [`solo::bytes_per_buyer`].
const PROBE: &str = "--probe-memory";

/// What is measured, and for how long.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    only: Vec<String>,
    pub(crate) connections: usize,
    json: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) curves: Option<PathBuf>,
    against: Option<PathBuf>,
    /// This build counts addresses, although all of them are exempt on loopback.
    pub(crate) limits: bool,
}

impl Plan {
    /// `None`: only help is wanted.
    fn read(mut args: impl Iterator<Item = String>) -> Result<Option<Plan>, Failure> {
        let mut plan = Plan {
            quick: false,
            only: Vec::new(),
            connections: 256,
            json: None,
            svg: None,
            curves: None,
            against: None,
            limits: false,
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => plan.quick = true,
                "--limits" => plan.limits = true,
                "--only" => plan.only.push(args.next().ok_or("--only needs a name")?),
                "--connections" => {
                    plan.connections =
                        args.next().ok_or("--connections needs a number")?.parse()?;
                }
                "--json" => plan.json = Some(args.next().ok_or("--json needs a file")?.into()),
                "--svg" => plan.svg = Some(args.next().ok_or("--svg needs a file")?.into()),
                "--curves" => {
                    plan.curves = Some(args.next().ok_or("--curves needs a folder")?.into())
                }
                "--against" => {
                    plan.against = Some(args.next().ok_or("--against needs a program")?.into());
                }
                "--help" => return Ok(None),
                other => return Err(format!("unknown option {other}\n{HELP}").into()),
            }
        }
        Ok(Some(plan))
    }

    fn wants(&self, section: &str) -> bool {
        let chosen =
            self.only.is_empty() || self.only.iter().any(|name| section.contains(name.as_str()));
        if chosen {
            println!("\n· {section}");
        }
        chosen
    }

    /// Many rounds, or a few.
    pub(crate) fn rounds(&self, many: usize, few: usize) -> usize {
        if self.quick { few } else { many }
    }
}

/// The server that was built together with this program.
pub(crate) fn server_binary() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("seckill"))
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [probe, data] = &args[..]
        && probe == PROBE
    {
        return solo::probe_memory(data.as_ref()).await;
    }
    if args == [echo::ECHO] {
        return echo::serve().await;
    }
    let Some(plan) = Plan::read(args.into_iter())? else {
        print!("{HELP}");
        return Ok(());
    };
    std::fs::create_dir_all("target")?;
    let place = tempfile::Builder::new().prefix("bench-").tempdir_in("target")?;
    let data = place.path();
    if let Some(other) = &plan.against {
        return against::compare(&plan, data, other).await;
    }
    let mut figures = Figures::default();
    if plan.wants("http") {
        http::measure(&plan, data, &mut figures).await?;
    }
    if plan.wants("overload") {
        overload::measure(&plan, data, &mut figures).await?;
    }
    if plan.wants("big") {
        big::measure(&plan, data, &mut figures).await?;
    }
    if plan.wants("claim_cluster_vs_echo") {
        cluster::claims(&plan, data, &mut figures).await?;
    }
    if plan.wants("rush_ms") {
        cluster::rush(&plan, data, &mut figures).await?;
    }
    if plan.wants("gate_solo_per_s") {
        solo::per_second(&plan, data, &mut figures).await?;
    }
    if plan.wants("growth") {
        solo::growth(&plan, data, &mut figures).await?;
        solo::growth_of_items(&plan, data, &mut figures).await?;
    }
    if plan.wants("bytes_per_buyer") {
        solo::bytes_per_buyer(data, &mut figures)?;
    }
    if plan.wants("start_ms_million") {
        solo::start(&plan, data, &mut figures).await?;
    }
    if plan.wants("gate_redis_vs_script") {
        redis::measure(&plan, &mut figures).await?;
    }
    if plan.wants("ledger_sqlite_per_s") {
        ledgers::sqlite(&plan, data, &mut figures).await?;
    }
    if plan.wants("ledger_mysql_vs_per_order") {
        ledgers::mysql(&plan, &mut figures).await?;
    }
    if plan.wants("history_sqlite") {
        history::sqlite(&plan, data, &mut figures).await?;
    }
    if plan.wants("history_mysql") {
        history::mysql(&plan, &mut figures).await?;
    }
    if plan.wants("upkeep_idle_cpu") {
        upkeep::idle(&plan, data, &mut figures).await?;
    }
    if plan.wants("upkeep_reconcile") {
        upkeep::reconcile(&plan, data, &mut figures).await?;
    }
    #[cfg(feature = "brokers")]
    if plan.wants("orders_by_kafka_per_s") {
        brokers::measure(&plan, data, &mut figures).await?;
    }
    if figures.is_empty() {
        return Err(format!("no section has such a name\n{HELP}").into());
    }
    figures.print();
    if let Some(path) = plan.svg {
        std::fs::write(path, figures.svg())?;
    }
    if let Some(path) = plan.json {
        std::fs::write(path, serde_json::to_vec_pretty(&figures.json())?)?;
    }
    Ok(())
}
