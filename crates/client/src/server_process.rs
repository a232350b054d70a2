//! A server of our own: a real `seckill` process on a free port and a data directory.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde::Deserialize;

use crate::Api;

/// The file in which a running server says where it listens.
const RUNNING_FILE: &str = "running.json";
/// Environment variables that are settings of a server begin with this.
const SETTINGS_PREFIX: &str = "SECKILL_";
/// A start reads the journal back; even a large one takes seconds.
const START_WITHIN: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// How to start it.
#[derive(Clone, Debug)]
pub struct Launch {
    pub binary: PathBuf,
    pub data: PathBuf,
    /// Settings, as environment variables.
    pub env: Vec<(String, String)>,
    /// More words for the command, e.g. `--role web`.
    pub args: Vec<String>,
    /// Where the server's log goes; nowhere if not given.
    pub log: Option<PathBuf>,
    /// The caller's own settings in its environment are not passed on.
    pub own_settings: bool,
    /// Put in front of the command, e.g. a shell that sets limits.
    pub wrapper: Vec<String>,
}

impl Launch {
    pub fn new(binary: impl Into<PathBuf>, data: impl Into<PathBuf>) -> Launch {
        let (binary, data) = (binary.into(), data.into());
        Launch {
            binary,
            data,
            env: vec![],
            args: vec![],
            log: None,
            own_settings: false,
            wrapper: vec![],
        }
        .env("SECKILL_DEMO", "false")
    }

    pub fn env(mut self, name: &str, value: impl ToString) -> Launch {
        self.env.push((name.into(), value.to_string()));
        self
    }

    pub fn log(mut self, path: impl Into<PathBuf>) -> Launch {
        self.log = Some(path.into());
        self
    }

    pub fn without_settings_of_the_caller(mut self) -> Launch {
        self.own_settings = true;
        self
    }

    fn command(&self) -> io::Result<Command> {
        let mut words = self.wrapper.iter().map(PathBuf::from).chain([self.binary.clone()]);
        let mut command = Command::new(words.next().unwrap_or_else(|| self.binary.clone()));
        command.args(words).arg("serve").arg("--data").arg(&self.data);
        // Port 0: the server takes any free port and says which.
        command.arg("--listen").arg("127.0.0.1:0").args(&self.args);
        if self.own_settings {
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with(SETTINGS_PREFIX) {
                    command.env_remove(name);
                }
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let log = match &self.log {
            Some(path) => {
                let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
                Stdio::from(file)
            }
            None => Stdio::null(),
        };
        command.stderr(log);
        Ok(command)
    }

    /// Start it and wait until it serves.
    pub async fn start(&self) -> io::Result<ServerProcess> {
        let running = self.data.join(RUNNING_FILE);
        // A killed server leaves its file behind; it must not be taken for the new one's.
        let _ = std::fs::remove_file(&running);
        let mut child = self.command()?.spawn()?;
        let deadline = Instant::now() + START_WITHIN;
        loop {
            if let Some(running) = read(&running) {
                return Ok(ServerProcess { child, address: running.address, token: running.token });
            }
            if let Some(status) = child.try_wait()? {
                return Err(io::Error::other(format!("the server ended with {status}")));
            }
            if Instant::now() > deadline {
                child.kill()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }
}

#[derive(Deserialize)]
struct Running {
    address: SocketAddr,
    token: String,
}

fn read(path: &Path) -> Option<Running> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// A running server. Killed when dropped.
pub struct ServerProcess {
    child: Child,
    pub address: SocketAddr,
    /// An admin token of this run.
    pub token: String,
}

impl ServerProcess {
    pub fn admin(&self) -> Api {
        Api::new(self.address, Some(&self.token))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Ask it to stop (SIGTERM) and wait for its exit code.
    pub async fn stop(mut self) -> io::Result<Option<i32>> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status()?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
