//! A small HTTP/1.1 client: one connection, one request at a time, kept alive.
//!
//! The load generator shares two cores with what it measures, so it must be lean; and a test wants
//! to see broken connections as they are, without a pool that hides them.

use std::{io::Write, net::SocketAddr, time::Duration};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Answers are small; one that is not is a bug.
const BODY_BYTES_MAX: usize = 256 << 20;
const HEADERS_MAX: usize = 64;
/// Longer than any server-side time-out, so that only a hung server meets it.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// From the status line to the empty line; looked into only when somebody asks.
    head: Vec<u8>,
    pub body: Vec<u8>,
}

impl Response {
    /// A response that nobody sent, for tests of those who read responses.
    pub fn of(status: u16, body: &str) -> Response {
        Response { status, head: Vec::new(), body: body.into() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.split(|&byte| byte == b'\n').skip(1);
        lines
            .filter_map(|line| std::str::from_utf8(line).ok()?.split_once(':'))
            .find_map(|(header, value)| header.eq_ignore_ascii_case(name).then_some(value.trim()))
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or(serde_json::Value::Null)
    }

    /// The stable code of a problem, or nothing.
    pub fn code(&self) -> Option<String> {
        self.json()["code"].as_str().map(str::to_owned)
    }
}

/// Write a request as it goes over the wire.
pub fn write_request(
    out: &mut Vec<u8>,
    host: SocketAddr,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) {
    let line = write!(out, "{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
    line.expect("a vector takes everything");
    for (name, value) in headers {
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    let end = write!(out, "content-length: {}\r\n\r\n", body.len());
    end.expect("a vector takes everything");
    out.extend_from_slice(body);
}

/// One kept-alive connection.
pub struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    buffer: BytesMut,
    out: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, address, buffer: BytesMut::with_capacity(4_096), out: Vec::new() })
    }

    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Response> {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        write_request(&mut out, self.address, (method, path), headers, body);
        let answer = timeout(ANSWER_WITHIN, self.exchange(&out)).await;
        self.out = out;
        answer.map_err(std::io::Error::other)?
    }

    /// Send a request that was written before, and wait for its answer, however long that takes.
    pub async fn exchange(&mut self, request: &[u8]) -> std::io::Result<Response> {
        self.write(request).await?;
        self.read().await
    }

    /// Send one or several requests that were written before; their answers come in this order.
    pub async fn write(&mut self, requests: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(requests).await
    }

    /// The next answer.
    pub async fn read(&mut self) -> std::io::Result<Response> {
        loop {
            if let Some(head) = self.head()? {
                let body = match head.length {
                    Length::Bytes(length) => self.bytes(length).await?,
                    Length::Chunks => self.chunks().await?,
                };
                return Ok(Response { status: head.status, head: head.text, body });
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> std::io::Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn head(&mut self) -> std::io::Result<Option<Head>> {
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut headers);
        let status = parsed.parse(&self.buffer).map_err(std::io::Error::other)?;
        let httparse::Status::Complete(used) = status else { return Ok(None) };
        let status = parsed.code.unwrap_or(0);
        let mut length = Length::Bytes(0);
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(header.value).ok();
                let bytes = text.and_then(|text| text.parse().ok());
                length = Length::Bytes(
                    bytes.ok_or_else(|| std::io::Error::other("content-length is no number"))?,
                );
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                length = Length::Chunks;
                break;
            }
        }
        let text = self.buffer[..used].to_vec();
        self.buffer.advance(used);
        Ok(Some(Head { status, text, length }))
    }

    async fn bytes(&mut self, length: usize) -> std::io::Result<Vec<u8>> {
        if length > BODY_BYTES_MAX {
            return Err(std::io::Error::other("the answer is too long"));
        }
        while self.buffer.len() < length {
            self.more().await?;
        }
        let bytes = self.buffer[..length].to_vec();
        self.buffer.advance(length);
        Ok(bytes)
    }

    async fn chunks(&mut self) -> std::io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let parsed = httparse::parse_chunk_size(&self.buffer)
                .map_err(|_| std::io::Error::other("not a chunk"))?;
            let httparse::Status::Complete((used, size)) = parsed else {
                self.more().await?;
                continue;
            };
            self.buffer.advance(used);
            let chunk = self.bytes(size as usize + 2).await?;
            if size == 0 {
                return Ok(body);
            }
            body.extend(&chunk[..size as usize]);
            if body.len() > BODY_BYTES_MAX {
                return Err(std::io::Error::other("the answer is too long"));
            }
        }
    }
}

struct Head {
    status: u16,
    text: Vec<u8>,
    length: Length,
}

enum Length {
    Bytes(usize),
    Chunks,
}
