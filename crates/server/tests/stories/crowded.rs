//! One address holds every connection that a server has, silent, slow or idle, and more wait to be let in:
//! another buyer gets in, every time.
//!
//! A process may have only so many files, and so may whoever runs these stories. The server has a process of
//! its own, and half of a large crowd has another: so there are as many connections as one process can have,
//! and more who want one.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use client::NewSale;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};

use crate::fixtures::{Deployment, Profile, Sale, now_ms, until};

const MANNERS: [&str; 4] = ["silent", "half a head", "half a body", "idle"];
/// The address of buyers, another one of this machine than that of the crowd. It is the few who choose
/// theirs: a port that was chosen with its address is nobody else's here, wherever they want to go.
const BUYERS: &str = "127.0.0.2:0";
/// Whoever of the crowd is sent away is back after this.
const BACK_AFTER: Duration = Duration::from_secs(5);
const OPENING_AT_ONCE_MAX: usize = 200;
/// How the other half of a crowd is told whom to crowd, in which manner, and how many they are.
const OTHER_HALF: &str = "CROWD_OF_A_STORY";
const THEY_STAND: &str = "they stand at the door";

/// Keep this many connections in this manner, for ever; those that are closed are opened again. `all_came` is
/// called when everybody had one for the first time.
async fn hold(
    server: SocketAddr,
    manner: &'static str,
    count: usize,
    all_came: impl FnOnce() + Send + 'static,
) {
    let opening = std::sync::Arc::new(tokio::sync::Semaphore::new(OPENING_AT_ONCE_MAX));
    let (came, mut coming) = tokio::sync::mpsc::unbounded_channel();
    let mut crowd = JoinSet::new();
    for _ in 0..count {
        let (opening, came) = (opening.clone(), came.clone());
        crowd.spawn(async move {
            loop {
                let turn = opening.acquire().await;
                let stream = one(server, manner).await;
                drop(turn);
                let _ = came.send(());
                if let Ok(mut stream) = stream {
                    // Until the server has enough of it.
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
                tokio::time::sleep(BACK_AFTER).await;
            }
        });
    }
    for _ in 0..count {
        coming.recv().await;
    }
    all_came();
    // Those who come back later are not counted.
    while coming.recv().await.is_some() {}
}

async fn one(server: SocketAddr, manner: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(server).await?;
    match manner {
        "half a head" => stream.write_all(b"GET / HTTP/1.1\r\nhost:").await?,
        "half a body" => {
            // A provider's notice, which is read to its end before it is judged, and never limited.
            let head = "POST /api/v1/payments/sandbox/notify HTTP/1.1\r\nhost: s\r\n\
                        content-type: application/json\r\ncontent-length: 99\r\n\r\n{";
            stream.write_all(head.as_bytes()).await?;
        }
        "idle" => {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: s\r\n\r\n").await?;
            stream.read_buf(&mut Vec::with_capacity(1_024)).await?;
        }
        _ => {}
    }
    Ok(stream)
}

/// Those for whom this process has no files.
struct OtherHalf(Child);

impl OtherHalf {
    /// They are all there when this returns.
    fn gather(server: SocketAddr, manner: &str, count: usize) -> OtherHalf {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "crowded::the_other_half_of_a_crowd"])
            .env(OTHER_HALF, format!("{server}/{manner}/{count}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(THEY_STAND)), "they never came");
        OtherHalf(child)
    }
}

impl Drop for OtherHalf {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No story: a part of the one below, in a process of its own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the story of twenty thousand"]
async fn the_other_half_of_a_crowd() {
    let Ok(told) = std::env::var(OTHER_HALF) else { return };
    let mut told = told.split('/');
    let (server, manner, count) =
        (told.next().unwrap(), told.next().unwrap(), told.next().unwrap());
    let manner = MANNERS.into_iter().find(|known| *known == manner).unwrap();
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    hold(server.parse().unwrap(), manner, count.parse().unwrap(), || println!("{THEY_STAND}"))
        .await;
}

/// `room`: connections that the server takes; `share`: those that one address may have.
async fn sale_with(room: usize, share: usize) -> Sale {
    let mut deployment = Deployment::new(Profile::Solo)
        .env("SECKILL_HTTP_CONNECTIONS_MAX", room)
        .env("SECKILL_HTTP_CONNECTIONS_PER_ADDRESS_MAX", share)
        // Addresses of this machine are exempt by default.
        .env("SECKILL_HTTP_EXEMPT_NETWORKS", "192.0.2.0/24");
    // Patient with everybody: whoever leaves has made room for somebody.
    for (wait, ms) in [
        ("HEADER", 60_000),
        ("BODY", 600_000),
        ("IDLE", 600_000),
        ("WRITE", 600_000),
        ("REQUEST", 600_000),
    ] {
        deployment = deployment.env(&format!("SECKILL_HTTP_{wait}_TIMEOUT_MS"), ms);
    }
    deployment.open_sale(NewSale::of(1_000_000)).await
}

/// What a buyer hears, on a connection of their own.
async fn ask(server: SocketAddr, request: &str) -> std::io::Result<String> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(BUYERS.parse().unwrap())?;
    let mut stream = socket.connect(server).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await?;
    Ok(heard)
}

async fn connections(server: SocketAddr) -> usize {
    let request = "GET /metrics HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n";
    let text = ask(server, request).await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("seckill_connections "));
    line.unwrap().parse().unwrap()
}

/// One after the other; how long each took.
async fn buy(sale: &Sale, name: &str, buyers: usize) -> Vec<Duration> {
    let (server, expires_ms) = (sale.server().address, now_ms() + 600_000);
    let mut times = Vec::new();
    for n in 0..buyers {
        let user = format!("{name}{n}").parse().unwrap();
        let item = sale::ItemId(sale.item);
        let token = sale::SaleToken { user, item, expires_ms, from_ms: None };
        let request = format!(
            "POST /api/v1/items/{item}/claims HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\
             x-sale-token: {}\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n\
             {{\"quantity\":1}}",
            token.sign(&sale.deployment.keys())
        );
        let began = Instant::now();
        let told = ask(server, &request).await;
        let told = told.unwrap_or_else(|why| panic!("buyer {n} does not get in: {why}"));
        assert!(told.starts_with("HTTP/1.1 202"), "buyer {n}: {told}");
        times.push(began.elapsed());
    }
    times.sort();
    times
}

/// `here` of the crowd are of this process, and `elsewhere` of another one.
async fn another_buyer_gets_in(
    room: usize,
    share: usize,
    (here, elsewhere): (usize, usize),
    buyers: usize,
) {
    for manner in MANNERS {
        let sale = sale_with(room, share).await;
        let server = sale.server().address;
        let (told, all_came) = tokio::sync::oneshot::channel();
        let holding = tokio::spawn(hold(server, manner, here, move || told.send(()).unwrap()));
        all_came.await.unwrap();
        let gather = move || OtherHalf::gather(server, manner, elsewhere);
        let other_half = match elsewhere {
            0 => None,
            _ => Some(tokio::task::spawn_blocking(gather).await.unwrap()),
        };
        let held = room.min(share).min(here + elsewhere);
        let most = |open: &usize| *open >= held * 95 / 100;
        until("the crowd has what it can have", async || connections(server).await, most).await;
        let times = buy(&sale, manner.split(' ').next_back().unwrap(), buyers).await;
        println!(
            "{} connections of one address, {manner}, {room} in all and {share} for one address: \
             {buyers} buyers got in, p50 {:?}, at most {:?}; {} were open then",
            here + elsewhere,
            times[buyers / 2],
            times[buyers - 1],
            connections(server).await
        );
        holding.abort();
        drop(other_half);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_one_address_keeps_nobody_out() {
    another_buyer_gets_in(250, 250, (300, 0), 100).await;
    another_buyer_gets_in(400, 250, (300, 0), 100).await;
}

/// As many as the server can have files for, and more who want in.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: twenty thousand connections, four times"]
async fn twenty_thousand_connections_of_one_address_keep_nobody_out() {
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap() as usize;
    let room = (files - 1_000).min(19_000);
    another_buyer_gets_in(room, room, (10_000, 10_000), 1_000).await;
}
