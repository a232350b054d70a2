//! The command line: one executable, every role a sub-command.
//!
//! Commands that look at or change a sale work in both situations an operator meets: with a server
//! running on the data directory they ask it, without one they open the directory themselves. Either way
//! they speak to the same admin API (see `admin_api`), so each of them is written once. Only `serve` makes
//! a data directory.

mod admin_api;
mod backup;
mod claims;
mod console;
mod dead_letters;
mod doctor;
mod durations;
mod import;
mod keys;
mod lists;
mod orders;
mod reconcile;
mod rehearse;
mod sale_plan;
mod sales;
mod tokens;
mod webhooks;

use std::{fmt::Display, io::IsTerminal, path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    logging,
    serve::{self, CannotStart},
    terminal,
};
use admin_api::AdminApi;
use config::{Config, Flags};
use dead_letters::DeadLetters;
use keys::Key;
use lists::List;
use orders::OrderCommand;
use sales::Sale;
use tokens::Token;
use webhooks::Webhooks;

#[derive(Parser)]
#[command(
    name = "seckill",
    version,
    about = "Sells a limited stock to a crowd in the instant a sale opens, and keeps its word.",
    after_help = "Without a command: serve, with data in ./data and a demo sale ready to buy.\n\
        Every setting is explained by `seckill config --default`."
)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the shop page, the API, the workers and the jobs (the default)
    Serve {
        /// In the cluster profile, do only these: web, worker, jobs (by comma)
        #[arg(long, value_name = "ROLES")]
        role: Option<String>,
    },
    /// Plan, look at and run sales
    ///
    /// From the plan to the end, without a console: create, import, list, show, publish, pause, resume, edit,
    /// stock, end.
    #[command(subcommand)]
    Sale(Sale),
    /// Bring an activity's items to the gate before its time
    ///
    /// Published activities are warmed by themselves ten minutes before they open; this is for the
    /// careful and the hurried. Items that are at the gate already are left alone.
    Warm {
        /// The activity's id
        activity: i64,
        /// Load anew from the ledger even what is at the gate
        #[arg(long)]
        anew: bool,
    },
    /// Compare gate, log, ledger and payments, and heal what has a rule
    ///
    /// Exit code 1 if a difference is left.
    Reconcile {
        /// Only look
        #[arg(long)]
        dry_run: bool,
        /// The report as JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Claims that failed all their tries and wait for a person
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// What was admitted, as far back as the claim log keeps it
    ///
    /// With --compare it says what became of each claim. Exit code 1 if one is in none of the books.
    Claims(claims::Claims),
    /// One order: look at it, give it up, refund it, write down money by hand
    #[command(subcommand)]
    Order(OrderCommand),
    /// Print a link that signs a browser in to the console, once, within five minutes
    ///
    /// It needs a server that runs on the data directory; elsewhere sign in with an admin token.
    Console,
    /// Admin tokens
    #[command(subcommand)]
    Token(Token),
    /// Keys that sign sale tokens and receipts
    #[command(subcommand)]
    Key(Key),
    /// Members, buyers who are kept out, and buyers who have to wait
    #[command(subcommand)]
    List(List),
    /// Endpoints of the shop's backend, and what was delivered to them
    #[command(subcommand)]
    Webhooks(Webhooks),
    /// Play a sale with a crowd of buyers and check that everything holds
    ///
    /// Buyers come in an open loop, at planned instants, whether or not the server keeps up. Exit code 1
    /// if anything that must hold was violated.
    Rehearse(Box<rehearse::Rehearse>),
    /// Check the machine, the settings and the data directory
    ///
    /// Exit code 1 if something must be mended before a sale.
    Doctor,
    /// Copy the data directory while the server sells, and check the copy (solo)
    ///
    /// To restore it, stop the server and put the copy in the place of the data directory. Exit code 1
    /// if a difference is left in the copy.
    Backup {
        /// The folder to make; it must not be there yet
        to: PathBuf,
        /// The report of the check as JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Bring the databases of the data directory up to this version's schema
    ///
    /// `serve` does it as well; this is for those who want to do it at a quiet hour.
    Migrate,
    /// Print the settings in force, secrets redacted
    Config {
        /// The default file with every setting explained, instead
        #[arg(long)]
        default: bool,
    },
}

/// Why a command did not do what it was asked.
enum Failure {
    /// It was done, and the answer is no.
    No,
    /// It could not be done.
    Cannot(String),
}

impl<E: Display> From<E> for Failure {
    fn from(cause: E) -> Self {
        Failure::Cannot(cause.to_string())
    }
}

/// Every command with its flags, for those who check what documents say of them.
pub fn command() -> clap::Command {
    Cli::command()
}

pub fn main() -> ExitCode {
    let mut cli = Cli::parse();
    if let Some(Command::Serve { role }) = &cli.command {
        cli.flags.roles = role.clone();
    }
    let done = Config::load(&cli.flags).map_err(Failure::from).and_then(|config| run(cli, config));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::No) => ExitCode::from(1),
        Err(Failure::Cannot(cause)) => {
            eprintln!("seckill: {cause}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: Cli, config: Config) -> Result<(), Failure> {
    if let Some(Command::Config { default }) = &cli.command {
        let text = if *default { config::DEFAULT_TOML.to_owned() } else { config.print() };
        print!("{text}");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match cli.command.unwrap_or(Command::Serve { role: None }) {
        Command::Serve { .. } => {
            logging::init(&config.log)?;
            let served = runtime.block_on(async {
                let _kept_back = logging::keep_back();
                say(&config);
                serve::serve(config, stop_signal()?).await
            });
            // A thread that waits for somebody else's answer must not keep the process.
            runtime.shutdown_background();
            Ok(served?)
        }
        Command::Doctor => {
            if runtime.block_on(doctor::doctor(&config)) {
                Ok(())
            } else {
                Err(Failure::No)
            }
        }
        Command::Backup { to, json } => {
            let left = runtime.block_on(backup::backup(config, &to, json))?;
            // Not among the JSON.
            eprintln!("{} is a backup, and whole", to.display());
            if left == 0 { Ok(()) } else { Err(Failure::No) }
        }
        Command::Rehearse(command) => {
            let held = runtime.block_on(rehearse::run(*command, &config))?;
            if held { Ok(()) } else { Err(Failure::No) }
        }
        Command::Console => runtime.block_on(console::console(config)),
        other => runtime.block_on(async {
            let api = AdminApi::open(config).await?;
            // Beside the answer, which may be read by a program: where it comes from.
            eprintln!("asked: {}", api.place());
            let done = ask(&api, other).await;
            api.close().await;
            done
        }),
    }
}

/// Into the log, what an operator should know of the settings. Not twice to somebody who has the greeting
/// before their eyes.
fn say(config: &Config) {
    let seen = terminal::somebody_looks() && std::io::stderr().is_terminal();
    let in_greeting = if seen { vec![] } else { [config.dangers(), config.missing()].concat() };
    for warning in config.warnings().iter().chain(&in_greeting) {
        tracing::warn!("{warning}");
    }
}

async fn ask(api: &AdminApi, command: Command) -> Result<(), Failure> {
    match command {
        Command::Sale(command) => sales::run(api, command).await,
        Command::Warm { activity, anew } => sales::warm(api, activity, anew).await,
        Command::Reconcile { dry_run, json } => {
            let left = reconcile::reconcile(api, !dry_run, json).await?;
            if left == 0 { Ok(()) } else { Err(Failure::No) }
        }
        Command::DeadLetters(command) => dead_letters::run(api, command).await,
        Command::Claims(command) => claims::run(api, command).await,
        Command::Order(command) => orders::run(api, command).await,
        Command::Token(command) => tokens::run(api, command).await,
        Command::Key(command) => keys::run(api, command).await,
        Command::Webhooks(command) => webhooks::run(api, command).await,
        Command::List(command) => lists::run(api, command).await,
        Command::Migrate => {
            println!("the databases have this version's schema");
            Ok(())
        }
        // Done without asking anybody.
        Command::Serve { .. }
        | Command::Doctor
        | Command::Backup { .. }
        | Command::Rehearse(_)
        | Command::Console
        | Command::Config { .. } => Ok(()),
    }
}

/// Resolves on Ctrl-C or SIGTERM. Registered before anything starts, so that none is missed.
fn stop_signal() -> Result<impl Future<Output = ()>, CannotStart> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CannotStart::because)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CannotStart::because)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
