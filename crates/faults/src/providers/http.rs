//! As much HTTP/1.1 as two companies need who talk to a shop: a server that can also answer by half or
//! not at all, and a client that posts once.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 * 1024;
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Providers wait five seconds for the answer to a notice.
const POST_WITHIN: Duration = Duration::from_secs(5);

/// What came, headers in small letters.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query, as they were sent.
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn path(&self) -> &str {
        self.target.split_once('?').map_or(&self.target, |(path, _)| path)
    }

    pub(super) fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Answer {
        let headers = vec![("content-type".to_owned(), kind.to_owned())];
        Answer { status, headers, body: body.into() }
    }

    /// As it goes over the wire. A 204 has no body, and does not say how long it is.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Told\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.status != 204 {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }
}

/// The next request of a connection; `None` at its end, or if it is none.
pub(super) async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let (used, length, mut request) = loop {
        match head(buffer) {
            Ok(Some(found)) => break found,
            Ok(None) if buffer.len() < HEAD_BYTES_MAX => more(stream, buffer).await?,
            _ => return None,
        }
    };
    if length > BODY_BYTES_MAX {
        return None;
    }
    while buffer.len() < used + length {
        more(stream, buffer).await?;
    }
    request.body = buffer[used..used + length].to_vec();
    buffer.drain(..used + length);
    Some(request)
}

async fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let read = stream.read_buf(buffer).await.ok()?;
    (read > 0).then_some(())
}

/// Where the head ends, how long the body is, and the request without it.
fn head(buffer: &[u8]) -> Result<Option<(usize, usize, Request)>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(used) = parsed.parse(buffer)? else { return Ok(None) };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = parsed.headers.iter();
    let headers = headers.map(|header| (header.name.to_ascii_lowercase(), text(header.value)));
    let request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        target: parsed.path.unwrap_or_default().to_owned(),
        headers: headers.collect(),
        body: Vec::new(),
    };
    let length = request.header("content-length").map_or(Ok(0), str::parse);
    let length = length.map_err(|_| httparse::Error::HeaderValue)?;
    Ok(Some((used, length, request)))
}

/// Post once and hear the answer: its status and its body.
pub(super) async fn post(
    url: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    let (address, path) =
        place(url).ok_or_else(|| io::Error::other(format!("{url} is no place")))?;
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&[request.as_bytes(), body].concat()).await?;
        let mut answer = Vec::new();
        let limit = (HEAD_BYTES_MAX + BODY_BYTES_MAX) as u64;
        stream.take(limit).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(POST_WITHIN, talk).await.map_err(io::Error::other)??;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut headers);
    match parsed.parse(&answer).map_err(io::Error::other)? {
        httparse::Status::Complete(used) => {
            Ok((parsed.code.unwrap_or_default(), answer[used..].to_vec()))
        }
        httparse::Status::Partial => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The address and the path of a URL on this machine.
fn place(url: &str) -> Option<(SocketAddr, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (address, path) = rest.split_at(rest.find('/')?);
    Some((address.parse().ok()?, path))
}

/// The fields of a form or a query, decoded, in the order in which they came.
pub(super) fn fields(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        })
        .collect()
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], code) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Fields as a form.
pub(super) fn form(fields: &[(String, String)]) -> String {
    let pairs: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    pairs.join("&")
}

pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' => {
                out.push(byte as char);
            }
            b' ' => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_come_back_as_they_went() {
        let there = vec![
            ("subject".to_owned(), "茶 & a+b = 100%".to_owned()),
            ("empty".to_owned(), String::new()),
        ];
        assert_eq!(fields(&form(&there)), there);
        assert_eq!(fields("a=%zz&b"), [("a".into(), "%zz".into()), ("b".into(), String::new())]);
    }

    #[test]
    fn a_request_in_pieces_is_not_there_before_its_last_byte() {
        let whole = b"POST /v3/pay?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}";
        for cut in 0..whole.len() - 2 {
            let found = head(&whole[..cut]).unwrap();
            assert!(found.is_none(), "{cut}");
        }
        let (used, length, request) = head(whole).unwrap().unwrap();
        assert_eq!(
            (used + length, request.path(), request.query()),
            (whole.len(), "/v3/pay", "x=1")
        );
        assert_eq!(request.header("host"), Some("h"));
    }
}
