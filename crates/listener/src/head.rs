//! What the head of a request must say before anybody serves it.
//!
//! Hyper refuses much of this as well, but without a word that a client or an operator could read,
//! and is generous where two readers of one request could understand two things (two lengths, a
//! length beside chunks, no host or two). Proxies before us read heads, too; whatever could be read
//! in two ways is refused.

use http::Uri;
use httparse::Header;

use crate::Refusal;

/// Hyper keeps addresses in sixteen bits.
const URI_BYTES_MAX: usize = u16::MAX as usize - 1;

/// The fields of a head.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub(crate) &'a [Header<'a>]);

impl<'a> Fields<'a> {
    /// The values of all fields of this name.
    pub fn all(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = move |header: &&Header<'a>| header.name.eq_ignore_ascii_case(name);
        self.0.iter().filter(named).map(|header| header.value)
    }

    pub fn first(self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }
}

/// Where the body of a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Bytes(usize),
    Chunked,
}

/// Take the fields of a head together: where its body ends, or why nobody serves it. `version` is the
/// minor one.
pub(crate) fn check(
    version: u8,
    path: &str,
    fields: Fields<'_>,
    body_bytes_max: usize,
) -> Result<BodyLength, Refusal> {
    let mut said = Said::default();
    for header in fields.0 {
        said.add(version, header)?;
    }
    if said.hosts != 1 && (version > 0 || said.hosts > 1) {
        return Err(Refusal::BadRequest);
    }
    check_address(path)?;
    if said.expects_otherwise {
        return Err(Refusal::ExpectationFailed);
    }
    match (said.length, said.chunked) {
        (Some(_), true) => Err(Refusal::BadRequest),
        (None, true) => Ok(BodyLength::Chunked),
        (None, false) => Ok(BodyLength::Bytes(0)),
        (Some(length), false) if length <= body_bytes_max as u64 => {
            Ok(BodyLength::Bytes(length as usize))
        }
        (Some(_), false) => Err(Refusal::BodyTooLarge),
    }
}

/// What the fields that were read so far say of the body and the host.
#[derive(Default)]
struct Said {
    hosts: u32,
    length: Option<u64>,
    chunked: bool,
    expects_otherwise: bool,
}

impl Said {
    fn add(&mut self, version: u8, header: &Header<'_>) -> Result<(), Refusal> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("host") {
            self.hosts += 1;
            if !is_host(header.value) {
                return Err(Refusal::BadRequest);
            }
        } else if is("content-length") {
            let length = read_length(header.value).ok_or(Refusal::BadRequest)?;
            if self.length.replace(length).is_some() {
                return Err(Refusal::BadRequest);
            }
        } else if is("transfer-encoding") {
            // Of the codings only this one is understood, once, and not in the old protocol.
            if version == 0 || self.chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(Refusal::BadRequest);
            }
            self.chunked = true;
        } else if is("expect") && version > 0 {
            self.expects_otherwise |= !header.value.eq_ignore_ascii_case(b"100-continue");
        }
        Ok(())
    }
}

/// Digits and nothing else. More than fit are as many as there can be.
pub(crate) fn read_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(std::str::from_utf8(value).ok()?.parse().unwrap_or(u64::MAX))
}

/// A name or an address, and perhaps a port: the characters that RFC 3986 has for them. It may be
/// empty.
pub(crate) fn is_host(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(byte))
}

fn check_address(path: &str) -> Result<(), Refusal> {
    if path.len() > URI_BYTES_MAX {
        return Err(Refusal::HeadTooLarge);
    }
    // What hyper makes of it; a path that is plain needs no second look.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~?&=%:@,;+".contains(&byte);
    if path.starts_with('/') && path.bytes().all(plain) {
        return Ok(());
    }
    Uri::try_from(path).map(drop).map_err(|_| Refusal::BadRequest)
}

/// Finds the end of a chunked body in what comes of it. Hyper reads it; this only tells it from the
/// request behind it, so what is written wrongly is left to hyper: nothing after it is a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// In the line that begins a chunk; its length so far, and whether digits may still come.
    Size {
        size: u64,
        digits: bool,
    },
    /// In a chunk and the line end behind it: so many bytes are left.
    Data(u64),
    /// In the lines behind the last chunk; how long the present one is.
    Trailer(usize),
    Ended,
    /// It makes no sense.
    Garbled,
}

impl Chunks {
    pub(crate) fn begin() -> Chunks {
        Chunks::Size { size: 0, digits: true }
    }

    /// How many of these bytes belong to the body.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && *self != Chunks::Ended {
            at += self.step(&bytes[at..]);
        }
        at
    }

    fn step(&mut self, bytes: &[u8]) -> usize {
        let byte = bytes[0];
        match *self {
            Chunks::Data(left) => {
                let taken = left.min(bytes.len() as u64);
                *self = if taken == left { Chunks::begin() } else { Chunks::Data(left - taken) };
                return taken as usize;
            }
            Chunks::Size { size: 0, .. } if byte == b'\n' => *self = Chunks::Trailer(0),
            Chunks::Size { size, .. } if byte == b'\n' => *self = Chunks::Data(size + 2),
            Chunks::Size { size, digits } => {
                *self = match char::from(byte).to_digit(16).filter(|_| digits) {
                    Some(digit) if size >> 56 == 0 => {
                        Chunks::Size { size: size * 16 + u64::from(digit), digits }
                    }
                    Some(_) => Chunks::Garbled,
                    None => Chunks::Size { size, digits: false },
                };
            }
            Chunks::Trailer(0) if byte == b'\n' => *self = Chunks::Ended,
            Chunks::Trailer(_) if byte == b'\n' => *self = Chunks::Trailer(0),
            Chunks::Trailer(length) if byte != b'\r' => *self = Chunks::Trailer(length + 1),
            Chunks::Trailer(_) | Chunks::Ended => {}
            Chunks::Garbled => return bytes.len(),
        }
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(version: u8, fields: &[(&str, &str)]) -> Result<BodyLength, Refusal> {
        let header =
            |(name, value): &(&'static str, &'static str)| Header { name, value: value.as_bytes() };
        // The lifetimes of literals, so that the table below can be a table.
        let fields: Vec<(&'static str, &'static str)> = fields
            .iter()
            .map(|(name, value)| (&*name.to_string().leak(), &*value.to_string().leak()))
            .collect();
        let headers: Vec<Header<'_>> = fields.iter().map(header).collect();
        check(version, "/", Fields(&headers), 1_000)
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        let host = ("Host", "shop:8080");
        for (version, fields, answer) in [
            (1, &[host][..], Ok(BodyLength::Bytes(0))),
            (1, &[("host", "")], Ok(BodyLength::Bytes(0))),
            (1, &[], Err(Refusal::BadRequest)),
            (0, &[], Ok(BodyLength::Bytes(0))),
            (1, &[host, host], Err(Refusal::BadRequest)),
            (0, &[host, host], Err(Refusal::BadRequest)),
            (1, &[("host", "a b")], Err(Refusal::BadRequest)),
            (1, &[("host", "a/b")], Err(Refusal::BadRequest)),
            (1, &[("host", "me@shop")], Err(Refusal::BadRequest)),
            (1, &[host, ("content-length", "17")], Ok(BodyLength::Bytes(17))),
            (1, &[host, ("content-length", "1000")], Ok(BodyLength::Bytes(1_000))),
            (1, &[host, ("content-length", "1001")], Err(Refusal::BodyTooLarge)),
            (1, &[host, ("content-length", "99999999999999999999999")], Err(Refusal::BodyTooLarge)),
            (1, &[host, ("content-length", "+1")], Err(Refusal::BadRequest)),
            (1, &[host, ("content-length", "-1")], Err(Refusal::BadRequest)),
            (1, &[host, ("content-length", "1, 1")], Err(Refusal::BadRequest)),
            (1, &[host, ("content-length", "0x1")], Err(Refusal::BadRequest)),
            (1, &[host, ("content-length", "")], Err(Refusal::BadRequest)),
            (
                1,
                &[host, ("content-length", "1"), ("Content-Length", "2")],
                Err(Refusal::BadRequest),
            ),
            (
                1,
                &[host, ("content-length", "1"), ("Content-Length", "1")],
                Err(Refusal::BadRequest),
            ),
            (1, &[host, ("Transfer-Encoding", "Chunked")], Ok(BodyLength::Chunked)),
            (0, &[host, ("transfer-encoding", "chunked")], Err(Refusal::BadRequest)),
            (1, &[host, ("transfer-encoding", "gzip, chunked")], Err(Refusal::BadRequest)),
            (1, &[host, ("transfer-encoding", "identity")], Err(Refusal::BadRequest)),
            (
                1,
                &[host, ("transfer-encoding", "chunked"), ("content-length", "1")],
                Err(Refusal::BadRequest),
            ),
            (1, &[host, ("expect", "100-Continue")], Ok(BodyLength::Bytes(0))),
            (1, &[host, ("expect", "a miracle")], Err(Refusal::ExpectationFailed)),
            (0, &[host, ("expect", "a miracle")], Ok(BodyLength::Bytes(0))),
        ] {
            assert_eq!(checked(version, fields), answer, "1.{version} {fields:?}");
        }
    }

    #[test]
    fn an_address_is_one_that_can_be_taken_apart() {
        let host = [Header { name: "host", value: b"s" }];
        let ask = |path: &str| check(1, path, Fields(&host), 0).err();
        for good in ["/", "/api/v1/items/42", "*", "/?q=%E4%B8%80", "http://shop/x", "/a|b"] {
            assert_eq!(ask(good), None, "{good}");
        }
        for bad in ["http://", "http://[", "a b"] {
            assert_eq!(ask(bad), Some(Refusal::BadRequest), "{bad}");
        }
        assert_eq!(ask(&format!("/{}", "x".repeat(70_000))), Some(Refusal::HeadTooLarge));
    }

    #[test]
    fn the_end_of_chunks_is_found_in_any_pieces() {
        let body =
            b"5;name=value\r\nhello\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nx-sum: 1\r\n\r\n";
        let behind = b"GET / HTTP/1.1\r\n";
        let all = [&body[..], behind].concat();
        for pieces in [1, 2, 3, 7, all.len()] {
            let mut chunks = Chunks::begin();
            let taken: usize = all.chunks(pieces).map(|piece| chunks.take(piece)).sum();
            assert_eq!((taken, chunks), (body.len(), Chunks::Ended), "in pieces of {pieces}");
        }
        let mut plain = Chunks::begin();
        assert_eq!(plain.take(b"0\r\n\r\nGET"), 5);
        let mut absurd = Chunks::begin();
        assert_eq!(absurd.take(b"ffffffffffffffffff\r\n0\r\n\r\n"), 25, "hyper refuses it");
    }
}
