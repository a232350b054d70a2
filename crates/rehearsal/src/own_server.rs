//! A server for one rehearsal: started, rehearsed on, stopped, and its data removed.

use std::{io, path::PathBuf};

use client::{Launch, ServerProcess};
use tempfile::TempDir;

use crate::Site;

/// Connections the server takes beside those of the crowd: ours that sign in, observe and check.
const OTHER_CONNECTIONS: usize = 256;
/// One that believes from where its buyers say they come, and gives each address a few tokens.
const LIMITS_ADDRESSES: [(&str, &str); 2] =
    [("SECKILL_HTTP_PROXY_HOPS", "1"), ("SECKILL_LIMITS_TOKENS_PER_ADDRESS", "5/m burst 5")];
const LOG_FILE: &str = "server.log";
/// If it does not start, the end of its log says why.
const LOG_BYTES_SHOWN: usize = 2_000;

pub struct OwnServer {
    process: ServerProcess,
    /// Removed when dropped.
    _data: TempDir,
}

impl OwnServer {
    /// A solo server with the default settings, whatever settings this process was given: those
    /// may be of a real shop.
    pub async fn start(binary: PathBuf, connections: usize) -> io::Result<OwnServer> {
        OwnServer::start_with(binary, connections, &[]).await
    }

    /// The same, but it limits addresses as if it stood behind a proxy.
    pub async fn start_limited(binary: PathBuf, connections: usize) -> io::Result<OwnServer> {
        OwnServer::start_with(binary, connections, &LIMITS_ADDRESSES).await
    }

    async fn start_with(
        binary: PathBuf,
        connections: usize,
        more: &[(&str, &str)],
    ) -> io::Result<OwnServer> {
        let data = tempfile::Builder::new().prefix("seckill-rehearsal-").tempdir()?;
        let settings = data.path().join("seckill.toml");
        std::fs::write(&settings, "")?;
        let log = data.path().join(LOG_FILE);
        let mut launch = Launch::new(binary, data.path().join("data"))
            .without_settings_of_the_caller()
            // By name, so that a rehearsal does not depend on what a bare run means.
            .env("SECKILL_AUTH_DEV_LOGIN", "true")
            .env("SECKILL_PAYMENT_SANDBOX", "true")
            .env("SECKILL_HTTP_CONNECTIONS_MAX", connections + OTHER_CONNECTIONS)
            .env("SECKILL_LOG_LEVEL", "warn")
            .log(&log);
        for (name, value) in more {
            launch = launch.env(name, value);
        }
        launch.args = vec!["--config".into(), settings.display().to_string()];
        let process = launch.start().await.map_err(|error| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let end = text.char_indices().rev().nth(LOG_BYTES_SHOWN).map_or(0, |(at, _)| at);
            io::Error::other(format!(
                "a server of its own does not start: {error}\n{}",
                &text[end..]
            ))
        })?;
        Ok(OwnServer { process, _data: data })
    }

    pub fn site(&self) -> Site {
        Site {
            addresses: vec![self.process.address],
            admin_token: self.process.token.clone(),
            login: None,
            own: true,
        }
    }

    /// Stop it and remove its data.
    pub async fn stop(self) -> io::Result<()> {
        self.process.stop().await?;
        Ok(())
    }
}
