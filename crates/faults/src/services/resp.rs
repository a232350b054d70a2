//! The least of a Redis client: enough to ask a server how it is. One command, one answer.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Nothing these tests ask for is larger.
const BULK_BYTES_MAX: i64 = 64 * 1024 * 1024;

/// What Redis says. Its errors are `io::Error`s with its words.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Nil,
    Text(String),
    Number(i64),
    List(Vec<Reply>),
}

impl Reply {
    /// Text as it is, numbers in digits; nothing for the rest.
    pub fn text(&self) -> String {
        match self {
            Reply::Text(text) => text.clone(),
            Reply::Number(number) => number.to_string(),
            Reply::Nil | Reply::List(_) => String::new(),
        }
    }

    /// What a list begins with.
    pub fn first(&self) -> Option<&Reply> {
        match self {
            Reply::List(list) => list.first(),
            _ => None,
        }
    }
}

/// A connection to one server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    pub fn call(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| strange(line))?;
        let number = || rest.parse::<i64>().map_err(|_| strange(line));
        match kind {
            "+" => Ok(Reply::Text(rest.to_owned())),
            "-" => Err(io::Error::other(rest.to_owned())),
            ":" => Ok(Reply::Number(number()?)),
            "$" => self.bulk(number()?),
            "*" => {
                let count = number()?;
                (count >= 0)
                    .then(|| (0..count).map(|_| self.reply()).collect::<io::Result<_>>())
                    .map_or(Ok(Reply::Nil), |list| Ok(Reply::List(list?)))
            }
            _ => Err(strange(line)),
        }
    }

    fn bulk(&mut self, length: i64) -> io::Result<Reply> {
        if length < 0 {
            return Ok(Reply::Nil);
        }
        if length > BULK_BYTES_MAX {
            return Err(strange("a text longer than anything asked for"));
        }
        let mut bytes = vec![0; length as usize + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length as usize);
        Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn strange(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an answer of Redis: {line}"))
}
