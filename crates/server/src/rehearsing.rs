//! Rehearsals that operators start from the console: `seckill rehearse` as a process of its own, against a
//! server of its own, so that whatever happens there happens to nobody.
//!
//! What it takes is the processor, which a sale would need. So it runs below everything else (`nice`), one
//! at a time, and not while a sale is open or opens soon ([`QUIET_MS`]); it is ended when a sale comes near
//! all the same ([`GIVES_WAY_MS`]), after [`RUN_MAX`], and with this process. A process that is killed
//! leaves the child behind, which then comes to its own end in minutes.
//!
//! What the last one found is kept in the data directory: its report as JSON and as one page, written by
//! the child, and a note about it, which is written last. A note without its report is one of a rehearsal
//! that did not come to its end, and says why.

use std::{
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use engine::Engine;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sale::Millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A rehearsal is not started when a sale opens within this time.
const QUIET_MS: Millis = 10 * 60 * 1_000;
/// One that runs is ended when a sale opens within this time.
const GIVES_WAY_MS: Millis = 2 * 60 * 1_000;
/// A crowd of the largest size on a slow machine takes a few minutes.
const RUN_MAX: Duration = Duration::from_secs(15 * 60);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a rehearsal that runs asks whether a sale comes near.
const WATCH_EVERY: Duration = Duration::from_secs(5);
/// Told to end, it stops its server and removes its data; whoever takes longer is killed.
const END_WITHIN: Duration = Duration::from_secs(20);
/// Of what it said when it failed.
const SAID_BYTES_MAX: usize = 2_000;
const REPORT_BYTES_MAX: u64 = 8 << 20;
const FOLDER: &str = "rehearsal";
const NOTE: &str = "note.json";
const REPORT: &str = "report.json";
const PAGE: &str = "report.html";
const SAID: &str = "said.txt";
/// Environment variables that are settings of a server begin with this.
const SETTINGS_PREFIX: &str = "SECKILL_";

/// Who comes, and for what.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct RehearsedCrowd {
    pub(crate) buyers: u32,
    pub(crate) items: u32,
    /// Units of each item.
    pub(crate) stock: u32,
    pub(crate) over_ms: u32,
    /// In Chinese; otherwise in English.
    pub(crate) chinese: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RehearsalEnd {
    /// Everything held that must hold.
    Held,
    Violated,
    /// It could not be played to its end; what it said is kept.
    Failed,
    /// By an operator, or with the server.
    Stopped,
    /// A sale came near.
    GaveWay,
    /// It took longer than any should.
    TookTooLong,
}

/// One that has ended.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RehearsalNote {
    pub(crate) who: String,
    pub(crate) crowd: RehearsedCrowd,
    pub(crate) started_ms: Millis,
    pub(crate) ended_ms: Millis,
    pub(crate) end: RehearsalEnd,
    /// The end of what it said, where it did not come to a verdict.
    pub(crate) said: String,
}

/// One that runs.
#[derive(Clone, Debug)]
pub(crate) struct RehearsalRun {
    pub(crate) who: String,
    pub(crate) crowd: RehearsedCrowd,
    pub(crate) started_ms: Millis,
    stop: Arc<AtomicBool>,
}

/// Why none is started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRehearsal {
    #[error("one runs")]
    Runs,
    #[error("a sale is open or opens soon")]
    SaleNear,
    #[error("the server stops")]
    Stopping,
    #[error(transparent)]
    Ledger(#[from] ledger::LedgerError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Default)]
struct State {
    run: Option<RehearsalRun>,
    stopping: bool,
}

pub(crate) struct Rehearsing {
    engine: Arc<Engine>,
    folder: PathBuf,
    /// The sales of a bare run are there to be played with; they keep nobody from rehearsing.
    beside_sales: bool,
    state: Mutex<State>,
}

impl Rehearsing {
    pub(crate) fn new(engine: Arc<Engine>, data: &Path, beside_sales: bool) -> Rehearsing {
        Rehearsing { engine, folder: data.join(FOLDER), beside_sales, state: Mutex::default() }
    }

    pub(crate) fn run(&self) -> Option<RehearsalRun> {
        self.state.lock().run.clone()
    }

    /// The last one that ended. Reads a small file.
    pub(crate) fn last(&self) -> Option<RehearsalNote> {
        serde_json::from_slice(&std::fs::read(self.folder.join(NOTE)).ok()?).ok()
    }

    /// What the last one found, as `seckill rehearse --json` writes it.
    pub(crate) fn report(&self) -> Option<Value> {
        let path = self.folder.join(REPORT);
        let small = std::fs::metadata(&path).ok()?.len() <= REPORT_BYTES_MAX;
        small.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok())?
    }

    /// The same as a page to be sent around.
    pub(crate) fn page(&self) -> Option<Vec<u8>> {
        let path = self.folder.join(PAGE);
        let small = std::fs::metadata(&path).ok()?.len() <= REPORT_BYTES_MAX;
        small.then(|| std::fs::read(path).ok())?
    }

    /// Answers when its process has begun.
    pub(crate) async fn start(
        self: &Arc<Self>,
        who: &str,
        crowd: RehearsedCrowd,
    ) -> Result<RehearsalRun, NoRehearsal> {
        if self.sale_is_near(QUIET_MS).await? {
            return Err(NoRehearsal::SaleNear);
        }
        let run = RehearsalRun {
            who: who.to_owned(),
            crowd,
            started_ms: self.engine.now_ms(),
            stop: Arc::default(),
        };
        self.take_place(&run)?;
        match self.spawn(&run.crowd) {
            Ok(child) => {
                let (rehearsing, run) = (self.clone(), run.clone());
                tokio::spawn(async move { rehearsing.follow(run, child).await });
            }
            Err(problem) => {
                self.state.lock().run = None;
                return Err(problem.into());
            }
        }
        Ok(run)
    }

    fn take_place(&self, run: &RehearsalRun) -> Result<(), NoRehearsal> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(NoRehearsal::Stopping);
        }
        if state.run.is_some() {
            return Err(NoRehearsal::Runs);
        }
        state.run = Some(run.clone());
        Ok(())
    }

    /// Whether there was one to end.
    pub(crate) fn stop(&self) -> bool {
        let state = self.state.lock();
        state.run.as_ref().inspect(|run| run.stop.store(true, Ordering::Relaxed)).is_some()
    }

    /// The server stops: the one that runs is told, and none begins.
    pub(crate) fn close(&self) {
        self.state.lock().stopping = true;
        self.stop();
    }

    async fn sale_is_near(&self, within_ms: Millis) -> Result<bool, ledger::LedgerError> {
        if self.beside_sales {
            return Ok(false);
        }
        let now_ms = self.engine.now_ms();
        let live = self.engine.records().live_activities(now_ms, 1).await?;
        Ok(live.iter().any(|sale| sale.opens_ms < now_ms + within_ms))
    }

    fn spawn(&self, crowd: &RehearsedCrowd) -> io::Result<Child> {
        std::fs::create_dir_all(&self.folder)?;
        for old in [NOTE, REPORT, PAGE, SAID] {
            match std::fs::remove_file(self.folder.join(old)) {
                Err(problem) if problem.kind() != io::ErrorKind::NotFound => return Err(problem),
                _ => {}
            }
        }
        let binary = std::env::current_exe()?;
        let mut nicely = Command::new("nice");
        nicely.args(["-n", "10"]).arg(&binary);
        let child = match self.command(&mut nicely, crowd)?.spawn() {
            // Where there is no such program it runs as everything else does.
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => {
                self.command(&mut Command::new(&binary), crowd)?.spawn()?
            }
            spawned => spawned?,
        };
        // If memory gets short the crowd goes, and not the sale. Where it cannot be said it is left unsaid.
        let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "900");
        Ok(child)
    }

    fn command<'c>(
        &self,
        command: &'c mut Command,
        crowd: &RehearsedCrowd,
    ) -> io::Result<&'c mut Command> {
        let RehearsedCrowd { buyers, items, stock, over_ms, chinese } = crowd;
        command.arg("rehearse");
        command.args(["--buyers", &buyers.to_string(), "--items", &items.to_string()]);
        command.args(["--stock", &stock.to_string(), "--over", &format!("{over_ms}ms")]);
        command.args(["--lang", if *chinese { "zh" } else { "en" }]);
        command.arg("--json").arg(self.folder.join(REPORT));
        command.arg("--html").arg(self.folder.join(PAGE));
        // It may not read the settings of this shop: neither those of our environment nor the file beside us.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(SETTINGS_PREFIX) {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.folder).process_group(0);
        let said = std::fs::File::create(self.folder.join(SAID))?;
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said))
    }

    async fn follow(self: Arc<Self>, run: RehearsalRun, mut child: Child) {
        let (began, mut looked) = (Instant::now(), Instant::now());
        let end = loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match child.try_wait() {
                Ok(Some(status)) => break verdict(status),
                Ok(None) => {}
                Err(problem) => {
                    tracing::warn!(%problem, "a rehearsal cannot be watched");
                    break end_by_force(&mut child, RehearsalEnd::Failed).await;
                }
            }
            if run.stop.load(Ordering::Relaxed) {
                break end_by_force(&mut child, RehearsalEnd::Stopped).await;
            }
            if began.elapsed() > RUN_MAX {
                break end_by_force(&mut child, RehearsalEnd::TookTooLong).await;
            }
            if looked.elapsed() > WATCH_EVERY {
                looked = Instant::now();
                // Whoever cannot know makes room.
                if self.sale_is_near(GIVES_WAY_MS).await.unwrap_or(true) {
                    break end_by_force(&mut child, RehearsalEnd::GaveWay).await;
                }
            }
        };
        self.note(&run, end);
        self.state.lock().run = None;
    }

    fn note(&self, run: &RehearsalRun, end: RehearsalEnd) {
        let came_to_a_verdict = matches!(end, RehearsalEnd::Held | RehearsalEnd::Violated);
        let said = if came_to_a_verdict { String::new() } else { self.said() };
        let note = RehearsalNote {
            who: run.who.clone(),
            crowd: run.crowd.clone(),
            started_ms: run.started_ms,
            ended_ms: self.engine.now_ms(),
            end,
            said,
        };
        let written = serde_json::to_vec(&note).map_err(io::Error::from);
        if let Err(problem) = written.and_then(|note| std::fs::write(self.folder.join(NOTE), note))
        {
            tracing::warn!(%problem, "what came of a rehearsal is not written down");
        }
        tracing::info!(who = note.who, end = ?end, "a rehearsal ended");
    }

    fn said(&self) -> String {
        let said = std::fs::read(self.folder.join(SAID)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let start = said.char_indices().rev().nth(SAID_BYTES_MAX).map_or(0, |(at, _)| at);
        said[start..].trim().to_owned()
    }
}

/// The exit code is part of what the command promises.
fn verdict(status: ExitStatus) -> RehearsalEnd {
    match status.code() {
        Some(0) => RehearsalEnd::Held,
        Some(1) => RehearsalEnd::Violated,
        _ => RehearsalEnd::Failed,
    }
}

/// Tell it to end, so that it stops its server and removes its data; kill it if it does not.
async fn end_by_force(child: &mut Child, end: RehearsalEnd) -> RehearsalEnd {
    let pid = Pid::from_child(child);
    let told = kill_process(pid, Signal::TERM);
    let deadline = Instant::now() + END_WITHIN;
    while told.is_ok() && Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return end;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    // With the server that it started; both are of one group.
    let _ = kill_process_group(pid, Signal::KILL);
    let _ = child.wait();
    end
}
