//! Sentinels: who is the primary now?
//!
//! All of them are asked at once, and of those who answer the one with the latest configuration is
//! believed: a sentinel that was cut off, or has just come back, still names the server of before. It is
//! enough that more than half answer; one that hangs is not waited for.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult, Value};

use crate::{
    line::{Line, Request, read},
    servers::{Node, RedisServers, at, too_late},
};

/// All sentinels together answer within this.
const ANSWER_WITHIN: Duration = Duration::from_millis(1_000);
/// What they said so long ago is not asked for again: several connections are opened at once.
const FRESH: Duration = Duration::from_millis(100);

pub(crate) struct Sentinels {
    all: Vec<(ConnectionInfo, Line)>,
    name: String,
    /// How the servers are logged into.
    server: ConnectionInfo,
    known: tokio::sync::Mutex<Option<Known>>,
}

struct Known {
    at: Instant,
    primary: Primary,
}

/// As one sentinel says. The later configuration is the greater one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Primary {
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinels {
    pub(crate) fn new(all: Vec<ConnectionInfo>, name: String, server: ConnectionInfo) -> Sentinels {
        let all = all.into_iter().map(|info| (info, Line::default())).collect();
        Sentinels { all, name, server, known: tokio::sync::Mutex::default() }
    }

    pub(crate) fn info(&self, n: usize) -> ConnectionInfo {
        self.all[n].0.clone()
    }

    /// The primary, and whether it is another one than before.
    pub(crate) async fn primary(
        &self,
        servers: &RedisServers,
    ) -> RedisResult<(ConnectionInfo, bool)> {
        let mut known = self.known.lock().await;
        if let Some(Known { primary, .. }) = known.as_ref().filter(|k| k.at.elapsed() < FRESH) {
            return Ok((at(&self.server, &primary.host, primary.port), false));
        }
        let found = self.ask_all(servers).await?;
        let place = |primary: &Primary| (primary.host.clone(), primary.port);
        let before = known.as_ref().map(|known| place(&known.primary));
        let is_new = before.is_some_and(|before| before != place(&found));
        if is_new {
            tracing::info!(host = %found.host, port = found.port,
                "the sentinels name another primary, connections go there");
        }
        let info = at(&self.server, &found.host, found.port);
        *known = Some(Known { at: Instant::now(), primary: found });
        Ok((info, is_new))
    }

    async fn ask_all(&self, servers: &RedisServers) -> RedisResult<Primary> {
        let mut asked: FuturesUnordered<_> =
            (0..self.all.len()).map(|n| self.ask(servers, n)).collect();
        let (mut answers, mut failure): (Vec<Primary>, Option<RedisError>) = (Vec::new(), None);
        let collect = async {
            while let Some(answer) = asked.next().await {
                match answer {
                    Ok(primary) => answers.push(primary),
                    Err(error) => failure = Some(error),
                }
                if answers.len() > self.all.len() / 2 {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(ANSWER_WITHIN, collect).await;
        answers.into_iter().max().ok_or_else(|| failure.unwrap_or_else(too_late))
    }

    async fn ask(&self, servers: &RedisServers, n: usize) -> RedisResult<Primary> {
        let mut both = redis::pipe();
        both.cmd("SENTINEL").arg("MASTER").arg(&self.name);
        both.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let line = &self.all[n].1;
        let request = Request::Answers(&both);
        let sent = line.send(servers, &Node::Sentinel(n), ANSWER_WITHIN, request).await;
        let (answer, _) = sent.map_err(|(error, _)| error)?;
        understand(answer).ok_or_else(|| {
            let what = format!("a sentinel gave no address for {}", self.name);
            (ErrorKind::UnexpectedReturnType, "sentinel", what).into()
        })
    }
}

/// The first answer has the epoch of the configuration. The second names the server: while a failover is
/// finished it is the new one already, which the first is not.
fn understand(answers: Value) -> Option<Primary> {
    let [master, address]: [Value; 2] = read::<Vec<Value>>(answers).ok()?.try_into().ok()?;
    let master: std::collections::HashMap<String, String> = read(master).ok()?;
    let (host, port): (String, u16) = read(address).ok()?;
    Some(Primary { epoch: master.get("config-epoch")?.parse().ok()?, host, port })
}
