//! Addresses, as limits see them: which network they are in, and what counts as one address.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// A subscriber is given this much of IPv6, and can have as many addresses as they like in it.
const IPV6_PREFIX_BITS: u32 = 64;

/// What counts as one address: an IPv4 one, or the first half of an IPv6 one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subscriber(u64, bool);

impl Subscriber {
    pub fn of(address: IpAddr) -> Subscriber {
        match address.to_canonical() {
            IpAddr::V4(v4) => Subscriber(u64::from(v4.to_bits()), false),
            IpAddr::V6(v6) => Subscriber((v6.to_bits() >> (128 - IPV6_PREFIX_BITS)) as u64, true),
        }
    }

    /// The same in every process, for a table that they share.
    pub(crate) fn name(self) -> String {
        format!("{:x}{}", self.0, if self.1 { "/64" } else { "" })
    }
}

/// A range of addresses, written as `10.0.0.0/8`; an address alone is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    first: IpAddr,
    bits: u32,
}

impl Network {
    /// Is this address in it? One of IPv4 that is written as one of IPv6 is the same address.
    pub fn contains(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let all = if self.first.is_ipv4() { 32 } else { Ipv6Addr::BITS };
        let apart = number_of(self.first) ^ number_of(address);
        address.is_ipv4() == self.first.is_ipv4()
            && apart.checked_shr(all - self.bits).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || {
            format!("{text:?} is no network: write \"10.0.0.0/8\", \"::1\" or \"2001:db8::/32\"")
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = if first.is_ipv4() { 32 } else { Ipv6Addr::BITS };
        let bits = match bits {
            None => all,
            // The parser of numbers would take a sign.
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().ok().filter(|bits| *bits <= all).ok_or_else(wrong)?
            }
            Some(_) => return Err(wrong()),
        };
        if first.to_canonical() != first {
            return Err(format!("{text:?} is an address of IPv4: write it as one"));
        }
        // 10.1.2.3/8 may mean one address or sixteen million.
        if number_of(first).trailing_zeros().min(all) < all - bits {
            return Err(format!("{text:?} names more of the address than its {bits} bits"));
        }
        Ok(Network { first, bits })
    }
}

fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Network, String> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_own() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::1"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("203.0.113.7", "203.0.113.7", "::203.0.113.7"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("::1", "::1", "::2"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("2001:db8::/32", "2001:db8::", "32.1.13.184"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("192.168.0.0/16", "::ffff:192.168.3.4", "::ffff:192.169.3.4"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{network} {outside}");
            assert_eq!(network.to_string().parse(), Ok(network));
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for wrong in [
            "",
            "/",
            "host",
            " 10.0.0.1",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "10.1.0.0/8",
            "2001:db8::1/64",
            "::/129",
            "::ffff:10.0.0.0/104",
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_subscriber_of_ipv6_is_one_address() {
        let of = |text: &str| Subscriber::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:1.2.3.4"), of("1.2.3.4"));
        assert_ne!(of("1.2.3.4"), of("1.2.3.5"));
        assert_ne!(of("0.0.0.1"), of("0:0:0:1::"), "an address of one kind is none of the other");
    }
}
