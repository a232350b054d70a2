//! A master that is cut off from most of its cluster and not from us: it refuses everything at once, and
//! says nothing of the one that was chosen in its place.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{count, link, until_counted};

/// What a member says: of the map, and when it is asked to count.
type Says = dyn Fn(&str) -> String + Send + Sync;

/// The words of one command; nothing when the other side is gone.
async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let words: usize = line.strip_prefix('*')?.trim().parse().ok()?;
    let mut command = Vec::new();
    for _ in 0..words {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        let length: usize = line.strip_prefix('$')?.trim().parse().ok()?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await.ok()?;
        command.push(String::from_utf8_lossy(&word[..length]).into_owned());
    }
    Some(command)
}

async fn serve(stream: TcpStream, says: Arc<Says>) {
    let mut stream = BufReader::new(stream);
    while let Some(command) = command(&mut stream).await {
        let answer = match command[0].as_str() {
            "CLUSTER" | "INCR" => says(&command[0]),
            _ => "+OK\r\n".into(),
        };
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn play(listener: TcpListener, says: Arc<Says>) {
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, says.clone()));
        }
    });
}

/// `CLUSTER NODES`: the first is the master of all slots, the second its replica.
fn map(master: SocketAddr, replica: SocketAddr, epoch: u64) -> String {
    let place = |address: SocketAddr| format!("{address}@{}", address.port());
    let (master, replica) = (place(master), place(replica));
    let text = format!(
        "m {master} master - 0 0 {epoch} connected 0-16383\n\
         r {replica} slave m 0 0 {epoch} connected\n"
    );
    format!("${}\r\n{text}\r\n", text.len())
}

#[tokio::test]
async fn a_master_that_says_the_cluster_is_down_is_left_for_the_one_chosen_in_its_place() {
    let [one, two] =
        [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await]
            .map(Result::unwrap);
    let [old, new] = [&one, &two].map(|listener| listener.local_addr().unwrap());
    let is_cut_off = Arc::new(AtomicBool::new(false));
    let cut_off = is_cut_off.clone();
    play(
        one,
        Arc::new(move |asked| match asked {
            "CLUSTER" => map(old, new, 1),
            _ if cut_off.load(Ordering::SeqCst) => "-CLUSTERDOWN The cluster is down\r\n".into(),
            _ => ":1\r\n".into(),
        }),
    );
    let cut_off = is_cut_off.clone();
    play(
        two,
        Arc::new(move |asked| match asked {
            "CLUSTER" if cut_off.load(Ordering::SeqCst) => map(new, old, 2),
            "CLUSTER" => map(old, new, 1),
            _ => ":2\r\n".into(),
        }),
    );
    let link = link(&format!("redis://{old},redis://{new}")).await;
    assert_eq!(count(&link, "a").await.unwrap(), 1);
    is_cut_off.store(true, Ordering::SeqCst);
    let refused = count(&link, "a").await.unwrap_err();
    assert_eq!(refused.code(), Some("CLUSTERDOWN"));
    let after = until_counted(&link, "a").await;
    println!("counting {after:.1?} after another one was chosen");
    assert_eq!(count(&link, "a").await.unwrap(), 2);
}
