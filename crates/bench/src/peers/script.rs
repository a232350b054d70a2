//! One script call per buyer, over bare sockets: no client library stands in its way.

use std::net::SocketAddr;

use faults::services::Redis;
use gate::NumberedRequest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::Failure;

/// "You won", as Redis writes it.
const WON: &[u8] = b":0\r\n";

pub(crate) struct Script {
    sha: String,
}

/// A connection, and what will be sent over it.
pub(crate) struct ScriptClient {
    stream: TcpStream,
    /// Requests that go out together, and how many buyers they are.
    requests: Vec<(Vec<u8>, usize)>,
}

impl Script {
    pub(crate) fn load(redis: &Redis) -> Result<Script, Failure> {
        let sha = redis.call(&["SCRIPT", "LOAD", include_str!("seckill.lua")])?.text();
        Ok(Script { sha })
    }

    /// Connected, with everything it will say written out.
    pub(crate) async fn client(
        &self,
        address: SocketAddr,
        requests: &[NumberedRequest],
        pipeline: usize,
    ) -> Result<ScriptClient, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let request = |together: &[NumberedRequest]| {
            let text: String = together.iter().map(|request| self.call(request)).collect();
            (text.into_bytes(), together.len())
        };
        Ok(ScriptClient { stream, requests: requests.chunks(pipeline).map(request).collect() })
    }

    fn call(&self, (order_no, request): &NumberedRequest) -> String {
        let (item, order) = (request.item.to_string(), order_no.as_u64().to_string());
        let words = ["EVALSHA", &self.sha, "0", &item, request.user.as_str(), &order];
        let mut call = format!("*{}\r\n", words.len());
        for word in words {
            call.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        call
    }
}

impl ScriptClient {
    pub(crate) async fn run(mut self) -> Result<(), Failure> {
        let mut answers = Vec::with_capacity(4 * 1_024);
        for (request, buyers) in &self.requests {
            self.stream.write_all(request).await?;
            answers.clear();
            while answers.len() < buyers * WON.len() {
                if self.stream.read_buf(&mut answers).await? == 0 {
                    return Err("Redis closed the connection".into());
                }
                if !answers.chunks_exact(WON.len()).all(|answer| answer == WON) {
                    let said = String::from_utf8_lossy(&answers).into_owned();
                    return Err(format!("the script answered {said}").into());
                }
            }
        }
        Ok(())
    }
}
