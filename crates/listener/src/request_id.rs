//! The name of one request, by which its answer, its log lines and its row in the audit are found.
//!
//! We make it ourselves: one that a client chose could be somebody else's, or write what it likes
//! into our logs. Behind a proxy of ours (`http.proxy_hops`) the proxy's is taken, so that both logs
//! name the request alike; it must still look like an id. Making one costs an addition:
//! requests of the fast path get theirs, too.

use std::{
    fmt,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use http::HeaderValue;

pub const REQUEST_ID: &str = "x-request-id";
const ID_CHARS_MAX: usize = 64;
/// Of the digits of an id, those that tell this process from others, and those that count.
const PROCESS_DIGITS: usize = 8;
const COUNT_DIGITS: usize = 12;

/// Among the extensions of every request of the router, and in every [`FastRequest`](crate::FastRequest).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId {
    text: [u8; ID_CHARS_MAX],
    length: u8,
}

impl RequestId {
    /// A new one: which process, and which of its requests.
    pub fn generate() -> RequestId {
        static PROCESS: LazyLock<u32> = LazyLock::new(|| {
            let mut random = [0; 4];
            // Without it ids of two processes may be alike, which is a nuisance and no more.
            let _ = getrandom::fill(&mut random);
            u32::from_ne_bytes(random)
        });
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        let mut id = RequestId { text: [0; ID_CHARS_MAX], length: 0 };
        id.write_hex(u64::from(*PROCESS), PROCESS_DIGITS);
        id.write_hex(count, COUNT_DIGITS);
        id
    }

    /// The proxy's, if there is one before us and it gave one; else a new one.
    pub(crate) fn of<'a>(
        mut given: impl Iterator<Item = &'a [u8]>,
        proxy_hops: usize,
    ) -> RequestId {
        if proxy_hops == 0 {
            return RequestId::generate();
        }
        match (given.next(), given.next()) {
            (Some(text), None) => RequestId::read(text).unwrap_or_else(RequestId::generate),
            _ => RequestId::generate(),
        }
    }

    fn read(text: &[u8]) -> Option<RequestId> {
        let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        if !(1..=ID_CHARS_MAX).contains(&text.len()) || !text.iter().all(good) {
            return None;
        }
        let mut id = RequestId { text: [0; ID_CHARS_MAX], length: text.len() as u8 };
        id.text[..text.len()].copy_from_slice(text);
        Some(id)
    }

    fn write_hex(&mut self, number: u64, digits: usize) {
        for n in (0..digits).rev() {
            let digit = (number >> (4 * n)) & 0xf;
            self.text[usize::from(self.length)] = b"0123456789abcdef"[digit as usize];
            self.length += 1;
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.length)]
    }

    pub fn as_str(&self) -> &str {
        // All of it is ASCII.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_bytes(self.as_bytes()).ok()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_only_a_proxy_of_ours_may_choose_one() {
        let (one, two) = (RequestId::generate(), RequestId::generate());
        assert_ne!(one, two);
        assert_eq!(one.as_str().len(), PROCESS_DIGITS + COUNT_DIGITS);
        let of = |given: &[&str], hops| {
            RequestId::of(given.iter().map(|text| text.as_bytes()), hops).as_str().to_owned()
        };
        assert_eq!(of(&["7f3a-1"], 1), "7f3a-1");
        let long = "x".repeat(ID_CHARS_MAX + 1);
        for (given, hops) in [
            (&["7f3a-1"][..], 0),
            (&[], 1),
            (&[""], 1),
            (&["a", "b"], 1),
            (&["a b"], 1),
            (&["a\nINFO forged"], 1),
            (&["<script>"], 1),
            (&[long.as_str()], 1),
        ] {
            let made = of(given, hops);
            assert!(!given.contains(&made.as_str()) && made.len() == 20, "{given:?}: {made}");
        }
    }
}
