//! A process that cannot outlive us.
//!
//! The service is the child of a small shell, and the shell has a watcher that reads from a pipe
//! whose only writer is this process. However we end, the kernel closes the pipe, the watcher reads
//! the end of it and sends `kill -9`, which also ends a process that is paused. No signal handler,
//! no `unsafe`, and it works when we are killed ourselves.
//!
//! The shell prints the service's process id, then waits for it and ends with its exit code; so
//! waiting for the shell is waiting for the service.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
};

use super::{KILL_WITHIN, NotYet, STOP_WITHIN, wait_for};

/// The watcher is ended before the shell ends: a process id may be given to somebody else once
/// its owner was waited for, and must then not be killed. Hang-ups are ignored because a group of
/// processes that loses its parent while one of them is paused gets one, which would end the watcher
/// before it could do its work.
const SHELL: &str = r#"
trap "" HUP
log=$1
shift
exec 3<&0
"$@" </dev/null >>"$log" 2>&1 3<&- &
service=$!
echo "$service"
exec >/dev/null 2>&1
{ cat <&3; kill -9 "$service"; } &
watcher=$!
wait "$service"
code=$?
kill "$watcher"
exit "$code"
"#;

/// This much of a log is shown when a service fails.
const LOG_SHOWN_BYTES_MAX: u64 = 4_096;

#[derive(Debug)]
pub(super) struct Keeper {
    shell: Child,
    /// The pipe. Dropping it kills the service.
    pipe: Option<ChildStdin>,
    pid: u32,
    log: PathBuf,
}

impl Keeper {
    pub(super) fn start(program: &Path, args: &[String], log: &Path) -> io::Result<Keeper> {
        let mut shell = Command::new("sh")
            .args(["-c", SHELL, "keeper"])
            .arg(log)
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A Ctrl-C in the terminal is for us; what follows from it for the services is ours to say.
            .process_group(0)
            .spawn()?;
        let pipe = shell.stdin.take();
        let mut first_line = String::new();
        if let Some(stdout) = shell.stdout.take() {
            BufReader::new(stdout).read_line(&mut first_line)?;
        }
        let pid = first_line
            .trim()
            .parse()
            .map_err(|_| io::Error::other(format!("{} could not be started", program.display())))?;
        Ok(Keeper { shell, pipe, pid, log: log.to_owned() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// An error with the end of the log if the service has ended by itself.
    pub(super) fn still_runs(&mut self) -> io::Result<()> {
        match self.shell.try_wait()? {
            None => Ok(()),
            Some(status) => Err(io::Error::other(format!(
                "the service ended with {status}:\n{}",
                end_of(&self.log)
            ))),
        }
    }

    /// `kill -9`, and wait until it is gone.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.pipe = None;
        self.wait(KILL_WITHIN).map(drop)
    }

    /// Ask it to end, and wait until it has.
    pub(super) fn stop(&mut self) -> io::Result<ExitStatus> {
        self.signal("TERM")?;
        // One that is paused hears it only when it is woken; one that ended already needs no waking.
        let _ = self.signal("CONT");
        self.wait(STOP_WITHIN)
    }

    pub(super) fn signal(&mut self, signal: &str) -> io::Result<()> {
        self.still_runs()?;
        // The shell's own `kill`: the program of that name is in a package that may be missing.
        let command = format!("kill -{signal} {}", self.pid);
        let status = Command::new("sh").args(["-c", &command]).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("`{command}` failed")));
        }
        if signal == "STOP" { wait_stopped(self.pid) } else { Ok(()) }
    }

    fn wait(&mut self, within: std::time::Duration) -> io::Result<ExitStatus> {
        let what = format!("the end of process {}", self.pid);
        let status = wait_for(&what, within, || match self.shell.try_wait()? {
            Some(status) => Ok(status),
            None => Err(NotYet::Because("it still runs".into())),
        })?;
        self.pipe = None;
        Ok(status)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The last lines a service printed.
fn end_of(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_SHOWN_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
}

/// A process that is told to stop does so thread by thread, and on a busy machine some go on for a
/// moment after `kill` has returned. Wait until all of them stand still.
pub fn wait_stopped(pid: u32) -> io::Result<()> {
    wait_for(&format!("process {pid} to stand still"), STOP_WITHIN, || {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may end between listing and reading it.
            let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
            // `id (name) state …`, and the name may contain anything.
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if !matches!(state, Some('T' | 't' | 'X' | 'Z')) {
                return Err(NotYet::Because(format!("a thread is in state {state:?}")));
            }
        }
        Ok(())
    })
}
