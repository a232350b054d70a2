//! A server for tests that answers as it is told, and remembers what it was asked.

use std::{collections::HashMap, sync::Arc};

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

pub(crate) type Answering = Box<dyn Fn(&Asked) -> (u16, HeaderMap, Vec<u8>) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct TestServer {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl TestServer {
    pub(crate) async fn start(answering: Answering) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (seen, answering) = (asked.clone(), Arc::new(answering));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answering.clone(), seen.clone()));
            }
        });
        TestServer { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }
}

async fn serve(mut stream: TcpStream, answering: Arc<Answering>, seen: Arc<Mutex<Vec<Asked>>>) {
    let mut buffer = Vec::new();
    loop {
        let Some(asked) = whole(&mut buffer) else {
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
            continue;
        };
        seen.lock().push(asked.clone());
        let (status, headers, body) = answering(&asked);
        let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in &headers {
            head += &format!("{name}: {}\r\n", value.to_str().unwrap());
        }
        // A 204 has neither body nor length.
        if status == 204 {
            head = head.replace("content-length: 0\r\n", "");
        }
        let answer = [head.as_bytes(), b"\r\n", &body].concat();
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Takes a whole request out of what was read.
fn whole(buffer: &mut Vec<u8>) -> Option<Asked> {
    let end = buffer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let all = end + 4 + length;
    if buffer.len() < all {
        return None;
    }
    let body = String::from_utf8(buffer[end + 4..all].to_vec()).unwrap();
    buffer.drain(..all);
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    Some(Asked { method, path, headers, body })
}
