//! `seckill rehearse`: a crowd against a server of its own, or against a deployment that runs.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use client::Login;
use rehearsal::{
    BotDrill, BotPlan, Curve, Language, OwnServer, Plan, Progress, RehearseError, Report, Site,
    bot_drill, find_target, rehearse,
};

use super::{Failure, durations::duration_ms, stop_signal};
use crate::serve::Running;
use config::Config;

/// Open files beside the connections of the crowd.
const OTHER_FILES: u64 = 256;

#[derive(Args)]
pub(super) struct Rehearse {
    /// An instance of the deployment, http://host:port; may be given several times. Without it a
    /// server is started for the rehearsal and removed after it
    #[arg(long, value_name = "URL")]
    target: Vec<String>,
    /// The target has a public address and is yours
    #[arg(long)]
    i_own_this_target: bool,
    /// An admin token of the target, at least of the role operator. Otherwise that of the settings
    /// (SECKILL_ADMIN_TOKEN), or of the server that runs on --data
    #[arg(long, value_name = "TOKEN")]
    admin_token: Option<String>,
    /// The shop's HS256 secret, for a target without the dev login. Otherwise that of the settings
    /// (SECKILL_JWT_SECRET)
    #[arg(long, value_name = "SECRET")]
    jwt_secret: Option<String>,
    #[command(flatten)]
    crowd: Crowd,
    #[command(flatten)]
    bots: Bots,
    /// Write the report as JSON to this file; - is the standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The language of that page; otherwise that of the terminal (LC_ALL, LC_MESSAGES, LANG)
    #[arg(long, value_enum)]
    lang: Option<PageLanguage>,
}

#[derive(Clone, Copy, ValueEnum)]
enum PageLanguage {
    En,
    Zh,
}

impl PageLanguage {
    fn of_the_terminal() -> PageLanguage {
        let set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
        let named = ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().find(set);
        let value = named.and_then(|name| std::env::var(name).ok()).unwrap_or_default();
        if value.starts_with("zh") { PageLanguage::Zh } else { PageLanguage::En }
    }
}

impl From<PageLanguage> for Language {
    fn from(language: PageLanguage) -> Language {
        match language {
            PageLanguage::En => Language::English,
            PageLanguage::Zh => Language::Chinese,
        }
    }
}

#[derive(Args)]
struct Crowd {
    /// How many come
    #[arg(long, default_value_t = 20_000)]
    buyers: usize,
    /// How many things are sold
    #[arg(long, default_value_t = 1)]
    items: usize,
    /// Units of each of them
    #[arg(long, default_value_t = 1_000)]
    stock: i64,
    /// Over how many partitions of the gate each of them is spread
    #[arg(long, default_value_t = 1)]
    shards: u32,
    /// Connections of the crowd, bots included
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// When they come: most at the opening, more and more, or evenly
    #[arg(long, value_enum, default_value_t = Shape::Burst)]
    arrive: Shape,
    /// In which time they come, e.g. 500ms, 10s, 2m
    #[arg(long, value_parser = duration_ms, default_value = "5s")]
    over: u64,
    /// How long they look at an order before they pay or cancel it
    #[arg(long, value_parser = duration_ms, default_value = "500ms")]
    think: u64,
    /// How long they may take to pay; what is abandoned is for sale again after it
    #[arg(long, value_parser = duration_ms, default_value = "5s")]
    pay_within: u64,
    /// Of all buyers: those who send their claim again, with the same key
    #[arg(long, default_value_t = 0.1)]
    repeat_share: f64,
    /// Of all buyers: bots, who claim several times at once, from before the opening, without a pause
    #[arg(long, default_value_t = 0.05)]
    bot_share: f64,
    /// Of those who get a unit: those who pay
    #[arg(long, default_value_t = 0.7)]
    pay_share: f64,
    /// Of those who get a unit: those who leave it unpaid; all others cancel
    #[arg(long, default_value_t = 0.2)]
    abandon_share: f64,
    /// The same seed brings the same crowd; drawn if not given, and told in the report
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Args)]
struct Bots {
    /// Afterwards, see what bots win with each defence off and on
    #[arg(long)]
    bots: bool,
    /// Clients of the bot drill, of which one in ten is a bot
    #[arg(long, default_value_t = 200, requires = "bots")]
    bot_clients: usize,
    /// Accounts of each bot
    #[arg(long, default_value_t = 30, requires = "bots")]
    bot_accounts: usize,
    /// Units of each sale of the bot drill
    #[arg(long, default_value_t = 60, requires = "bots")]
    bot_stock: i64,
    /// What a bot pays for one solved challenge, in minor units
    #[arg(long, default_value_t = 2, requires = "bots")]
    solve_price: u64,
    /// What each bot has to spend on that
    #[arg(long, default_value_t = 10, requires = "bots")]
    bot_budget: u64,
}

impl Bots {
    fn plan(&self, seed: u64) -> Result<Option<BotPlan>, Failure> {
        let plan = BotPlan {
            clients: self.bot_clients,
            accounts: self.bot_accounts,
            stock: self.bot_stock,
            solve_price: self.solve_price,
            budget: self.bot_budget,
            seed,
        };
        match plan.mistakes() {
            mistakes if mistakes.is_empty() => Ok(self.bots.then_some(plan)),
            mistakes => Err(Failure::Cannot(mistakes.join("; "))),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    Burst,
    Ramp,
    Steady,
}

impl From<Shape> for Curve {
    fn from(shape: Shape) -> Curve {
        match shape {
            Shape::Burst => Curve::Burst,
            Shape::Ramp => Curve::Ramp,
            Shape::Steady => Curve::Steady,
        }
    }
}

impl Crowd {
    fn plan(&self) -> Result<Plan, Failure> {
        let seed = match self.seed {
            Some(seed) => seed,
            // Short, so that it is easily typed again.
            None => u64::from(getrandom::u32()?),
        };
        let plan = Plan {
            buyers: self.buyers,
            items: self.items,
            stock: self.stock,
            shards: self.shards,
            connections: self.connections,
            curve: self.arrive.into(),
            over_ms: self.over,
            think_ms: self.think,
            pay_within_ms: self.pay_within,
            repeat_share: self.repeat_share,
            bot_share: self.bot_share,
            pay_share: self.pay_share,
            abandon_share: self.abandon_share,
            seed,
        };
        match plan.mistakes() {
            mistakes if mistakes.is_empty() => Ok(plan),
            mistakes => Err(Failure::Cannot(mistakes.join("; "))),
        }
    }
}

/// The rehearsal, and the bot drill after it if it is wanted.
async fn play(
    plan: &Plan,
    bots: Option<&BotPlan>,
    site: &Site,
    progress: &Progress,
    stop: impl Future<Output = ()>,
) -> Result<Report, RehearseError> {
    let mut report = rehearse(plan, site, progress, stop).await?;
    if let Some(bots) = bots {
        report.bots = Some(drill(bots, site, progress).await?);
        progress.close();
    }
    Ok(report)
}

/// Where servers of our own are rehearsed on, one more is started that limits addresses.
async fn drill(
    bots: &BotPlan,
    site: &Site,
    progress: &Progress,
) -> Result<BotDrill, RehearseError> {
    if !site.own {
        return bot_drill(bots, site, None, progress).await;
    }
    let limited = OwnServer::start_limited(std::env::current_exe()?, bots.connections()).await?;
    let drilled = bot_drill(bots, site, Some(&limited.site()), progress).await;
    limited.stop().await?;
    drilled
}

/// True if everything held that must hold.
pub(super) async fn run(command: Rehearse, config: &Config) -> Result<bool, Failure> {
    let stop = stop_signal()?;
    let plan = command.crowd.plan()?;
    let bots = command.bots.plan(plan.seed)?;
    writable(&command)?;
    let connections = plan.connections.max(bots.as_ref().map_or(0, BotPlan::connections));
    enough_files(connections)?;
    let progress = Progress::on_stderr();
    let report = if command.target.is_empty() {
        let server = OwnServer::start(std::env::current_exe()?, connections).await?;
        let report = play(&plan, bots.as_ref(), &server.site(), &progress, stop).await;
        if let Err(error) = server.stop().await {
            eprintln!("seckill: the server of the rehearsal did not stop by itself: {error}");
        }
        report?
    } else {
        let site = command.site(config).await?;
        play(&plan, bots.as_ref(), &site, &progress, stop).await?
    };
    command.tell(&report)?;
    Ok(report.ok)
}

impl Rehearse {
    async fn site(&self, config: &Config) -> Result<Site, Failure> {
        let mut addresses = Vec::new();
        for target in &self.target {
            addresses.push(find_target(target, self.i_own_this_target).await?);
        }
        let secret = match &self.jwt_secret {
            Some(secret) => secret.clone(),
            None => config.auth.jwt_secret.expose().to_owned(),
        };
        let login = (!secret.is_empty()).then_some(Login::Shop { secret });
        Ok(Site { addresses, admin_token: self.admin_token(config)?, login, own: false })
    }

    fn admin_token(&self, config: &Config) -> Result<String, Failure> {
        let given = self.admin_token.clone();
        let set = || Some(config.auth.admin_token.expose().to_owned()).filter(|t| !t.is_empty());
        let running = || Running::read(&config.data).map(|running| running.token);
        given.or_else(set).or_else(running).ok_or_else(|| {
            Failure::Cannot("a target needs --admin-token, SECKILL_ADMIN_TOKEN, or --data".into())
        })
    }

    fn tell(&self, report: &Report) -> Result<(), Failure> {
        let json = |path: &Path| -> Result<(), Failure> {
            let text = serde_json::to_string_pretty(report)?;
            match path.to_str() {
                Some("-") => Ok(writeln!(std::io::stdout(), "{text}")?),
                _ => Ok(std::fs::write(path, text)?),
            }
        };
        match &self.json {
            // The standard output is the report's; the table goes beside it.
            Some(path) if path.as_os_str() == "-" => eprint!("{}", report.table()),
            _ => print!("{}", report.table()),
        }
        self.json.as_deref().map_or(Ok(()), json)?;
        if let Some(path) = &self.html {
            let language = self.lang.unwrap_or_else(PageLanguage::of_the_terminal);
            std::fs::write(path, report.html(language.into())?)?;
            eprintln!("the page is in {}", path.display());
        }
        Ok(())
    }
}

/// A file that cannot be written is better known before the sale than after it.
fn writable(command: &Rehearse) -> Result<(), Failure> {
    let files = [&command.json, &command.html];
    for path in files.into_iter().flatten().filter(|path| path.as_os_str() != "-") {
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    }
    Ok(())
}

fn enough_files(connections: usize) -> Result<(), Failure> {
    let wanted = connections as u64 + OTHER_FILES;
    match rlimit::increase_nofile_limit(wanted)? {
        given if given >= wanted => Ok(()),
        given => Err(Failure::Cannot(format!(
            "{given} open files are allowed, {wanted} are needed: raise `ulimit -n` or lower --connections"
        ))),
    }
}
