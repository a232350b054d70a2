//! The yardstick: a bare axum server that reads the body of a claim as JSON and sends it back.
//!
//! It verifies nothing, decides nothing and remembers nothing, so it is about what a request costs
//! in axum, hyper, tokio and the kernel. It runs as a process of its own, with as many threads as
//! the server has, and is asked by the same client with the same bytes.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use axum::{Json, Router, routing::post, serve::ListenerExt};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::Failure;

/// The child of this program that is the echo; see [`serve`].
pub(crate) const ECHO: &str = "--echo";

#[derive(Serialize, Deserialize)]
struct EchoRequest {
    quantity: u32,
}

/// Serve until killed. The first line of the output is the address.
pub(crate) async fn serve() -> Result<(), Failure> {
    let echo = post(async |Json(wish): Json<EchoRequest>| Json(wish));
    let router = Router::new().route("/api/v1/items/{id}/claims", echo);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let listener = listener.tap_io(|socket| {
        let _ = socket.set_nodelay(true);
    });
    Ok(axum::serve(listener, router).await?)
}

/// The running process.
pub(crate) struct Echo {
    child: Killed,
    pub(crate) address: SocketAddr,
}

impl Echo {
    pub(crate) fn start() -> Result<Echo, Failure> {
        let this = std::env::current_exe()?;
        let mut child = Killed(Command::new(this).arg(ECHO).stdout(Stdio::piped()).spawn()?);
        let output = child.0.stdout.take().ok_or("the echo has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse().map_err(|_| "the echo did not start")?;
        Ok(Echo { child, address })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }
}

/// A child that does not outlive us.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
