//! The address a request comes from, as far as it can be trusted.

use std::net::{IpAddr, SocketAddr};

/// What proxies say about whom they ask for.
pub(crate) const FORWARDED_FOR: &str = "x-forwarded-for";

/// The client's address: that of the socket, or the one our own proxies vouch for. It is among the
/// extensions of every request of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub IpAddr);

impl Peer {
    /// Each proxy appends the address it was called from, so with `hops` proxies of ours the client
    /// is the entry that many places from the right. Everything left of it was sent by the client
    /// and may say anything. `forwarded`: the values of the field, as often as one asks for them.
    pub(crate) fn of<'a, I>(socket: IpAddr, hops: usize, forwarded: impl Fn() -> I) -> Peer
    where
        I: Iterator<Item = &'a [u8]>,
    {
        // As bytes: what a client sent stands in one line with what a proxy adds to it, and must not make
        // that line unreadable. The address of the proxy is exempt from limits as a rule.
        let entries = || forwarded().flat_map(|value| value.split(|byte| *byte == b','));
        let vouched = || {
            let place = entries().count().checked_sub(hops)?;
            read_address(std::str::from_utf8(entries().nth(place)?).ok()?.trim())
        };
        let address = if hops == 0 { None } else { vouched() };
        Peer(address.unwrap_or(socket).to_canonical())
    }
}

/// Some proxies write the port as well.
fn read_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| text.parse().ok().map(|socket: SocketAddr| socket.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_as_many_proxies_as_configured_are_believed() {
        let socket = "10.0.0.1".parse().unwrap();
        let peer = |forwarded: &[&str], hops| {
            let values = || forwarded.iter().map(|value| value.as_bytes());
            Peer::of(socket, hops, values).0.to_string()
        };
        assert_eq!(peer(&["1.1.1.1"], 0), "10.0.0.1");
        assert_eq!(peer(&["6.6.6.6, 2.2.2.2"], 1), "2.2.2.2");
        assert_eq!(peer(&["6.6.6.6", "2.2.2.2,3.3.3.3"], 2), "2.2.2.2");
        assert_eq!(peer(&["2.2.2.2"], 2), "10.0.0.1");
        assert_eq!(peer(&[], 1), "10.0.0.1");
        assert_eq!(peer(&["nonsense"], 1), "10.0.0.1");
        assert_eq!(peer(&["[2001:db8::1]:443"], 1), "2001:db8::1");
        assert_eq!(peer(&["::ffff:4.4.4.4"], 1), "4.4.4.4");
    }

    #[test]
    fn nobody_hides_behind_a_proxy_by_sending_bytes_that_are_no_text() {
        let values = || [&b"6.6.6.6, \xff\xfe, 2.2.2.2"[..]].into_iter();
        let socket = "10.0.0.1".parse().unwrap();
        assert_eq!(Peer::of(socket, 1, values).0.to_string(), "2.2.2.2");
        let values = || [&b"\xff"[..], b"2.2.2.2,3.3.3.3"].into_iter();
        assert_eq!(Peer::of(socket, 2, values).0.to_string(), "2.2.2.2");
    }
}
