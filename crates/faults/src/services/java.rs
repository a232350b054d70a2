//! Programs written in Java: the message brokers, from the jars that `cargo xtask test --brokers` fetched.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use super::{NotYet, keeper::Keeper, place, programs, wait_for};

/// A virtual machine and a broker on it need seconds of a processor, and tests share few of those.
const START_WITHIN: Duration = Duration::from_secs(180);

/// The folder of a broker's jars, and an error that says how to get them.
pub(super) fn jars(name: &str) -> io::Result<PathBuf> {
    let folder = place::target().join("brokers").join(name);
    // Written last, so that half a download is none.
    if folder.join("pom.xml").is_file() {
        return Ok(folder);
    }
    let message = format!("{name} is missing: `cargo xtask test --brokers` fetches it");
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// One Java program, which can be killed, paused, and started again with the same arguments.
#[derive(Debug)]
pub(super) struct JavaProgram {
    keeper: Mutex<Option<Keeper>>,
    java: PathBuf,
    args: Vec<String>,
    log: PathBuf,
}

impl JavaProgram {
    /// Not started yet. What it would put into its user's home goes to `home`.
    pub(super) fn new(
        jars: &Path,
        heap_mb: u32,
        home: &Path,
        properties: &[&str],
        class_and_args: &[&str],
        log: PathBuf,
    ) -> io::Result<JavaProgram> {
        let java = programs::find("java", "openjdk-17-jre-headless")?;
        let mut args: Vec<String> = [
            format!("-Xms{}m", heap_mb / 2),
            format!("-Xmx{heap_mb}m"),
            format!("-Duser.home={}", home.display()),
        ]
        .into();
        // Few processors and short lives: what a server would gain later is never reached.
        args.extend(
            ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+PerfDisableSharedMem"]
                .map(Into::into),
        );
        args.push("-Djava.net.preferIPv4Stack=true".into());
        for opened in ["java.base/java.nio=ALL-UNNAMED", "java.base/sun.nio.ch=ALL-UNNAMED"] {
            args.push(format!("--add-opens={opened}"));
        }
        args.push("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED".into());
        args.extend(properties.iter().map(|property| (*property).to_owned()));
        args.extend(["-cp".into(), format!("{}/*", jars.display())]);
        args.extend(class_and_args.iter().map(|arg| (*arg).to_owned()));
        Ok(JavaProgram { keeper: Mutex::new(None), java, args, log })
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.keeper().as_ref().map(Keeper::pid)
    }

    pub(super) fn is_running(&self) -> bool {
        self.keeper().as_mut().is_some_and(|keeper| keeper.still_runs().is_ok())
    }

    /// Stopped first if it still runs. Comes back when `ready` says so.
    pub(super) fn restart(
        &self,
        what: &str,
        mut ready: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        self.stop()?;
        *self.keeper() = Some(Keeper::start(&self.java, &self.args, &self.log)?);
        wait_for(&format!("the start of {what}"), START_WITHIN, || {
            if let Some(keeper) = self.keeper().as_mut() {
                keeper.still_runs().map_err(NotYet::Never)?;
            }
            Ok(ready()?)
        })
    }

    /// For a program that does one thing and ends.
    pub(super) fn run_to_the_end(&self, what: &str) -> io::Result<()> {
        let output = Command::new(&self.java).args(&self.args).output()?;
        if output.status.success() {
            return Ok(());
        }
        let words = [output.stdout, output.stderr].concat();
        let words = String::from_utf8_lossy(&words).into_owned();
        Err(io::Error::other(format!("{what} failed:\n{words}")))
    }

    /// `kill -9`. Nothing happens if it is down already.
    pub(super) fn kill(&self) -> io::Result<()> {
        let keeper = self.keeper().take();
        keeper.map_or(Ok(()), |mut keeper| keeper.kill())
    }

    /// A polite stop.
    pub(super) fn stop(&self) -> io::Result<()> {
        let keeper = self.keeper().take();
        keeper.map_or(Ok(()), |mut keeper| keeper.stop().map(drop))
    }

    /// Connections stay open and nothing is answered.
    pub(super) fn pause(&self) -> io::Result<()> {
        self.signal("STOP")
    }

    pub(super) fn resume(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    /// Everything it printed.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        match self.keeper().as_mut() {
            Some(keeper) => keeper.signal(signal),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "this program is down")),
        }
    }

    fn keeper(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
